"""What a plan changes of a month, by the accountant's own arithmetic: intervals, telescoped bands, integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simulation.money.rounding import nearest

SECOND_NS = 10**9
NANO = 3600 * SECOND_NS
"""Grains in a nano-unit."""
LAST = 3600
"""Grains in 1e-18 of a currency, to which what is divided is rounded."""
BPS = 10_000
Held = Mapping[tuple[str, int], int]
"""For how many nanoseconds a flavor was held at a rate, in nano-units per hour; below zero where more was taken back."""
Terms = Mapping[str, Any]
"""A version of a plan, as billing answered when it was set."""


def terms_in(versions: Iterable[Terms], tenant: str, month: str) -> Terms | None:
    """The one that is in force."""
    begun = [version for version in versions if version["tenant"] == tenant and version["valid_from"] <= month]
    return sorted(begun, key=lambda version: (version["valid_from"], version["version"]))[-1] if begun else None


def changes(terms: Terms, held: Held, parked_grains: int) -> list[int]:
    """The grains of each line that the plan makes."""
    left = parked_grains + sum(rate * duration_ns for (_, rate), duration_ns in held.items())
    made = []
    for flavor, seconds in sorted(terms["free_seconds"].items()):
        made.append(-_at_most(left, _dearest(held, flavor, seconds * SECOND_NS)))
        left += made[-1]
    made.append(-_at_most(left, terms["free_nano"] * NANO))
    left += made[-1]
    made.append(-_bands(terms["tiers"], left))
    left += made[-1]
    made.append(-nearest(left * terms["discount_bps"], BPS * LAST) * LAST)
    left += made[-1]
    short = terms["commitment_nano"] * NANO - (left if left > 0 else 0)
    made.append(short if short > 0 else 0)
    return made


def _at_most(left: int, wanted: int) -> int:
    return 0 if left <= 0 else wanted if wanted < left else left


def _dearest(held: Held, flavor: str, free_ns: int) -> int:
    """What the first ``free_ns`` cost if all time of the flavor is laid end to end, the dearest first."""
    laid_ns = cost = 0
    for rate in sorted((rate for (name, rate), duration_ns in held.items() if name == flavor and duration_ns > 0), reverse=True):
        end_ns = laid_ns + held[flavor, rate]
        cost += rate * (min(end_ns, free_ns) - min(laid_ns, free_ns))
        laid_ns = end_ns
    return cost


def _bands(tiers: list[dict[str, int]], amount: int) -> int:
    """Each tier adds, above its begin, what its discount is more than the one before."""
    before = total = 0
    for tier in tiers:
        above = amount - tier["from_nano"] * NANO
        total += (tier["discount_bps"] - before) * (above if above > 0 else 0)
        before = tier["discount_bps"]
    return nearest(total, BPS * LAST) * LAST
