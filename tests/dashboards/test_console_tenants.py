"""Operators see all tenants in a table, and one on a page on which its limits and terms are edited in their places."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any

import httpx
import pytest
from dashboards_installation import PEOPLE, Installation, eventually, person
from forebay_dashboards.rows.billing import BudgetRow, InvoiceRow, Plan, TenantOrder, TenantRows
from forebay_dashboards.rows.pool import Lease, Quota, Span
from forebay_dashboards.tables.table import ROWS_PER_PAGE, read_query
from forebay_dashboards.tables.tenants import TENANTS, Owed, arranged, held_by, tenant_rows, used_milli

PAGE = "operator/tenant/{}"


def tenant_named(name: str) -> str:
    """A tenant of this test's own, of which JupyterHub has the group."""
    PEOPLE[f"{name}-owner"] = person(f"{name}-owner", name)
    return name


def form(cloud: Installation, tenant: str, key: str) -> dict[str, str]:
    """The fields of a form as a browser would send them, untouched."""
    answer = cloud.get("operator", f"operator/tenant/{tenant}/terms/{key}/edit", headers={"HX-Request": "true"})
    assert answer.status_code == 200, answer.text
    fields = {}
    for tag in re.findall(r"<input[^>]*>", answer.text):
        found = dict(re.findall(r'(\w+)="([^"]*)"', tag))
        fields[found["name"]] = unescape(found.get("value", ""))
    for name, options in re.findall(r'(?s)<select id="[^"]*" name="(\w+)"[^>]*>(.*?)</select>', answer.text):
        fields[name] = (re.findall(r'value="([^"]*)" selected', options) or re.findall(r'value="([^"]*)"', options))[0]
    return fields


def save(cloud: Installation, tenant: str, key: str, fragment: bool = True, **changes: str) -> httpx.Response:
    return cloud.post("operator", f"operator/tenant/{tenant}/terms/{key}/edit", {**form(cloud, tenant, key), **changes}, fragment)


def stands(cloud: Installation, tenant: str) -> dict[str, Any]:
    (row,) = cloud.ask("billing", "operator", "GET", "api/tenants", params={"tenant": tenant})
    found: dict[str, Any] = row
    return found


def newest(cloud: Installation, service: str, **wanted: str) -> dict[str, Any]:
    entry: dict[str, Any] = cloud.ask(service, "operator", "GET", "api/audit", params={"limit": 1, **wanted})["entries"][0]
    return entry


def complaint(text: str, field: str) -> str:
    """The sentence beside a field, which the field refers to."""
    (found,) = re.findall(rf'(?s)<(?:input|select) id="([\w-]+)" name="{field}"[^>]*aria-invalid="true" aria-describedby="([\w-]+)"', text)
    (sentence,) = re.findall(rf'(?s)<span class="complaint" id="{found[1]}" role="alert">(.*?)</span>', text)
    return unescape(sentence)


def test_the_table_has_every_tenant_of_the_hub_and_of_billing_and_finds_sorts_and_links_them(cloud: Installation) -> None:
    cloud.record_usage(tenant="veidt", duration_ns=10**12)
    cloud.record_usage(tenant="wayne", duration_ns=2 * 10**12)
    rows = cloud.get("operator", "operator/tenants").text
    for name in ("acme", "globex", "initech", "veidt", "wayne"):
        assert f'href="/services/dashboards/operator/tenant/{name}"' in rows
    assert "operator/tenant/readers" not in rows, "a group that stands for no tenant"
    found = cloud.get("operator", "operator/tenants/rows", params={"q": "wayne"}).text
    assert re.findall(r'id="tenant-(\w+)"', found) == ["wayne"]
    spent = stands(cloud, "wayne")["month"][0]["spent_nano"]
    assert f'value="{spent / 1e9:.9f} USD"' in found
    ordered = re.findall(r'id="tenant-(\w+)"', cloud.get("operator", "operator/tenants/rows?sort=month&order=desc").text)
    assert ordered.index("wayne") < ordered.index("veidt") < ordered.index("initech")
    assert cloud.get("operator", "operator/tenants?sort=luck").status_code == 400
    assert "Nothing here holds" in cloud.get("operator", "operator/tenants?q=nobody+is+called+so").text


