"""Price plans: what a tenant's month costs beside the list price, as a pure function of the month's exact totals.

A plan is in force for whole months. It sees only how long each flavor was held at each rate, and what parked bytes cost, so neither the
order of deliveries nor the cuts of segments matter. Parked bytes count like all other usage, but no flavor's free time is theirs.
What is taken off, in this order, each from what the one before has left:

1. *free time*: seconds of named flavors, the dearest first;
2. *free money*: so much of the list price;
3. *volume tiers*, graduated: each band of what is left, at list price, has its own discount;
4. *discount*, of all that is left then;
5. *commitment*: what is missing to the month's minimum is added.

More usage never costs less, and usage that is not below zero never becomes so. A month in which corrections outweigh usage
has neither free time nor money nor tiers; the discount holds for what it gives back, too. Amounts are whole grains; discounts
are rounded half-even to 1e-18 of the currency.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from forebay_service.errors import Fault

from forebay_billing.errors import InvalidPlan
from forebay_billing.model.money import GRAINS_PER_NANO, decimal_text, decimals_of, divided
from forebay_billing.model.months import Month

BPS = 10_000
"""Basis points in a whole: a discount of 1,250 is 12.5 %."""
NANO_MAX = 10**18
"""The most that a plan's amount may be, in nano-units: a thousand million units a month."""
SECONDS_MAX = 10**12
TIERS_MAX = 20
FREE_FLAVORS_MAX = 100
NS_PER_SECOND = 10**9

AdjustmentKind = Literal["free_time", "free_money", "tiers", "discount", "commitment"]


@dataclass(frozen=True)
class Adjustment:
    """What a plan changes of a month's cost: below zero it is taken off, above it is added."""

    kind: AdjustmentKind
    label: str
    currency: str
    amount_grains: int


@dataclass(frozen=True)
class Usage:
    """How long a flavor was held at one rate (price and surcharge) in a month; below zero where corrections outweigh the rest."""

    flavor: str
    currency: str
    rate_nano_per_hour: int
    duration_ns: int


@dataclass(frozen=True)
class Tier:
    """From ``from_nano`` of the month on, up to the next tier, list prices are ``discount_bps`` lower."""

    from_nano: int
    discount_bps: int


@dataclass(frozen=True)
class Terms:
    """What a plan says. ``free_seconds`` are those of a month by flavor. Money is of ``currency``; usage in others is at list price."""

    currency: str
    discount_bps: int = 0
    free_nano: int = 0
    free_seconds: tuple[tuple[str, int], ...] = ()
    tiers: tuple[Tier, ...] = ()
    commitment_nano: int = 0


@dataclass(frozen=True)
class Plan:
    """A version of a tenant's terms, in force from the month ``valid_from`` until the next. Versions count from 1 per tenant."""

    tenant: str
    version: int
    valid_from: Month
    terms: Terms
    changed_at_ns: int
    changed_by: str


def plan_in(month: Month, versions: Iterable[Plan]) -> Plan | None:
    """The one of a tenant's versions that is in force in ``month``: of those with the latest start, the latest."""
    begun = (plan for plan in versions if plan.valid_from <= month)
    return max(begun, key=lambda plan: (plan.valid_from, plan.version), default=None)


def check(terms: Terms) -> None:
    """Raises InvalidPlan for terms that no month can have, InvalidPrice for an unknown currency."""
    decimals_of(terms.currency)
    _check_bps("discount_bps", terms.discount_bps)
    for name, nano in (("free_nano", terms.free_nano), ("commitment_nano", terms.commitment_nano)):
        if not 0 <= nano <= NANO_MAX:
            raise _out_of_range(name, nano)
    flavors = [flavor for flavor, _ in terms.free_seconds]
    if len(set(flavors)) != len(flavors) or len(flavors) > FREE_FLAVORS_MAX:
        sentence = f"free_seconds: name each flavor once, and at most {FREE_FLAVORS_MAX}."
        raise InvalidPlan(sentence, Fault("flavors_once", "free_seconds", {"most": FREE_FLAVORS_MAX}))
    for flavor, seconds in terms.free_seconds:
        if not 0 <= seconds <= SECONDS_MAX:
            sentence = f"free_seconds: {seconds} of {flavor!r:.80} is not from 0 to {SECONDS_MAX} seconds."
            values = {"given": seconds, "flavor": f"{flavor!r:.80}", "most": SECONDS_MAX}
            raise InvalidPlan(sentence, Fault("seconds_range", "free_seconds", values))
    if len(terms.tiers) > TIERS_MAX:
        sentence = f"tiers: a plan has at most {TIERS_MAX}; {len(terms.tiers)} were given."
        raise InvalidPlan(sentence, Fault("too_many", "tiers", {"given": len(terms.tiers), "most": TIERS_MAX}))
    for tier in terms.tiers:
        _check_bps("tiers", tier.discount_bps)
        if not 0 <= tier.from_nano <= NANO_MAX:
            raise _out_of_range("tiers", tier.from_nano)
    if any(later.from_nano <= tier.from_nano for tier, later in pairwise(terms.tiers)):
        raise InvalidPlan("tiers: each begins above the one before; give them in order of from_nano.", Fault("not_rising", "tiers"))


