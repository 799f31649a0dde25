"""Tenants' plans over HTTP, on SQLite and PostgreSQL: versions by month, once per request, closed months closed, and an audit of all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from forebay_billing.reads import plans
from forebay_billing.rules.plans import Plan, Terms, Tier
from forebay_billing.tables import schema
from running_billing import Running
from sqlalchemy import select

pytestmark = pytest.mark.databases("sqlite")

NOVEMBER, DECEMBER = Month(2026, 11), Month(2026, 12)
TERMS = {
    "currency": "USD",
    "discount_bps": 1250,
    "free_nano": 5 * 10**9,
    "free_seconds": {"small.64gb": 3600, "dev.1gb": 60},
    "tiers": [{"from_nano": 10**12, "discount_bps": 500}, {"from_nano": 10**13, "discount_bps": 1000}],
    "commitment_nano": 10**11,
}


def audit(run: Any) -> list[Any]:
    rows = run.service.store.snapshot(lambda connection: connection.execute(select(schema.audit).order_by(schema.audit.c.id)).all())
    return [row for row in rows if row.who != "seed"]


def put(run: Any, tenant: str = "acme", caller: str = "operator", **changes: Any) -> Any:
    body = {**TERMS, "valid_from": "2026-12", **changes}
    headers = {"Idempotency-Key": changes.pop("key")} if "key" in changes else {}
    body.pop("key", None)
    return run.request(caller, "PUT", f"/api/plans/{tenant}", json=body, headers=headers)


@pytest.fixture
def run(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> Any:
    """Two tenants are known by their usage."""
    records = usage("a/1"), usage("b/1", tenant="globex", user="globex-owner")
    assert running_anywhere.post_usage(*records).status_code == 200
    return running_anywhere


def test_a_plan_is_in_force_from_its_month_until_the_next_one(run: Any) -> None:
    first = put(run)
    assert first.status_code == 200
    expected = {
        "tenant": "acme", "version": 1, "valid_from": "2026-12", **TERMS, "changed_at_ns": run.clock.now_ns, "changed_by": "operator",
        "etag": '"1"',
    }  # fmt: skip
    assert first.json() == expected
    second = put(run, valid_from="2027-03", discount_bps=2000, tiers=[]).json()
    assert put(run, "globex", valid_from="2026-11", free_seconds={}).json()["tenant"] == "globex"
    by_month = {
        month: [(plan["tenant"], plan["version"]) for plan in run.get("operator", "/api/plans", month=month).json()]
        for month in ("2026-11", "2026-12", "2027-02", "2027-03", "2030-01")
    }
    globex = ("globex", 1)
    assert by_month == {
        "2026-11": [globex],
        "2026-12": [("acme", 1), globex],
        "2027-02": [("acme", 1), globex],
        "2027-03": [("acme", 2), globex],
        "2030-01": [("acme", 2), globex],
    }
    assert run.get("acme-owner", "/api/plans").json() == []
    assert run.get("acme-owner", "/api/plans", month="2027-01").json() == [expected]
    assert run.get("acme-owner", "/api/plans", history="1").json() == [expected, second]


def test_invoices_are_told_the_plan_of_tenant_and_month(run: Any) -> None:
    put(run)
    found = run.service.store.snapshot(
        lambda connection: [plans.plan_of(connection, tenant, month) for tenant in ("acme", "globex") for month in (NOVEMBER, DECEMBER)]
    )
    tiers = (Tier(10**12, 500), Tier(10**13, 1000))
    terms = Terms("USD", 1250, 5 * 10**9, (("dev.1gb", 60), ("small.64gb", 3600)), tiers, 10**11)
    assert found == [None, Plan("acme", 1, DECEMBER, terms, run.clock.now_ns, "operator"), None, None]


def test_the_same_plan_again_changes_nothing_and_another_from_the_same_month_takes_its_place(run: Any) -> None:
    first = put(run)
    run.clock.now_ns += 1
    assert put(run).json() == first.json()
    assert len(run.get("operator", "/api/plans", history="1").json()) == 1 and len(audit(run)) == 1
    assert put(run, discount_bps=1).json()["version"] == 2
    assert [plan["version"] for plan in run.get("operator", "/api/plans", month="2026-12").json()] == [2]
    assert put(run).json()["version"] == 3


def test_a_request_under_the_same_key_happens_once(run: Any) -> None:
    first, again = put(run, key="k1"), put(run, key="k1")
    assert first.status_code == again.status_code == 200 and first.json() == again.json()
    other = put(run, discount_bps=1, key="k1")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "key_reused")
    assert len(run.get("operator", "/api/plans", history="1").json()) == 1


def test_every_change_is_in_the_audit_with_what_was_before(run: Any) -> None:
    put(run)
    put(run, valid_from="2027-01", discount_bps=0)
    rows = audit(run)
    assert [(row.who, row.action, row.subject) for row in rows] == [("operator", "plan.change", "acme")] * 2
    assert rows[0].before is None and json.loads(rows[0].after)["discount_bps"] == 1250
    assert json.loads(rows[1].before) == json.loads(rows[0].after) and json.loads(rows[1].after)["discount_bps"] == 0


@pytest.mark.parametrize(
    ("changes", "status", "code", "sentence"),
    [
        ({"discount_bps": 10_001}, 400, "invalid_plan", "from 0 to 10000 basis points"),
        ({"commitment_nano": -1}, 400, "invalid_plan", "commitment_nano: -1"),
        ({"free_seconds": {"tiny.1gb": 1}}, 404, "unknown_flavor", "no flavor 'tiny.1gb'"),
        ({"tiers": TERMS["tiers"][::-1]}, 400, "invalid_plan", "in order of from_nano"),  # type: ignore[index]
        ({"currency": "JPY"}, 400, "invalid_plan", "is billed in USD"),
        ({"currency": "XYZ"}, 400, "invalid_price", "not a currency"),
        ({"tenant": "umbrella"}, 404, "unknown_tenant", '"new": true'),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_one_sentence_and_leaves_only_an_audit_row(
    run: Any, changes: dict[str, Any], status: int, code: str, sentence: str
) -> None:
    changes = dict(changes)
    tenant = changes.pop("tenant", "acme")
    refused = put(run, tenant, **changes)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert sentence in refused.json()["error"]["message"] and refused.json()["error"]["message"].endswith(".")
    assert run.get("operator", "/api/plans", history="1").json() == []
    (row,) = audit(run)
    assert (row.who, row.action, row.subject, row.before) == ("operator", "plan.change.refused", tenant, None)
    after = json.loads(row.after)
    assert after["code"] == code and after["message"] == refused.json()["error"]["message"] and after["asked"]["valid_from"] == "2026-12"
    assert put(run, tenant, new=True).json()["version"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {"currency": "USD"},
        {"currency": "USD", "valid_from": "2026-13"},
        {"currency": "USD", "valid_from": "2026-12", "discount_bps": 1.5},
        {"currency": "USD", "valid_from": "2026-12", "discount": 1},
        {"currency": "USD", "valid_from": "2026-12", "tiers": [{"from_nano": 1}]},
        {"currency": "US\x00", "valid_from": "2026-12"},
    ],
)
def test_a_body_that_is_no_plan_is_refused(run: Any, body: dict[str, Any]) -> None:
    refused = run.request("operator", "PUT", "/api/plans/acme", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid")
    assert run.get("operator", "/api/plans", history="1").json() == []


@pytest.mark.parametrize("tenant", ["x" * 129, "a%00b"])
def test_a_tenant_whose_name_cannot_be_is_refused(run: Any, tenant: str) -> None:
    refused = put(run, tenant, new=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid")


def test_a_plan_may_begin_in_an_open_month_of_the_past_and_never_changes_a_finalised_one(run: Any) -> None:
    run.service.store.submit(lambda books: books.finalise("acme", NOVEMBER, run.clock.now_ns)).result()
    refused = put(run, valid_from="2026-11")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "finalised")
    assert "The invoice of acme for 2026-11 is final" in refused.json()["error"]["message"]
    assert audit(run)[-1].action == "plan.change.refused"
    assert put(run, valid_from="2026-10").json()["error"]["code"] == "finalised"
    assert put(run, "globex", valid_from="2026-10", free_seconds={}).status_code == 200
    assert put(run).status_code == 200
    run.service.store.submit(lambda books: books.finalise("acme", DECEMBER, run.clock.now_ns)).result()
    assert put(run, discount_bps=1).json()["error"]["code"] == "finalised"
    assert put(run).json()["version"] == 1, "the same plan again is no change"