def test_the_table_counts_leases_devices_quota_and_budget(cloud: Installation) -> None:
    cloud.ask("pool", "operator", "PUT", "api/quotas/globex", json={"devices_milli": 3000})
    budget = {"tenant": "globex", "limit_nano": 10**6, "on_limit": "notify", "new": True}
    made = cloud.ask("billing", "operator", "PUT", "api/budgets", json=budget)
    cloud.record_usage(tenant="globex", user="globex-owner", started_at_ns=time.time_ns() - 10**9, duration_ns=10**11)
    with cloud.session("globex-owner") as session:
        granted = session.acquire("table.ipynb", 1)
        eventually(lambda: 'data-label="Leases" class="number">1<' in cloud.get("operator", "operator/tenants/rows?q=globex").text)
        row = cloud.get("operator", "operator/tenants/rows?q=globex").text
        assert 'data-label="Devices held" class="number">1 of 3' in row
        used = int(re.findall(r'"Budget used" class="number">([\d,]+) %', row)[0].replace(",", ""))
        assert used > 0
        session.release(granted.epoch)
    cloud.ask("billing", "operator", "DELETE", f"api/budgets/{made['id']}")
    cloud.ask("pool", "operator", "PUT", "api/quotas/globex", json={})


def test_a_tenant_nobody_knows_is_a_404_that_says_what_to_do(cloud: Installation) -> None:
    for path in ("operator/tenant/umbra", "operator/tenant/umbra/terms", "operator/tenant/umbra/terms/quota/edit"):
        answer = cloud.get("operator", path)
        assert answer.status_code == 404
        assert "There is no tenant “umbra”" in answer.text and "directory of people" in answer.text
    assert cloud.post("operator", "operator/tenant/umbra/terms/tax/edit", {"label": "VAT", "rate": "9", "stamp": ""}).status_code == 404
    assert stands(cloud, "umbra")["known"] is False
    assert cloud.get("operator", "operator/tenant/acme/terms/budget-999999/edit").status_code == 404
    assert cloud.get("operator", "operator/tenant/acme/terms/luck/edit").status_code == 404


def test_the_page_shows_usage_by_member_and_flavor_people_by_role_and_who_is_told(cloud: Installation) -> None:
    cloud.record_usage(tenant="acme", user="acme-member", flavor="dev.4gb", duration_ns=10**10)
    target = {"tenant": "acme", "kind": "webhook", "target": "https://alerts.acme.example/hook"}
    channel = cloud.ask("billing", "operator", "POST", "api/alerts/channels", json=target)
    page = cloud.get("operator", PAGE.format("acme")).text
    assert 'data-label="User">acme-member</td><td data-label="Flavor">dev.4gb' in page
    roles = dict(re.findall(r'data-label="Who">([\w-]+)</th><td data-label="Role">([\w ]+)<', page))
    assert roles == {"acme-owner": "owner", "acme-billing": "pays the bills", "acme-member": "member", "stranger": "member"}
    assert "Alerts go by webhook to" in page and "https://alerts.acme.example/hook" in page
    assert "globex-owner" not in page
    cloud.ask("billing", "operator", "DELETE", f"api/alerts/channels/{channel['id']}")


def test_tax_is_saved_in_its_place_and_in_the_audit_with_what_was_before(cloud: Installation) -> None:
    tenant = tenant_named("taxed")
    answer = save(cloud, tenant, "tax", label="VAT", rate="7.5")
    assert (answer.status_code, 'id="term-tax"' in answer.text, "VAT 7.5 %" in answer.text) == (200, True, True)
    assert (stands(cloud, tenant)["tax_label"], stands(cloud, tenant)["tax_bps"]) == ("VAT", 750)
    save(cloud, tenant, "tax", rate="19")
    entry = newest(cloud, "billing", subject=tenant)
    assert (entry["who"], entry["action"]) == ("operator", "profile.change")
    assert (entry["before"]["tax_bps"], entry["after"]["tax_bps"]) == (750, 1900)
    audit = cloud.get("operator", "operator/audit", params={"subject": tenant}).text
    assert "tax_bps 750" in audit and "tax_bps 1900" in audit


