"""Money as people read and type it. Inside it is an integer of nano-units (1e-9 of a currency); no float comes near it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forebay_service.languages import Text

from forebay_dashboards.errors import MoneyError

NANO = 10**9
SECONDS_PER_HOUR = 3600
PRICE_TEXT_CHARACTERS_MAX = 32
PRICE_PER_HOUR_MAX = 3_600_000_000
"""The price book's own bound: a million units a second."""

DECIMALS = 6
"""Decimals shown of a cost. A 5 ms cell at 2.99 an hour costs 0.000004."""

_SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£"}
_PRICE = re.compile(r"([0-9]+)(?:\.([0-9]+))?")


@dataclass(frozen=True)
class Price:
    """A price that was typed in. ``nano_per_hour`` is the nearest whole one; ``exact`` says whether it is what was typed."""

    nano_per_hour: int
    exact: bool


def parse_price_per_hour(text: str) -> Price:
    """The price in nano-units per hour of a decimal, by integer arithmetic alone. Raises MoneyError.

    One with more than nine decimals that count comes back rounded half to even, but never down to free, with ``exact`` False, so that
    the operator decides.
    """
    typed = text.strip()
    if not typed:
        raise MoneyError(Text("Enter a price per hour, such as 0.36."))
    if len(typed) > PRICE_TEXT_CHARACTERS_MAX:
        most = PRICE_TEXT_CHARACTERS_MAX
        raise MoneyError(Text("A price has at most %(most)s characters; %(count)s were entered.", most=most, count=len(typed)))
    if typed.startswith(("-", "\N{MINUS SIGN}")):
        raise MoneyError(Text("A price cannot be below zero; %(typed)s was entered. Enter 0 to make a flavor free.", typed=typed))
    match = _PRICE.fullmatch(typed)
    if match is None:
        sentence = Text("“%(typed)s” is not a price per hour. Enter digits with a point as the decimal mark, such as 2.50.", typed=typed)
        raise MoneyError(sentence)
    decimals = match[2] or ""
    scaled = int(match[1] + decimals) * NANO
    divisor = 10 ** len(decimals)
    if scaled > PRICE_PER_HOUR_MAX * NANO * divisor:
        raise MoneyError(Text("A price is at most %(most)s per hour; %(typed)s was entered.", most=f"{PRICE_PER_HOUR_MAX:,}", typed=typed))
    nearest = divide_half_even(scaled, divisor)
    if scaled > 0:
        nearest = max(nearest, 1)
    return Price(nano_per_hour=nearest, exact=nearest * divisor == scaled)


def parse_decimal(text: str, decimals: int, what: Text) -> int:
    """``text`` in units of 10^-``decimals``, exactly; nothing typed is 0. Raises MoneyError."""
    typed = text.strip() or "0"
    match = _PRICE.fullmatch(typed)
    if match is None or len(typed) > PRICE_TEXT_CHARACTERS_MAX or len(match[2] or "") > decimals:
        raise MoneyError(
            Text(
                "%(what)s: “%(typed)s” is not a number such as 12.5, from 0 on and with at most %(decimals)s decimals.",
                what=what,
                typed=typed[:60],
                decimals=decimals,
            )
        )
    return int(match[1] + (match[2] or "").ljust(decimals, "0"))


def format_decimal(scaled: int, decimals: int) -> str:
    """As :func:`parse_decimal` reads it: ``12.5`` for 1250 with two decimals."""
    whole, rest = divmod(scaled, 10**decimals)
    return f"{whole}.{rest:0{decimals}d}".rstrip("0").rstrip(".")


def divide_half_even(numerator: int, divisor: int) -> int:
    """The quotient rounded to the nearest integer, ties to even; ``divisor`` is positive."""
    quotient, rest = divmod(numerator, divisor)
    if 2 * rest > divisor or (2 * rest == divisor and quotient % 2 == 1):
        return quotient + 1
    return quotient


def format_price_per_hour(nano_per_hour: int) -> str:
    """The price per hour, exactly, with at least two decimals: 360,000,000 nano-units are ``0.36``."""
    whole, rest = divmod(nano_per_hour, NANO)
    decimals = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{whole}.{decimals}"


def format_amount(nano: int, currency: str, decimals: int = DECIMALS) -> str:
    """The amount rounded half to even to ``decimals``; one that is above zero and would read as zero is shown as below the last decimal."""
    unit = 10 ** (9 - decimals)
    scaled = divide_half_even(abs(nano), unit)
    if scaled == 0 and nano != 0:
        return f"<{_with_currency(_decimal(1, decimals), currency)}"
    sign = "\N{MINUS SIGN}" if nano < 0 else ""
    return sign + _with_currency(_decimal(scaled, decimals), currency)


def format_total(nano: int, currency: str) -> str:
    """A headline figure: to the cent from one whole unit on, with all of DECIMALS below it."""
    return format_amount(nano, currency, 2 if abs(nano) >= NANO else DECIMALS)


def format_exact(nano: int, currency: str) -> str:
    """The amount to the last nano-unit, for tooltips."""
    sign = "\N{MINUS SIGN}" if nano < 0 else ""
    return f"{sign}{_decimal(abs(nano), 9)} {currency}"


def running_cost_nano(duration_ns: int, price_nano_per_hour: int) -> int:
    """What an open lease has cost so far, for display; the bill is made of the usage record."""
    return divide_half_even(duration_ns * price_nano_per_hour, SECONDS_PER_HOUR * NANO)


def _decimal(scaled: int, decimals: int) -> str:
    whole, rest = divmod(scaled, 10**decimals)
    return f"{whole:,}.{rest:0{decimals}d}"


def _with_currency(text: str, currency: str) -> str:
    symbol = _SYMBOLS.get(currency)
    return f"{symbol}{text}" if symbol else f"{text} {currency}"
