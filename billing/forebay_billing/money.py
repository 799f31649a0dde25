"""Exact money: integers of atto-units (1e-18 of a currency), rounded only to be shown.

A price is an integer of nano-units per second, a duration an integer of nanoseconds. Their product is an integer of
nano-unit·ns/s = 1e-9 · 1e-9 = 1e-18 units: an *atto*. No cost is ever held in any other way.
"""

from __future__ import annotations

from forebay_billing.currencies import DECIMALS
from forebay_billing.errors import InvalidPrice

DECIMALS_MAX = 18
ATTO_PER_NANO = 10**9
ATTO_PER_UNIT = 10**18
ATTO_PER_MILLI = 10**15


def cost_atto(duration_ns: int, rate_nano_per_second: int) -> int:
    """What ``duration_ns`` costs, exactly."""
    return duration_ns * rate_nano_per_second


def round_half_even(numerator: int, denominator: int) -> int:
    """The integer nearest to ``numerator / denominator``; a tie goes to the even one. ``denominator`` is positive."""
    quotient, rest = divmod(numerator, denominator)
    if 2 * rest > denominator or (2 * rest == denominator and quotient % 2):
        return quotient + 1
    return quotient


def nano_of(atto: int) -> int:
    """Nano-units, rounded half-even."""
    return round_half_even(atto, ATTO_PER_NANO)


def minor_of(atto: int, currency: str) -> int:
    """Minor units of ``currency`` (cents of USD, yen of JPY), rounded half-even: the one rounding of a statement line."""
    return round_half_even(atto, 10 ** (DECIMALS_MAX - decimals_of(currency)))


def atto_of_minor(amount_minor: int, currency: str) -> int:
    """Minor units of ``currency`` as atto-units, exactly."""
    return amount_minor * int("1" + "0" * (DECIMALS_MAX - decimals_of(currency)))


def decimals_of(currency: str) -> int:
    """Decimals of the currency's minor unit. Raises InvalidPrice for what is not a currency of ISO 4217."""
    decimals = DECIMALS.get(currency)
    if decimals is None:
        raise InvalidPrice(f"{currency!r} is not a currency of ISO 4217; give a code such as USD, EUR or KRW.")
    return decimals


def decimal_text(amount: int, decimals: int) -> str:
    """``amount`` of 10^-decimals units as a plain decimal number: ``decimal_text(-5, 2)`` is ``-0.05``."""
    sign = "-" if amount < 0 else ""
    whole, rest = divmod(abs(amount), 10**decimals)
    return f"{sign}{whole}.{rest:0{decimals}d}" if decimals else f"{sign}{whole}"


def minor_text(amount_minor: int, currency: str) -> str:
    """Minor units as people read them: 85 of USD is ``0.85``."""
    return decimal_text(amount_minor, decimals_of(currency))


def nano_text(atto: int) -> str:
    """An exact amount shown to the nano-unit: nine decimals, rounded half-even."""
    return decimal_text(nano_of(atto), 9)


def exact_text(atto: int) -> str:
    """An exact amount with all its eighteen decimals."""
    return decimal_text(atto, DECIMALS_MAX)


def halves(atto: int) -> tuple[int, int]:
    """(milli-units, atto-units) with ``milli·10^15 + atto``: two 64-bit columns for one exact amount. Both carry the sign."""
    if atto >= 0:
        return divmod(atto, ATTO_PER_MILLI)
    milli, rest = divmod(-atto, ATTO_PER_MILLI)
    return -milli, -rest


def whole(milli: int, atto: int) -> int:
    """The exact amount of :func:`halves`."""
    return milli * ATTO_PER_MILLI + atto
