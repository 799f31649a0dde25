"""A tenant never sees another's data: every endpoint for every role."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from conftest import Clock
from forebay_billing.errors import Forbidden
from forebay_billing.http.routes import ROUTES
from forebay_billing.ledger.access import Scope, usage_scope
from forebay_billing.model.types import UsageRecord
from forebay_service.identity import OPERATE, SERVICE, TENANT, Identity, IdentityUnavailable, SeveralTenants
from forebay_service.routes import handlers
from running_billing import Running
from tornado.web import RequestHandler

ALL = ("pool", "operator", "acme-owner", "acme-billing", "acme-member", "globex-owner", "loner", "scopeless")
SEES_ALL = {"pool", "operator"}
SEES_ACME = SEES_ALL | {"acme-owner", "acme-billing"}
PAYS_ACME = {"operator", "acme-owner", "acme-billing"}
PAYS_SOME = PAYS_ACME | {"globex-owner"}
COMPUTES = {"acme-owner", "acme-billing", "acme-member", "globex-owner"}
PREFERS = COMPUTES | {"operator", "loner"}
SEES_SOME = SEES_ACME | {"acme-member", "globex-owner"}

REQUESTS: dict[str, tuple[str, str, dict[str, Any], set[str]]] = {
    "post usage": ("POST", "/api/usage", {"json": {"records": []}}, {"pool"}),
    "heartbeat": ("POST", "/api/heartbeats", {"json": {"source": "x", "sent_at_ns": 1, "period_ns": 1, "leases": []}}, {"pool"}),
    "balance of acme": ("GET", "/api/balance?tenant=acme", {}, SEES_ACME),
    "usage of whoever asks": ("GET", "/api/usage", {}, SEES_SOME),
    "usage of acme": ("GET", "/api/usage?tenant=acme", {}, SEES_ACME | {"acme-member"}),
    "usage of another user": ("GET", "/api/usage?tenant=acme&user=acme-owner", {}, SEES_ACME),
    "usage of a user anywhere": ("GET", "/api/usage?user=acme-owner", {}, SEES_ACME | {"globex-owner"}),
    "summary of whoever asks": ("GET", "/api/summary", {}, SEES_SOME),
    "summary of acme": ("GET", "/api/summary?tenant=acme", {}, SEES_ACME | {"acme-member"}),
    "summary of another user": ("GET", "/api/summary?tenant=acme&user=acme-owner", {}, SEES_ACME),
    "costs of whoever asks's job": ("GET", "/api/job-costs?job=1", {}, SEES_SOME),
    "costs of a job of acme": ("GET", "/api/job-costs?job=1&tenant=acme", {}, SEES_ACME | {"acme-member"}),
    "costs of another user's job": ("GET", "/api/job-costs?job=1&tenant=acme&user=acme-owner", {}, SEES_ACME),
    "forecast of whoever asks": ("GET", "/api/forecast", {}, SEES_SOME),
    "forecast of acme": ("GET", "/api/forecast?tenant=acme", {}, SEES_ACME | {"acme-member"}),
    "forecast of another user": ("GET", "/api/forecast?tenant=acme&user=acme-owner", {}, SEES_ACME),
    "report of acme": ("GET", "/api/reports?tenant=acme&month=2026-11", {}, PAYS_ACME),
    "recipients of acme's report": ("GET", "/api/reports/recipients?tenant=acme", {}, PAYS_ACME),
    "add a recipient": ("POST", "/api/reports/recipients", {"json": {"tenant": "acme", "target": "a@b.example"}}, PAYS_ACME),
    "remove a recipient": ("DELETE", "/api/reports/recipients/7", {}, PAYS_SOME),
    "statement of acme": ("GET", "/api/statement?tenant=acme&month=2026-11", {}, SEES_ACME | {"acme-member"}),
    "statement of acme as csv": ("GET", "/api/statement?tenant=acme&month=2026-11&format=csv", {}, SEES_ACME | {"acme-member"}),
    "statement of acme as html": ("GET", "/api/statement?tenant=acme&month=2026-11&format=html", {}, SEES_ACME | {"acme-member"}),
    "statement of another user": ("GET", "/api/statement?tenant=acme&user=acme-owner&month=2026-11", {}, SEES_ACME),
    "statement of an unknown tenant": ("GET", "/api/statement?tenant=umbrella&month=2026-11", {}, SEES_ALL),
    "prices": ("GET", "/api/prices", {}, set(ALL)),
    "price history": ("GET", "/api/prices?history=1", {}, set(ALL)),
    "set a price": ("PUT", "/api/prices/small.64gb", {"json": {"price_nano_per_hour": 1, "currency": "USD"}}, {"operator"}),
    "surcharges": ("GET", "/api/surcharges", {}, set(ALL)),
    "set a surcharge": ("PUT", "/api/surcharges/gpu", {"json": {"surcharge_nano_per_hour": 1, "currency": "USD"}}, {"operator"}),
    "prices of parked bytes": ("GET", "/api/parked-prices", {}, set(ALL)),
    "set a price of parked bytes": ("PUT", "/api/parked-prices/USD", {"json": {"price_nano_per_gib_hour": 1}}, {"operator"}),
    "price list": ("GET", "/api/price-list", {}, set(ALL)),
    "apply a price list": ("PUT", "/api/price-list", {"content": b"prices: {}"}, {"operator"}),
    "compare a price list": ("POST", "/api/price-list/diff", {"content": b"prices: {}"}, {"operator"}),
    "preview": ("POST", "/api/preview", {"json": {}}, {"operator"}),
    "audit": ("GET", "/api/audit", {}, {"operator"}),
    "plans": ("GET", "/api/plans", {}, SEES_ACME | {"globex-owner"}),
    "plan of acme": ("GET", "/api/plans?tenant=acme", {}, SEES_ACME),
    "plans of acme from the beginning": ("GET", "/api/plans?tenant=acme&history=1", {}, SEES_ACME),
    "set a plan": ("PUT", "/api/plans/small.64gb", {"json": {"currency": "USD", "valid_from": "2027-01", "new": True}}, {"operator"}),
    "set the plan of acme": ("PUT", "/api/plans/acme", {"json": {"currency": "USD", "valid_from": "2027-01"}}, {"operator"}),
    "correct": ("POST", "/api/corrections", {"json": {"source": "pool", "id": "secret-1/1", "reason": "x"}}, {"operator"}),
    "check": ("GET", "/api/check", {}, SEES_ALL),
    "search": ("GET", "/api/search?q=acme", {}, {"operator"}),
    "energy by hour": ("GET", "/api/energy?since_ns=0", {}, SEES_ALL),
    "revenue by hour": ("GET", "/api/revenue", {}, SEES_ALL),
    "draft of acme": ("GET", "/api/drafts?tenant=acme&month=2026-11", {}, PAYS_ACME),
    "line of a draft": ("GET", "/api/drafts/lines/small.64gb?tenant=acme&month=2026-11", {}, PAYS_ACME),
    "invoices of acme": ("GET", "/api/invoices?tenant=acme", {}, PAYS_ACME),
    "finalise": ("POST", "/api/invoices", {"json": {"tenant": "acme", "month": "2026-10"}}, {"operator"}),
    "an invoice": ("GET", "/api/invoices/small.64gb", {}, PAYS_SOME),
    "line of an invoice": ("GET", "/api/invoices/small.64gb/lines/small.64gb", {}, PAYS_SOME),
    "credit note": ("POST", "/api/invoices/small.64gb/credit-notes", {"json": {"amount_minor": 1, "reason": "x"}}, {"operator"}),
    "a credit note": ("GET", "/api/credit-notes/small.64gb", {}, PAYS_SOME),
    "payment": (
        "POST",
        "/api/invoices/small.64gb/payments",
        {"json": {"amount_minor": 1, "method": "x", "reference": "x"}},
        {"operator"},
    ),
    "void": ("POST", "/api/invoices/small.64gb/void", {"json": {"reason": "x"}}, {"operator"}),
    "focus of acme": ("GET", "/api/focus?tenant=acme&month=2026-11", {}, PAYS_ACME),
    "profile": ("GET", "/api/profiles/small.64gb", {}, {"operator"}),
    "profile of acme": ("GET", "/api/profiles/acme", {}, PAYS_ACME),
    "change the profile of acme": ("PUT", "/api/profiles/acme", {"json": {"legal_name": "Acme"}}, PAYS_ACME),
    "change the tax of acme": ("PUT", "/api/profiles/acme", {"json": {"tax_bps": 0}}, {"operator"}),
    "tenants that whoever asks may see": ("GET", "/api/tenants", {}, PAYS_SOME),
    "how acme stands": ("GET", "/api/tenants?tenant=acme", {}, PAYS_ACME),
    "names of tenants in an order": ("GET", "/api/tenants/order?sort=budget", {}, {"operator"}),
    "rows of tenants": ("GET", "/api/tenants/rows?tenant=acme&tenant=globex", {}, {"operator"}),
    "currencies of tenants": ("GET", "/api/currencies", {}, SEES_ALL),
    "credits of acme": ("GET", "/api/credits?tenant=acme", {}, PAYS_ACME),
    "grant credit": (
        "POST",
        "/api/credits",
        {"json": {"tenant": "acme", "kind": "prepaid", "name": "x", "amount_minor": 1}},
        {"operator"},
    ),
    "refund credit": ("POST", "/api/credits/small.64gb/refund", {"json": {"reason": "x"}}, {"operator"}),
    "budgets of whoever asks": ("GET", "/api/budgets", {}, SEES_SOME),
    "budgets of acme": ("GET", "/api/budgets?tenant=acme", {}, SEES_ACME | {"acme-member"}),
    "budgets of another user": ("GET", "/api/budgets?tenant=acme&user=acme-owner", {}, SEES_ACME),
    "set a budget of acme": ("PUT", "/api/budgets", {"json": {"tenant": "acme", "limit_nano": 1, "new": True}}, PAYS_ACME),
    "set a budget of an own label": ("PUT", "/api/budgets", {"json": {"notebook": "a", "limit_nano": 1}}, COMPUTES | {"operator"}),
    "remove a budget": ("DELETE", "/api/budgets/small.64gb", {}, COMPUTES | {"operator"}),
    "alerts of whoever asks": ("GET", "/api/alerts", {}, SEES_SOME),
    "alerts of acme": ("GET", "/api/alerts?tenant=acme", {}, SEES_ACME | {"acme-member"}),
    "alerts of another user": ("GET", "/api/alerts?tenant=acme&user=acme-owner", {}, SEES_ACME),
    "channels of acme": ("GET", "/api/alerts/channels?tenant=acme", {}, PAYS_ACME),
    "add a channel of acme": (
        "POST",
        "/api/alerts/channels",
        {"json": {"tenant": "acme", "kind": "webhook", "target": "https://example.com/"}},
        PAYS_ACME,
    ),
    "retry a channel": ("POST", "/api/alerts/channels/small.64gb", {"json": {"action": "retry"}}, PAYS_SOME),
    "remove a channel": ("DELETE", "/api/alerts/channels/small.64gb", {}, PAYS_SOME),
    "have a letter sent": ("POST", "/api/letters", {"json": {"to": "a@b.example", "subject": "x", "text": "x"}}, {"pool"}),
    "tell of a cell": ("POST", "/api/notices", {"json": {"kind": "ended", "notebook": "a.ipynb", "seconds": 1}}, COMPUTES),
    "tell of a job": (
        "POST",
        "/api/notices/jobs",
        {"json": {"key": "1/ended", "tenant": "acme", "user": "acme-member", "job": 1, "kind": "ended", "label": "job 1: a", "seconds": 1}},
        {"pool"},
    ),
    "own preferences of notices": ("GET", "/api/notices/preferences", {}, PREFERS),
    "change own preferences of notices": ("PATCH", "/api/notices/preferences", {"json": {"jobs": "all"}}, PREFERS),
    "own channels of notices": ("GET", "/api/notices/channels", {}, COMPUTES),
    "add a channel of notices": ("POST", "/api/notices/channels", {"json": {"kind": "slack", "target": "https://example.com/"}}, COMPUTES),
    "confirm a channel of notices": ("POST", "/api/notices/channels/small.64gb", {"json": {"code": "x"}}, COMPUTES),
    "remove a channel of notices": ("DELETE", "/api/notices/channels/small.64gb", {}, COMPUTES),
    "contact": ("GET", "/api/payments/contacts/small.64gb", {}, {"operator"}),
    "contact of acme": ("GET", "/api/payments/contacts/acme", {}, PAYS_ACME),
    "change the contact of acme": ("PUT", "/api/payments/contacts/acme", {"json": {"name": "x"}}, PAYS_ACME),
    "payments of acme": ("GET", "/api/payments/invoices?tenant=acme", {}, PAYS_ACME),
    "customer portal of acme": ("POST", "/api/payments/portal", {"json": {"tenant": "acme"}}, PAYS_ACME),
    "outbox": ("GET", "/api/payments/outbox", {}, {"operator"}),
    "dead letter": ("POST", "/api/payments/outbox/small.64gb", {"json": {"action": "retry", "reason": "x"}}, {"operator"}),
    "reconciliation": ("GET", "/api/payments/reconciliation?since_ns=0&until_ns=1", {}, {"operator"}),
    "metrics through a proxy": ("GET", "/metrics", {"headers": {"X-Forwarded-For": "192.0.2.1"}}, SEES_ALL),
}


def fill(running: Running, usage: Callable[..., UsageRecord]) -> None:
    running.post_usage(
        usage("secret-1/1", user="acme-owner"),
        usage("secret-2/1", user="acme-member"),
        usage("secret-3/1", tenant="globex", user="globex-owner"),
        usage("secret-4/1", tenant="globex", user="acme-member"),
    )


@pytest.fixture
def filled(running: Running, usage: Callable[..., UsageRecord]) -> Any:
    fill(running, usage)
    return running


@pytest.fixture(scope="module")
def asked(
    make_settings: Callable[[Path], Any], running_service: Any, usage: Callable[..., UsageRecord], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """One service for all requests: who may ask is no matter of what was asked before."""
    service = running_service(make_settings(tmp_path_factory.mktemp("asked")), Clock())
    fill(service, usage)
    yield service
    service.stop()


NOT_THERE = {"contact of acme": {"globex-owner"}, "change the contact of acme": {"globex-owner"}}
NOT_THERE |= {name: {"globex-owner"} for name in ("profile of acme", "change the profile of acme", "change the tax of acme")}
NOT_THERE |= {name: {"acme-owner", "acme-billing", "globex-owner"} for name in ("contact", "profile")}
"""Who may ask of one tenant, and asks for another by its path: a 404, whether there is such a tenant or not."""


def test_every_method_of_every_endpoint_is_in_the_matrix() -> None:
    """Stripe has no token and proves itself by a signature instead."""
    served = {
        (method, pattern)
        for pattern, handler in handlers(ROUTES).items()
        for method in handler.SUPPORTED_METHODS
        if getattr(handler, method.lower()) is not getattr(RequestHandler, method.lower())
    }
    assert sorted((route.method, route.pattern) for route in ROUTES) == sorted(served)
    asked = {
        next((method, route.pattern) for route in ROUTES if re.fullmatch(route.pattern, path.split("?")[0].lstrip("/")))
        for method, path, _, _ in REQUESTS.values()
    }
    assert served - asked == {("GET", "health"), ("GET", "api/openapi.json"), ("POST", "api/payments/webhook")}
    assert asked <= served


@pytest.mark.parametrize("name", REQUESTS)
def test_each_endpoint_answers_those_who_may_and_refuses_the_others(asked: Any, name: str) -> None:
    method, path, options, allowed = REQUESTS[name]
    for caller in ALL:
        response = asked.request(caller, method, path, **{key: copy(value) for key, value in options.items()})
        if caller in allowed:
            assert response.status_code not in (401, 403), (caller, response.text)
        elif caller in NOT_THERE.get(name, ()):
            assert response.status_code == 404 and "secret" not in response.text, (caller, response.text)
        else:
            assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden"), (caller, response.text)
            assert "secret" not in response.text
    for headers in ({}, {"Authorization": "token expired-and-gone"}, {"Authorization": "Basic dTpw"}, {"Authorization": "token"}):
        options = {**REQUESTS[name][2]}
        response = asked.request(None, method, path, **{**options, "headers": {**options.get("headers", {}), **headers}})
        assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthorized")


@pytest.mark.parametrize(
    ("caller", "visible"),
    [
        ("pool", {"secret-1/1", "secret-2/1", "secret-3/1", "secret-4/1"}),
        ("operator", {"secret-1/1", "secret-2/1", "secret-3/1", "secret-4/1"}),
        ("acme-owner", {"secret-1/1", "secret-2/1"}),
        ("acme-billing", {"secret-1/1", "secret-2/1"}),
        ("acme-member", {"secret-2/1"}),
        ("globex-owner", {"secret-3/1", "secret-4/1"}),
    ],
)
def test_each_role_sees_its_part(filled: Any, caller: str, visible: set[str]) -> None:
    records = filled.get(caller, "/api/usage").json()["records"]
    assert {record["id"] for record in records} == visible
    rows = filled.get(caller, "/api/summary").json()
    assert {(row["tenant"], row["user"]) for row in rows} == {(record["tenant"], record["user"]) for record in records}
    assert sum(row["leases"] for row in rows) == len(visible)


def test_usage_stays_with_the_tenant_it_happened_in_when_somebody_moves(filled: Any) -> None:
    """A member of acme that has used globex before (secret-4) sees it there no more, globex's owner still does, and acme's never."""
    people = ("acme-member", "globex-owner", "acme-owner")
    seen = {who: {record["id"] for record in filled.get(who, "/api/usage").json()["records"]} for who in people}
    assert "secret-4/1" in seen["globex-owner"] and "secret-4/1" not in seen["acme-member"] | seen["acme-owner"]
    assert filled.get("acme-member", "/api/usage", tenant="globex").status_code == 403


def test_a_login_in_two_tenants_is_refused_with_a_sentence(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def torn(self: object, token: str) -> None:
        raise SeveralTenants("ann", ["acme", "bolt"])

    monkeypatch.setattr("forebay_service.identity.TokenAuthenticator.identify", torn)
    response = filled.get("acme-owner", "/api/usage")
    assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden")
    assert "acme and bolt" in response.json()["error"]["message"]


def test_a_page_cursor_does_not_widen_what_is_seen(filled: Any) -> None:
    page = filled.get("pool", "/api/usage", limit=1).json()
    seen = filled.get("acme-member", "/api/usage", cursor=page["next"]).json()["records"]
    assert {record["id"] for record in seen} <= {"secret-2/1"}


def test_a_member_gets_only_their_own_lines_of_the_statement(filled: Any) -> None:
    query = {"tenant": "acme", "month": "2026-11"}
    assert [line["user"] for line in filled.get("acme-member", "/api/statement", **query).json()["lines"]] == ["acme-member"]
    assert [line["user"] for line in filled.get("acme-owner", "/api/statement", **query).json()["lines"]] == ["acme-member", "acme-owner"]
    for layout in ("csv", "html"):
        assert "acme-owner" not in filled.get("acme-member", "/api/statement", **query, format=layout).text


def test_a_proxied_token_in_the_bearer_form_is_accepted(filled: Any) -> None:
    token = filled.settings.tokens[0].token
    assert filled.request(None, "GET", "/api/prices", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_an_unreachable_hub_is_a_503_and_not_a_refusal(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(self: object, token: str) -> None:
        raise IdentityUnavailable("JupyterHub cannot be reached; try again.")

    monkeypatch.setattr("forebay_service.identity.TokenAuthenticator.identify", unavailable)
    response = filled.get("pool", "/api/prices")
    assert (response.status_code, response.json()["error"]["code"], response.headers["retry-after"]) == (503, "unavailable", "1")


def identity(kind: Any, tenant: str | None, *scopes: str) -> Identity:
    return Identity("ann", kind, tenant, frozenset(scopes))


@pytest.mark.parametrize(
    ("caller", "tenant", "user", "scope"),
    [
        (identity("service", None, SERVICE), None, None, Scope(None, None)),
        (identity("user", None, OPERATE), "acme", None, Scope("acme", None)),
        (identity("user", "acme", TENANT), None, None, Scope("acme", None)),
        (identity("user", "acme", TENANT), None, "bob", Scope("acme", "bob")),
        (identity("user", "acme"), None, None, Scope("acme", "ann")),
        (identity("user", "acme"), "acme", "ann", Scope("acme", "ann")),
    ],
)
def test_a_scope_is_never_wider_than_the_caller(caller: Identity, tenant: str | None, user: str | None, scope: Scope) -> None:
    assert usage_scope(caller, tenant, user) == scope


@pytest.mark.parametrize(
    ("caller", "tenant", "user"),
    [
        (identity("user", "acme", TENANT), "globex", None),
        (identity("user", "acme"), None, "bob"),
        (identity("user", "acme"), "globex", "ann"),
        (identity("user", None, TENANT), None, None),
        (identity("user", None), "acme", "ann"),
        (identity("service", "acme", TENANT), "acme", None),
        (identity("service", None), None, None),
    ],
)
def test_a_question_beyond_the_caller_is_refused(caller: Identity, tenant: str | None, user: str | None) -> None:
    with pytest.raises(Forbidden):
        usage_scope(caller, tenant, user)
