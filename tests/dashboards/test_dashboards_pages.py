"""What the pages show, over real pool and billing services."""

from __future__ import annotations

import calendar
import csv
import html
import io
import re
import time
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from dashboards_installation import Hub, Installation, eventually, install, running
from forebay_dashboards.text.times import today

NS = 10**9


def cells(page: str, label: str) -> list[str]:
    """The text of a table's column."""
    found = re.findall(rf'<td data-label="{label}"[^>]*>(.*?)</td>', page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in found]


def test_where_the_money_went_is_told_by_day_notebook_and_flavor_down_to_each_run(cloud: Installation) -> None:
    for cell, seconds in ((3, 1), (3, 2), (4, 4)):
        span = {"id": f"{cell}", "kind": "cell", "label": "deep/a&b.ipynb", "cell": cell}
        cloud.record_usage(user="acme-billing", span=span, duration_ns=seconds * NS)
    cloud.record_usage(user="acme-billing", span={"id": "p", "kind": "process", "label": "=cmd|run", "cell": None}, duration_ns=8 * NS)
    page = cloud.get("acme-billing", "usage/spread?period=today").text
    assert cells(page, "Notebook or command") == ["=cmd|run process", "deep/a&amp;b.ipynb"]
    assert cells(page, "Device time")[-2:] == ["7.000 s", "15.000 s"]
    assert page.count("<rect ") == 2 and "$" in page, "one day's bar, of two notebooks"
    link = re.search(r'href="/services/dashboards/(usage/notebook\?[^"]+b.ipynb[^"]*)"', page)
    assert link is not None
    notebook = cloud.get("acme-billing", html.unescape(link[1])).text
    assert cells(notebook, "Cell") == ["cell 3", "cell 4"]
    assert cells(notebook, "Leases") == ["2", "1"]
    of_cell = re.search(r'href="/services/dashboards/(usage/notebook\?[^"#]+cell=s%2F3)#records"', notebook)
    assert of_cell is not None
    assert len(re.findall('<tr id="record-', cloud.get("acme-billing", html.unescape(of_cell[1])).text)) == 2
    assert "Nothing here held a device" in cloud.get("acme-owner", html.unescape(link[1])).text


