"""How tenants stand, each as its own endpoints tell it, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay_billing.months import Month
from forebay_billing.types import UsageRecord

HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
NOVEMBER = Month(2026, 11)


def stand(running: Any, caller: str = "operator", **query: Any) -> dict[str, Any]:
    return {row["tenant"]: row for row in running.get(caller, "/api/tenants", **query).json()}


def test_each_tenant_stands_as_its_forecast_and_its_balance_say(running_anywhere: Any, usage: Callable[..., UsageRecord]) -> None:
    for day in (3, 14, 18):
        for number, tenant in enumerate(("acme", "globex")):
            at_ns = NOVEMBER.start_ns + day * DAY_NS
            record = usage(f"{tenant}-{day}/1", tenant=tenant, started_at_ns=at_ns, duration_ns=(number + 1) * HOUR_NS)
            assert running_anywhere.post_usage(record).status_code == 200
    late = usage("october/1", tenant="initech", started_at_ns=Month(2026, 10).start_ns, duration_ns=HOUR_NS)
    assert running_anywhere.post_usage(late).status_code == 200
    grant = {"tenant": "globex", "kind": "prepaid", "name": "Ahead", "amount_minor": 500}
    assert running_anywhere.request("operator", "POST", "/api/credits", json=grant).status_code == 200
    found = stand(running_anywhere)
    assert list(found) == ["acme", "globex", "initech"]
    for tenant, row in found.items():
        assert row["month"] == running_anywhere.get("operator", "/api/forecast", tenant=tenant).json()
        assert row["balances"] == running_anywhere.get("operator", "/api/balance", tenant=tenant).json()["balances"]
        assert stand(running_anywhere, tenant=tenant) == {tenant: row}
    assert found["globex"]["month"][0]["spent_nano"] == 2 * found["acme"]["month"][0]["spent_nano"] > 0
    assert (found["globex"]["balances"][0]["credit_nano"], found["acme"]["balances"][0]["credit_nano"]) == (5 * 10**9, 0)
    assert found["initech"]["month"] == [{"currency": "USD", "spent_nano": 0, "forecast_nano": 0}]


def test_currency_and_tax_are_the_profiles_and_without_one_the_settings(running: Any) -> None:
    (row,) = stand(running, tenant="tokyo").values()
    assert (row["known"], row["currency"], row["decimals"], row["profile_version"]) == (False, "JPY", 0, 0)
    assert stand(running) == {}
    body = {"legal_name": "Tokyo KK", "tax_label": "VAT", "tax_bps": 1050, "currency": "EUR"}
    assert running.request("operator", "PUT", "/api/profiles/tokyo", json=body).status_code == 200
    (row,) = stand(running).values()
    assert (row["tenant"], row["known"], row["currency"], row["decimals"], row["profile_version"]) == ("tokyo", True, "EUR", 2, 1)
    assert (row["legal_name"], row["tax_label"], row["tax_bps"], row["profile_currency"]) == ("Tokyo KK", "VAT", 1050, "EUR")


def test_what_was_agreed_on_makes_a_tenant_known_before_it_uses_anything(running: Any) -> None:
    plan = {"currency": "USD", "valid_from": "2027-01", "new": True}
    assert running.request("operator", "PUT", "/api/plans/planned", json=plan).status_code == 200
    assert running.request("operator", "PUT", "/api/budgets", json={"tenant": "bounded", "limit_nano": 1}).status_code == 200
    assert list(stand(running)) == ["bounded", "planned"]


def test_an_owner_sees_how_the_own_tenant_stands_and_no_other(running: Any, usage: Callable[..., UsageRecord]) -> None:
    running.post_usage(usage("a/1"), usage("b/1", tenant="globex"))
    assert list(stand(running, "acme-owner")) == ["acme"]
    assert running.get("acme-owner", "/api/tenants", tenant="globex").status_code == 403
