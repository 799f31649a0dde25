"""Who may open and see what: every page against every role, first as a rule, then over HTTP."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from dashboards_installation import PEOPLE, Installation
from forebay_dashboards.access import Owner, View, may_open, may_read_statement, may_see, sees_all
from forebay_dashboards.service import ROUTES
from forebay_service.identity import Identity, identity_of
from tornado.web import RequestHandler

VIEWS: tuple[View, ...] = ("usage", "tenant", "operator")
OPENS: dict[str, set[View]] = {
    "acme-member": {"usage"},
    "acme-owner": {"usage", "tenant"},
    "acme-billing": {"usage", "tenant"},
    "operator": {"usage", "operator"},
    "service": set(),
}
PAGES = {
    "usage": "usage",
    "usage/totals": "usage",
    "usage/budgets": "usage",
    "usage/live": "usage",
    "usage/records": "usage",
    "usage/spread": "usage",
    "usage/notebook?label=a.ipynb": "usage",
    "usage/notices": "usage",
    "usage/timeline": "usage",
    "usage/timeline/chart": "usage",
    "usage.csv": "usage",
    "jobs": "usage",
    "jobs/list": "usage",
    "shared": "usage",
    "tenant": "tenant",
    "tenant/spend": "tenant",
    "tenant/live": "tenant",
    "tenant/people": "tenant",
    "tenant/budgets": "tenant",
    "tenant/budgets/terms": "tenant",
    "tenant/budgets/terms/budget": "tenant",
    "tenant/budgets/terms/budget/edit": "tenant",
    "tenant/alerts": "tenant",
    "tenant/reports": "tenant",
    "tenant/bills": "tenant",
    "operator": "operator",
    "operator/live": "operator",
    "operator/money": "operator",
    "operator/trends": "operator",
    "operator/leases": "operator",
    "operator/leases/rows": "operator",
    "operator/queue": "operator",
    "operator/sessions": "operator",
    "operator/devices/rows": "operator",
    "operator/nodes": "operator",
    "operator/nodes/map": "operator",
    "operator/timeline": "operator",
    "operator/timeline/chart": "operator",
    "operator/quotas": "operator",
    "operator/shares": "operator",
    "operator/payments": "operator",
    "operator/alerts": "operator",
    "operator/search?q=a": "operator",
    "operator/tenants": "operator",
    "operator/tenants/rows": "operator",
    "operator/tenant/acme": "operator",
    "operator/tenant/acme/spend": "operator",
    "operator/tenant/acme/live": "operator",
    "operator/tenant/acme/terms": "operator",
    "operator/tenant/acme/owed": "operator",
    "operator/tenant/acme/people": "operator",
    "operator/tenant/acme/terms/quota": "operator",
    "operator/tenant/acme/terms/quota/edit": "operator",
    "operator/usage": "operator",
    "operator/usage/table": "operator",
    "operator/invoices": "operator",
    "operator/flavors": "operator",
    "operator/flavors/table": "operator",
    "operator/flavors/new": "operator",
    "operator/flavors/dev.1gb/row": "operator",
    "operator/flavors/dev.1gb/edit": "operator",
    "operator/flavors/dev.1gb/prices": "operator",
    "operator/suggestions": "operator",
    "operator/price-list": "operator",
    "operator/plans": "operator",
    "operator/surcharges": "operator",
    "operator/audit": "operator",
}


def visitor(name: str) -> Identity:
    return identity_of(PEOPLE[name])


CHANGES = (
    "operator/flavors/dev.1gb/edit", "operator/flavors/new",
    "operator/price-list", "operator/plans", "operator/quotas", "operator/surcharges", "operator/payments",
    "operator/suggestions", "operator/alerts",
    *(f"operator/tenant/acme/terms/{key}/edit" for key in ("quota", "plan", "currency", "tax", "budget", "credit")),
)  # fmt: skip
"""Pages that take what an operator changes."""
OWNERS = (
    "tenant/people", "tenant/people/acme-member", "tenant/budgets/terms/budget/edit", "tenant/alerts", "tenant/reports", "tenant/bills",
    "tenant/shared",
)  # fmt: skip
"""Pages that take what a tenant's administrators change."""
ACTIONS = (
    "operator/sessions/none/park", "operator/sessions/none/move", "operator/sessions/none/revoke", "operator/sessions/none/end",
    "operator/devices/none/close", "operator/devices/none/open", "operator/nodes/none/drain", "operator/nodes/none/return",
)  # fmt: skip
"""Each asks, and then does it; of things that are not there."""
ELSEWHERE = (
    *ACTIONS, "jobs/7", "shared/7", "shared/7/page", "statement", "invoice", "report", "help", "language", "events", "oauth_callback",
    "static/style.css", "health", "metrics",
)  # fmt: skip
"""Answers that are for others than a page's readers, each with tests of its own below or beside this file."""


