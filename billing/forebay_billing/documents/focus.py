"""FOCUS 1.3 (FinOps Open Cost and Usage Specification, focus.finops.org): a row for each line of an invoice, with its columns and values.

The sum of ``BilledCost`` of an ``InvoiceId`` is what that invoice asked for, or what that credit note took back, below zero.
Usage costs its list price, exactly; what the plan changes, credits and tax are rows of their own. Numbers are plain decimals, nulls
are empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from forebay_service.spreadsheets import PARKED_SHOWN, csv_text

from forebay_billing.model.money import GRAINS_PER_LAST, decimal_text, exact_text, grains_of_minor, round_half_even
from forebay_billing.model.months import Month
from forebay_billing.reads.invoices import CreditNote, Invoice, Issuer
from forebay_billing.rules.invoices import BPS, USAGE_KINDS, Draft, InvoiceLine
from forebay_billing.rules.parked import gib_hours_text
from forebay_billing.rules.rating import HOUR_NS

COLUMNS = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity",
    "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "HostProviderName", "InvoiceId", "InvoiceIssuerName",
    "ListCost", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ServiceCategory", "ServiceName", "ServiceProviderName", "ServiceSubcategory",
    "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId", "SubAccountId", "SubAccountName",
    "SubAccountType",
)  # fmt: skip
DEPRECATED = "ProviderName", "PublisherName"
"""Columns that 1.3 replaces by ``ServiceProviderName``, and that must be there nevertheless."""
_CATEGORIES = {"tax": "Tax", "promotional": "Credit", "prepaid": "Credit"}
CONSUMED_UNIT, UNIT, PARKED_UNIT = "Seconds", "Hours", "GiB-Hours"
QUANTITY_DECIMALS = 12
"""Hours and GiB-hours have no end of decimals: with these, quantity times price is the cost to the nano-unit, for all but the dearest."""


def csv_of(found: Iterable[dict[str, str]]) -> str:
    """A table with a header."""
    return csv_text(COLUMNS, ([row.get(name, "") for name in COLUMNS] for row in found))


def rows(about: Invoice | Draft, issuer: Issuer) -> Iterator[dict[str, str]]:
    """The rows of one invoice; a draft has no ``InvoiceId``. Null columns are left out."""
    made = about.draft if isinstance(about, Invoice) else about
    sender = about.issuer if isinstance(about, Invoice) else issuer
    common = _common(made, made.month, about.name if isinstance(about, Invoice) else "", sender)
    for line in made.lines:
        yield common | _charge(line, made) | _costs(line, made) | _usage(line) | _parked(line)


def note_rows(about: Invoice, note: CreditNote) -> Iterator[dict[str, str]]:
    """The rows of a credit note, billed in the month it was issued in: what it takes back, and the tax of that where there was any."""
    made, month = about.draft, Month.of(note.issued_at_ns)
    common = _common(made, month, note.name, about.issuer) | {
        "ChargeClass": "Correction" if made.month < month else "",
        "ChargeDescription": f"{note.name} of {about.name}: {note.reason}",
        "ChargeFrequency": "One-Time",
        "ChargePeriodStart": _time(made.month.start_ns),
        "ChargePeriodEnd": _time(made.month.end_ns),
    }
    for category, amount_minor in (("Adjustment", note.net_minor), ("Tax", note.tax_minor)):
        if amount_minor:
            cost = exact_text(-grains_of_minor(amount_minor, made.currency))
            costs = dict.fromkeys(("BilledCost", "ListCost", "ContractedCost", "EffectiveCost"), cost)
            yield common | {"ChargeCategory": category} | costs


def _common(made: Draft, billed_in: Month, name: str, sender: Issuer) -> dict[str, str]:
    return {
        "BillingAccountId": made.profile.tenant,
        "BillingAccountName": made.profile.legal_name,
        "BillingCurrency": made.currency,
        "BillingPeriodStart": _time(billed_in.start_ns),
        "BillingPeriodEnd": _time(billed_in.end_ns),
        "InvoiceId": name,
        "InvoiceIssuerName": sender.name,
        **dict.fromkeys(("HostProviderName", "ServiceProviderName", *DEPRECATED), sender.name),
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "AI Platforms",
        "ServiceName": "Forebay",
    }


def _charge(line: InvoiceLine, made: Draft) -> dict[str, str]:
    category = "Usage" if line.kind in USAGE_KINDS else _CATEGORIES.get(line.kind, "Adjustment")
    return {
        "ChargeCategory": category,
        "ChargeClass": "Correction" if line.started_at_ns < made.month.start_ns else "",
        "ChargeDescription": line.label,
        "ChargeFrequency": "Usage-Based" if category == "Usage" else "One-Time",
        "ChargePeriodStart": _time(line.started_at_ns),
        "ChargePeriodEnd": _time(line.ended_at_ns + 10**9 - 1 if line.kind in USAGE_KINDS else line.ended_at_ns),
    }


def _costs(line: InvoiceLine, made: Draft) -> dict[str, str]:
    billed = grains_of_minor(line.amount_minor, made.currency)
    listed = effective = billed
    if line.kind in USAGE_KINDS:
        listed = line.cost_grains
    elif line.kind == "tax":
        taxed = [one for one in made.lines if one.kind not in ("tax", "prepaid", "carried")]
        at_list = sum(one.cost_grains if one.kind in USAGE_KINDS else grains_of_minor(one.amount_minor, made.currency) for one in taxed)
        listed = at_list * made.profile.tax_bps // (BPS * GRAINS_PER_LAST) * GRAINS_PER_LAST
        effective = line.cost_grains
    return {
        "BilledCost": exact_text(billed),
        "ListCost": exact_text(listed),
        "ContractedCost": exact_text(listed),
        "EffectiveCost": exact_text(effective),
    }


def _usage(line: InvoiceLine) -> dict[str, str]:
    total = line.usage
    if total is None:
        return {}
    price, hours = total.price, decimal_text(round_half_even(total.duration_ns * 10**QUANTITY_DECIMALS, HOUR_NS), QUANTITY_DECIMALS)
    rate = decimal_text(total.rate_nano_per_hour, 9)
    details = {"x_PriceVersion": price.version, "x_DeviceSurcharge": decimal_text(total.surcharge_nano_per_hour, 9)}
    return {
        "ConsumedQuantity": decimal_text(total.duration_ns, 9),
        "ConsumedUnit": CONSUMED_UNIT,
        "PricingQuantity": hours,
        "PricingUnit": UNIT,
        "PricingCategory": "Standard",
        "ListUnitPrice": rate,
        "ContractedUnitPrice": rate,
        "SkuId": price.flavor,
        "SkuMeter": "Device time",
        "SkuPriceId": f"{price.flavor}/{price.currency}/{price.version}/{total.surcharge_nano_per_hour}",
        "SkuPriceDetails": json.dumps(details),
        "SubAccountId": total.user,
        "SubAccountName": total.user,
        "SubAccountType": "User",
    }


def _parked(line: InvoiceLine) -> dict[str, str]:
    total = line.parked
    if total is None or total.price is None:
        return {}
    price, quantity = total.price, gib_hours_text(total.byte_ns, QUANTITY_DECIMALS)
    rate = decimal_text(price.price_nano_per_gib_hour, 9)
    return {
        "ConsumedQuantity": quantity,
        "ConsumedUnit": PARKED_UNIT,
        "PricingQuantity": quantity,
        "PricingUnit": PARKED_UNIT,
        "PricingCategory": "Standard",
        "ListUnitPrice": rate,
        "ContractedUnitPrice": rate,
        "SkuId": PARKED_SHOWN,
        "SkuMeter": "Parked memory",
        "SkuPriceId": f"{PARKED_SHOWN}/{price.currency}/{price.version}",
        "SkuPriceDetails": json.dumps({"x_PriceVersion": price.version}),
        "SubAccountId": total.user,
        "SubAccountName": total.user,
        "SubAccountType": "User",
    }


def _time(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%SZ}"