def _out_of_range(name: str, nano: int) -> InvalidPlan:
    sentence = f"{name}: {nano} is not from 0 to {NANO_MAX} nano-units."
    return InvalidPlan(sentence, Fault("nano_range", name, {"given": nano, "most": NANO_MAX}))


def _check_bps(name: str, bps: int) -> None:
    if not 0 <= bps <= BPS:
        sentence = f"{name}: a discount is from 0 to {BPS} basis points (hundredths of a per cent); {bps} was given."
        raise InvalidPlan(sentence, Fault("per_cent_range", name, {"given": bps, "most": BPS}))


def list_grains(usages: Iterable[Usage], currency: str) -> int:
    """What ``usages`` cost at list price, in ``currency``."""
    return sum(usage.duration_ns * usage.rate_nano_per_hour for usage in usages if usage.currency == currency)


def adjustments(terms: Terms, usages: Iterable[Usage], parked_grains: int = 0) -> tuple[Adjustment, ...]:
    """What ``terms`` change of a month of ``usages``, and of parked bytes that cost ``parked_grains``, without lines of nothing."""
    durations = _durations(terms.currency, usages)
    left = parked_grains + sum(rate * duration_ns for (_, rate), duration_ns in durations.items())
    made: list[Adjustment] = []

    def add(kind: AdjustmentKind, label: str, amount_grains: int) -> None:
        nonlocal left
        left += amount_grains
        if amount_grains:
            made.append(Adjustment(kind, label, terms.currency, amount_grains))

    for flavor, seconds in sorted(terms.free_seconds):
        free = max(0, min(left, _free_time_grains(seconds * NS_PER_SECOND, flavor, durations)))
        add("free_time", f"Free time of {flavor}, up to {seconds} s", -free)
    free = max(0, min(left, terms.free_nano * GRAINS_PER_NANO))
    add("free_money", f"Free of charge, up to {_money(terms.free_nano)} {terms.currency}", -free)
    add("tiers", "Volume discount", -_tiers_grains(terms.tiers, left))
    add("discount", f"Discount of {decimal_text(terms.discount_bps, 2)} %", -divided(left * terms.discount_bps, BPS))
    missing = max(0, terms.commitment_nano * GRAINS_PER_NANO - max(0, left))
    add("commitment", f"Missing to the commitment of {_money(terms.commitment_nano)} {terms.currency}", missing)
    return tuple(made)


def _durations(currency: str, usages: Iterable[Usage]) -> Mapping[tuple[str, int], int]:
    """How long each (flavor, rate) was held."""
    durations: dict[tuple[str, int], int] = defaultdict(int)
    for usage in usages:
        if usage.currency == currency:
            durations[usage.flavor, usage.rate_nano_per_hour] += usage.duration_ns
    return durations


def _free_time_grains(free_ns: int, flavor: str, durations: Mapping[tuple[str, int], int]) -> int:
    """What ``free_ns`` of a flavor cost, the dearest first: so nothing is shared out, and nothing rounded."""
    free_grains = 0
    for (held, rate), duration_ns in sorted(durations.items(), key=lambda item: -item[0][1]):
        if held == flavor and duration_ns > 0:
            taken_ns = min(free_ns, duration_ns)
            free_grains += taken_ns * rate
            free_ns -= taken_ns
    return free_grains


def _tiers_grains(tiers: tuple[Tier, ...], amount_grains: int) -> int:
    """The discount of each band of an amount, added up and then rounded."""
    ends = [tier.from_nano * GRAINS_PER_NANO for tier in tiers[1:]] + [max(0, amount_grains)]
    sum_bps = 0
    for tier, end_grains in zip(tiers, ends, strict=False):
        sum_bps += max(0, min(amount_grains, end_grains) - tier.from_nano * GRAINS_PER_NANO) * tier.discount_bps
    return divided(sum_bps, BPS)


def _money(nano: int) -> str:
    """As people write it: at least two decimals, no zeros after them."""
    units, _, rest = decimal_text(nano, 9).partition(".")
    return f"{units}.{rest.rstrip('0').ljust(2, '0')}"