def test_every_route_is_in_the_table() -> None:
    unknown = []
    for pattern, handler in ROUTES:
        known = [path for path in (*PAGES, *OWNERS, *ELSEWHERE) if re.fullmatch(pattern, path.partition("?")[0])]
        methods = {m for m in handler.SUPPORTED_METHODS if getattr(handler, m.lower()) is not getattr(RequestHandler, m.lower())}
        changing = (*CHANGES, *ACTIONS, *OWNERS, "jobs", "jobs/7", "shared", "usage/notices", "language")
        changes = any(re.fullmatch(pattern, path) for path in changing)
        if not known or methods - {"GET", "HEAD"} != ({"POST"} if changes else set()):
            unknown.append((pattern, methods))
    assert unknown == []


@pytest.mark.parametrize("name", OPENS)
def test_a_page_opens_for_exactly_those_it_is_for(name: str) -> None:
    assert {view for view in VIEWS if may_open(view, visitor(name))} == OPENS[name]


def test_my_usage_shows_what_is_mine_and_nothing_else() -> None:
    member = visitor("acme-member")
    assert may_see("usage", member, Owner("acme", "acme-member"))
    assert not may_see("usage", member, Owner("acme", "acme-owner"))
    assert not may_see("usage", member, Owner("globex", "acme-member"))
    assert not may_see("usage", member, Owner(None, None))


def test_the_tenant_page_shows_one_tenant() -> None:
    owner = visitor("acme-owner")
    assert may_see("tenant", owner, Owner("acme", "acme-member"))
    assert not may_see("tenant", owner, Owner("globex", "globex-owner"))
    assert not may_see("tenant", owner, Owner(None, None))
    assert not may_see("tenant", visitor("acme-member"), Owner("acme", "acme-member"))


def test_a_person_without_a_tenant_sees_no_facts_without_a_tenant() -> None:
    nobody = Identity("nobody", "user", None, frozenset({"custom:forebay:tenant"}))
    assert not may_see("tenant", nobody, Owner(None, None))


def test_operators_see_everything_on_their_page_and_only_there() -> None:
    operator = visitor("operator")
    assert may_see("operator", operator, Owner("acme", "acme-member"))
    assert may_see("operator", operator, Owner(None, None))
    assert not may_see("usage", operator, Owner("acme", "acme-member"))


def test_statements_are_for_the_tenants_admins_and_operators() -> None:
    people = ("acme-member", "acme-owner", "acme-billing", "globex-owner", "operator")
    readers = [name for name in people if may_read_statement(visitor(name), "acme")]
    assert readers == ["acme-owner", "acme-billing", "operator"]


def test_metrics_are_for_this_host_and_for_tokens_of_operators_and_services() -> None:
    assert not sees_all(None)
    assert [name for name in ("acme-owner", "operator", "service") if sees_all(visitor(name))] == ["operator", "service"]


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("name", OPENS)
def test_each_page_answers_those_it_is_for_and_refuses_the_others_with_a_sentence(cloud: Installation, name: str, path: str) -> None:
    response = cloud.get(name, path)
    if PAGES[path] in OPENS[name]:
        assert response.status_code == 200, response.text
    else:
        assert response.status_code == 403
        assert "Not yours to open" in response.text


@pytest.mark.parametrize("name", ["acme-member", "acme-owner", "operator"])
def test_the_navigation_shows_only_what_one_may_open(cloud: Installation, name: str) -> None:
    page = cloud.get(name, "usage").text
    assert {view for view in VIEWS if f'<a href="/services/dashboards/{view}"' in page} == OPENS[name]


