"""What billing's ``api/openapi.json`` says is what billing does: answers as described, to what is right and to whatever is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
import schemathesis
from conftest import CALLERS, NOVEMBER, NOW_NS
from forebay_billing.http.routes import ROUTES
from forebay_billing.model.types import PARKED, UsageRecord
from forebay_service.routes import Route
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from running_billing import Running
from schemathesis import GenerationMode
from schemathesis import checks as conforms
from test_billing_access import REQUESTS

EXAMPLES = 6
DECEMBER_NS = NOVEMBER.end_ns + 5 * 86_400 * 10**9
OF_STRIPE = "api/payments/"
TRIES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("operator", "PUT", "api/parked-prices/USD", {"json": {"price_nano_per_gib_hour": 10**6, "valid_from_ns": NOVEMBER.start_ns}}),
    ("operator", "PUT", "api/surcharges/cpu-dev", {"json": {"surcharge_nano_per_hour": 10**9, "currency": "USD"}}),
    ("operator", "PUT", "api/plans/acme", {"json": {"currency": "USD", "valid_from": "2026-11", "discount_bps": 500, "new": True}}),
    ("operator", "PUT", "api/profiles/acme", {"json": {"legal_name": "Acme", "tax_label": "VAT", "tax_bps": 1000}}),
    ("operator", "POST", "api/credits", {"json": {"tenant": "acme", "kind": "prepaid", "name": "Ahead", "amount_minor": 2}}),
    ("acme-owner", "PUT", "api/budgets", {"json": {"limit_nano": 1, "thresholds": [50]}}),
    ("acme-owner", "POST", "api/alerts/channels", {"json": {"kind": "webhook", "target": "http://127.0.0.1:9/"}}),
    ("acme-owner", "POST", "api/reports/recipients", {"json": {"target": "a@b.example"}}),
    ("operator", "PUT", "api/prices/small.64gb", {"json": {"price_nano_per_hour": 10**9, "currency": "USD"}}),
    ("acme-member", "GET", "api/usage", {}),
    ("operator", "GET", "api/summary", {"params": {"by": "tenant,user,flavor,kind,notebook,cell", "tenant": "acme"}}),
    ("operator", "GET", "api/summary", {"params": {"by": "day", "since_ns": NOVEMBER.start_ns, "until_ns": NOW_NS}}),
    ("acme-member", "GET", "api/job-costs", {"params": {"job": [17, 18], "since_ns": 0}}),
    ("operator", "GET", "api/energy", {"params": {"since_ns": 0}}),
    ("acme-owner", "GET", "api/forecast", {}),
    ("acme-owner", "GET", "api/statement", {"params": {"month": "2026-11"}}),
    ("operator", "GET", "api/prices", {"params": {"history": "1"}}),
    ("operator", "GET", "api/surcharges", {"params": {"history": "1"}}),
    ("operator", "GET", "api/plans", {"params": {"history": "1"}}),
    ("operator", "POST", "api/price-list/diff", {"content": b"prices: {}", "headers": {"Content-Type": "application/yaml"}}),
    ("operator", "PUT", "api/price-list", {"content": b"prices: {}", "headers": {"Content-Type": "application/yaml"}}),
    ("operator", "POST", "api/preview", {"json": {"month": "2026-11", "plans": {"acme": {"currency": "USD", "free_nano": 10**9}}}}),
    ("acme-owner", "GET", "api/budgets", {}),
    ("acme-member", "GET", "api/budgets", {}),
    ("acme-owner", "GET", "api/alerts", {}),
    ("acme-owner", "GET", "api/alerts/channels", {}),
    ("acme-owner", "POST", "api/alerts/channels/1", {"json": {"action": "retry"}}),
    ("acme-owner", "DELETE", "api/alerts/channels/1", {}),
    ("acme-member", "POST", "api/notices/channels", {"json": {"kind": "slack", "target": "http://127.0.0.1:9/"}}),
    ("acme-member", "POST", "api/notices", {"json": {"kind": "ended", "notebook": "a.ipynb", "seconds": 1.5}}),
    ("pool", "POST", "api/notices/jobs", {"json": {
        "key": "k", "tenant": "acme", "user": "acme-member", "notify": "all", "job": 1,
        "kind": "ended", "label": "job 1: a.py", "seconds": 1.5,
    }}),
    ("acme-member", "PATCH", "api/notices/preferences", {"json": {"language": "ko"}}),
    ("acme-member", "GET", "api/notices/preferences", {}),
    ("acme-member", "GET", "api/notices/channels", {}),
    ("acme-member", "POST", "api/notices/channels/1", {"json": {"code": "none is needed"}}),
    ("acme-member", "DELETE", "api/notices/channels/1", {}),
    ("acme-owner", "GET", "api/reports/recipients", {}),
    ("acme-owner", "DELETE", "api/reports/recipients/1", {}),
    ("operator", "GET", "api/tenants/rows", {"params": {"tenant": ["acme", "globex"]}}),
    ("acme-owner", "GET", "api/drafts", {"params": {"month": "2026-11"}}),
    ("acme-owner", "DELETE", "api/budgets/1", {}),
    ("operator", "GET", "api/audit", {"params": {"limit": 1000}}),
    ("operator", "GET", "api/payments/outbox", {}),
    ("operator", "GET", "api/payments/invoices", {"params": {"tenant": "acme"}}),
    ("operator", "GET", "metrics", {}),
)
"""With right answers; numbers count from 1."""
AFTERWARDS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("operator", "POST", "api/invoices", {"json": {"tenant": "acme", "month": "2026-11"}}),
    ("operator", "POST", "api/invoices/INV-000001/credit-notes", {"json": {"amount_minor": 1, "reason": "a gift"}}),
    ("operator", "POST", "api/invoices/INV-000001/payments", {"json": {"amount_minor": 1, "method": "transfer", "reference": "x"}}),
    ("acme-owner", "GET", "api/invoices", {}),
    ("acme-owner", "GET", "api/invoices/INV-000001", {}),
    ("acme-owner", "GET", "api/invoices/INV-000001", {"params": {"format": "pdf"}}),
    ("acme-owner", "GET", "api/credit-notes/CN-000001", {}),
    ("acme-owner", "GET", "api/focus", {"params": {"month": "2026-11"}}),
    ("operator", "POST", "api/invoices/INV-000001/void", {"json": {"reason": "a mistake"}}),
    ("operator", "POST", "api/credits", {"json": {"tenant": "acme", "kind": "prepaid", "name": "Next", "amount_minor": 9}}),
    ("operator", "POST", "api/credits/2/refund", {"json": {"reason": "asked for"}}),
    ("operator", "GET", "api/credits", {}),
    ("operator", "GET", "api/balance", {"params": {"tenant": "acme"}}),
    ("operator", "GET", "api/tenants", {}),
    ("acme-owner", "GET", "api/reports", {"params": {"month": "2026-11"}}),
)
CHECKS = [
    conforms.not_a_server_error,
    conforms.status_code_conformance,
    conforms.content_type_conformance,
    conforms.response_schema_conformance,
    conforms.response_headers_conformance,
]


@pytest.fixture
def billing(settings: Any, clock: Any, running_service: Any) -> Iterator[Any]:
    """A service that sends mail, and alerts to this host."""
    service = running_service(settings.model_copy(update={"smtp_host": "127.0.0.1", "alert_private_addresses": True}), clock)
    try:
        yield service
    finally:
        service.stop()


class Examiner:
    """Holds each answer against the description, and notes with which status each route answered."""

    def __init__(self, running: Running) -> None:
        self.seen: set[tuple[Route, int]] = set()
        self._running = running
        self._schema = schemathesis.openapi.from_dict(running.get(None, "/api/openapi.json").json())

    def ask(self, caller: str | None, method: str, path: str, **options: Any) -> Any:
        """Raises FailureGroup for what is not as described."""
        route = route_of(method, path.partition("?")[0])
        answer = self._running.request(caller, method, "/" + path, **options)
        self.described(route).validate_response(answer)
        self.seen.add((route, answer.status_code))
        return answer

    def bombard(self, route: Route) -> None:
        """Good and bad bodies, paths and arguments, from callers with different scopes."""
        varies = route.body is not None or bool(route.parameters)
        modes = list(GenerationMode) if varies else [GenerationMode.POSITIVE]
        cases = st.one_of([self.described(route).as_strategy(generation_mode=mode) for mode in modes])
        who = st.sampled_from(["operator", "operator", "operator", "pool", "acme-owner", "acme-member", "scopeless"])

        @given(case=cases, who=who)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def send(case: Any, who: str) -> None:
            for name, value in dict(case.headers or {}).items():  # RFC 9110, section 5.5: no server hears of a field with these
                if not str(value).isprintable():
                    del case.headers[name]
            headers = {"Authorization": f"token {CALLERS[who].token}"}
            url = str(self._running.client.base_url)
            answer = case.call_and_validate(base_url=url, headers=headers, checks=CHECKS, timeout=10)
            self.seen.add((route, answer.status_code))

        send()

    def described(self, route: Route) -> Any:
        return self._schema["/" + route.shown][route.method]


def route_of(method: str, path: str) -> Route:
    return next(route for route in ROUTES if route.method == method and re.fullmatch(route.pattern, path))


def fill(examiner: Examiner, usage: Callable[..., UsageRecord]) -> None:
    """Usage of leases and of parked bytes, and a lease that is open."""
    hour = {"duration_ns": 3600 * 10**9, "started_at_ns": NOW_NS - 10**13}
    parked = usage("parked/1", flavor=PARKED, parked_bytes=2**30, device_model="host", **hour)
    long = usage("lease-2/1", duration_ns=10 * 3600 * 10**9, started_at_ns=NOW_NS - 10**14)
    records = [asdict(record) for record in (usage("lease-1/1"), long, parked, usage("lease-3/1", tenant="globex", user="globex-owner"))]
    assert examiner.ask("pool", "POST", "api/usage", json={"records": records}).json() == {"accepted": 4, "duplicates": 0}
    lease = {"record": "lease-9/1", **asdict(usage("lease-9/1"))}
    for name in ("source", "id", "close_reason", "parked_bytes"):
        del lease[name]
    beat = {"source": "pool", "sent_at_ns": NOW_NS, "period_ns": 10**9, "leases": [lease, {"record": "unreadable"}]}
    assert examiner.ask("pool", "POST", "api/heartbeats", json=beat).json()["refused"]


def test_whatever_is_answered_is_as_described(billing: Any, clock: Any, usage: Callable[..., UsageRecord]) -> None:
    examiner = Examiner(billing)
    first, *others = TRIES
    examiner.ask(first[0], *first[1:3], **first[3])
    fill(examiner, usage)
    for caller, method, path, options in others:
        answer = examiner.ask(caller, method, path, **options)
        assert answer.status_code == 200, (path, answer.text)
    draft = examiner.ask("acme-owner", "GET", "api/drafts", params={"month": "2026-11"}).json()[0]
    assert {line["kind"] for line in draft["lines"]} >= {"usage", "parked"}, draft
    line = draft["lines"][0]["key"]
    examiner.ask("acme-owner", "GET", f"api/drafts/lines/{line}", params={"month": "2026-11"})
    examiner.ask("operator", "POST", "api/corrections", json={"source": "pool", "id": "lease-1/1", "reason": "a test"})
    clock.now_ns = DECEMBER_NS
    for caller, method, path, options in AFTERWARDS:
        answer = examiner.ask(caller, method, path, **options)
        assert answer.status_code == 200, (path, answer.text)
    examiner.ask("acme-owner", "GET", f"api/invoices/INV-000001/lines/{line}")
    for method, path, options, _ in REQUESTS.values():
        for caller in ("operator", "pool", "acme-owner", "acme-member", "scopeless", None):
            examiner.ask(caller, method, path.removeprefix("/"), **options)
    answered = {route for route, status in examiner.seen if status == 200}
    unheard = {f"{route.method} {route.path}" for route in ROUTES if route not in answered and not route.path.startswith(OF_STRIPE)}
    assert unheard == {"GET api/openapi.json", "GET health", "POST api/letters"}, "no mail server takes letters here"


def test_whatever_is_sent_is_answered_as_described(billing: Any) -> None:
    examiner = Examiner(billing)
    for route in ROUTES:
        examiner.bombard(route)
    statuses = {status for _, status in examiner.seen}
    assert statuses >= {200, 400, 403, 404}
    assert billing.get(None, "/health").json() == {"status": "ok", "troubles": {}}


def test_rows_and_bodies_have_no_other_fields_than_those_described(billing: Any) -> None:
    schemas = billing.get(None, "/api/openapi.json").json()["components"]["schemas"]
    assert schemas["PriceRow"]["properties"]["price_nano_per_hour"] == {"title": "Price Nano Per Hour", "type": "integer"}
    open_ended = [name for name, schema in schemas.items() if schema.get("additionalProperties") is not False]
    assert not open_ended


@pytest.mark.parametrize("name", REQUESTS)
def test_who_may_is_what_the_matrix_of_access_has(name: str) -> None:
    method, path, _, allowed = REQUESTS[name]
    route = route_of(method, path.removeprefix("/").partition("?")[0])
    holders = {caller for caller, token in CALLERS.items() if not route.scopes or token.scopes & set(route.scopes)}
    assert route.scopes is not None and allowed <= holders
    assert bool(route.who) or allowed == holders
