"""A tenant's month as lines and totals, and the proof that it equals the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from forebay_billing.errors import LedgerError
from forebay_billing.model.money import cost_grains, minor_of
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED, Line, PriceVersion, Statement, Total
from forebay_billing.rules.parked import ParkedTotal


def line_of(
    kind: Literal["usage", "correction"], user: str, price: PriceVersion, surcharge_nano_per_hour: int, leases: int, duration_ns: int
) -> Line:
    """The line of all usage of ``user`` under ``price`` and surcharge; ``duration_ns`` is negative in a correction. Rounds, once."""
    cost = cost_grains(duration_ns, price.price_nano_per_hour + surcharge_nano_per_hour)
    return Line(
        kind=kind,
        user=user,
        flavor=price.flavor,
        currency=price.currency,
        price_version=price.version,
        price_nano_per_hour=price.price_nano_per_hour,
        surcharge_nano_per_hour=surcharge_nano_per_hour,
        leases=leases,
        duration_ns=duration_ns,
        cost_grains=cost,
        amount_minor=minor_of(cost, price.currency),
    )


def parked_line_of(total: ParkedTotal) -> Line:
    """The line of a user's parked bytes at one price: the sum of its segments, which are exact or rounded already. Rounds, once."""
    return Line(
        kind="correction" if total.correction else "usage",
        user=total.user,
        flavor=PARKED,
        currency=total.currency,
        price_version=0 if total.price is None else total.price.version,
        price_nano_per_hour=0,
        surcharge_nano_per_hour=0,
        leases=total.stretches,
        duration_ns=total.duration_ns,
        cost_grains=total.cost_grains,
        amount_minor=minor_of(total.cost_grains, total.currency),
        byte_ns=total.byte_ns,
        price_nano_per_gib_hour=0 if total.price is None else total.price.price_nano_per_gib_hour,
    )


def statement_of(tenant: str, user: str | None, month: Month, now_ns: int, lines: Iterable[Line]) -> Statement:
    """The statement of ``lines``, ordered by user, flavor, currency, price version, surcharge, corrections last."""
    ordered = tuple(sorted(lines, key=_place))
    exact: dict[str, int] = defaultdict(int)
    rounded: dict[str, int] = defaultdict(int)
    for line in ordered:
        exact[line.currency] += line.cost_grains
        rounded[line.currency] += line.amount_minor
    totals = tuple(Total(currency, exact[currency], rounded[currency]) for currency in sorted(exact))
    return Statement(tenant, user, month, now_ns >= month.end_ns, ordered, totals)


def _place(line: Line) -> tuple[str, str, str, int, int, bool]:
    return line.user, line.flavor, line.currency, line.price_version, line.surcharge_nano_per_hour, line.kind != "usage"


def check_against_ledger(statement: Statement, receivable_grains: Mapping[str, int]) -> None:
    """Raises LedgerError unless the statement's exact totals are the receivable account's postings of the month, to the last grain."""
    totals = {total.currency: total.cost_grains for total in statement.totals}
    for currency in sorted(totals.keys() | receivable_grains.keys()):
        stated, posted = totals.get(currency, 0), receivable_grains.get(currency, 0)
        if stated != posted:
            raise LedgerError(
                f"The statement of {statement.tenant} for {statement.month} sums to {stated} grains of {currency}, "
                f"the ledger to {posted}; the statement is withheld until an operator has found the difference."
            )
