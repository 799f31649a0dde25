"""Text tables and amounts for people."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

NANO = 10**9
MILLI = 1000
"""Parts of a device."""


def render(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with lines around it."""
    widths = [max(len(cells[column]) for cells in (headers, *rows)) for column in range(len(headers))]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"

    def line(cells: Sequence[str]) -> str:
        return "|" + "|".join(f" {cell:<{width}} " for cell, width in zip(cells, widths, strict=True)) + "|"

    return "\n".join([rule, line(headers), rule, *(line(cells) for cells in rows), rule])


def memory(count_bytes: int) -> str:
    """In MiB, as nvidia-smi and moreh-smi show it."""
    return f"{count_bytes / 2**20:,.0f} MiB"


def thousandths(milli: int) -> str:
    """As a number, exactly: ``0.25`` for 250, ``16`` for 16,000."""
    return f"{Decimal(milli).scaleb(-3):f}".rstrip("0").rstrip(".")


def rate(price_nano_per_hour: int | None, currency: str | None) -> str:
    """The exact price of an hour, with at least two decimals; "not billed" where nobody bills.

    Without a price in what the tenant is billed in, usage is kept, and billed once there is one.
    """
    if price_nano_per_hour is None:
        return "not billed" if currency is None else f"no price in {currency}"
    hourly = Decimal(price_nano_per_hour) / NANO
    whole, _, fraction = f"{hourly:f}".partition(".")
    return f"{whole}.{fraction.rstrip('0').ljust(2, '0')} {currency or ''}/h"


def counted(count: int, one: str, many: str | None = None) -> str:
    """``1 step``, ``1,200 steps``; ``many`` is for what takes more than an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
