"""Invoices: what a tenant's month comes to in one currency, as a pure function of its usage, plan, credits and tax.

Lines, in this order: usage and its corrections, one per user, flavor, price version, surcharge and lateness; parked memory, one per user
and price version; what the plan changes;
promotional credits; tax on the rest; prepaid credits, which pay tax too; and, where corrections outweigh everything, what is carried
over as credit.

*The rule of rounding*: each line is computed exactly and rounded half-even, once, to the currency's minor unit. Every sum is a sum of
rounded lines. Credits are whole minor units anyway, and tax is reckoned of the rounded lines, as somebody with a pencil would.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from forebay_service.errors import Fault

from forebay_billing.errors import InvalidProfile
from forebay_billing.model.money import cost_grains, decimal_text, decimals_of, grains_of_minor, minor_of, round_half_even
from forebay_billing.model.months import Month
from forebay_billing.model.types import PriceVersion
from forebay_billing.rules.credits import Balance, Due, Use, after, allocate, dues
from forebay_billing.rules.parked import ParkedTotal, gib_hours_text
from forebay_billing.rules.plans import Terms, Usage, adjustments
from forebay_billing.rules.rating import HOUR_NS

BPS = 10_000
LineKind = Literal[
    "usage", "correction", "parked", "free_time", "free_money", "tiers", "discount", "commitment",
    "promotional", "tax", "prepaid", "carried",
]  # fmt: skip
PLAN_KINDS: tuple[LineKind, ...] = ("free_time", "free_money", "tiers", "discount", "commitment")
USAGE_KINDS: tuple[LineKind, ...] = ("usage", "correction", "parked")
State = Literal["draft", "open", "paid", "void"]


@dataclass(frozen=True)
class Profile:
    """Whom an invoice is made out to. ``tax_bps`` is in basis points; without a ``tax_label`` there is no tax line."""

    tenant: str
    legal_name: str
    address: str = ""
    tax_id: str = ""
    tax_label: str = ""
    tax_bps: int = 0
    currency: str | None = None
    """What the tenant is billed in; None: what the settings say."""
    email: str | None = None


@dataclass(frozen=True)
class UsageTotal:
    """What the segments of one user under one price and surcharge sum to; durations are negative in a correction.

    ``late`` usage was used in a month that was finalised before it arrived. ``started_at_ns`` until ``ended_at_ns`` holds all of it.
    """

    user: str
    price: PriceVersion
    surcharge_nano_per_hour: int
    correction: bool
    late: bool
    leases: int
    duration_ns: int
    started_at_ns: int
    ended_at_ns: int

    @property
    def rate_nano_per_hour(self) -> int:
        return self.price.price_nano_per_hour + self.surcharge_nano_per_hour

    @property
    def cost_grains(self) -> int:
        return cost_grains(self.duration_ns, self.rate_nano_per_hour)

    @property
    def key(self) -> str:
        """A name that says which segments they are, in a draft as in the invoice."""
        price = self.price
        parts = (self.user, price.flavor, price.currency, price.version, self.surcharge_nano_per_hour, self.correction, self.late)
        return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]

    @property
    def place(self) -> tuple[str, str, int, int, bool, bool]:
        return self.user, self.price.flavor, self.price.version, self.surcharge_nano_per_hour, self.late, self.correction


@dataclass(frozen=True)
class Basis:
    """All that an invoice depends on. ``hours_grains`` is the usage of each UTC hour, by its start; ``balances`` are the
    tenant's credits.
    """

    profile: Profile
    month: Month
    currency: str
    usage: Sequence[UsageTotal] = ()
    hours_grains: Mapping[int, int] | None = None
    terms: Terms | None = None
    balances: Sequence[Balance] = ()
    parked: Sequence[ParkedTotal] = ()


@dataclass(frozen=True)
class InvoiceLine:
    """One rounded line. ``cost_grains`` is what it was before rounding. ``usage``, ``grant_id`` or ``parked`` tell what it is of."""

    key: str
    kind: LineKind
    label: str
    cost_grains: int
    amount_minor: int
    started_at_ns: int
    ended_at_ns: int
    usage: UsageTotal | None = None
    grant_id: int | None = None
    parked: ParkedTotal | None = None


@dataclass(frozen=True)
class Draft:
    """An invoice before it has a number."""

    profile: Profile
    month: Month
    currency: str
    lines: tuple[InvoiceLine, ...]

    @property
    def net_minor(self) -> int:
        """Usage and plan."""
        return self._sum(*USAGE_KINDS, *PLAN_KINDS)

    @property
    def credit_minor(self) -> int:
        """What credits take off; below zero, or above where something is carried over."""
        return self._sum("promotional", "prepaid", "carried")

    @property
    def tax_minor(self) -> int:
        return self._sum("tax")

    @property
    def gross_minor(self) -> int:
        """What it is an invoice of, with tax, whoever pays it: prepaid credits are money that came before."""
        return self.total_minor - self._sum("prepaid", "carried")

    @property
    def total_minor(self) -> int:
        """What is asked for: the sum of all lines, never below zero."""
        return sum(line.amount_minor for line in self.lines)

    def _sum(self, *kinds: LineKind) -> int:
        return sum(line.amount_minor for line in self.lines if line.kind in kinds)


def draft(basis: Basis) -> Draft:
    """The invoice of ``basis``: the same whatever the order in which its parts are given."""
    lines = [_usage_line(total) for total in sorted(basis.usage, key=lambda total: total.place)]
    lines += [_parked_line(total) for total in sorted(basis.parked, key=lambda total: total.place) if total.cost_grains]
    lines += _plan_lines(basis)
    net_minor = sum(line.amount_minor for line in lines)
    first = allocate(_dues(basis, net_minor), basis.balances)
    taxable_minor = net_minor - sum(use.amount_minor for use in first if use.grant.kind == "promotional")
    tax = _tax_line(basis, taxable_minor)
    left = [balance for balance in after(basis.balances, first) if balance.grant.kind == "prepaid"]
    second = allocate(_dues(basis, 0 if tax is None else tax.amount_minor), left)
    lines += _credit_lines(basis, [use for use in first if use.grant.kind == "promotional"])
    lines += [] if tax is None else [tax]
    lines += _credit_lines(basis, [use for use in (*first, *second) if use.grant.kind == "prepaid"])
    missing_minor = -sum(line.amount_minor for line in lines)
    if missing_minor > 0:
        lines.append(_line(basis, "carried", "carried", "Carried over as prepaid credit", grains_of_minor(missing_minor, basis.currency)))
    return Draft(basis.profile, basis.month, basis.currency, tuple(lines))


def check_profile(profile: Profile) -> None:
    """Raises InvalidProfile for one that no invoice can be made out to, InvalidPrice for an unknown currency."""
    if profile.currency is not None:
        decimals_of(profile.currency)
    if not profile.legal_name.strip():
        raise InvalidProfile("legal_name: an invoice is made out to somebody; give the name.")
    if not 0 <= profile.tax_bps <= BPS:
        sentence = f"tax_bps: a rate is from 0 to {BPS} basis points (hundredths of a per cent); {profile.tax_bps} was given."
        raise InvalidProfile(sentence, Fault("per_cent_range", "tax_bps", {"given": profile.tax_bps, "most": BPS}))
    if profile.tax_bps and not profile.tax_label.strip():
        raise InvalidProfile("tax_label: a tax above zero needs its name, such as VAT.", Fault("tax_name_needed", "tax_label"))


def tax_part(taken_minor: int, made: Draft) -> int:
    """The tax in so much of the gross amount of an invoice, rounded half-even: in all of it, all the tax."""
    return round_half_even(taken_minor * made.tax_minor, made.gross_minor) if made.gross_minor else 0


def _dues(basis: Basis, amount_minor: int) -> tuple[Due, ...]:
    return dues(basis.hours_grains or {}, amount_minor, basis.month.end_ns - HOUR_NS)


def _usage_line(total: UsageTotal) -> InvoiceLine:
    what = f"{total.price.flavor} for {total.user}" + (" (late)" if total.late else "") + (" (correction)" if total.correction else "")
    cost, currency = total.cost_grains, total.price.currency
    kind: LineKind = "correction" if total.correction else "usage"
    return InvoiceLine(total.key, kind, what, cost, minor_of(cost, currency), total.started_at_ns, total.ended_at_ns, total)


def _parked_line(total: ParkedTotal) -> InvoiceLine:
    """A line of its own. What costs nothing has none."""
    what = f"Parked memory for {total.user}" + (" (correction)" if total.correction else "") + f": {gib_hours_text(total.byte_ns)} GiB·h"
    minor = minor_of(total.cost_grains, total.currency)
    return InvoiceLine(total.key, "parked", what, total.cost_grains, minor, total.started_at_ns, total.ended_at_ns, parked=total)


def _plan_lines(basis: Basis) -> list[InvoiceLine]:
    """What is less than half of the smallest coin has none: a commitment of that alone would be an invoice of nothing."""
    if basis.terms is None:
        return []
    usages = [Usage(total.price.flavor, total.price.currency, total.rate_nano_per_hour, total.duration_ns) for total in basis.usage]
    parked_grains = sum(total.cost_grains for total in basis.parked) if basis.terms.currency == basis.currency else 0
    found = [one for one in adjustments(basis.terms, usages, parked_grains) if one.currency == basis.currency]
    lines = [_line(basis, f"plan-{position}", one.kind, one.label, one.amount_grains) for position, one in enumerate(found, 1)]
    return [line for line in lines if line.amount_minor]


def _tax_line(basis: Basis, taxable_minor: int) -> InvoiceLine | None:
    profile = basis.profile
    if not profile.tax_label:
        return None
    label = f"{profile.tax_label} {decimal_text(profile.tax_bps, 2)} %"
    return _line(basis, "tax", "tax", label, grains_of_minor(taxable_minor, basis.currency) * profile.tax_bps // BPS)


def _credit_lines(basis: Basis, uses: Iterable[Use]) -> list[InvoiceLine]:
    """One a grant, in the order of use."""
    used: dict[int, int] = defaultdict(int)
    kinds: dict[int, LineKind] = {}
    for use in uses:
        used[use.grant.id] += use.amount_minor
        kinds[use.grant.id] = use.grant.kind
    return [
        _line(basis, f"credit-{id}", kinds[id], f"{kinds[id].capitalize()} credit {id}", -grains_of_minor(amount, basis.currency), id)
        for id, amount in used.items()
    ]


def _line(basis: Basis, key: str, kind: LineKind, label: str, grains: int, grant_id: int | None = None) -> InvoiceLine:
    rounded = minor_of(grains, basis.currency)
    return InvoiceLine(key, kind, label, grains, rounded, basis.month.start_ns, basis.month.end_ns, None, grant_id)

