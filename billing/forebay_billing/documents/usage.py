"""Statements and rows as JSON, HTML and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from forebay_service.spreadsheets import PARKED_SHOWN, csv_text
from jinja2 import Environment, PackageLoader, StrictUndefined

from forebay_billing.model.money import decimal_text, decimals_of, exact_text, minor_text, nano_of, nano_text
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED, Accepted, Line, ParkedPrice, PriceVersion, Statement, SurchargeVersion, UsageRecord
from forebay_billing.reads.checks import Difference
from forebay_billing.reads.parked import ParkedRate
from forebay_billing.reads.revenue import RevenueHour
from forebay_billing.reads.standings import Standing
from forebay_billing.reads.summaries import Outlook, SummaryRow
from forebay_billing.reads.usage import Balance, Charge, Page, Rate
from forebay_billing.rules.parked import gib_hours_text
from forebay_billing.rules.previews import Cost, Row
from forebay_billing.rules.price_list import Change

_CSV_COLUMNS = (
    "tenant", "month", "kind", "user", "flavor", "price_version", "price_nano_per_hour",
    "surcharge_nano_per_hour", "currency", "leases", "seconds", "exact_amount", "amount",
)  # fmt: skip

MJ_PER_KWH = 3_600_000_000
"""Millijoules."""

PAGES = Environment(
    loader=PackageLoader("forebay_billing"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def price_json(price: PriceVersion) -> dict[str, Any]:
    """A price in force."""
    return {
        "flavor": price.flavor,
        "price_nano_per_hour": price.price_nano_per_hour,
        "currency": price.currency,
        "valid_from_ns": price.valid_from_ns,
        "version": price.version,
    }


def balance_json(balance: Balance) -> dict[str, Any]:
    """How a tenant stands in a currency."""
    return {
        "currency": balance.currency,
        "owed_nano": nano_of(balance.owed_grains),
        "held_nano": nano_of(balance.held_grains),
        "credit_nano": nano_of(balance.credit_grains),
        "available_nano": nano_of(balance.available_grains),
    }


def price_history_json(price: PriceVersion) -> dict[str, Any]:
    """A price version, with who made it and when."""
    return {**price_json(price), "changed_at_ns": price.changed_at_ns, "changed_by": price.changed_by}


def parked_price_json(price: ParkedPrice) -> dict[str, Any]:
    """A version of the price of parked bytes."""
    return asdict(price)


def surcharge_json(version: SurchargeVersion) -> dict[str, Any]:
    """A version of a model's surcharge."""
    return asdict(version)


def changes_json(changes: Sequence[Change]) -> dict[str, Any]:
    """What a price list changes; parked bytes are no flavor."""
    return {"changes": [_change_json(change) for change in changes]}


def _change_json(change: Change) -> dict[str, Any]:
    after = change.after
    parked, model = isinstance(after, ParkedPrice), after.model if isinstance(after, SurchargeVersion) else None
    return {
        "kind": "parked" if parked else "flavor" if model is None else "surcharge",
        "flavor": after.flavor if isinstance(after, PriceVersion) else None,
        "model": model,
        "currency": after.currency,
        "unit": "nano_per_gib_hour" if parked else "nano_per_hour",
        "before": None if change.before is None else change.before.amount_nano,
        "after": after.amount_nano,
        "valid_from_ns": after.valid_from_ns,
        "version": after.version,
    }


