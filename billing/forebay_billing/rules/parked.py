"""What parked bytes cost: a price per GiB and hour, zero where none was ever set. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from forebay_billing.model.money import GRAINS_PER_NANO, decimal_text, divided, round_half_even
from forebay_billing.model.types import PARKED, ParkedPrice
from forebay_billing.rules.prices import NOTHING_RATED, Book, Past

BYTE_NS_PER_GIB_HOUR = 2**30 * 3600 * 10**9
PARKED_NANO_PER_GIB_HOUR_MAX = 10**15
"""One million currency units a GiB and hour."""


@dataclass(frozen=True)
class ParkedTotal:
    """What a user's parked bytes at one price sum to; all is negative in a correction. ``stretches`` counts how often it was parked."""

    user: str
    price: ParkedPrice | None
    currency: str
    correction: bool
    stretches: int
    duration_ns: int
    byte_ns: int
    cost_grains: int
    started_at_ns: int
    ended_at_ns: int

    @property
    def place(self) -> tuple[str, int, bool]:
        return self.user, 0 if self.price is None else self.price.version, self.correction

    @property
    def key(self) -> str:
        """A name that says which segments they are, in a draft as in the invoice."""
        return hashlib.sha256("\n".join(map(str, (PARKED, *self.place))).encode()).hexdigest()[:16]


class ParkedBook(Book[ParkedPrice]):
    """All versions of what a GiB costs in an hour in which it is parked."""

    AMOUNT_NANO_MAX = PARKED_NANO_PER_GIB_HOUR_MAX

    def nano_per_gib_hour(self, currency: str, time_ns: int) -> int:
        """The price in force at ``time_ns``."""
        version = self.at(PARKED, currency, time_ns)
        return 0 if version is None else version.price_nano_per_gib_hour

    def moments(self, currency: str, after_ns: int, before_ns: int) -> list[int]:
        """Where what is parked in (after, before) is to be split, since the price changes there."""
        return self.changes(PARKED, currency, after_ns, before_ns)

    def next_version(
        self, currency: str, price_nano_per_gib_hour: int, valid_from_ns: int | None, now_ns: int, who: str, past: Past = NOTHING_RATED
    ) -> ParkedPrice:
        """The version that a change makes. Raises InvalidPrice, ClosedToPrices.

        The first price takes the place of zero, at which what was parked before was rated, so it does not begin in the past.
        """
        number, start_ns = self.next_start(PARKED, currency, price_nano_per_gib_hour, valid_from_ns, now_ns, past)
        if valid_from_ns is None:
            start_ns = max(start_ns, past.rated_until_ns)
        past.check(PARKED, currency, start_ns)
        return ParkedPrice(currency, number, price_nano_per_gib_hour, start_ns, now_ns, who)


def gib_hours_text(byte_ns: int, decimals: int = 6) -> str:
    """GiB-hours, rounded half-even; six decimals are for people."""
    return decimal_text(round_half_even(byte_ns * 10**decimals, BYTE_NS_PER_GIB_HOUR), decimals)


def parked_grains(byte_ns: int, price_nano_per_gib_hour: int) -> int:
    """What ``byte_ns`` (bytes times nanoseconds) cost, in grains, :func:`divided`: rounded once, if they are summed up per price before."""
    return divided(byte_ns * price_nano_per_gib_hour * GRAINS_PER_NANO, BYTE_NS_PER_GIB_HOUR)
