"""One box finds tenants, users, what runs, devices and invoices; for operators alone."""

from __future__ import annotations

from dashboards_installation import Installation, eventually
from forebay_dashboards.pages.search import SHOWN_MAX, invoices_found, people_found
from forebay_dashboards.rows import InvoiceRow, SummaryRow


def test_people_devices_and_sessions_are_found_with_a_link_to_each(cloud: Installation) -> None:
    cloud.record_usage(tenant="wonka", user="charlie<b>")
    page = cloud.get("operator", "operator/search", params={"q": "WONKA"}).text
    assert "operator/tenant/wonka" in page and "charlie&lt;b&gt;" in page
    with cloud.session("globex-owner"):
        eventually(lambda: "globex-owner of globex" in cloud.get("operator", "operator/search", params={"q": "globex-owner"}).text)
    device = cloud.ask("pool", "operator", "GET", "api/devices")[0]["device"]
    assert f">{device}</a>" in cloud.get("operator", "operator/search", params={"q": device}).text


def test_nothing_and_no_word_get_a_sentence_and_markup_stays_text(cloud: Installation) -> None:
    assert "Type a name above" in cloud.get("operator", "operator/search").text
    page = cloud.get("operator", "operator/search", params={"q": "<script>no such thing"}).text
    assert "Nothing is called “&lt;script&gt;no such thing”." in page and "<script>no" not in page


def test_every_word_must_occur_and_only_the_first_of_many_are_shown() -> None:
    rows = [SummaryRow(tenant="acme", user=f"user-{n}", currency="USD", duration_ns=1, cost_nano=1, leases=1) for n in range(20)]
    tenants, users = people_found(rows, "acme user")
    assert (tenants.count, users.count, len(users.shown)) == (0, 20, SHOWN_MAX)
    assert people_found(rows, "user-7")[1].count == 1
    values = {"currency": "USD", "state": "open", "total": "1.00", "open": "1.00", "due_at_ns": 1}
    invoices = [InvoiceRow(number=f"FB-{n}", tenant="acme", month="2026-11", **values) for n in (1, 2)]
    assert [hit.path for hit in invoices_found(invoices, "acme fb-2").shown] == ["invoice?number=FB-2"]