def preview_json(month: Month, rows: Sequence[Row]) -> dict[str, Any]:
    """What each tenant's month comes to as it is and as it would be, and all of them; exact, and rounded to the nano-unit."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        both = sums.setdefault(row.currency, [0, 0])
        both[0] += row.present.total_grains
        both[1] += row.proposed.total_grains
    return {
        "month": str(month),
        "rows": [
            {
                "tenant": row.tenant,
                "currency": row.currency,
                "present": _cost_json(row.present),
                "proposed": _cost_json(row.proposed),
                "difference_nano": nano_of(row.proposed.total_grains - row.present.total_grains),
            }
            for row in rows
        ],
        "totals": [
            {"currency": currency, "present_nano": nano_of(now), "proposed_nano": nano_of(then), "difference_nano": nano_of(then - now)}
            for currency, (now, then) in sorted(sums.items())
        ],
    }


def _cost_json(cost: Cost) -> dict[str, Any]:
    return {
        "list_nano": nano_of(cost.list_grains),
        "adjustments": [{"kind": one.kind, "label": one.label, "amount_nano": nano_of(one.amount_grains)} for one in cost.adjustments],
        "total_nano": nano_of(cost.total_grains),
        "total_exact": exact_text(cost.total_grains),
    }


def accepted_json(done: Accepted) -> dict[str, Any]:
    """What became of a batch."""
    return {"accepted": done.accepted, "duplicates": done.duplicates}


def difference_json(found: Difference) -> dict[str, Any]:
    """Where the books do not agree with themselves."""
    return asdict(found)


def page_json(page: Page) -> dict[str, Any]:
    """Usage records with the cursor of the next page."""
    return {
        "records": [_charge_json(charge) for charge in page.charges],
        "next": None if page.next is None else f"{page.next[0]}.{page.next[1]}",
    }


def _charge_json(charge: Charge) -> dict[str, Any]:
    if charge.parked:
        return _parked_charge_json(charge, charge.parked[0])
    first = charge.rates[0].price
    return {
        **_record_json(charge.record),
        "price_nano_per_hour": first.price_nano_per_hour,
        "price_version": first.version,
        "cost_nano": nano_of(charge.cost_grains),
        "cost_exact": exact_text(charge.cost_grains),
        "currency": first.currency,
        "rates": [_rate_json(rate) for rate in charge.rates],
        "corrected_at_ns": charge.corrected_at_ns,
    }


def _record_json(record: UsageRecord) -> dict[str, Any]:
    return {**vars(record), "span": vars(record.span)}  # asdict copies each text


def _parked_charge_json(charge: Charge, first: ParkedRate) -> dict[str, Any]:
    record = charge.record
    return {
        **_record_json(record),
        "price_nano_per_hour": 0,
        "price_nano_per_gib_hour": 0 if first.price is None else first.price.price_nano_per_gib_hour,
        "price_version": 0 if first.price is None else first.price.version,
        "gib_hours": gib_hours_text((record.parked_bytes or 0) * record.duration_ns),
        "cost_nano": nano_of(charge.cost_grains),
        "cost_exact": exact_text(charge.cost_grains),
        "currency": first.currency,
        "rates": [_parked_rate_json(rate) for rate in charge.parked],
        "corrected_at_ns": charge.corrected_at_ns,
    }


def _parked_rate_json(rate: ParkedRate) -> dict[str, Any]:
    return {
        "price_version": 0 if rate.price is None else rate.price.version,
        "price_nano_per_gib_hour": 0 if rate.price is None else rate.price.price_nano_per_gib_hour,
        "duration_ns": rate.duration_ns,
        "cost_exact": exact_text(rate.cost_grains),
        "period": str(rate.period),
        "late": rate.late,
    }


def _rate_json(rate: Rate) -> dict[str, Any]:
    return {
        "price_version": rate.price.version,
        "price_nano_per_hour": rate.price.price_nano_per_hour,
        "surcharge_nano_per_hour": rate.surcharge_nano_per_hour,
        "duration_ns": rate.duration_ns,
        "cost_exact": exact_text(rate.cost_grains),
        "period": str(rate.period),
        "late": rate.late,
    }


def summary_json(row: SummaryRow, grams_co2_per_kwh: float | None) -> dict[str, Any]:
    """One row of a summary, with the keys that were asked for."""
    return {
        **row.keys,
        "currency": row.currency,
        "duration_ns": row.duration_ns,
        "cost_nano": nano_of(row.cost_grains),
        "leases": row.leases,
        "parked_nano": nano_of(row.parked_grains),
        "energy_mj": row.energy_mj,
        "energy_duration_ns": row.energy_duration_ns,
        "co2_mg": co2_mg(row.energy_mj, grams_co2_per_kwh),
    }


def co2_mg(energy_mj: int | None, grams_per_kwh: float | None) -> int | None:
    """Milligrams of CO₂ that were given off for so much energy; None where either is not known."""
    return None if energy_mj is None or grams_per_kwh is None else round(energy_mj * grams_per_kwh * 1_000 / MJ_PER_KWH)


def outlook_json(found: Outlook) -> dict[str, Any]:
    """How a month goes."""
    row = {"currency": found.currency, "spent_nano": nano_of(found.spent_grains), "forecast_nano": nano_of(found.forecast_grains)}
    return {**row, **range_json(found.forecast_range)}


def range_json(found: tuple[int, int] | None) -> dict[str, int | None]:
    """Between which a forecast is."""
    low, high = (None, None) if found is None else map(nano_of, found)
    return {"forecast_low_nano": low, "forecast_high_nano": high}


def revenue_json(hour: RevenueHour) -> dict[str, Any]:
    """What usage was posted in an hour."""
    return {"hour_ns": hour.hour_ns, "currency": hour.currency, "amount_nano": nano_of(hour.grains)}


def standing_json(found: Standing) -> dict[str, Any]:
    """How a tenant stands. ``decimals`` are those of its currency's smallest coin; a profile's version is 0 where it has none."""
    profile = found.profile
    return {
        "tenant": found.tenant,
        "known": found.known,
        "currency": found.currency,
        "decimals": decimals_of(found.currency),
        "profile_version": 0 if profile is None else profile.version,
        "profile_etag": None if profile is None else profile.tag,
        "profile_currency": None if profile is None else profile.profile.currency,
        "legal_name": None if profile is None else profile.profile.legal_name,
        "tax_label": "" if profile is None else profile.profile.tax_label,
        "tax_bps": 0 if profile is None else profile.profile.tax_bps,
        "month": [outlook_json(one) for one in found.outlooks],
        "balances": [balance_json(one) for one in found.balances],
    }


def statement_json(statement: Statement) -> dict[str, Any]:
    """``amount`` is rounded to the currency's minor unit, ``cost_nano`` to the nano-unit, ``cost_exact`` to 1e-18 of the currency."""
    return {
        "tenant": statement.tenant,
        "user": statement.user,
        "month": str(statement.month),
        "final": statement.final,
        "lines": [_line_json(line) for line in statement.lines],
        "totals": [
            {
                "currency": total.currency,
                "amount": minor_text(total.amount_minor, total.currency),
                "cost_nano": nano_of(total.cost_grains),
                "cost_exact": exact_text(total.cost_grains),
            }
            for total in statement.totals
        ],
    }


