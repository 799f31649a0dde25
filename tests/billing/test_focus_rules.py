"""FOCUS 1.3: what its columns require of a row, each rule by the column that it is of, held against all kinds of rows that there are.

The rules are the "MUST"s of the columns of the Cost and Usage table that a row or a table can show. The foundation's own validator is not
among the packages that can be had here, so that this does not replace it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from forebay_billing.model.currencies import DECIMALS
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED, UsageRecord
from running_billing import Running

pytestmark = pytest.mark.databases("postgresql")
Row = Mapping[str, str]
DECEMBER = Month(2026, 12)
HOUR_NS = 3600 * 10**9
COSTS = ("BilledCost", "ListCost", "ContractedCost", "EffectiveCost")
NAMES = ("HostProviderName", "InvoiceIssuerName", "ProviderName", "PublisherName", "ServiceProviderName")
PRESENT = {
    *COSTS, *NAMES, "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory",
    "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "PricingQuantity", "PricingUnit", "ServiceCategory",
    "ServiceName",
}  # fmt: skip
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
NUMBER = re.compile(r"-?\d+(\.\d+)?(E-?\d+)?")
NANO = Decimal("1e-9")


def metered(row: Row) -> bool:
    """Whether quantities, prices and SKUs must be there."""
    return row["ChargeCategory"] in ("Usage", "Purchase") and row["ChargeClass"] != "Correction"


def priced(row: Row, price: str, cost: str) -> bool:
    if not row[price]:
        return not metered(row)
    return row["ChargeClass"] == "Correction" or abs(Decimal(row[price]) * Decimal(row["PricingQuantity"]) - Decimal(row[cost])) <= NANO


@dataclass(frozen=True)
class Rule:
    """``holds`` of each row; ``broken`` is a change with which it does not."""

    text: str
    holds: Callable[[Row], bool]
    broken: Mapping[str, str]


USAGE = {"ChargeCategory": "Usage", "ChargeClass": ""}
RULES = (
    Rule("ColumnHandling: custom columns begin with x_", lambda row: all(re.fullmatch(r"[A-Z][A-Za-z]+|x_\w+", name) for name in row),
         {"own_column": "1"}),
    Rule("all mandatory columns are present", lambda row: set(row) >= PRESENT, {}),
    Rule("BilledCost, ListCost, ContractedCost, EffectiveCost: not null, NumericFormat",
         lambda row: all(NUMBER.fullmatch(row[name]) for name in COSTS), {"ListCost": "1,000.00"}),
    Rule("HostProviderName, ServiceProviderName, InvoiceIssuerName, ProviderName, PublisherName: not null",
         lambda row: all(row[name] for name in NAMES), {"HostProviderName": ""}),
    Rule("BillingAccountId: not null", lambda row: bool(row["BillingAccountId"]), {"BillingAccountId": ""}),
    Rule("BillingCurrency: a national currency's code", lambda row: row["BillingCurrency"] in DECIMALS, {"BillingCurrency": "usd"}),
    Rule("BillingPeriodStart, BillingPeriodEnd, ChargePeriodStart, ChargePeriodEnd: DateTimeFormat, UTC",
         lambda row: all(TIME.fullmatch(row[f"{of}Period{end}"]) for of in ("Billing", "Charge") for end in ("Start", "End")),
         {"ChargePeriodEnd": "2026-11-01"}),
    Rule("BillingPeriodEnd: the exclusive end", lambda row: row["BillingPeriodStart"] < row["BillingPeriodEnd"],
         {"BillingPeriodEnd": "2026-01-01T00:00:00Z"}),
    Rule("ChargePeriodEnd: the exclusive end", lambda row: row["ChargePeriodStart"] < row["ChargePeriodEnd"],
         {"ChargePeriodEnd": "2026-01-01T00:00:00Z"}),
    Rule("ChargeCategory: an allowed value", lambda row: row["ChargeCategory"] in {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
         {"ChargeCategory": "Refund"}),
    Rule("ChargeClass: null or Correction", lambda row: row["ChargeClass"] in ("", "Correction"), {"ChargeClass": "Late"}),
    Rule("ChargeClass: null within the billing period",
         lambda row: row["ChargeClass"] != "Correction" or row["ChargePeriodStart"] < row["BillingPeriodStart"],
         {"ChargeClass": "Correction", "ChargePeriodStart": "2027-01-01T00:00:00Z"}),
    Rule("ChargeFrequency: an allowed value", lambda row: row["ChargeFrequency"] in {"One-Time", "Recurring", "Usage-Based"},
         {"ChargeFrequency": ""}),
    Rule("ChargeFrequency: no purchase is Usage-Based",
         lambda row: (row["ChargeCategory"], row["ChargeFrequency"]) != ("Purchase", "Usage-Based"),
         {"ChargeCategory": "Purchase", "ChargeFrequency": "Usage-Based"}),
    Rule("ServiceCategory, ServiceSubcategory: allowed values, one parent",
         lambda row: (row["ServiceCategory"], row["ServiceSubcategory"]) == ("AI and Machine Learning", "AI Platforms"),
         {"ServiceSubcategory": "Virtual Machines"}),
    Rule("ConsumedQuantity: null where nothing was used", lambda row: row["ChargeCategory"] == "Usage" or not row["ConsumedQuantity"],
         {"ChargeCategory": "Tax", "ConsumedQuantity": "1"}),
    Rule("ConsumedQuantity: not null for usage", lambda row: not metered(row) or bool(NUMBER.fullmatch(row["ConsumedQuantity"])),
         USAGE | {"ConsumedQuantity": ""}),
    Rule("ConsumedUnit: null where ConsumedQuantity is, and only there",
         lambda row: bool(row["ConsumedUnit"]) == bool(row["ConsumedQuantity"]), {"ConsumedUnit": "", "ConsumedQuantity": "1"}),
    Rule("PricingQuantity, SkuId, SkuPriceId, ListUnitPrice, ContractedUnitPrice, PricingCategory: null for tax",
         lambda row: row["ChargeCategory"] != "Tax" or not any(row[name] for name in METERED), {"ChargeCategory": "Tax", "SkuId": "small"}),
    Rule("the same: not null for usage", lambda row: not metered(row) or all(row[name] for name in METERED), USAGE | {"SkuPriceId": ""}),
    Rule("PricingUnit: null where PricingQuantity is, and only there", lambda row: bool(row["PricingUnit"]) == bool(row["PricingQuantity"]),
         {"PricingUnit": "", "PricingQuantity": "1"}),
    Rule("PricingCategory: an allowed value", lambda row: row["PricingCategory"] in {"", "Standard", "Dynamic", "Committed", "Other"},
         {"PricingCategory": "List"}),
    Rule("ListUnitPrice, ContractedUnitPrice: not negative",
         lambda row: not row["ListUnitPrice"] or min(Decimal(row["ListUnitPrice"]), Decimal(row["ContractedUnitPrice"])) >= 0,
         {"ListUnitPrice": "-1", "ContractedUnitPrice": "1"}),
    Rule("ListCost: ListUnitPrice times PricingQuantity", lambda row: priced(row, "ListUnitPrice", "ListCost"),
         USAGE | {"ListUnitPrice": "2", "PricingQuantity": "3", "ListCost": "5"}),
    Rule("ContractedCost: ContractedUnitPrice times PricingQuantity", lambda row: priced(row, "ContractedUnitPrice", "ContractedCost"),
         USAGE | {"ContractedUnitPrice": "2", "PricingQuantity": "3", "ContractedCost": "5"}),
    Rule("ListCost, EffectiveCost: BilledCost of a charge that no other determines",
         lambda row: row["ChargeCategory"] not in ("Credit", "Adjustment") or len({row[name] for name in COSTS}) == 1,
         {"ChargeCategory": "Credit", "EffectiveCost": "99"}),
    Rule("SkuPriceDetails: null where SkuPriceId is", lambda row: bool(row["SkuPriceId"]) or not row["SkuPriceDetails"],
         {"SkuPriceId": "", "SkuPriceDetails": "{}"}),
    Rule("SkuPriceDetails: KeyValueFormat, own keys begin with x_",
         lambda row: all(name.startswith("x_") for name in json.loads(row["SkuPriceDetails"] or "{}")),
         {"SkuPriceDetails": '{"version": 1}'}),
    Rule("SubAccountName, SubAccountType: null where SubAccountId is, and only there",
         lambda row: bool(row["SubAccountId"]) == bool(row["SubAccountName"]) == bool(row["SubAccountType"]),
         {"SubAccountId": "ada", "SubAccountName": ""}),
)  # fmt: skip
METERED = ("PricingQuantity", "SkuId", "SkuPriceId", "ListUnitPrice", "ContractedUnitPrice", "PricingCategory")
GOOD = dict.fromkeys([*COSTS, "PricingQuantity", "ListUnitPrice", "ContractedUnitPrice", "ConsumedQuantity"], "1") | {
    **dict.fromkeys([*NAMES, "BillingAccountId", "BillingAccountName", "ServiceName", "SkuId", "SkuPriceId", "ChargeDescription"], "x"),
    **dict.fromkeys(["SubAccountId", "SubAccountName", "SubAccountType", "ConsumedUnit", "PricingUnit"], "y"),
    **dict.fromkeys(["BillingPeriodStart", "ChargePeriodStart"], "2026-11-01T00:00:00Z"),
    **dict.fromkeys(["BillingPeriodEnd", "ChargePeriodEnd"], "2026-12-01T00:00:00Z"),
    "BillingCurrency": "USD", "ChargeCategory": "Usage", "ChargeClass": "", "ChargeFrequency": "Usage-Based", "PricingCategory": "Standard",
    "ServiceCategory": "AI and Machine Learning", "ServiceSubcategory": "AI Platforms", "SkuPriceDetails": '{"x_PriceVersion": 1}',
}  # fmt: skip


@pytest.fixture
def rows(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> list[dict[str, str]]:
    """Of December: usage in several currencies of price, late usage, parked memory, a correction, a plan, credits, tax, a credit note."""
    run = running_anywhere
    profile = {"legal_name": "Acme", "tax_label": "VAT", "tax_bps": 1_900}
    assert run.request("operator", "PUT", "/api/profiles/acme", json=profile).status_code == 200
    assert run.set_surcharge("cpu-dev", 777).status_code == 200
    price = {"price_nano_per_gib_hour": 1_000_000_007, "valid_from_ns": 0}
    assert run.request("operator", "PUT", "/api/parked-prices/USD", json=price).status_code == 200
    terms = {"currency": "USD", "discount_bps": 1_000, "commitment_nano": 50 * 10**9, "valid_from": "2026-12"}
    planned = run.request("operator", "PUT", "/api/plans/acme", json=terms)
    assert planned.status_code == 200, planned.text
    grant = {"tenant": "acme", "kind": "promotional", "name": "Welcome", "amount_minor": 50}
    assert run.request("operator", "POST", "/api/credits", json=grant).status_code == 200
    run.post_usage(usage("one/1", duration_ns=HOUR_NS))
    run.clock.now_ns = DECEMBER.start_ns + 10 * HOUR_NS
    made = run.request("operator", "POST", "/api/invoices", json={"tenant": "acme", "month": "2026-11"})
    assert made.status_code == 200, made.text
    now_ns = DECEMBER.start_ns + HOUR_NS
    run.post_usage(
        usage("late/1", duration_ns=HOUR_NS // 3), usage("now/1", started_at_ns=now_ns, duration_ns=HOUR_NS * 2 + 1, user="acme-owner"),
        usage("free/1", started_at_ns=now_ns, duration_ns=0), usage("wrong/1", started_at_ns=now_ns, duration_ns=HOUR_NS),
        usage("s.p1/1", flavor=PARKED, parked_bytes=5 * 2**30, started_at_ns=now_ns, duration_ns=HOUR_NS // 3),
    )  # fmt: skip
    wrong = {"source": "pool", "id": "wrong/1", "reason": "a fault of ours"}
    assert run.request("operator", "POST", "/api/corrections", json=wrong).status_code == 200
    note = {"amount_minor": 3, "reason": "a fault of ours"}
    assert run.request("operator", "POST", "/api/invoices/INV-000001/credit-notes", json=note).status_code == 200
    run.clock.now_ns = DECEMBER.next.start_ns + HOUR_NS
    assert run.request("operator", "POST", "/api/invoices", json={"tenant": "acme", "month": "2026-12"}).status_code == 200
    found = [run.get("acme-owner", "/api/focus", month=month).text for month in ("2026-11", "2026-12")]
    return [row for text in found for row in csv.DictReader(io.StringIO(text))]


def test_every_kind_of_row_keeps_every_rule(rows: list[dict[str, str]]) -> None:
    kinds = {(row["ChargeCategory"], row["ChargeClass"]) for row in rows}
    assert kinds >= {("Usage", ""), ("Usage", "Correction"), ("Tax", ""), ("Credit", ""), ("Adjustment", ""), ("Adjustment", "Correction")}
    wrong = [(rule.text, row) for rule in RULES for row in rows if not rule.holds(row)]
    assert not wrong


def test_bills_add_up_to_what_invoices_and_credit_notes_ask_for(rows: list[dict[str, str]], running_anywhere: Any) -> None:
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for row in rows:
        sums[row["InvoiceId"]] += Decimal(row["BilledCost"])
    invoices = running_anywhere.get("acme-owner", "/api/invoices").json()
    assert sums == {one["number"]: Decimal(one["total"]) for one in invoices} | {"CN-000001": Decimal("-0.03")}


def test_a_sku_price_has_one_sku(rows: list[dict[str, str]]) -> None:
    parents = defaultdict(set)
    for row in rows:
        parents[row["SkuPriceId"]].add(row["SkuId"])
    assert len(parents) > 2 and all(len(found) == 1 for found in parents.values())


def test_the_row_that_is_broken_below_keeps_every_rule() -> None:
    assert [rule.text for rule in RULES if not rule.holds(GOOD)] == []


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.broken], ids=lambda rule: rule.text[:40])
def test_a_row_that_breaks_a_rule_is_found(rule: Rule) -> None:
    assert not rule.holds(GOOD | dict(rule.broken))


def test_a_table_that_lacks_a_mandatory_column_is_found() -> None:
    (rule,) = [rule for rule in RULES if not rule.broken]
    assert not any(rule.holds({name: value for name, value in GOOD.items() if name != lacking}) for lacking in PRESENT)
