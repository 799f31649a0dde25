"""Exact money: integers of grains, rounded only to be shown.

A price is an integer of nano-units per hour, a duration an integer of nanoseconds. Their product is an integer of nano-unit·ns/h:
a *grain*, of which there are as many in a nano-unit as nanoseconds in an hour, 3.6·10^12. No cost is ever held in any other way.

What is divided (a discount, the tax, the price of parked bytes) is rounded half-even to 1e-18 of the currency, which is 3600 grains;
and so is an amount that is shown to the last digit, since few multiples of a grain have an end of decimals.
"""

from __future__ import annotations

from forebay_service.errors import Fault

from forebay_billing.errors import InvalidPrice
from forebay_billing.model.currencies import DECIMALS

DECIMALS_MAX = 18
"""Decimals of an amount that is shown to the last digit, and of one that was divided."""
GRAINS_PER_NANO = 3600 * 10**9
GRAINS_PER_UNIT = 10**9 * GRAINS_PER_NANO
GRAINS_PER_MILLI = 10**6 * GRAINS_PER_NANO
GRAINS_PER_LAST = 3600
"""Grains in a unit of the last decimal."""


def cost_grains(duration_ns: int, rate_nano_per_hour: int) -> int:
    """What ``duration_ns`` costs, exactly, in grains."""
    return duration_ns * rate_nano_per_hour


def round_half_even(numerator: int, denominator: int) -> int:
    """The integer nearest to ``numerator / denominator``; a tie goes to the even one. ``denominator`` is positive."""
    quotient, rest = divmod(numerator, denominator)
    if 2 * rest > denominator or (2 * rest == denominator and quotient % 2):
        return quotient + 1
    return quotient


def divided(numerator: int, denominator: int) -> int:
    """``numerator`` grains over ``denominator``, as grains again: rounded half-even to the last decimal that is shown."""
    return round_half_even(numerator, denominator * GRAINS_PER_LAST) * GRAINS_PER_LAST


def nano_of(grains: int) -> int:
    """Nano-units, rounded half-even."""
    return round_half_even(grains, GRAINS_PER_NANO)


def minor_of(grains: int, currency: str) -> int:
    """Minor units of ``currency`` (cents of USD, yen of JPY), rounded half-even: the one rounding of a statement line."""
    return round_half_even(grains, grains_of_minor(1, currency))


def grains_of_minor(amount_minor: int, currency: str) -> int:
    """Minor units of ``currency`` as grains, exactly."""
    return amount_minor * (GRAINS_PER_UNIT // int("1" + "0" * decimals_of(currency)))


def decimals_of(currency: str) -> int:
    """Decimals of the currency's minor unit. Raises InvalidPrice for what is not a currency of ISO 4217."""
    decimals = DECIMALS.get(currency)
    if decimals is None:
        sentence = f"{currency!r} is not a currency of ISO 4217; give a code such as USD, EUR or KRW."
        raise InvalidPrice(sentence, Fault("no_currency", values={"given": f"{currency!r}"}))
    return decimals


def decimal_text(amount: int, decimals: int) -> str:
    """``amount`` of 10^-decimals units as a plain decimal number: ``decimal_text(-5, 2)`` is ``-0.05``."""
    sign = "-" if amount < 0 else ""
    whole, rest = divmod(abs(amount), 10**decimals)
    return f"{sign}{whole}.{rest:0{decimals}d}" if decimals else f"{sign}{whole}"


def minor_text(amount_minor: int, currency: str) -> str:
    """Minor units as people read them: 85 of USD is ``0.85``."""
    return decimal_text(amount_minor, decimals_of(currency))


def nano_text(grains: int) -> str:
    """An exact amount shown to the nano-unit: nine decimals, rounded half-even."""
    return decimal_text(nano_of(grains), 9)


def exact_text(grains: int) -> str:
    """An exact amount with eighteen decimals, rounded half-even: no price but one that 3600 divides has an end of decimals."""
    return decimal_text(round_half_even(grains, GRAINS_PER_LAST), DECIMALS_MAX)


def halves(grains: int) -> tuple[int, int]:
    """(milli-units, grains) with ``milli·3.6·10^18 + grains``: two 64-bit columns for one exact amount. Both carry the sign."""
    if grains >= 0:
        return divmod(grains, GRAINS_PER_MILLI)
    milli, rest = divmod(-grains, GRAINS_PER_MILLI)
    return -milli, -rest


def whole(milli: int, grains: int) -> int:
    """The exact amount of :func:`halves`."""
    return milli * GRAINS_PER_MILLI + grains