def test_the_currency_is_set_until_the_first_usage_and_refused_beside_the_field_after_it(cloud: Installation) -> None:
    tenant = tenant_named("abroad")
    assert "EUR" in save(cloud, tenant, "currency", currency="eur").text
    assert stands(cloud, tenant)["currency"] == "EUR"
    assert "as the installation's settings say" in unescape(save(cloud, tenant, "currency", currency="").text)
    assert stands(cloud, tenant)["currency"] == "USD"
    cloud.record_usage(tenant=tenant)
    refused = save(cloud, tenant, "currency", currency="JPY")
    assert (refused.status_code, "has usage or credits already" in complaint(refused.text, "currency")) == (409, True)
    assert 'value="JPY"' in refused.text and stands(cloud, tenant)["currency"] == "USD"


def test_a_quota_is_saved_at_the_pool_and_reads_back_as_it_was(cloud: Installation) -> None:
    tenant = tenant_named("bounded")
    bounds = {"devices": "2.5", "device_hours": "10", "window_days": "1", "on_exhausted": "revoke", "weight": "3"}
    answer = save(cloud, tenant, "quota", **bounds)
    assert "2.5 devices at a time" in answer.text
    row = cloud.ask("pool", "operator", "GET", f"api/quotas/{tenant}")
    assert [row[name] for name in ("devices_milli", "device_seconds", "on_exhausted", "weight")] == [2500, 36_000, "revoke", 3]
    assert newest(cloud, "pool", subject=tenant)["after"]["weight"] == 3
    assert save(cloud, tenant, "quota").status_code == 200
    again = cloud.ask("pool", "operator", "GET", f"api/quotas/{tenant}")
    assert again == row, "what was not touched stays"


def test_a_plan_reads_back_as_it_was_and_one_for_later_stands_beside_the_present_one(cloud: Installation) -> None:
    tenant = tenant_named("planned")
    terms = {"discount": "12.5", "free": "10", "free_hours": "dev.1gb=1.5, dev.4gb=100s", "tiers": "1000=5, 10000=10", "commitment": "500"}
    assert "12.5 % off the list prices" in save(cloud, tenant, "plan", **terms).text
    (plan,) = cloud.ask("billing", "operator", "GET", "api/plans", params={"tenant": tenant})
    assert (plan["discount_bps"], plan["free_seconds"], plan["commitment_nano"]) == (1250, {"dev.1gb": 5400, "dev.4gb": 100}, 500 * 10**9)
    assert {name: form(cloud, tenant, "plan")[name] for name in terms} == terms
    later = save(cloud, tenant, "plan", valid_from="2199-01", discount="20").text
    assert "from 2199-01" in later and "12.5 % off" in later
    versions = cloud.ask("billing", "operator", "GET", "api/plans", params={"tenant": tenant, "history": 1})
    assert [one["discount_bps"] for one in versions] == [1250, 2000]
    assert newest(cloud, "billing", subject=tenant)["action"] == "plan.change"


def test_a_budget_is_set_changed_and_removed(cloud: Installation) -> None:
    tenant = tenant_named("thrifty")
    made = save(cloud, tenant, "budget", limit="250", on_limit="refuse", warn="60, 90")
    (budget,) = cloud.ask("billing", "operator", "GET", "api/budgets", params={"tenant": tenant})
    assert (budget["limit_nano"], budget["on_limit"], budget["thresholds"], budget["user"]) == (250 * 10**9, "refuse", [60, 90], None)
    key = f"budget-{budget['id']}"
    assert f'id="term-{key}"' in made.text and 'id="term-budget"' in made.text, "the new one, and the way to another"
    twice = save(cloud, tenant, "budget", limit="1")
    assert (twice.status_code, "There is a budget of just this already" in twice.text) == (400, True)
    assert "$300.00" in save(cloud, tenant, key, limit="300.00").text
    entry = newest(cloud, "billing", action="budget.set")
    assert (entry["who"], entry["before"]["limit_nano"], entry["after"]["limit_nano"]) == ("operator", 250 * 10**9, 300 * 10**9)
    assert entry["after"]["on_limit"] == "refuse", "what was not touched stays"
    users = save(cloud, tenant, "budget", user=f"{tenant}-owner", window="total", limit="5")
    assert f"Budget of {tenant}-owner, for all time" in users.text
    gone = save(cloud, tenant, key, action="remove")
    assert (gone.status_code, "is removed" in gone.text, f'id="term-{key}"' in gone.text) == (200, True, False)
    assert newest(cloud, "billing", action="budget.remove")["who"] == "operator"
    (left,) = cloud.ask("billing", "operator", "GET", "api/budgets", params={"tenant": tenant})
    assert (left["user"], left["window"]) == (f"{tenant}-owner", "total")


