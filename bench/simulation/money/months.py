"""The accountant's calendar: months in UTC, written YYYY-MM."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

NANO = 10**9


def month_of(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // NANO, UTC).strftime("%Y-%m")


def month_after(month: str) -> str:
    year, number = map(int, month.split("-"))
    return f"{year + number // 12}-{number % 12 + 1:02d}"


def months_between(first: str, end: str) -> Iterator[str]:
    """From ``first`` until before ``end``."""
    while first < end:
        yield first
        first = month_after(first)


def start_ns(month: str) -> int:
    """Unix time of its first nanosecond."""
    year, number = map(int, month.split("-"))
    return int(datetime(year, number, 1, tzinfo=UTC).timestamp()) * NANO


def end_ns(month: str) -> int:
    """Unix time of the first nanosecond after it."""
    return start_ns(month_after(month))
