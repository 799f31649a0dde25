"""Times and money as a line below a cell shows them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING

from forebay.texts import Texts

if TYPE_CHECKING:
    from forebay.journal import Entry

NANO = 10**9
SHOWN_PLACES = 6
LEAST = Decimal(1).scaleb(-SHOWN_PLACES)


def seconds(ns: int) -> str:
    """With as many places as one can feel: ``0.042 s``, ``12.3 s``, ``5 min 03 s``."""
    if ns < 10 * NANO:
        return f"{ns / NANO:.3f} s"
    if ns < 120 * NANO:
        return f"{ns / NANO:.1f} s"
    minutes, rest = divmod(round(ns / NANO), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def money(nano: int, currency: str) -> str:
    """Rounded to a millionth of the unit, for eyes: the bill is exact. What is less than that is said to be."""
    amount = Decimal(nano).scaleb(-9)
    if 0 < amount < LEAST:
        return f"< {LEAST:f} {currency}"
    whole, _, fraction = f"{amount.quantize(LEAST, ROUND_HALF_EVEN):f}".partition(".")
    return f"{whole}.{fraction.rstrip('0').ljust(2, '0')} {currency}"


def cost(amounts: Mapping[str, int], texts: Texts) -> str:
    """All currencies; a sentence where nobody bills."""
    return " + ".join(money(nano, currency) for currency, nano in sorted(amounts.items())) or texts("not_billed")


def cost_of(entry: Entry, texts: Texts) -> str:
    """What a cell cost; a sentence where that was not told, or not all of it."""
    if not entry.unpriced and not entry.unheard:
        return cost(entry.cost, texts)
    return " + ".join([*([cost(entry.cost, texts)] if entry.cost else []), texts("cost_unknown")])


def about(value: float, texts: Texts) -> str:
    """An estimate."""
    if value < 120:
        return texts("seconds", count=max(1, round(value)))
    return texts("minutes", count=round(value / 60)) if value < 7200 else texts("hours", count=round(value / 3600))