def test_an_editor_of_prices_is_refused_to_all_but_operators_and_changes_nothing(cloud: Installation) -> None:
    asked = (
        ("billing", "prices"), ("billing", "plans"), ("billing", "surcharges"), ("pool", "quotas"), ("billing", "budgets"),
        ("billing", "credits"), ("billing", "tenants"), ("billing", "alerts/channels"),
    )  # fmt: skip

    def stands() -> list[list[dict[str, Any]]]:
        found = [cloud.ask(service, "operator", "GET", f"api/{what}") for service, what in asked]
        moving = ("used_device_seconds", "decayed_device_seconds", "device_seconds", "month", "forecast_nano")
        return [[{name: value for name, value in row.items() if name not in moving} for row in rows] for rows in found]

    before = stands()
    forms = (
        {"memory": "1 GiB", "equivalents": "1 null", "price": "0.36", "currency": "USD", "stamp": "1"},
        {"name": "dev.9gb", "memory": "9 GiB", "equivalents": "1 null"},
        {"action": "apply", "list": "flavors: {dev.1gb: {USD: 0.36}}"},
        {"action": "save", "tenant": "acme", "currency": "USD", "valid_from": "2999-01", "discount": "5"},
        {"tenant": "acme", "weight": "9"},
        {"model": "null", "currency": "USD", "surcharge": "1"},
        {"id": "1", "choice": "skip", "reason": "a test"},
        {"name": "small.64gb"},
        {"add": "1", "kind": "webhook", "target": "https://alerts.example/hook"},
        {"weight": "9", "on_exhausted": "wait", "on_parked_full": "stay"},
        {"valid_from": "2999-01", "discount": "5"},
        {"currency": "EUR", "stamp": ""},
        {"label": "VAT", "rate": "19", "stamp": ""},
        {"limit": "1", "on_limit": "refuse", "window": "month"},
        {"kind": "promotional", "name": "x", "amount": "1", "stamp": "x"},
    )
    for name in ("acme-member", "acme-owner", "acme-billing", "service"):
        for path, form in zip(CHANGES, forms, strict=True):
            assert cloud.post(name, path, form).status_code == 403
    assert stands() == before


@pytest.mark.parametrize("path", OWNERS)
def test_what_a_tenants_admins_change_is_refused_to_all_others(cloud: Installation, path: str) -> None:
    for name in ("acme-member", "operator", "service"):
        assert cloud.post(name, path, {"target": "money@acme.example", "limit": "1", "role": "owner"}).status_code == 403
    if path.startswith("tenant/people"):
        answer = cloud.post("acme-billing", path, {"role": "owner", "days": "7"})
        assert (answer.status_code, "its owners change" in answer.text) == (403, True)


@pytest.mark.parametrize("path", ACTIONS)
def test_an_action_is_for_operators_and_what_is_not_there_is_told_to_them_alone(cloud: Installation, path: str) -> None:
    for name in OPENS:
        for answer in (cloud.get(name, path), cloud.post(name, path, {"cause": "a test"})):
            assert answer.status_code == (404 if name == "operator" else 403), (name, answer.text)


def test_a_token_that_nobody_holds_is_refused(cloud: Installation) -> None:
    response = httpx.get(cloud.urls["dashboards"] + "usage", headers={"Authorization": "token made-up"})
    assert response.status_code == 403
    assert "Reload the page" in response.text


def test_somebody_without_access_to_the_service_is_told_so(cloud: Installation) -> None:
    response = cloud.get("stranger", "usage")
    assert response.status_code == 403
    assert "Ask an operator for access" in response.text


def test_metrics_through_the_proxy_need_a_token(cloud: Installation) -> None:
    forwarded = {"X-Forwarded-For": "198.51.100.7"}
    assert cloud.get(None, "metrics").status_code == 200
    assert cloud.get(None, "metrics", headers=forwarded).status_code == 403
    assert cloud.get("acme-owner", "metrics", headers=forwarded).status_code == 403
    assert cloud.get("operator", "metrics", headers=forwarded).status_code == 200
