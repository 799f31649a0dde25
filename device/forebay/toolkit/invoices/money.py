"""The rules of money, as docs/reference/receipts.md has them: exact costs, and one rounding for each line."""

from __future__ import annotations

from fractions import Fraction

NANO = 10**9
HOUR_NS = 3600 * NANO
EXACT_DECIMALS = 18
BPS = 10_000


def cost(duration_ns: int, nano_per_hour: int) -> Fraction:
    """What that time costs, in units of the currency."""
    return Fraction(duration_ns * nano_per_hour, HOUR_NS * NANO)


def surcharge_rate(nano_per_hour: int, devices: int, share_milli: int) -> int:
    """What an hour of so much of so many devices costs beside the flavor's price, in whole nano-units."""
    return round(Fraction(nano_per_hour * devices * share_milli, 1000))


def text_of(amount: Fraction, decimals: int) -> str:
    """The amount with so many decimals, rounded half-even (as ``round`` of a fraction does)."""
    last = round(amount * 10**decimals)
    whole, rest = divmod(abs(last), 10**decimals)
    sign = "-" if last < 0 else ""
    return f"{sign}{whole}.{rest:0{decimals}d}" if decimals else f"{sign}{whole}"


def decimals_of(amount: str) -> int:
    """How many decimals an amount is written with."""
    return len(amount.partition(".")[2])
