"""Charts of money by time, as numbers that a template draws. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo

from forebay_service.languages import Text

from forebay_dashboards.rows.billing import SummaryRow
from forebay_dashboards.tables.scale import Tick, end_of, plain, upright
from forebay_dashboards.text.times import Period, moment

DAYS_MAX = 92
"""More days than that are no chart any more."""
SERIES_MAX = 6
"""So many are told apart by colour; what the others have is added up."""
LABELS_MAX = 7
"""Along the time."""
NANO = 10**9


@dataclass(frozen=True)
class Part:
    """What one series has of a bar; ``y`` and ``height`` are percents of the chart's height."""

    series: int
    cost_nano: int
    y: float
    height: float


@dataclass(frozen=True)
class Bar:
    """A day, or an hour; ``x`` is its left edge in percents of the chart's width."""

    label: str
    cost_nano: int
    duration_ns: int
    x: float
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Chart:
    """What each day or hour of a time cost in one currency. ``series`` are named where there are several; the last may be all others."""

    currency: str
    series: tuple[str | Text, ...]
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    labels: tuple[Tick, ...]

    @property
    def step(self) -> float:
        """How wide a bar is with the room around it, in percents."""
        return 100 / len(self.bars)

    @property
    def used(self) -> tuple[Bar, ...]:
        """The bars in which anything was used."""
        return tuple(bar for bar in self.bars if bar.cost_nano or bar.duration_ns)


@dataclass
class Sums:
    """What was used in the time of a bar, by series."""

    costs: dict[str, int]
    duration_ns: int = 0


def charts(
    rows: Iterable[SummaryRow], period: Period, now_ns: int, zone: tzinfo, series: Callable[[SummaryRow], str] = lambda row: ""
) -> tuple[Chart, ...]:
    """One for each currency, with a bar for each day of the period up to now; none for a period that is too long."""
    by_currency: dict[str, dict[date, Sums]] = {}
    for row in rows:
        if row.day is not None:
            day = by_currency.setdefault(row.currency, {}).setdefault(row.day, Sums({}))
            day.costs[series(row)] = day.costs.get(series(row), 0) + row.cost_nano
            day.duration_ns += row.duration_ns
    days = _days(period, now_ns, zone)
    if len(days) > DAYS_MAX:
        return ()
    return tuple(_by_day(currency, found, days) for currency, found in sorted(by_currency.items()))


def _days(period: Period, now_ns: int, zone: tzinfo) -> list[date]:
    first = moment(period.since_ns).astimezone(zone).date()
    last = moment(min(period.until_ns - 1, now_ns)).astimezone(zone).date()
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def _by_day(currency: str, found: Mapping[date, Sums], days: Sequence[date]) -> Chart:
    return chart_of(currency, [(str(day), f"{day:%m-%d}", found.get(day, Sums({}))) for day in days])


def by_hour(currency: str, costs: Mapping[int, int], hours_ns: Sequence[int], zone: tzinfo) -> Chart:
    """``costs`` in nano-units by the Unix time at which an hour begins."""
    when: list[datetime] = [moment(hour_ns).astimezone(zone) for hour_ns in hours_ns]
    bars = [(f"{at:%Y-%m-%d %H:%M}", f"{at:%H:%M}", Sums({"": costs.get(ns, 0)})) for ns, at in zip(hours_ns, when, strict=True)]
    return chart_of(currency, bars)


def chart_of(currency: str, bars: Sequence[tuple[str, str, Sums]]) -> Chart:
    """A bar for each label, which is written along the time in a shorter way where there is room."""
    totals: dict[str, int] = {}
    for _, _, sums in bars:
        for name, cost in sums.costs.items():
            totals[name] = totals.get(name, 0) + cost
    names = sorted(totals, key=lambda name: (-totals[name], name))
    shown = names if len(names) <= SERIES_MAX + 1 else names[:SERIES_MAX]
    place = {name: min(number, len(shown)) for number, name in enumerate(names)}
    end = end_of(max((sum(sums.costs.values()) for _, _, sums in bars), default=0) / NANO)
    step, every = 100 / len(bars), -(-len(bars) // LABELS_MAX)
    return Chart(
        currency,
        (*shown, *([Text("others")] if len(shown) < len(names) else [])),
        tuple(
            Bar(label, sum(sums.costs.values()), sums.duration_ns, round(number * step, 3), _parts(sums.costs, place, end * NANO))
            for number, (label, _, sums) in enumerate(bars)
        ),
        upright(end, plain),
        tuple(Tick(round((number + 0.5) * step, 3), bars[number][1]) for number in range(0, len(bars), every)),
    )


def _parts(costs: Mapping[str, int], place: Mapping[str, int], end_nano: float) -> tuple[Part, ...]:
    """From the bottom up, in the order of the series."""
    by_series: dict[int, int] = {}
    for name, cost in costs.items():
        by_series[place[name]] = by_series.get(place[name], 0) + cost
    parts, below = [], 0
    for series, cost in sorted(by_series.items()):
        if cost > 0:
            height = 100 * cost / end_nano
            parts.append(Part(series, cost, round(100 - 100 * below / end_nano - height, 3), round(max(height, 0.4), 3)))
            below += cost
    return tuple(parts)
