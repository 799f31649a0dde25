"""Charts of money by day, as numbers that a template draws. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta, tzinfo

from forebay_dashboards.rows import SummaryRow
from forebay_dashboards.text.times import Period, moment

HEIGHT = 120
STEP = 16
WIDTH = 12
"""Of a chart, of a day, and of its bar, in the units of the drawing."""
DAYS_MAX = 92
"""More days than that are no chart any more."""


@dataclass(frozen=True)
class Bar:
    """A day; ``x`` and ``height`` are in units of the drawing."""

    day: date
    cost_nano: int
    duration_ns: int
    x: int
    height: int

    @property
    def y(self) -> int:
        return HEIGHT - self.height


@dataclass(frozen=True)
class Chart:
    """What each day of a period cost in one currency."""

    currency: str
    bars: tuple[Bar, ...]

    @property
    def width(self) -> int:
        return len(self.bars) * STEP

    @property
    def used(self) -> tuple[Bar, ...]:
        """The days on which anything was used."""
        return tuple(bar for bar in self.bars if bar.cost_nano or bar.duration_ns)


def charts(rows: Iterable[SummaryRow], period: Period, now_ns: int, zone: tzinfo) -> tuple[Chart, ...]:
    """One for each currency, with a bar for each day of the period up to now; none for a period that is too long."""
    by_currency: dict[str, dict[date, SummaryRow]] = {}
    for row in rows:
        if row.day is not None:
            by_currency.setdefault(row.currency, {})[row.day] = row
    days = _days(period, now_ns, zone)
    return tuple(_chart(currency, found, days) for currency, found in sorted(by_currency.items())) if len(days) <= DAYS_MAX else ()


def _days(period: Period, now_ns: int, zone: tzinfo) -> list[date]:
    first = moment(period.since_ns).astimezone(zone).date()
    last = moment(min(period.until_ns - 1, now_ns)).astimezone(zone).date()
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def _chart(currency: str, found: dict[date, SummaryRow], days: list[date]) -> Chart:
    highest = max((row.cost_nano for row in found.values()), default=0)
    bars = []
    for number, day in enumerate(days):
        row = found.get(day)
        cost, duration = (0, 0) if row is None else (row.cost_nano, row.duration_ns)
        height = max(1, cost * HEIGHT // highest) if cost > 0 and highest else 0
        bars.append(Bar(day, cost, duration, number * STEP + (STEP - WIDTH) // 2, height))
    return Chart(currency, tuple(bars))
