"""Between ISO 4217's minor units, which the books have, and those that Stripe's API takes (docs.stripe.com/currencies)."""

from __future__ import annotations

from forebay_billing.model.money import decimals_of, round_half_even

_STRIPE_DECIMALS = {"MGA": 0, "ISK": 2, "UGX": 2}
"""Where Stripe counts otherwise than ISO 4217: MGA without decimals; ISK and UGX with two that must be zero, for compatibility."""
NANO_DECIMALS = 9
METER_VALUE_MAX = 10**15 - 1
"""Stripe refuses meter events with more than fifteen digits."""


class Unsendable(Exception):
    """An amount or text that Stripe's API has no form for; the message says which and why."""


def stripe_minor(amount_minor: int, currency: str) -> int:
    """The amount in the minor units of Stripe's API. Raises Unsendable where those are too coarse."""
    ours = decimals_of(currency)
    if ours > 3:
        raise Unsendable(f"Stripe does not take {currency}.")
    theirs = _STRIPE_DECIMALS.get(currency, ours)
    if theirs >= ours:
        amount, rest = amount_minor * _power(theirs - ours), 0
    else:
        amount, rest = divmod(amount_minor, _power(ours - theirs))
    if ours == 3:
        rest = amount % 10
    if rest:
        raise Unsendable(f"{amount_minor} minor units of {currency} are finer than the coins that Stripe takes.")
    return amount


def iso_minor(stripe_amount: int, currency: str) -> int:
    """The other way: what Stripe's API tells, in minor units of ISO 4217."""
    ours = decimals_of(currency)
    theirs = _STRIPE_DECIMALS.get(currency, ours)
    return stripe_amount * _power(ours - theirs) if ours >= theirs else round_half_even(stripe_amount, _power(theirs - ours))


def minor_of_nano(nano: int, currency: str) -> int:
    """Nano-units in minor units of ISO 4217, rounded half-even."""
    return round_half_even(nano, _power(NANO_DECIMALS - decimals_of(currency)))


def nano_of_minor(amount_minor: int, currency: str) -> int:
    """The other way, exactly."""
    return amount_minor * _power(NANO_DECIMALS - decimals_of(currency))


def meter_parts(value: int) -> list[int]:
    """``value`` as addends that meter events can carry."""
    size, sign = abs(value), 1 if value > 0 else -1
    whole, rest = divmod(size, METER_VALUE_MAX)
    return [sign * METER_VALUE_MAX] * whole + ([sign * rest] if rest else [])


def _power(decimals: int) -> int:
    return int("1" + "0" * decimals)
