"""One box finds tenants, users, what runs, devices and invoices; for operators alone."""

from __future__ import annotations

from dashboards_installation import Installation, eventually
from forebay_dashboards.pages.search import booked_hits
from forebay_dashboards.rows.billing import InvoiceRow, SearchHits, UserFound


def test_people_devices_and_sessions_are_found_with_a_link_to_each(cloud: Installation) -> None:
    cloud.record_usage(tenant="wonka", user="charlie<b>")
    eventually(lambda: "operator/tenant/wonka" in cloud.get("operator", "operator/search", params={"q": "WONKA"}).text)
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


def test_the_first_of_many_are_links_and_the_rest_is_counted() -> None:
    values = {"month": "2026-11", "currency": "USD", "state": "open", "total": "1.00", "open": "1.00", "due_at_ns": 1}
    people, (invoices,) = booked_hits(
        SearchHits(
            tenants=("acme",), tenant_count=1, users=(UserFound(tenant="acme", user="user 7"),), user_count=20,
            invoices=(InvoiceRow(number="FB-2", tenant="acme", **values),), invoice_count=9,
        )
    )  # fmt: skip
    assert [kind.count for kind in people] == [1, 20]
    assert [hit.path for kind in people for hit in kind.shown] == ["operator/tenant/acme", "operator/quotas?tenant=acme&user=user+7"]
    assert (invoices.count, [hit.path for hit in invoices.shown]) == (9, ["invoice?number=FB-2"])
