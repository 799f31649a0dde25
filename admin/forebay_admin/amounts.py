"""Amounts of money and the like, as people write and read them; integers between."""

from __future__ import annotations

import argparse
import re
from decimal import Decimal

NANO = 10**9


def decimal(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def money(nano: int) -> str:
    """Exactly, with two decimals at least."""
    units, _, rest = f"{Decimal(nano).scaleb(-9):f}".partition(".")
    return f"{units}.{rest.rstrip('0').ljust(2, '0')}"


def percent(bps: int) -> str:
    return f"{decimal(Decimal(bps).scaleb(-2))} %"


def count(text: str) -> int:
    """Raises ArgumentTypeError."""
    if re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def whole_of(text: str, scale: int, per: int, what: str) -> int:
    """``text`` times ``scale`` ÷ ``per``, which must be a whole number."""
    if re.fullmatch(r"[0-9]{1,12}([.][0-9]{1,18})?", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 2.16")
    numerator, denominator = Decimal(text).as_integer_ratio()
    whole, rest = divmod(numerator * scale, denominator * per)
    if rest:
        nearest = decimal(Decimal((whole + (2 * rest >= denominator * per)) * per) / scale)
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of {what}; the nearest that is one is {nearest}")
    return whole


def per_hour(text: str) -> int:
    """An amount per hour in whole nano-units. Raises ArgumentTypeError."""
    return whole_of(text, NANO, 1, "nano-units per hour, so it cannot be billed exactly")


def nano(text: str) -> int:
    """An amount in whole nano-units. Raises ArgumentTypeError."""
    return whole_of(text, NANO, 1, "nano-units")


def bps(text: str) -> int:
    """Per cent as basis points. Raises ArgumentTypeError."""
    return whole_of(text, 100, 1, "hundredths of a per cent")
