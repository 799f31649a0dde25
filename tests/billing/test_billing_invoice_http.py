"""Invoices and credits over HTTP: documents, drill-down, what happens to them, and the wrong person on every route."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from forebay_billing.model.currencies import DECIMALS
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED, UsageRecord
from pypdf import PdfReader
from running_billing import Running

pytestmark = pytest.mark.databases("postgresql")

HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
NOVEMBER, DECEMBER = Month(2026, 11), Month(2026, 12)
SEOUL = {"legal_name": "에이크미 주식회사", "address": "서울특별시\n중구", "tax_id": "123-45-67890", "tax_label": "부가세", "tax_bps": 1000}

MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory",
    "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName",
    "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName", "HostProviderName",
    "ServiceProviderName",
}  # fmt: skip
NOT_NULL = MANDATORY - {"BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit"}
RECOMMENDED = {"AvailabilityZone", "ChargeFrequency", "InvoiceId", "ServiceSubcategory"}
CONDITIONAL = {
    "BillingAccountType", "CapacityReservationId", "CapacityReservationStatus", "CommitmentDiscountCategory", "CommitmentDiscountId",
    "CommitmentDiscountName", "CommitmentDiscountQuantity", "CommitmentDiscountStatus", "CommitmentDiscountType", "CommitmentDiscountUnit",
    "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice", "PricingCategory", "PricingCurrency",
    "PricingCurrencyContractedUnitPrice", "PricingCurrencyEffectiveCost", "PricingCurrencyListUnitPrice", "RegionId", "RegionName",
    "ResourceId", "ResourceName", "ResourceType", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId", "SubAccountId", "SubAccountName",
    "SubAccountType", "Tags", "AllocatedMethodDetails", "AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName",
    "AllocatedTags", "ContractApplied",
}  # fmt: skip
"""All columns of FOCUS 1.3 for costs and usage, by their feature level."""


@pytest.fixture
def filled(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> Any:
    """Two users of acme and one of globex in November; the clock stands in December."""
    running = running_anywhere
    assert running.request("operator", "PUT", "/api/profiles/acme", json=SEOUL).status_code == 200
    running.post_usage(
        usage("one/1", duration_ns=HOUR_NS), usage("two/1", user="acme-owner", duration_ns=HOUR_NS // 3),
        usage("secret/1", tenant="globex", user="globex-owner"),
    )  # fmt: skip
    grant = {"tenant": "acme", "kind": "promotional", "name": "Welcome", "amount_minor": 50}
    assert running.request("operator", "POST", "/api/credits", json=grant).status_code == 200
    running.clock.now_ns = DECEMBER.start_ns + 5 * DAY_NS
    return running


@pytest.fixture
def finalised(filled: Any) -> Any:
    for tenant in ("acme", "globex"):
        assert filled.request("operator", "POST", "/api/invoices", json={"tenant": tenant, "month": "2026-11"}).status_code == 200
    return filled


def post(running: Running, path: str, caller: str = "operator", **body: Any) -> Any:
    return running.request(caller, "POST", path, json=body)


def test_a_draft_becomes_the_invoice(filled: Any) -> None:
    (draft,) = filled.get("acme-owner", "/api/drafts", month="2026-11").json()
    assert [(line["kind"], line["amount"]) for line in draft["lines"]] == [
        ("usage", "2.00"), ("usage", "0.67"), ("promotional", "-0.50"), ("tax", "0.22"),
    ]  # fmt: skip
    assert (draft["net"], draft["credit"], draft["tax"], draft["total"]) == ("2.67", "-0.50", "0.22", "2.39")
    answer = post(filled, "/api/invoices", tenant="acme", month="2026-11").json()
    assert [(row["number"], row["state"], row["total"], row["open_minor"]) for row in answer] == [("INV-000001", "open", "2.39", 239)]
    assert post(filled, "/api/invoices", tenant="acme", month="2026-11").json() == answer
    invoice = filled.get("acme-owner", "/api/invoices/INV-000001").json()
    assert invoice["lines"] == draft["lines"] and invoice["profile"]["legal_name"] == SEOUL["legal_name"]
    again = filled.get("acme-owner", "/api/drafts", month="2026-11")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "not_now")
    (credit,) = filled.get("acme-owner", "/api/credits").json()
    assert (credit["left"], credit["amount"]) == ("0.00", "0.50")
    assert filled.get("operator", "/api/check").json() == {"differences": []}


def test_every_line_of_usage_leads_to_its_cells(finalised: Any) -> None:
    lines = finalised.get("acme-owner", "/api/invoices/INV-000001").json()["lines"]
    answer = finalised.get("acme-owner", f"/api/invoices/INV-000001/lines/{lines[0]['key']}").json()
    (cell,) = answer["cells"]
    assert (cell["record_id"], cell["label"], cell["cell"], cell["duration_ns"]) == ("one/1", "digits.ipynb", 3, HOUR_NS)
    assert answer["next"] is None and answer["line"] == lines[0]
    tax = finalised.get("acme-owner", "/api/invoices/INV-000001/lines/tax")
    assert (tax.status_code, tax.json()["error"]["code"]) == (404, "unknown_invoice")


def test_every_line_of_a_draft_leads_to_its_cells(filled: Any) -> None:
    (draft,) = filled.get("acme-owner", "/api/drafts", month="2026-11").json()
    key = draft["lines"][1]["key"]
    answer = filled.get("acme-owner", f"/api/drafts/lines/{key}", month="2026-11", limit=1).json()
    assert [cell["record_id"] for cell in answer["cells"]] == ["two/1"]
    assert filled.get("acme-owner", "/api/drafts/lines/nothing", month="2026-11").status_code == 404


def test_the_pdf_reads_as_the_invoice(finalised: Any) -> None:
    answer = finalised.get("acme-owner", "/api/invoices/INV-000001", format="pdf")
    assert answer.headers["Content-Type"] == "application/pdf"
    assert answer.content == finalised.get("operator", "/api/invoices/INV-000001", format="pdf").content
    reader = PdfReader(io.BytesIO(answer.content))
    text = "\n".join(page.extract_text() for page in reader.pages)
    invoice = finalised.get("acme-owner", "/api/invoices/INV-000001").json()
    assert reader.metadata is not None and reader.metadata.title == "Invoice INV-000001"
    assert re.findall(r"(-?\d+\.\d\d) USD", text) == ["2.67", "0.22", "-0.50", "2.39", "2.39"]
    for line in invoice["lines"]:
        assert line["amount"] in text.split()
    assert "123-45-67890" in text and "2.000000000" in text
    fonts = {font["/BaseFont"] for page in reader.pages for font in map(lambda one: one.get_object(), page["/Resources"]["/Font"].values())}
    assert any("HYGothic" in font for font in fonts)
    assert "에이크미" in text


def test_a_pdf_of_many_lines_repeats_its_header(running: Running, usage: Callable[..., UsageRecord], clock: Any) -> None:
    running.post_usage(*(usage(f"l-{n}/1", user=f"user-{n:03}<&") for n in range(120)))
    clock.now_ns = DECEMBER.start_ns
    answer = running.get("acme-owner", "/api/drafts", month="2026-11", format="pdf")
    pages = [page.extract_text() for page in PdfReader(io.BytesIO(answer.content)).pages]
    assert len(pages) > 1 and all("Before rounding" in page for page in pages[:2])
    assert all(f"user-{n:03}<&" in "".join(pages) for n in range(120))


def test_page_and_csv_show_the_same_numbers_and_nothing_a_name_could_do(finalised: Any) -> None:
    bad = {"legal_name": "<script>alert(1)</script>"}
    assert finalised.request("globex-owner", "PUT", "/api/profiles/globex", json=bad).status_code == 200
    page = finalised.get("acme-owner", "/api/invoices/INV-000001", format="html")
    assert "에이크미 주식회사" in page.text and "2.39 USD" in page.text
    assert page.headers["Content-Security-Policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    rows = list(csv.DictReader(io.StringIO(finalised.get("acme-owner", "/api/invoices/INV-000001", format="csv").text)))
    assert [row["amount"] for row in rows] == ["2.00", "0.67", "-0.50", "0.22"]
    assert rows[0]["exact_amount"] == "2.000000000000000000" and rows[2]["label"].startswith("Promotional")
    draft = finalised.get("globex-owner", "/api/drafts", month="2026-12", format="html")
    assert draft.status_code == 404
    finalised.post_usage()
    finalised.request("operator", "POST", "/api/corrections", json={"source": "pool", "id": "secret/1", "reason": "x"})
    draft = finalised.get("globex-owner", "/api/drafts", month="2026-12", format="html")
    assert "<script>" not in draft.text and "&lt;script&gt;" in draft.text


def focus_rows(running: Running, caller: str, path: str, **query: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(running.get(caller, path, **query).text)))


def test_focus_has_the_columns_and_values_of_the_specification(finalised: Any) -> None:
    rows = focus_rows(finalised, "acme-owner", "/api/invoices/INV-000001", format="focus")
    columns = set(rows[0])
    assert MANDATORY <= columns <= MANDATORY | RECOMMENDED | CONDITIONAL
    assert list(rows[0]) == sorted(rows[0]) and len(MANDATORY | RECOMMENDED | CONDITIONAL) == 65
    for row in rows:
        assert all(row[name] for name in NOT_NULL)
        assert row["BillingCurrency"] in DECIMALS and row["ServiceCategory"] == "AI and Machine Learning"
        assert row["ChargeCategory"] in {"Usage", "Purchase", "Tax", "Credit", "Adjustment"}
        assert row["ChargeClass"] in {"", "Correction"}
        times = [row[f"{name}Period{end}"] for name in ("Billing", "Charge") for end in ("Start", "End")]
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", time) for time in times)
        if row["ChargeCategory"] == "Usage":
            assert row["PricingUnit"] == "Hours"
            assert abs(Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"]) - Decimal(row["ListCost"])) < Decimal("1e-9")
            assert all(row[name] for name in ("SkuId", "SkuPriceId", "PricingUnit", "ConsumedUnit", "PricingCategory", "SubAccountId"))
        else:
            assert not row["PricingQuantity"] and not row["SkuId"] and not row["ListUnitPrice"]
        if row["ChargeCategory"] == "Credit":
            assert row["ListCost"] == row["BilledCost"] == row["EffectiveCost"]
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal("2.39")
    assert {row["InvoiceId"] for row in rows} == {"INV-000001"}


def test_focus_of_a_month_is_all_its_invoices(finalised: Any) -> None:
    both = focus_rows(finalised, "operator", "/api/focus", month="2026-11")
    assert {row["BillingAccountId"] for row in both} == {"acme", "globex"}
    own = focus_rows(finalised, "acme-owner", "/api/focus", month="2026-11")
    assert own == [row for row in both if row["BillingAccountId"] == "acme"]


def test_what_was_used_in_an_invoiced_month_is_a_correction_in_focus(finalised: Any, usage: Callable[..., UsageRecord]) -> None:
    finalised.post_usage(usage("late/1"))
    rows = focus_rows(finalised, "acme-owner", "/api/drafts", month="2026-12", format="focus")
    assert [(row["ChargeCategory"], row["ChargeClass"], row["InvoiceId"]) for row in rows] == [("Usage", "Correction", ""), ("Tax", "", "")]


def test_a_credit_note_is_a_document_of_its_own(finalised: Any) -> None:
    note = post(finalised, "/api/invoices/INV-000001/credit-notes", amount_minor=39, reason="=a fault <of ours>").json()
    path = f"/api/credit-notes/{note['name']}"
    answer = finalised.get("acme-owner", path).json()
    assert (answer["invoice"], answer["net"], answer["tax"], answer["amount"]) == ("INV-000001", "0.35", "0.04", "0.39")
    assert answer["profile"]["legal_name"] == SEOUL["legal_name"] and answer["month"] == "2026-11"
    page = finalised.get("acme-billing", path, format="html").text
    assert "Credit note CN-000001" in page and "-0.39 USD" in page and "&lt;of ours&gt;" in page and "INV-000001" in page
    reader = PdfReader(io.BytesIO(finalised.get("operator", path, format="pdf").content))
    text = "\n".join(part.extract_text() for part in reader.pages)
    assert reader.metadata is not None and reader.metadata.title == "Credit note CN-000001"
    assert re.findall(r"(-?\d+\.\d\d) USD", text) == ["-0.35", "-0.04", "-0.39"] and "에이크미" in text
    (row,) = csv.DictReader(io.StringIO(finalised.get("acme-owner", path, format="csv").text))
    assert (row["credit_note"], row["invoice"], row["net"], row["tax"], row["amount"]) == (
        "CN-000001", "INV-000001", "-0.35", "-0.04", "-0.39",
    )  # fmt: skip
    assert row["reason"] == "'=a fault <of ours>"
    for caller, name in (("globex-owner", note["name"]), ("acme-owner", "CN-000002")):
        refused = finalised.get(caller, f"/api/credit-notes/{name}", format="pdf")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_invoice")


def test_a_credit_note_has_rows_in_focus_in_the_month_it_was_issued_in(finalised: Any) -> None:
    post(finalised, "/api/invoices/INV-000001/credit-notes", amount_minor=39, reason="x")
    post(finalised, "/api/invoices/INV-000002/credit-notes", amount_minor=1, reason="y")
    rows = focus_rows(finalised, "acme-owner", "/api/focus", month="2026-12")
    assert rows == focus_rows(finalised, "acme-owner", "/api/credit-notes/CN-000001", format="focus")
    assert [(row["ChargeCategory"], Decimal(row["BilledCost"]), row["ChargeClass"]) for row in rows] == [
        ("Adjustment", Decimal("-0.35"), "Correction"), ("Tax", Decimal("-0.04"), "Correction"),
    ]  # fmt: skip
    for row in rows:
        assert all(row[name] for name in NOT_NULL) and set(row) <= MANDATORY | RECOMMENDED | CONDITIONAL
        assert (row["InvoiceId"], row["BillingPeriodStart"]) == ("CN-000001", "2026-12-01T00:00:00Z")
        assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z")
    both = focus_rows(finalised, "operator", "/api/focus", month="2026-12")
    assert {row["InvoiceId"] for row in both} == {"CN-000001", "CN-000002"}
    assert not any(row["InvoiceId"].startswith("CN") for row in focus_rows(finalised, "operator", "/api/focus", month="2026-11"))


def test_parked_memory_has_its_quantity_in_every_document(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> None:
    run = running_anywhere
    price = {"price_nano_per_gib_hour": 1_000_000_007, "valid_from_ns": NOVEMBER.start_ns}
    assert run.request("operator", "PUT", "/api/parked-prices/USD", json=price).status_code == 200
    assert run.post_usage(usage("s.p1/1", flavor=PARKED, parked_bytes=5 * 2**30, duration_ns=HOUR_NS // 3)).status_code == 200
    run.clock.now_ns = DECEMBER.start_ns
    post(run, "/api/invoices", tenant="acme", month="2026-11")
    (line,) = run.get("acme-owner", "/api/invoices/INV-000001").json()["lines"]
    assert (line["kind"], line["usage"], line["parked"]["gib_hours"]) == ("parked", None, "1.666667")
    assert (line["parked"]["byte_ns"], line["parked"]["stretches"]) == (5 * 2**30 * HOUR_NS // 3, 1)
    cells = run.get("acme-owner", f"/api/invoices/INV-000001/lines/{line['key']}").json()["cells"]
    assert [(cell["record_id"], cell["parked_bytes"], cell["cell"]) for cell in cells] == [("s.p1/1", 5 * 2**30, 3)]
    (row,) = csv.DictReader(io.StringIO(run.get("acme-owner", "/api/invoices/INV-000001", format="csv").text))
    assert (row["flavor"], row["gib_hours"], row["price_nano_per_gib_hour"]) == ("(parked)", "1.666667", "1000000007")
    (row,) = focus_rows(run, "acme-owner", "/api/focus", month="2026-11")
    assert (row["SkuMeter"], row["PricingUnit"], row["ConsumedUnit"]) == ("Parked memory", "GiB-Hours", "GiB-Hours")
    assert (row["PricingQuantity"], row["ListUnitPrice"], row["SubAccountId"]) == ("1.666666666667", "1.000000007", "acme-member")
    assert abs(Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"]) - Decimal(row["ListCost"])) < Decimal("1e-9")
    assert (row["BilledCost"], row["ChargeCategory"]) == ("1.670000000000000000", "Usage")


def test_credit_note_payment_refund_and_void(finalised: Any) -> None:
    path = "/api/invoices/INV-000001"
    key = {"headers": {"Idempotency-Key": "pay-1"}}
    body = {"amount_minor": 239, "method": "bank", "reference": "transfer 1"}
    paid = finalised.request("operator", "POST", f"{path}/payments", json=body, **key)
    assert (paid.json()["state"], paid.json()["open"]) == ("paid", "0.00")
    assert finalised.request("operator", "POST", f"{path}/payments", json=body, **key).json() == paid.json()
    note = post(finalised, f"{path}/credit-notes", amount_minor=39, reason="a fault of ours").json()
    assert (note["name"], note["invoice"], note["amount_minor"], note["tax_minor"]) == ("CN-000001", "INV-000001", 39, 4)
    back = post(finalised, f"{path}/payments", kind="refund", amount_minor=39, method="bank", reference="back").json()
    assert (back["open_minor"], back["paid_minor"], back["credited_minor"]) == (0, 200, 39)
    void = post(finalised, "/api/invoices/INV-000002/void", reason="a mistake").json()
    assert (void["state"], void["open_minor"]) == ("void", 0)
    assert [row["number"] for row in finalised.get("operator", "/api/invoices", state="void").json()] == ["INV-000002"]
    assert finalised.get("operator", "/api/check").json() == {"differences": []}
    text = PdfReader(io.BytesIO(finalised.get("operator", path, format="pdf").content)).pages[0].extract_text()
    assert "Credit note CN-000001" in text and "-0.39 USD" in text


def test_credits_are_granted_listed_and_refunded(filled: Any) -> None:
    made = post(filled, "/api/credits", tenant="globex", kind="prepaid", name="Paid", amount_minor=1000, effective_at_ns=0).json()
    assert (made["id"], made["currency"], made["left_minor"], made["granted_by"]) == (2, "USD", 1000, "operator")
    early = post(filled, "/api/credits/2/refund", reason="x")
    assert (early.status_code, early.json()["error"]["code"]) == (409, "not_now")
    (invoice,) = post(filled, "/api/invoices", tenant="globex", month="2026-11").json()
    assert (invoice["total"], invoice["state"]) == ("0.00", "paid")
    assert post(filled, "/api/credits/2/refund", amount_minor=7, reason="x").json()["left_minor"] == 990
    assert post(filled, "/api/credits/2/refund", reason="x").json()["left_minor"] == 0
    assert filled.get("globex-owner", "/api/credits").json()[0]["left_minor"] == 0


def test_the_task_finalises_after_the_days_of_grace(
    running_service: Any, settings: Any, clock: Any, database_url: str, usage: Callable[..., UsageRecord]
) -> None:
    """The sweep runs at each start, and every minute after."""
    import time

    settings = settings.model_copy(update={"database_url": database_url, "busy_seconds": 2.0})

    def started(at_ns: int, records: list[UsageRecord], count: int) -> list[Any]:
        clock.now_ns = at_ns
        running = running_service(settings, clock)
        try:
            end = time.monotonic() + 10
            while len(found := running.get("operator", "/api/invoices").json()) < count:
                assert time.monotonic() < end, "it never came"
                time.sleep(0.02)
            if records:
                assert running.post_usage(*records).status_code == 200
            return list(found)
        finally:
            running.stop()

    started(clock.now_ns, [usage(), usage("other/1", tenant="globex")], 0)
    assert started(DECEMBER.start_ns + 3 * DAY_NS - 1, [usage("in-time/1")], 0) == []
    found = started(DECEMBER.start_ns + 3 * DAY_NS, [usage("late/1")], 2)
    assert sorted((row["tenant"], row["total"]) for row in found) == [("acme", "0.07"), ("globex", "0.03")]
    assert started(DECEMBER.end_ns, [], 2) == found
    assert [row["month"] for row in started(DECEMBER.end_ns + 3 * DAY_NS, [], 3) if row["tenant"] == "acme"] == ["2026-12", "2026-11"]


OPERATOR_ONLY = [
    ("POST", "/api/invoices", {"tenant": "acme", "month": "2026-11"}),
    ("POST", "/api/invoices/INV-000001/credit-notes", {"amount_minor": 1, "reason": "x"}),
    ("POST", "/api/invoices/INV-000001/payments", {"amount_minor": 1, "method": "bank", "reference": "x"}),
    ("POST", "/api/invoices/INV-000001/void", {"reason": "x"}),
    ("POST", "/api/credits", {"tenant": "acme", "kind": "prepaid", "name": "x", "amount_minor": 1}),
    ("POST", "/api/credits/1/refund", {"reason": "x"}),
    ("PUT", "/api/profiles/acme", {"tax_bps": 0}),
    ("PUT", "/api/profiles/acme", {"tax_label": ""}),
    ("PUT", "/api/profiles/acme", {"currency": "EUR"}),
]
OF_ACME = [
    "/api/drafts?tenant=acme&month=2026-12", "/api/drafts/lines/tax?tenant=acme&month=2026-12", "/api/invoices?tenant=acme",
    "/api/focus?tenant=acme&month=2026-11", "/api/credits?tenant=acme",
]  # fmt: skip
NAMED = ["/api/invoices/INV-000001", "/api/invoices/INV-000001?format=pdf", "/api/invoices/INV-000001/lines/tax"]


def test_the_wrong_person_gets_nothing_and_changes_nothing(finalised: Any) -> None:
    before = finalised.get("operator", "/api/invoices").json(), finalised.get("operator", "/api/credits").json()
    for method, path, body in OPERATOR_ONLY:
        for caller in ("pool", "acme-owner", "acme-member", "globex-owner", "loner", "scopeless"):
            refused = finalised.request(caller, method, path, json=body)
            not_there = caller == "globex-owner" and path == "/api/profiles/acme"
            expected = (404, "unknown_record") if not_there else (403, "forbidden")
            assert (refused.status_code, refused.json()["error"]["code"]) == expected, (caller, path)
    for path in OF_ACME:
        for caller in ("pool", "acme-member", "globex-owner", "loner", "scopeless"):
            assert finalised.get(caller, path).status_code == 403, (caller, path)
        assert finalised.get("acme-owner", path).status_code in (200, 404)
    callers = ("pool", "acme-member", "loner", "scopeless", "globex-owner")
    profiles = {caller: finalised.get(caller, "/api/profiles/acme") for caller in callers}
    assert {caller: found.status_code for caller, found in profiles.items()} == dict.fromkeys(profiles, 403) | {"globex-owner": 404}
    assert profiles["globex-owner"].text.replace("acme", "none") == finalised.get("globex-owner", "/api/profiles/none").text
    for path in NAMED:
        other, none = finalised.get("globex-owner", path), finalised.get("globex-owner", path.replace("000001", "999999"))
        assert (other.status_code, other.json()["error"]["code"]) == (404, "unknown_invoice")
        assert other.text.replace("000001", "999999") == none.text
        assert {finalised.get(caller, path).status_code for caller in ("pool", "acme-member", "loner", "scopeless")} == {403}
    assert {row["tenant"] for row in finalised.get("globex-owner", "/api/invoices").json()} == {"globex"}
    assert before == (finalised.get("operator", "/api/invoices").json(), finalised.get("operator", "/api/credits").json())


def test_a_profile_keeps_what_is_not_given_and_what_is_no_profile_is_refused(running: Running) -> None:
    def put(caller: str, **body: Any) -> Any:
        return running.request(caller, "PUT", "/api/profiles/acme", json=body)

    assert running.get("acme-owner", "/api/profiles/acme").status_code == 404
    assert put("operator", **SEOUL).json()["version"] == 1
    changed = put("acme-owner", legal_name="Acme Ltd", email="pay@acme.example").json()
    assert (changed["version"], changed["tax_label"], changed["tax_bps"], changed["email"]) == (2, "부가세", 1000, "pay@acme.example")
    for body in ({"legal_name": ""}, {"email": "x"}, {"colour": "red"}, {"tax_bps": 10_001}, {"legal_name": "\x00"}):
        assert put("operator", **body).status_code == 400
    assert running.get("acme-owner", "/api/profiles/acme").json() == changed


@pytest.mark.parametrize("path", ["invoices/%00", "invoices/INV-1%00", "invoices/%00/lines/x", "credit-notes/%00", "drafts/lines/%00"])
def test_a_nul_in_a_path_is_refused_on_each_database(running_anywhere: Running, path: str) -> None:
    answer = running_anywhere.get("operator", f"/api/{path}", **({"tenant": "acme", "month": "2026-11"} if "drafts" in path else {}))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid"), answer.text


@pytest.mark.parametrize("name", ['=HYPERLINK("http://evil")', "+1+1", "@SUM(1)", "-2+3"])
def test_no_name_in_any_export_is_a_formula(running: Running, usage: Callable[..., UsageRecord], clock: Any, name: str) -> None:
    running.request("acme-owner", "PUT", "/api/profiles/acme", json={"legal_name": name})
    running.post_usage(usage("a/1", user=name))
    clock.now_ns = DECEMBER.start_ns
    for path, query in (("/api/drafts", {"format": "focus"}), ("/api/drafts", {"format": "csv"}), ("/api/statement", {"format": "csv"})):
        found = focus_rows(running, "acme-owner", path, month="2026-11", **query)
        cells = [value for row in found for value in row.values()]
        assert any(name in value for value in cells), "it is there"
        starts = [value for value in cells if value.startswith(("=", "+", "@", "-"))]
        assert all(re.fullmatch(r"-[0-9.]+", value) for value in starts), starts
