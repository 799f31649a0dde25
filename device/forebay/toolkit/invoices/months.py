"""Months of invoices: in UTC, written ``2026-11``."""

from __future__ import annotations

from datetime import UTC, datetime

from forebay.toolkit.invoices.money import NANO


def month_of(time_ns: int) -> str:
    """The month that holds a moment."""
    return f"{datetime.fromtimestamp(time_ns // NANO, UTC):%Y-%m}"


def month_after_ns(time_ns: int) -> int:
    """When the month after that begins."""
    then = datetime.fromtimestamp(time_ns // NANO, UTC)
    return int(datetime(then.year + then.month // 12, then.month % 12 + 1, 1, tzinfo=UTC).timestamp()) * NANO