def test_a_budget_of_the_tenants_own_is_theirs_to_change_and_an_operators_to_remove(cloud: Installation) -> None:
    made = cloud.ask("billing", "globex-owner", "PUT", "api/budgets", json={"limit_nano": 10**9})
    key = f"budget-{made['id']}"
    fields = form(cloud, "globex", key)
    assert "limit" not in fields
    refused = cloud.post("operator", f"operator/tenant/globex/terms/{key}/edit", {**fields, "limit": "7"})
    assert (refused.status_code, "The tenant's own people" in unescape(refused.text)) == (400, True)
    assert save(cloud, "globex", key, action="remove").status_code == 200
    assert cloud.ask("billing", "operator", "GET", "api/budgets", params={"tenant": "globex"}) == []


def test_a_credit_is_granted_once_however_often_its_form_is_sent(cloud: Installation) -> None:
    tenant = tenant_named("gifted")
    fields = {**form(cloud, tenant, "credit"), "kind": "promotional", "name": "Welcome", "amount": "12.50", "expires": "2199-03-01"}
    for _ in range(2):
        answer = cloud.post("operator", f"operator/tenant/{tenant}/terms/credit/edit", fields)
        assert (answer.status_code, "The credit is granted." in answer.text) == (200, True)
    (credit,) = cloud.ask("billing", "operator", "GET", "api/credits", params={"tenant": tenant})
    assert (credit["amount"], credit["kind"], credit["left"]) == ("12.50", "promotional", "12.50")
    assert time.strftime("%Y-%m-%d %H:%M", time.gmtime(credit["expires_at_ns"] // 10**9)) == "2199-03-01 00:00"
    assert "Welcome" in cloud.get("operator", f"operator/tenant/{tenant}/owed").text
    yen = tenant_named("yen")
    save(cloud, yen, "currency", currency="JPY")
    assert save(cloud, yen, "credit", name="Ahead", amount="500").status_code == 200
    (credit,) = cloud.ask("billing", "operator", "GET", "api/credits", params={"tenant": yen})
    assert (credit["amount_minor"], credit["currency"]) == (500, "JPY"), "yen have no smaller coin"


WRONG = [
    ("tax", {"rate": "many", "label": "VAT"}, "rate", "is not a number such as 12.5"),
    ("tax", {"rate": "7.505", "label": "VAT"}, "rate", "at most 2 decimals"),
    ("tax", {"rate": "101", "label": "VAT"}, "rate", "a rate is from 0 to 10000 basis points"),
    ("tax", {"rate": "7", "label": " "}, "label", "A tax above zero needs its name"),
    ("currency", {"currency": "dollars"}, "currency", "by its three letters"),
    ("currency", {"currency": "XYZ"}, "currency", "not a currency of ISO 4217"),
    ("quota", {"devices": "many"}, "devices", "is not a number such as 12.5"),
    ("quota", {"weight": "1.5"}, "weight", "is no whole number"),
    ("quota", {"device_hours": "10", "window_days": ""}, "window_days", "fill in both, or neither"),
    ("plan", {"valid_from": "soon"}, "form", "soon"),
    ("plan", {"discount": "a lot"}, "discount", "is not a number such as 12.5"),
    ("plan", {"free_hours": "dev.1gb"}, "free_hours", "dev.1gb=100"),
    ("plan", {"tiers": "1000=5, 1000=10"}, "tiers", "each may be there once"),
    ("budget", {"limit": ""}, "limit", "Say how much may be spent"),
    ("budget", {"limit": "-5"}, "limit", "is not a number such as 12.5"),
    ("budget", {"limit": "5", "warn": "half"}, "warn", "is no list of per cents"),
    ("budget", {"limit": "5", "grace": "soon"}, "grace", "is no whole number"),
    ("budget", {"limit": "5", "notebook": "a.ipynb"}, "notebook", "say whose it is, too"),
    ("budget", {"limit": "5", "on_limit": "explode"}, "on_limit", "on_limit"),
    ("credit", {"amount": "5", "name": ""}, "name", "the tenant reads it"),
    ("credit", {"amount": "", "name": "x"}, "amount", "Say how much"),
    ("credit", {"amount": "5.005", "name": "x"}, "amount", "at most 2 decimals"),
    ("credit", {"amount": "5", "name": "x", "expires": "never"}, "expires", "is no day"),
    ("credit", {"amount": "5", "name": "x", "expires": "2020-01-01"}, "expires", "could pay nothing any more"),
    ("credit", {"amount": "0", "name": "x"}, "amount", ""),
]


@pytest.mark.parametrize(("key", "typed", "field", "sentence"), WRONG)
def test_a_bad_value_is_told_beside_its_field_in_a_sentence_and_changes_nothing(
    cloud: Installation, key: str, typed: dict[str, str], field: str, sentence: str
) -> None:
    tenant = tenant_named("stubborn")
    before = [stands(cloud, tenant), cloud.ask("pool", "operator", "GET", f"api/quotas/{tenant}")]
    answer = save(cloud, tenant, key, **typed)
    assert answer.status_code in (400, 409, 422), answer.text
    if field == "form":
        assert sentence in re.findall(r'(?s)<p class="problem" role="alert">(.*?)</p>', answer.text)[0]
    else:
        assert sentence in complaint(answer.text, field)
    for value in typed.values():
        assert f'value="{value}"' in unescape(answer.text) or not value or "<select" in answer.text, "what was typed stays"
    assert [stands(cloud, tenant), cloud.ask("pool", "operator", "GET", f"api/quotas/{tenant}")] == before
    for what in ("budgets", "credits", "plans"):
        assert cloud.ask("billing", "operator", "GET", f"api/{what}", params={"tenant": tenant}) == []


@pytest.mark.parametrize(
    ("key", "theirs", "mine"),
    [
        ("quota", {"weight": "5"}, {"weight": "7"}),
        ("tax", {"label": "VAT", "rate": "5"}, {"label": "VAT", "rate": "7"}),
        ("currency", {"currency": "EUR"}, {"currency": "KRW"}),
        ("plan", {"discount": "5"}, {"discount": "7"}),
        ("budget", {"limit": "5"}, {"limit": "7"}),
    ],
)
def test_who_saves_after_somebody_else_is_told_and_must_mean_it(
    cloud: Installation, key: str, theirs: dict[str, str], mine: dict[str, str]
) -> None:
    tenant = tenant_named(f"contested-{key}")
    if key == "budget":
        assert save(cloud, tenant, "budget", limit="1").status_code == 200
        (budget,) = cloud.ask("billing", "operator", "GET", "api/budgets", params={"tenant": tenant})
        key = f"budget-{budget['id']}"
    path, opened = f"operator/tenant/{tenant}/terms/{key}/edit", form(cloud, tenant, key)
    assert save(cloud, tenant, key, **theirs).status_code == 200
    (field, value), (_, other) = [*mine.items()][-1], [*theirs.items()][-1]
    stale = cloud.post("operator", path, {**opened, **mine})
    assert (stale.status_code, "Somebody changed this after the form was opened" in stale.text) == (412, True)
    assert f'value="{value}"' in stale.text, "what was typed stays"
    assert form(cloud, tenant, key)[field] == other, "and what the other one saved"
    stamp = re.findall(r'name="stamp" value="([^"]*)"', stale.text)[0]
    assert cloud.post("operator", path, {**opened, **mine, "stamp": stamp}).status_code == 200
    assert form(cloud, tenant, key)[field] == value


@pytest.mark.parametrize(("key", "field"), [("quota", "weight"), ("tax", "rate"), ("plan", "discount"), ("budget", "limit")])
def test_of_those_who_save_one_form_at_once_one_wins_and_all_others_are_told(cloud: Installation, key: str, field: str) -> None:
    tenant = tenant_named(f"raced-{key}")
    path, opened = f"operator/tenant/{tenant}/terms/{key}/edit", form(cloud, tenant, key) | ({"label": "VAT"} if key == "tax" else {})
    with ThreadPoolExecutor(5) as threads:
        answers = list(threads.map(lambda number: cloud.post("operator", path, {**opened, field: str(number)}), range(2, 7)))
    told = {412: "Somebody changed this"}
    if key == "budget":  # which is a new one: whoever comes late enough sees that it is there
        told[400] = "There is a budget of just this already"
    lost = [answer for answer in answers if answer.status_code != 200]
    assert len(lost) == 4 and all(told[answer.status_code] in answer.text for answer in lost)
    won = next(number for number, answer in enumerate(answers, 2) if answer.status_code == 200)
    service, subject = ("pool" if key == "quota" else "billing"), {"subject": tenant, "limit": 10}
    entries = cloud.ask(service, "operator", "GET", "api/audit", params=subject)["entries"]
    assert len([entry for entry in entries if not entry["action"].endswith(".refused")]) == 1
    if key != "budget":
        assert form(cloud, tenant, key)[field] == str(won)


def test_without_scripts_a_form_is_a_page_and_saving_leads_back(cloud: Installation) -> None:
    tenant = tenant_named("plain")
    page = cloud.get("operator", f"operator/tenant/{tenant}/terms/tax/edit").text
    assert "<h1>" in page and 'id="title-tax"' in page
    done = save(cloud, tenant, "tax", fragment=False, label="GST", rate="10")
    assert (done.status_code, done.headers["Location"]) == (303, f"/services/dashboards/operator/tenant/{tenant}")
    wrong = save(cloud, tenant, "tax", fragment=False, rate="x")
    assert (wrong.status_code, "<h1>" in wrong.text, "is not a number" in wrong.text) == (400, True, True)


def test_terms_are_refused_to_a_foreign_page(cloud: Installation) -> None:
    cloud.hub.sign_in_as = "operator"
    with httpx.Client(base_url=cloud.urls["dashboards"], follow_redirects=True, headers={"Sec-Fetch-Mode": "navigate"}) as client:
        assert client.get("operator/tenant/acme").status_code == 200
        for fields in ({"label": "VAT"}, {"label": "VAT", "_xsrf": "made-up"}):
            answer = client.post("operator/tenant/acme/terms/tax/edit", data=fields, headers={"Sec-Fetch-Mode": "cors"})
            assert answer.status_code == 403
    assert stands(cloud, "acme")["tax_label"] == ""


def test_while_billing_is_gone_the_page_says_so_and_what_was_typed_is_not_replaced(cloud: Installation) -> None:
    fields = form(cloud, "acme", "tax")
    with cloud.billing.stopped():
        page = cloud.get("operator", PAGE.format("acme"))
        assert (page.status_code, "not known right now" in page.text) == (200, True)
        assert "Any number of devices" in page.text, "the pool's part is there"
        answer = cloud.post("operator", "operator/tenant/acme/terms/tax/edit", {**fields, "label": "VAT", "rate": "5"})
        assert (answer.status_code, answer.headers["HX-Retarget"]) == (503, "#saved")
        table = cloud.get("operator", "operator/tenants").text
        assert "operator/tenant/acme" in table and "cannot be shown right now" in table
    assert stands(cloud, "acme")["tax_bps"] == 0


def budget(tenant: str, spent: int, limit: int | None = 100, running: int = 0) -> BudgetRow:
    amounts = {"limit_nano": limit, "spent_nano": spent, "running_nano": running, "left_nano": 0, "forecast_nano": 0}
    return BudgetRow.model_validate(
        {"id": 1, "tenant": tenant, "user": None, "notebook": None, "currency": "USD", "period": "2026-11", "on_limit": "notify", **amounts}
    )


def test_a_row_has_the_fullest_budget_and_open_invoices_by_currency() -> None:
    assert [used_milli(budget("a", *given)) for given in ((50,), (50, 100, 25), (0, 0), (1, 0), (1, None))] == [500, 750, 0, 1000, None]
    invoices = [
        InvoiceRow(number=n, tenant="a", month="2026-10", currency=c, state="open", total=t, open=t, due_at_ns=0)
        for n, c, t in (("1", "USD", "0.10"), ("2", "EUR", "3.00"), ("3", "USD", "0.20"))
    ]
    span = Span(id="s", kind="process", label="x")
    lease = {"lease": "l", "session": "s", "tenant": "b", "user": "u", "flavor": "f", "device_model": "m", "span": span}
    leases = [Lease(**lease, opened_at_ns=0, duration_ns=0, devices=2, share_milli=500)] * 2  # type: ignore[arg-type]
    quotas = (Quota(tenant="b", devices_milli=5), Quota(tenant="b", user="u", devices_milli=1))
    plan = Plan.model_validate(
        {"tenant": "c", "version": 1, "valid_from": "2026-11", "currency": "USD", "discount_bps": 5, "free_nano": 0, "free_seconds": {},
         "tiers": (), "commitment_nano": 0, "changed_at_ns": 0, "changed_by": "o"}
    )  # fmt: skip
    budgets = (budget("a", 10), budget("a", 90), budget("a", 20))
    known = TenantRows(budgets=budgets, plans=(plan,), open_invoices=tuple(invoices))
    rows = {row.tenant: row for row in tenant_rows(["d", "b", "c", "a"], known, quotas, held_by(leases))}
    assert list(rows) == ["d", "b", "c", "a"], "in the order in which they were asked for"
    assert rows["a"].owed == (Owed("EUR", 1, "3.00"), Owed("USD", 2, "0.30"))
    assert (rows["a"].budget_milli, rows["b"].budget_milli) == (900, None)
    assert (rows["b"].leases, rows["b"].held_milli, rows["b"].quota) == (2, 2000, quotas[0])
    assert rows["c"].plan == plan


@pytest.mark.parametrize(
    ("column", "ascending", "descending"),
    [
        ("tenant", "abcxy", "yxcba"),
        *((name, "acxyb", "bacxy") for name in ("held", "leases")),
        *((name, "axycb", "bcaxy") for name in ("month", "end", "budget", "plan", "balance", "open")),
    ],
)
def test_tenants_are_sorted_by_each_column_whether_billing_knows_them_or_not(column: str, ascending: str, descending: str) -> None:
    for way, ranked, expected in (("asc", ("c", "b"), ascending), ("desc", ("b", "c"), descending)):
        order = TenantOrder(ranked=ranked, unranked=("a",), unmatched=())
        page = arranged(order, {"x", "y", "a"}, {"b": (1, 500)}, read_query({"sort": column, "order": way}, TENANTS))
        assert ("".join(page.rows), page.first, page.count, page.among) == (expected, 1, 5, 5)


def test_what_is_searched_for_is_found_among_those_that_billing_does_not_know_too() -> None:
    order = TenantOrder(ranked=("firm-1",), unranked=(), unmatched=("other",))
    page = arranged(order, {"firm-2", "other", "third"}, {}, read_query({"q": "FIRM"}, TENANTS))
    assert (page.rows, page.count, page.among) == (["firm-1", "firm-2"], 2, 4)


def test_a_page_of_many_tenants_takes_as_many_calls_and_rows_as_one_of_few(cloud: Installation) -> None:
    names = [f"many-{number:03}" for number in range(3 * ROWS_PER_PAGE)]
    usage = [_record(name, 10**9 * (number + 1)) for number, name in enumerate(names)]
    cloud.ask("billing", "service", "POST", "api/usage", json={"records": usage})
    for sort in [column.name for column in TENANTS.columns]:
        counts = []
        for search in ("many-000", "many"):
            before = _calls(cloud)
            page = cloud.get("operator", f"operator/tenants/rows?q={search}&sort={sort}&order=desc").text
            counts.append({key: count - before.get(key, 0) for key, count in _calls(cloud).items() if count != before.get(key, 0)})
        assert len(re.findall(r'<tr id="tenant-', page)) == ROWS_PER_PAGE
        assert counts[0] == counts[1] and counts[1][("billing", "answered")] == 2, (sort, counts)
    page = cloud.get("operator", "operator/tenants/rows?q=many&sort=month&order=desc&page=2").text
    assert re.findall(r'<tr id="tenant-(many-\d+)', page) == names[::-1][ROWS_PER_PAGE : 2 * ROWS_PER_PAGE]


def _record(tenant: str, duration_ns: int) -> dict[str, Any]:
    return {
        "source": "pool", "id": tenant, "tenant": tenant, "user": "u", "session": "s", "lease": tenant, "flavor": "dev.1gb",
        "span": {"id": "x", "kind": "cell", "label": "n.ipynb", "cell": 1}, "device_model": "null", "devices": 1,
        "started_at_ns": time.time_ns() - 10**12, "duration_ns": duration_ns, "close_reason": "drained",
    }  # fmt: skip


def _calls(cloud: Installation) -> dict[tuple[str, str], int]:
    """What the pages have asked of pool and billing so far, by how it went."""
    text = httpx.get(cloud.urls["dashboards"] + "metrics").text
    found = re.findall(r'upstream_calls_total{outcome="(\w+)",service="(\w+)"} ([\d.]+)', text)
    return {(service, outcome): int(float(count)) for outcome, service, count in found if service in ("pool", "billing")}