def _line_json(line: Line) -> dict[str, Any]:
    parked = {"price_nano_per_gib_hour": line.price_nano_per_gib_hour, "gib_hours": gib_hours_text(line.byte_ns)}
    return (parked if line.flavor == PARKED else {}) | {
        "kind": line.kind,
        "user": line.user,
        "flavor": line.flavor,
        "price_version": line.price_version,
        "price_nano_per_hour": line.price_nano_per_hour,
        "surcharge_nano_per_hour": line.surcharge_nano_per_hour,
        "currency": line.currency,
        "leases": line.leases,
        "duration_ns": line.duration_ns,
        "amount": minor_text(line.amount_minor, line.currency),
        "cost_nano": nano_of(line.cost_grains),
        "cost_exact": exact_text(line.cost_grains),
    }


def statement_csv(statement: Statement) -> str:
    """One row a line; amounts are plain decimals."""
    rows = (
        (
            statement.tenant, str(statement.month), line.kind, line.user, shown_flavor(line.flavor), line.price_version,
            line.price_nano_per_hour, line.surcharge_nano_per_hour, line.currency, line.leases,
            decimal_text(line.duration_ns, 9), exact_text(line.cost_grains), minor_text(line.amount_minor, line.currency),
        )
        for line in statement.lines
    )  # fmt: skip
    return csv_text(_CSV_COLUMNS, rows)


def shown_flavor(flavor: str) -> str:
    """What a flavor is called in a table."""
    return PARKED_SHOWN if flavor == PARKED else flavor


def statement_html(statement: Statement) -> str:
    """A page to read and to print."""
    return PAGES.get_template("statement.html").render(
        statement=statement, minor_text=minor_text, nano_text=nano_text, seconds_text=_seconds_text, rate_text=rate_text,
        PARKED=PARKED, gib_hours_text=gib_hours_text, parked_price_text=_parked_price_text,
    )  # fmt: skip


def _parked_price_text(price_nano_per_gib_hour: int) -> str:
    return decimal_text(price_nano_per_gib_hour, 9).rstrip("0").rstrip(".")


def _seconds_text(duration_ns: int) -> str:
    return decimal_text(duration_ns, 9)


def rate_text(rate_nano_per_hour: int) -> str:
    """Per hour, exactly, as people write it: ``2.00``."""
    units, _, rest = decimal_text(rate_nano_per_hour, 9).partition(".")
    return f"{units}.{rest.rstrip('0').ljust(2, '0')}"
