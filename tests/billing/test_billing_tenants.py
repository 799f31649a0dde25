"""How tenants stand, each as its own endpoints tell it, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from running_billing import Running

HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
NOVEMBER = Month(2026, 11)


def stand(running: Running, caller: str = "operator", **query: Any) -> dict[str, Any]:
    return {row["tenant"]: row for row in running.get(caller, "/api/tenants", **query).json()}


def test_each_tenant_stands_as_its_forecast_and_its_balance_say(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
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
    assert found["initech"]["month"] == [
        {"currency": "USD", "spent_nano": 0, "forecast_nano": 0, "forecast_low_nano": None, "forecast_high_nano": None},
    ]


def test_currency_and_tax_are_the_profiles_and_without_one_the_settings(running: Running) -> None:
    (row,) = stand(running, tenant="tokyo").values()
    assert (row["known"], row["currency"], row["decimals"], row["profile_version"]) == (False, "JPY", 0, 0)
    assert stand(running) == {}
    body = {"legal_name": "Tokyo KK", "tax_label": "VAT", "tax_bps": 1050, "currency": "EUR"}
    assert running.request("operator", "PUT", "/api/profiles/tokyo", json=body).status_code == 200
    (row,) = stand(running).values()
    assert (row["tenant"], row["known"], row["currency"], row["decimals"], row["profile_version"]) == ("tokyo", True, "EUR", 2, 1)
    assert (row["legal_name"], row["tax_label"], row["tax_bps"], row["profile_currency"]) == ("Tokyo KK", "VAT", 1050, "EUR")


def test_currencies_are_told_of_those_who_are_not_billed_as_most_are_and_a_profile_goes_before_the_settings(running: Running) -> None:
    def told() -> Any:
        return running.get("pool", "/api/currencies").json()

    assert told() == {"currency": "USD", "tenants": {"tokyo": "JPY"}}
    for tenant, currency in (("tokyo", "USD"), ("paris", "EUR"), ("seoul", None)):
        assert running.request("operator", "PUT", f"/api/profiles/{tenant}", json={"currency": currency}).status_code == 200
    assert told() == {"currency": "USD", "tenants": {"paris": "EUR"}}
    assert running.request("operator", "PUT", "/api/profiles/tokyo", json={"currency": None}).status_code == 200
    assert told() == {"currency": "USD", "tenants": {"paris": "EUR", "tokyo": "JPY"}}


def test_what_was_agreed_on_makes_a_tenant_known_before_it_uses_anything(running: Running) -> None:
    plan = {"currency": "USD", "valid_from": "2027-01", "new": True}
    assert running.request("operator", "PUT", "/api/plans/planned", json=plan).status_code == 200
    assert running.request("operator", "PUT", "/api/budgets", json={"tenant": "bounded", "limit_nano": 1, "new": True}).status_code == 200
    assert list(stand(running)) == ["bounded", "planned"]


def test_who_is_known_by_one_thing_is_known_for_all(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    """So that only the first change asks for "new", and what is read is empty instead of refused."""
    request, named = running_anywhere.request, ("billed", "bounded", "granted", "planned", "used")
    assert running_anywhere.post_usage(usage("used/1", tenant="used")).status_code == 200
    assert request("operator", "PUT", "/api/profiles/billed", json={"legal_name": "Billed Ltd"}).status_code == 200

    def budget(tenant: str, **more: Any) -> Any:
        return request("operator", "PUT", "/api/budgets", json={"tenant": tenant, "limit_nano": 1} | more)

    def plan(tenant: str, **more: Any) -> Any:
        return request("operator", "PUT", f"/api/plans/{tenant}", json={"currency": "USD", "valid_from": "2027-01"} | more)

    def credit(tenant: str, **more: Any) -> Any:
        body = {"tenant": tenant, "kind": "prepaid", "name": "Ahead", "amount_minor": 500}
        return request("operator", "POST", "/api/credits", json=body | more)

    first = (budget, "bounded"), (plan, "planned"), (credit, "granted")
    assert [change(tenant, new=True).status_code for change, tenant in first] == [200] * 3
    for tenant in named:
        assert [change(tenant).status_code for change in (budget, plan, credit)] == [200] * 3, tenant
        for path in ("/api/balance", "/api/statement"):
            month = {"month": "2026-11"} if path == "/api/statement" else {}
            assert running_anywhere.get("operator", path, tenant=tenant, **month).status_code == 200, (tenant, path)
    refused = [change("nobody") for change in (budget, plan, credit)] + [running_anywhere.get("operator", "/api/balance", tenant="nobody")]
    sentence = "Nothing was ever recorded for a tenant 'nobody'."
    told = [answer.json()["error"]["message"] for answer in refused]
    assert told == [f'{sentence} For a tenant that is to come, say "new": true.'] * 3 + [sentence]
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in refused} == {(404, "unknown_tenant")}
    assert sorted(stand(running_anywhere)) == list(named)


def test_a_budget_of_nobody_known_is_refused_to_an_operator_and_is_in_the_audit(running: Running) -> None:
    def put(caller: str, **body: Any) -> int:
        return int(running.request(caller, "PUT", "/api/budgets", json={"limit_nano": 7} | body).status_code)

    def refusals() -> list[Any]:
        found = running.get("operator", "/api/audit").json()["entries"]
        return [(row["who"], row["subject"], row["after"]["code"]) for row in found if row["action"] == "budget.set.refused"]

    assert put("operator", tenant="amce") == 404
    assert running.get("operator", "/api/budgets").json() == [] and stand(running) == {}
    assert refusals() == [("operator", "amce", "unknown_tenant")]
    assert put("acme-owner") == put("operator", tenant="amce", new=True) == put("operator", tenant="amce") == 200
    assert put("acme-owner", currency="KRW") == 400 and len(refusals()) == 1


def test_an_owner_sees_how_the_own_tenant_stands_and_no_other(running: Running, usage: Callable[..., UsageRecord]) -> None:
    running.post_usage(usage("a/1"), usage("b/1", tenant="globex"))
    assert list(stand(running, "acme-owner")) == ["acme"]
    assert running.get("acme-owner", "/api/tenants", tenant="globex").status_code == 403


def ordered(running: Running, sort: str, order: str = "asc", **more: str) -> tuple[list[str], list[str], list[str]]:
    found = running.get("operator", "/api/tenants/order", sort=sort, order=order, **more).json()
    return found["ranked"], found["unranked"], found["unmatched"]


def test_tenants_are_ordered_by_each_column_of_the_operators_table(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    run, day_ns = running_anywhere, NOVEMBER.start_ns + 14 * DAY_NS
    for tenant, hours in (("acme", 3), ("globex", 1), ("initech", 2)):
        assert run.post_usage(usage(f"{tenant}/1", tenant=tenant, started_at_ns=day_ns, duration_ns=hours * HOUR_NS)).status_code == 200
    for tenant, limit in (("acme", 10**12), ("globex", 10**9)):
        assert run.request("operator", "PUT", "/api/budgets", json={"tenant": tenant, "limit_nano": limit}).status_code == 200
    plan = {"currency": "USD", "valid_from": "2026-11", "discount_bps": 100}
    for tenant, bps in (("initech", 500), ("acme", 100)):
        assert run.request("operator", "PUT", f"/api/plans/{tenant}", json={**plan, "discount_bps": bps}).status_code == 200
    assert run.request("operator", "PUT", "/api/profiles/planned", json={"legal_name": "Zeta Works"}).status_code == 200
    by_use = ["globex", "initech", "acme"]
    assert ordered(run, "tenant") == (["acme", "globex", "initech", "planned"], [], [])
    assert ordered(run, "tenant", "desc")[0] == ["planned", "initech", "globex", "acme"]
    for sort, ascending in (("month", by_use), ("end", by_use), ("balance", by_use[::-1]), ("budget", ["acme", "globex"])):
        rest = sorted({"acme", "globex", "initech", "planned"} - set(ascending))
        assert ordered(run, sort) == (ascending, rest, []), sort
        assert ordered(run, sort, "desc") == (ascending[::-1], rest, []), sort
    assert ordered(run, "plan") == (["acme", "initech"], ["globex", "planned"], [])
    assert ordered(run, "open") == ([], ["acme", "globex", "initech", "planned"], [])
    run.clock.now_ns = Month(2027, 1).start_ns
    for tenant in ("acme", "globex"):
        assert run.request("operator", "POST", "/api/invoices", json={"tenant": tenant, "month": "2026-11"}).status_code == 200
    assert ordered(run, "open")[0] == ["globex", "acme"]
    assert ordered(run, "month", q="zeta usd") == ([], ["planned"], ["acme", "globex", "initech"])


def test_what_is_open_follows_credits_payments_refunds_and_voids(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    run, tenants = running_anywhere, ("acme", "globex", "initech", "umbra")
    for tenant in tenants:
        record = usage(f"{tenant}/1", tenant=tenant, started_at_ns=NOVEMBER.start_ns, duration_ns=24 * HOUR_NS)
        assert run.post_usage(record).status_code == 200
        assert run.request("operator", "PUT", f"/api/profiles/{tenant}", json={"legal_name": tenant}).status_code == 200
    run.clock.now_ns = Month(2027, 1).start_ns
    made = {}
    for tenant in tenants:
        made[tenant] = run.request("operator", "POST", "/api/invoices", json={"tenant": tenant, "month": "2026-11"}).json()[0]

    def do(tenant: str, what: str, **body: Any) -> None:
        path = f"/api/invoices/{made[tenant]['number']}/{what}"
        assert run.request("operator", "POST", path, json=body).status_code == 200, (tenant, what)

    def shown() -> list[str]:
        rows = run.request("operator", "GET", "/api/tenants/rows?" + "&".join(f"tenant={tenant}" for tenant in tenants)).json()
        assert rows["open_invoices"] == run.get("operator", "/api/invoices", state="open").json()
        assert {row["tenant"] for row in rows["open_invoices"]} == set(ordered(run, "open")[0])
        return ordered(run, "open")[0]

    total = made["umbra"]["total_minor"]
    do("acme", "credit-notes", amount_minor=total // 2, reason="half of it")
    do("globex", "void", reason="not theirs")
    do("initech", "payments", amount_minor=total, method="transfer", reference="1")
    assert shown() == ["acme", "umbra"]
    do("initech", "credit-notes", amount_minor=5, reason="a present")
    do("initech", "payments", kind="refund", amount_minor=5, method="transfer", reference="2")
    do("umbra", "payments", amount_minor=total - 1, method="transfer", reference="3")
    assert shown() == ["umbra", "acme"]


def test_rows_of_some_tenants_are_what_each_ones_own_endpoints_tell(running: Running, usage: Callable[..., UsageRecord]) -> None:
    for tenant in ("acme", "globex", "initech"):
        assert running.post_usage(usage(f"{tenant}/1", tenant=tenant)).status_code == 200
        assert running.request("operator", "PUT", "/api/budgets", json={"tenant": tenant, "limit_nano": 10**9}).status_code == 200
        plan = {"currency": "USD", "valid_from": "2026-11", "discount_bps": 100}
        assert running.request("operator", "PUT", f"/api/plans/{tenant}", json=plan).status_code == 200
    found = running.request("operator", "GET", "/api/tenants/rows?tenant=initech&tenant=acme&tenant=umbra").json()
    assert [row["tenant"] for row in found["standings"]] == ["initech", "acme", "umbra"]
    for row in found["standings"]:
        assert running.get("operator", "/api/tenants", tenant=row["tenant"]).json() == [row]
    for kind in ("budgets", "plans"):
        each = [running.get("operator", f"/api/{kind}", tenant=tenant).json() for tenant in ("acme", "initech")]
        assert sorted(found[kind], key=lambda row: row["tenant"]) == [one for of in each for one in of]
    assert running.request("operator", "GET", "/api/tenants/rows?tenant=a&user=b").status_code == 400
    for path in ("/api/tenants/rows?tenant=acme", "/api/tenants/order"):
        assert running.get("acme-owner", path).status_code == 403


def test_a_credit_for_nobody_known_or_in_another_currency_is_refused(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    credit = {"tenant": "amce", "kind": "prepaid", "name": "Ahead", "amount_minor": 500}

    def grant(**changes: Any) -> tuple[int, str]:
        answer = running_anywhere.request("operator", "POST", "/api/credits", json=credit | changes)
        return answer.status_code, answer.json().get("error", {}).get("code", "")

    assert running_anywhere.post_usage(usage("one/1", tenant="acme")).status_code == 200
    assert grant() == (404, "unknown_tenant")
    assert grant(tenant="acme", currency="KRW") == (400, "invalid_credit")
    assert running_anywhere.get("operator", "/api/credits").json() == []
    audit = running_anywhere.get("operator", "/api/audit").json()["entries"]
    assert [row["after"]["code"] for row in audit if row["action"] == "credit.grant.refused"] == ["invalid_credit", "unknown_tenant"]
    assert grant(tenant="acme", currency="USD") == grant(new=True) == grant() == (200, "")