def test_the_export_holds_every_record_of_the_period_and_no_formula(cloud: Installation) -> None:
    answer = cloud.get("acme-billing", "usage.csv?period=today")
    assert answer.headers["Content-Type"].startswith("text/csv") and "attachment" in answer.headers["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert sorted(int(row["duration_ns"]) // NS for row in rows) == [1, 2, 4, 8]
    assert {row["notebook_or_command"] for row in rows} == {"deep/a&b.ipynb", "'=cmd|run"}
    assert all(Decimal(row["cost"]) > 0 and row["currency"] == "USD" for row in rows)
    assert list(csv.DictReader(io.StringIO(cloud.get("acme-billing", "usage.csv?period=last-month").text))) == []


@pytest.mark.parametrize("query", ["period=never", "period=days&first=2026-11-02&last=2026-11-01"])
@pytest.mark.parametrize("path", ["usage", "usage/spread", "usage.csv", "usage/notebook?label=a"])
def test_a_period_of_ones_own_usage_that_makes_no_sense_gets_a_sentence(cloud: Installation, path: str, query: str) -> None:
    answer = cloud.get("acme-member", f"{path}{'&' if '?' in path else '?'}{query}")
    assert answer.status_code == 400 and "That cannot be done" in answer.text


def test_a_cell_that_is_not_there_has_no_record(cloud: Installation) -> None:
    answer = cloud.get("acme-member", "usage/notebook?label=a&cell=x")
    assert answer.status_code == 200 and "There is no record." in answer.text


def test_a_cell_is_shown_with_how_it_begins(cloud: Installation) -> None:
    """The same cell in two kernels, and another with the number that it had."""
    for session, cell, cell_id, line in (("one", 3, "train", "fit(<x>)"), ("two", 3, "test", "score()"), ("two", 4, "train", "fit(<x>)")):
        span = {"id": f"{session}{cell}", "kind": "cell", "label": "restarted.ipynb", "cell": cell, "cell_id": cell_id, "first_line": line}
        cloud.record_usage(user="globex-owner", tenant="globex", session=session, span=span, duration_ns=NS)
    notebook = cloud.get("globex-owner", "usage/notebook?label=restarted.ipynb&period=today").text
    assert cells(notebook, "Cell") == ["cell 3 score()", "cell 4 fit(&lt;x&gt;)"]
    assert cells(notebook, "Leases") == ["1", "2"]
    page = cloud.get("globex-owner", "usage/notebook?label=restarted.ipynb&period=today&cell=train").text
    assert len(re.findall('<tr id="record-', page)) == 2 and "fit(&lt;x&gt;)" in page
    (first, *_) = csv.DictReader(io.StringIO(cloud.get("globex-owner", "usage.csv?period=today").text))
    assert first["cell_id"] in ("train", "test") and first["first_line"]


def test_a_month_is_forecast_after_a_whole_day_and_as_a_range(cloud: Installation) -> None:
    cloud.record_usage(user="acme-billing")
    page = cloud.get("acme-billing", "usage/totals").text
    assert re.search(r"By the end of the month</h2>\s*<p>known after a whole day</p>", page), page
    cloud.record_usage(user="acme-billing", started_at_ns=time.time_ns() - 86_400 * NS)
    page = cloud.get("acme-billing", "usage/totals").text
    amount = r'<data value="(0.[0-9]+) USD"[^>]*>[^<]*</data>'
    found = re.search(rf'By the end of the month</h2>\s*<p class="figure">{amount} \u2013 {amount}</p>', page)
    assert found and float(found[1]) <= float(found[2]), page


def test_what_took_no_time_and_cost_nothing_is_no_row(cloud: Installation) -> None:
    cloud.record_usage(user="acme-billing", flavor="@parked", parked_bytes=2**30, duration_ns=0)
    cloud.record_usage(user="acme-billing", flavor="@parked", parked_bytes=2**30, duration_ns=2 * NS)
    page = cloud.get("acme-billing", "usage/records").text
    times = [time for time, flavor in zip(cells(page, "Device time"), cells(page, "Flavor"), strict=True) if flavor == "parked memory"]
    assert len(times) == 1 and times[0].startswith("2.000 s"), times
    spread = cloud.get("acme-billing", "usage?period=today").text
    assert "0 µs" not in spread


def test_a_months_report_is_for_the_tenants_administrators_and_operators(cloud: Installation) -> None:
    cloud.record_usage(tenant="initech", user="newcomer2")
    month = time.strftime("%Y-%m", time.gmtime())
    assert f"report?tenant=initech&amp;month={month}" in cloud.get("newcomer", "tenant/bills").text
    for name in ("newcomer", "operator"):
        answer = cloud.get(name, f"report?tenant=initech&month={month}")
        assert answer.status_code == 200 and answer.content.startswith(b"%PDF") and "attachment" in answer.headers["Content-Disposition"]
        assert "sandbox" in answer.headers["Content-Security-Policy"]
    for name in ("acme-owner", "acme-member"):
        assert cloud.get(name, f"report?tenant=initech&month={month}").status_code == 403
    assert cloud.get("newcomer", "report?tenant=initech&month=never").status_code == 400


def test_a_recipient_is_added_listed_and_removed_where_mail_is_sent(
    hub: Hub, worker_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mailing = install(hub, worker_python, tmp_path_factory.mktemp("mailing"))
    mailing.billing.environment["FOREBAY_BILLING_SMTP_HOST"] = "127.0.0.1"
    with running(mailing, "billing", "pool", "dashboards"):
        added = mailing.post("acme-owner", "tenant/reports", {"target": " money@acme.example "}).text
        assert "money@acme.example gets the report of this month" in added and 'data-label="Latest report">none yet' in added
        (row,) = mailing.ask("billing", "acme-owner", "GET", "api/reports/recipients")
        assert (row["tenant"], row["target"]) == ("acme", "money@acme.example")
        assert "Send money@acme.example no more reports" in mailing.get("acme-billing", "tenant/reports").text
        assert "money@acme.example" not in mailing.get("globex-owner", "tenant/reports").text
        assert mailing.post("globex-owner", "tenant/reports", {"remove": str(row["id"])}).status_code in (400, 404)
        assert "Monthly reports go to" in mailing.get("operator", "operator/tenant/acme").text
        wrong = mailing.post("acme-owner", "tenant/reports", {"target": "no address"})
        assert (wrong.status_code, 'role="alert"' in wrong.text, 'value="no address"' in wrong.text) == (400, True, True)
        removed = mailing.post("acme-owner", "tenant/reports", {"remove": str(row["id"])}).text
        assert "It gets no more reports." in removed and "Nobody gets the report" in removed
        assert mailing.ask("billing", "acme-owner", "GET", "api/reports/recipients") == []


def test_who_pays_says_whom_reports_are_mailed_to(cloud: Installation) -> None:
    assert "Nobody gets the report" in cloud.get("acme-owner", "tenant/reports").text
    answer = cloud.post("acme-owner", "tenant/reports", {"target": "money@acme.example"})
    assert answer.status_code == 400 and "this installation sends no e-mail" in answer.text and 'value="money@acme.example"' in answer.text
    for wrong in ({"target": " "}, {"remove": "x"}, {"remove": "77"}):
        answer = cloud.post("acme-owner", "tenant/reports", wrong)
        assert answer.status_code == 400 and 'role="alert"' in answer.text


def test_members_stand_on_the_tenants_page_those_who_spent_most_first(cloud: Installation) -> None:
    cloud.record_usage(tenant="initech", user="gone", duration_ns=9 * NS)
    cloud.record_usage(tenant="initech", user="gone-too", duration_ns=3 * NS)
    page = cloud.get("newcomer", "tenant").text
    assert cells(page, "Member") == ["gone has left", "gone-too has left", "newcomer2 has left", "newcomer"]
    shares = [int(share.removesuffix(" %")) for share in cells(page, "Share")[:3]]
    assert shares == sorted(shares, reverse=True) and shares[0] >= 3 * shares[1] - 1 and 99 <= sum(shares) <= 101
    members = cells(cloud.get("acme-owner", "tenant").text, "Member")
    assert "stranger" in members, "who used nothing is a member, too"
    assert "List prices apply" in page and "if it goes on as in the last seven days" in page


def test_a_person_who_never_held_a_device_is_told_how_to_begin(cloud: Installation) -> None:
    page = cloud.get("newcomer", "usage").text
    assert "No cell or process of yours has held a device yet." in page
    assert 'Open a <a href="/hub/home">notebook</a>' in page
    assert "No device was held." in page
    assert "Nothing of yours holds a device, so nothing costs anything." in page


def test_each_cell_that_held_a_device_is_there_with_its_time_flavor_device_and_cost(cloud: Installation) -> None:
    cloud.record_usage(user="acme-owner", duration_ns=842_000_001, flavor="2xlarge.1024gb", device_model="MI300X", devices=4)
    page = cloud.get("acme-owner", "usage/records").text
    assert cells(page, "What")[0] == "digits.ipynb cell 7"
    assert cells(page, "Flavor")[0] == "2xlarge.1024gb"
    assert cells(page, "Device")[0] == "4 × MI300X"  # noqa: RUF001 - as the page shows it
    assert cells(page, "Device time")[0] == "0.842 s"
    assert cells(page, "Cost")[0] == "$0.007484"
    assert 'title="842,000,001 ns"' in page
    assert 'title="0.007484444 USD"' in page


def test_parked_memory_stands_among_the_usage_with_its_gib_hours(cloud: Installation) -> None:
    since_ns = time.time_ns() - 1800 * NS
    cloud.record_usage(user="acme-owner", flavor="@parked", parked_bytes=3 * 2**30, started_at_ns=since_ns, duration_ns=1800 * NS)
    page = cloud.get("acme-owner", "usage/records").text
    row = cells(page, "Flavor").index("parked memory")
    assert cells(page, "Device")[row] == "3 GiB"
    assert cells(page, "Device time")[row] == "30 min 00 s 1.500000 GiB·h"
    assert cells(page, "Cost")[row] == "$0.000000"


def test_the_energy_of_a_record_stands_beside_its_time_and_its_sum_with_the_co2(cloud: Installation) -> None:
    day = {"started_at_ns": time.time_ns() - 3 * 10**9, "user": "acme-owner"}
    cloud.record_usage(**day, energy_mj=45_000_000, duration_ns=10**9)
    cloud.record_usage(**day, duration_ns=10**9)
    page = cloud.get("acme-owner", "usage?period=today").text
    assert "Energy: " in page and page.count("12.5 Wh") == 2 and "5.00 g of CO₂" in page
    assert re.search(r"\(devices told it for \d\d % of the time\)", page)
    rows = csv.DictReader(io.StringIO(cloud.get("acme-owner", "usage.csv?period=today").text))
    assert {row["energy_mj"] for row in rows} == {"", "45000000"}
    assert "Energy" not in cloud.get("acme-member", "usage?period=today").text, "none of theirs was told"


def test_a_process_is_shown_by_its_command(cloud: Installation) -> None:
    span = {"id": "p", "kind": "process", "label": "python train.py --epochs 3", "cell": None}
    cloud.record_usage(user="acme-owner", span=span)
    assert cells(cloud.get("acme-owner", "usage/records").text, "What")[0] == "python train.py --epochs 3 process"


def test_a_corrected_record_is_struck_through_and_no_longer_counted(cloud: Installation) -> None:
    wrong = cloud.record_usage(tenant="umbrella", user="acme-owner")
    cloud.ask("billing", "operator", "POST", "api/corrections", json={"source": "pool", "id": wrong["id"], "reason": "a test"})
    page = cloud.get("operator", "operator/usage").text
    assert "umbrella" not in page
    right = cloud.record_usage(user="acme-owner")
    cloud.ask("billing", "operator", "POST", "api/corrections", json={"source": "pool", "id": right["id"], "reason": "a test"})
    assert cells(cloud.get("acme-owner", "usage/records").text, "Cost")[0].startswith("taken back")


def test_nobody_sees_what_another_used(cloud: Installation) -> None:
    cloud.record_usage(user="acme-member", span={"id": "s", "kind": "cell", "label": "secret-of-member.ipynb", "cell": 1})
    assert "secret-of-member.ipynb" in cloud.get("acme-member", "usage").text
    for name, path in (("acme-owner", "usage"), ("globex-owner", "usage"), ("globex-owner", "tenant"), ("operator", "usage")):
        assert "secret-of-member.ipynb" not in cloud.get(name, path).text


def test_a_cursor_of_another_persons_page_shows_only_ones_own_records(cloud: Installation) -> None:
    for number in range(27):
        span = {"id": "s", "kind": "cell", "label": "members-own.ipynb", "cell": number}
        cloud.record_usage(user="acme-member", started_at_ns=time.time_ns() - (100 + number) * NS, span=span)
    page = cloud.get("acme-member", "usage").text
    older = re.search(r'href="/services/dashboards/usage\?cursor=([^"#]+)#records" rel="next">Older', page)
    assert older is not None
    assert "members-own.ipynb" in cloud.get("acme-member", f"usage/records?cursor={older[1]}").text
    stolen = cloud.get("globex-owner", f"usage/records?cursor={older[1]}").text
    assert "members-own.ipynb" not in stolen


def test_records_are_paged_on_the_server_newest_first_without_gap_or_repetition(cloud: Installation) -> None:
    for number in range(60):
        cloud.record_usage(
            tenant="globex", user="globex-owner", duration_ns=number * 1_000_000 + 1, started_at_ns=time.time_ns() - number * NS
        )
    path, seen = "usage", []
    while path:
        page = cloud.get("globex-owner", path).text
        found = re.findall(r'<tr id="record-([^"]+)"', page)
        assert len(found) <= 25
        seen += found
        older = re.search(r'href="/services/dashboards/(usage\?cursor=[^"#]+)#records" rel="next"', page)
        path = older[1] if older else ""
    assert len(seen) == len(set(seen)) >= 60


@pytest.mark.parametrize("cursor", ["garbage", "1.2.3", "' or 1=1", "9" * 500])
def test_a_cursor_that_is_none_gets_a_sentence(cloud: Installation, cursor: str) -> None:
    answer = cloud.get("acme-member", "usage", params={"cursor": cursor})
    assert answer.status_code == 200
    assert "Your records cannot be shown" in answer.text


def test_names_are_text_and_never_markup(cloud: Installation) -> None:
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}"
    cloud.record_usage(user="acme-member", span={"id": "x", "kind": "cell", "label": evil, "cell": 1}, device_model=evil)
    with cloud.session("acme-member") as session:
        granted = session.acquire(label=evil)
        eventually(lambda: "&lt;script&gt;" in cloud.get("acme-member", "usage/live").text)
        places = (("acme-member", "usage"), ("operator", "operator/leases"), ("acme-owner", "tenant"))
        pages = [cloud.get(name, path).text for name, path in places]
        session.release(granted.epoch)
    for page in pages:
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "49" not in re.findall(r"img&gt;(\d*)", page)
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_pages_forbid_foreign_scripts_frames_and_sniffing(cloud: Installation) -> None:
    headers = cloud.get("acme-member", "usage").headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")


def test_every_page_is_whole_html_with_one_heading_and_labelled_fields(cloud: Installation) -> None:
    for name, path in (
        ("acme-owner", "usage"),
        ("acme-owner", "tenant"),
        ("acme-owner", "tenant/people"),
        ("acme-owner", "tenant/people/acme-member"),
        ("acme-owner", "tenant/budgets"),
        ("acme-owner", "tenant/budgets/terms/budget/edit"),
        ("acme-owner", "tenant/alerts"),
        ("acme-owner", "tenant/reports"),
        ("acme-owner", "tenant/bills"),
        ("operator", "operator"),
        ("operator", "operator/leases"),
        ("operator", "operator/devices"),
        ("operator", "operator/usage"),
        ("operator", "operator/flavors/dev.1gb/edit"),
        ("operator", "operator/price-list"),
        ("operator", "operator/plans"),
        ("operator", "operator/audit"),
    ):
        page = cloud.get(name, path).text
        assert page.count("<h1>") == 1
        assert '<html lang="en">' in page
        assert 'name="viewport"' in page
        identifiers = re.findall(r' id="([^"]+)"', page)
        assert len(identifiers) == len(set(identifiers)), path
        for field in re.findall(r'<(?:input|select) id="(\w+)"', page):
            assert f'<label for="{field}"' in page
        assert not re.findall(r"<script(?! src=)|\son\w+=|\sstyle=", page)


def test_the_tenant_page_sums_what_billing_sums(cloud: Installation) -> None:
    cloud.record_usage(tenant="initech", user="newcomer", duration_ns=3600 * NS, flavor="12xlarge.6144gb")
    cloud.record_usage(tenant="initech", user="other", duration_ns=1800 * NS, flavor="12xlarge.6144gb")
    page = cloud.get("newcomer", "tenant").text
    assert "$288.00" in page
    assert "1 h 30 min 00 s" in page
    assert {"newcomer", "other"} <= set(cells(page, "User"))


def test_statements_are_passed_on_as_page_and_csv_and_may_run_nothing(cloud: Installation) -> None:
    cloud.record_usage(user="acme-member")
    month = time.strftime("%Y-%m", time.gmtime())
    page = cloud.get("acme-owner", "statement", params={"tenant": "acme", "month": month, "format": "html"})
    assert "<h1>Statement" in page.text
    assert "sandbox" in page.headers["Content-Security-Policy"]
    assert "script-src" not in page.headers["Content-Security-Policy"]
    table = cloud.get("operator", "statement", params={"tenant": "acme", "month": month, "format": "csv"})
    assert table.text.startswith("tenant,month,kind,user")
    assert table.headers["Content-Type"].startswith("text/csv")
    assert "attachment" in table.headers["Content-Disposition"]


@pytest.mark.parametrize(
    ("name", "query", "status", "says"),
    [
        ("acme-member", {"tenant": "acme", "month": "2026-11"}, 403, "for the administrators of its tenant"),
        ("globex-owner", {"tenant": "acme", "month": "2026-11"}, 403, "for the administrators of its tenant"),
        ("operator", {"tenant": "nobody-knows", "month": "2026-11"}, 404, "Nothing was ever recorded"),
        ("operator", {"tenant": "acme", "month": "2026-13"}, 400, "is not a month"),
        ("operator", {"tenant": "acme", "month": "2026-11", "format": "exe"}, 400, "html or csv"),
        ("operator", {"tenant": "acme"}, 400, "incomplete"),
    ],
)
def test_a_statement_that_cannot_be_had_is_a_page_with_the_reason(
    cloud: Installation, name: str, query: dict[str, str], status: int, says: str
) -> None:
    answer = cloud.get(name, "statement", params=query)
    assert answer.status_code == status
    assert says in answer.text


@pytest.fixture
def invoiced(cloud: Installation) -> dict[str, str]:
    """The invoice of acme's month before this one."""
    now = time.gmtime()
    year, month = (now.tm_year, now.tm_mon - 1) if now.tm_mon > 1 else (now.tm_year - 1, 12)
    cloud.record_usage(user="acme-member", flavor="12xlarge.6144gb", started_at_ns=calendar.timegm((year, month, 2, 0, 0, 0)) * NS)
    name = f"{year}-{month:02}"
    if not cloud.ask("billing", "operator", "GET", "api/credits?tenant=acme"):
        grant = {"tenant": "acme", "kind": "promotional", "name": "Welcome gift", "amount_minor": 1234}
        cloud.ask("billing", "operator", "POST", "api/credits", json=grant)
    (made,) = cloud.ask("billing", "operator", "POST", "api/invoices", json={"tenant": "acme", "month": name})
    return {key: str(value) for key, value in made.items()}


def test_invoices_and_credits_are_listed_with_their_links(cloud: Installation, invoiced: dict[str, str]) -> None:
    own = cloud.get("acme-owner", "tenant/bills").text
    assert cells(own, "Number") == [invoiced["number"]] and cells(own, "State") == [invoiced["state"]]
    assert cells(own, "Total") == [f"{invoiced['total']} USD"] and cells(own, "Left") == ["12.34 USD"]
    assert "Welcome gift" in own and cells(own, "Read") == ["Page PDF CSV FOCUS"]
    every = cloud.get("operator", "operator/invoices").text
    assert invoiced["number"] in cells(every, "Number") and "acme" in cells(every, "Tenant")
    assert "No month has been invoiced yet." in cloud.get("globex-owner", "tenant/bills").text


def test_budgets_stand_on_the_pages_of_those_whom_they_concern(cloud: Installation) -> None:
    assert "No budget limits this." in cloud.get("globex-owner", "usage").text
    bodies = ({"limit_nano": 4 * 10**9, "on_limit": "drain"}, {"limit_nano": 10**9, "user": "acme-member", "notebook": "<b>.ipynb"})
    made = [cloud.ask("billing", "operator", "PUT", "api/budgets", json={"tenant": "acme", "new": True, **body}) for body in bodies]
    owner = cloud.get("acme-owner", "tenant").text
    assert "$4.00" in owner and "At the limit leases are taken back; tensors are kept." in owner
    assert "&lt;b&gt;.ipynb of acme-member" in owner and owner.count('aria-label="What is used of') >= 2
    member = cloud.get("acme-member", "usage/budgets").text
    assert "$1.00" in member and "$4.00" not in member and "its amounts are for who pays" in member
    assert "What is used of the budget of &lt;b&gt;.ipynb of acme-member" in member
    assert "No budget limits this." in cloud.get("globex-owner", "tenant").text
    for row in made:
        cloud.ask("billing", "operator", "DELETE", f"api/budgets/{row['id']}")


def test_invoices_are_passed_on_in_each_form_and_may_run_nothing(cloud: Installation, invoiced: dict[str, str]) -> None:
    forms = {"html": "text/html", "pdf": "application/pdf", "csv": "text/csv", "focus": "text/csv"}
    for layout, kind in forms.items():
        answer = cloud.get("acme-owner", "invoice", params={"number": invoiced["number"], "format": layout})
        assert answer.status_code == 200 and answer.headers["Content-Type"].startswith(kind)
        assert "sandbox" in answer.headers["Content-Security-Policy"]
    cloud.record_usage(user="acme-member")
    draft = cloud.get("operator", "invoice", params={"tenant": "acme", "month": time.strftime("%Y-%m", time.gmtime())})
    assert "<h1>Draft of an invoice" in draft.text


@pytest.mark.parametrize(
    ("name", "query", "status", "says"),
    [
        ("acme-member", {"number": "INV-000001"}, 403, "for the administrators of its tenant"),
        ("globex-owner", {"number": "INV-000001"}, 404, "There is no invoice"),
        ("globex-owner", {"tenant": "acme", "month": "2026-11"}, 403, "for the administrators of its tenant"),
        ("operator", {"number": "INV-999999"}, 404, "There is no invoice"),
        ("operator", {"tenant": "acme", "month": "2026-13"}, 400, "is not a month"),
        ("operator", {"number": "INV-000001", "format": "exe"}, 400, "html, pdf, csv or focus"),
        ("operator", {}, 400, "incomplete"),
    ],
)
def test_an_invoice_that_cannot_be_had_is_a_page_with_the_reason(
    cloud: Installation, invoiced: dict[str, str], name: str, query: dict[str, str], status: int, says: str
) -> None:
    answer = cloud.get(name, "invoice", params=query)
    assert (answer.status_code, says in answer.text) == (status, True)


def test_the_operator_sees_device_time_and_cost_by_tenant_and_flavor(cloud: Installation) -> None:
    cloud.record_usage(tenant="hooli", user="gavin", duration_ns=36 * NS, flavor="24xlarge.12288gb")
    page = cloud.get("operator", "operator/usage?period=today").text
    link = r'<a href="[^"]*operator/tenant/hooli">hooli</a>'
    row = re.search(rf"<tr><td[^>]*>{link}</td><td[^>]*>24xlarge.12288gb</td>.*?</tr>", page, re.DOTALL)
    assert row is not None
    assert cells(row[0], "Device time") == ["36.000 s"]
    assert cells(row[0], "Cost") == ["$3.840000"]
    long_ago = cloud.get("operator", "operator/usage?period=days&first=1999-01-01&last=1999-01-31").text
    assert "Nobody held a device in this period." in long_ago


@pytest.mark.parametrize("query", ["period=decade", "period=days", "period=days&first=2026-02-01&last=2026-01-01"])
def test_a_period_that_makes_no_sense_gets_a_sentence(cloud: Installation, query: str) -> None:
    answer = cloud.get("operator", f"operator/usage?{query}")
    assert answer.status_code == 400
    assert "That cannot be done" in answer.text


def test_open_leases_the_queue_with_reasons_and_devices_are_on_the_operators_page(cloud: Installation) -> None:
    with cloud.session("acme-member") as first, cloud.session("globex-owner") as second, cloud.session("acme-owner") as third:
        granted = [first.acquire("one.ipynb", 1), second.acquire("python two.py", None)]
        third.ask("three.ipynb", 3)
        eventually(lambda: "three.ipynb" in cloud.get("operator", "operator/queue/rows").text)
        leases, queue, devices = (cloud.get("operator", f"operator/{name}").text for name in ("leases", "queue", "devices"))
        assert cells(leases, "Who") == ["acme-member acme", "globex-owner globex"]
        assert cells(leases, "What") == ["one.ipynb cell 1", "python two.py process"]
        assert cells(queue, "What") == ["three.ipynb cell 3"]
        assert "devices that serve dev.1gb are held" in cells(queue, "Waits because")[0]
        assert cells(devices, "State") == ["leased", "leased"]
        overview = cloud.get("operator", "operator/live").text
        assert 'aria-label="2 held, 0 idle, 0 free, 0 closed"' in overview
        assert "devices that serve dev.1gb are held" in overview
        member = cloud.get("acme-member", "usage/live").text
        assert "one.ipynb" in member
        assert "three.ipynb" not in member
        owner = cloud.get("acme-owner", "tenant/live").text
        assert ("one.ipynb" in owner, "three.ipynb" in owner, "two.py" in owner) == (True, True, False)
        assert granted[0].lease != granted[1].lease


def test_what_is_at_no_address_is_a_page_that_says_so(cloud: Installation) -> None:
    answer = cloud.get("acme-member", "nothing/here")
    assert answer.status_code == 404
    assert "There is nothing at this address." in answer.text
    assert cloud.get(None, "static/../settings.py").status_code == 404


def test_the_root_leads_to_my_usage(cloud: Installation) -> None:
    assert cloud.get("acme-member", "").headers["Location"] == "/services/dashboards/usage"


def test_static_files_are_kept_by_browsers_and_change_their_address_with_their_content(cloud: Installation) -> None:
    page = cloud.get("acme-member", "usage").text
    for address in re.findall(r'(?:src|href)="/services/dashboards/(static/[^"]+)"', page):
        assert "?v=" in address
        assert "immutable" in cloud.get(None, address).headers["Cache-Control"]
    assert "Zero-Clause BSD" in cloud.get(None, "static/htmx-LICENSE.txt").text


def test_times_are_machine_readable_for_the_viewers_zone(cloud: Installation) -> None:
    cloud.record_usage(user="acme-member")
    page = cloud.get("acme-member", "usage/records").text
    assert re.search(r'<time datetime="\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z">\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC</time>', page)


def test_today_begins_in_the_zone_the_browser_told(cloud: Installation) -> None:
    zones = ("Pacific/Kiritimati", "Pacific/Pago_Pago")
    later_start_ns = max(today(time.time_ns(), ZoneInfo(zone)).since_ns for zone in zones)
    cloud.record_usage(user="acme-owner", started_at_ns=later_start_ns - NS, flavor="8xlarge.4096gb")

    def day(zone: str) -> str:
        page = cloud.get("acme-owner", "usage/totals", headers={"Cookie": f"forebay_zone={zone}"}).text
        return page.split('id="month"')[0]

    assert len({day(zone) for zone in zones}) == 2
