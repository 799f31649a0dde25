"""How devices were used over the last day, week or month, as plots that a template draws. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo

from forebay_service.languages import Text

from forebay_dashboards.rows.bases import Over
from forebay_dashboards.rows.billing import RevenueHour, SummaryRow
from forebay_dashboards.rows.pool import Trend, Trends
from forebay_dashboards.tables.chart import Chart, by_hour, charts
from forebay_dashboards.tables.overview import USES, Use
from forebay_dashboards.tables.scale import Tick, end_of, plain, upright
from forebay_dashboards.text.quantities import NS_PER_SECOND, short_seconds, unit_of_seconds
from forebay_dashboards.text.times import Period, moment

OVERS: dict[Over, Text] = {"day": Text("Last 24 hours"), "week": Text("Last 7 days"), "month": Text("Last 30 days")}
STEPS: dict[Over, int] = {"day": 144, "week": 168, "month": 120}
"""How many stretches there are in each."""
HOURS_APART: dict[Over, int] = {"day": 6, "week": 24, "month": 120}
"""Between what stands along the time."""
HOUR_NS = 3600 * NS_PER_SECOND
HEIGHT = 100
NOTHING = "\N{EN DASH}"
COLUMNS = (
    *USES.values(), Text("Waiting"), Text("Most waiting"), Text("Granted"),
    Text("Half waited less than"), Text("95 %% waited less than"), Text("Efficiency"),
)  # fmt: skip
"""Of the table that all plots have in common, after the time."""


@dataclass(frozen=True)
class Series:
    """A line or an area: ``path`` is SVG's, in steps from the left and percents from the top; ``column`` of the table has its figures."""

    name: Text
    style: str
    path: str
    column: int


@dataclass(frozen=True)
class Plot:
    """A picture, and in one sentence what it shows."""

    name: str
    title: Text
    said: Text
    series: tuple[Series, ...]
    ticks: tuple[Tick, ...]


@dataclass(frozen=True)
class Figures:
    """A row of the table: the stretch ``step`` from the left, which begins at ``start_ns``, and the texts of COLUMNS."""

    step: int
    start_ns: int
    cells: tuple[str | Text, ...]


@dataclass(frozen=True)
class History:
    """What the overview shows of the time that lies behind."""

    over: Over
    steps: int
    plots: tuple[Plot, ...]
    """None where nothing is known."""
    labels: tuple[Tick, ...]
    table: tuple[Figures, ...]


Numbers = dict[int, float]
"""By step."""


def history(over: Over, trends: Trends, zone: tzinfo) -> History:
    """The plots of all that is known."""
    step_ns, steps = trends.step_seconds * NS_PER_SECOND, STEPS[over]
    first_ns = (trends.until_ns // step_ns - steps + 1) * step_ns
    known = {(row.start_ns - first_ns) // step_ns: row for row in trends.rows if row.start_ns >= first_ns}
    table = tuple(Figures(step, row.start_ns, _cells(row)) for step, row in sorted(known.items()))
    plots = (_devices(known), _queue(known), _waits(known), _efficiency(known)) if known else ()
    return History(over, steps, plots, _times(over, first_ns, steps * step_ns, zone), table)


def _cells(row: Trend) -> tuple[str | Text, ...]:
    waits = (row.wait_p50_seconds, row.wait_p95_seconds)
    return (
        *(f"{count:,.1f}" for count in (row.held, row.idle, row.free, row.closed)), f"{row.waiting:,.1f}", f"{row.waiting_max:,}",
        f"{row.grants:,}", *(NOTHING if seconds is None else short_seconds(seconds) for seconds in waits),
        NOTHING if row.efficiency is None else f"{row.efficiency:.2f}",
    )  # fmt: skip


def _times(over: Over, first_ns: int, length_ns: int, zone: tzinfo) -> tuple[Tick, ...]:
    """Full days or quarters of days of the viewer's, as far from both ends as they need for what they say."""
    apart = HOURS_APART[over]
    found = []
    for at_ns in range(first_ns - first_ns % HOUR_NS + HOUR_NS, first_ns + length_ns, HOUR_NS):
        when, at = moment(at_ns).astimezone(zone), 100 * (at_ns - first_ns) / length_ns
        if (when.hour + 24 * (when.toordinal() % (apart // 24 or 1))) % apart == 0 and 3 <= at <= 97:
            found.append(Tick(round(at, 2), f"{when:%H:%M}" if over == "day" and when.hour else f"{when:%m-%d}"))
    return tuple(found)


def _devices(known: dict[int, Trend]) -> Plot:
    counts: dict[Use, Callable[[Trend], float]] = {
        "held": lambda row: row.held, "idle": lambda row: row.idle, "free": lambda row: row.free, "closed": lambda row: row.closed,
    }  # fmt: skip
    end = end_of(max(sum(count(row) for count in counts.values()) for row in known.values()))
    below: Numbers = dict.fromkeys(known, 0.0)
    series = []
    for column, (use, count) in enumerate(counts.items()):
        above = {step: below[step] + count(row) for step, row in known.items()}
        series.append(Series(USES[use], use, _area(below, above, end), column))
        below = above
    devices, held = (sum(values) / len(known) for values in (below.values(), (row.held for row in known.values())))
    said = Text("On average %(held)s of %(devices)s devices were held.", held=f"{held:,.1f}", devices=f"{devices:,.0f}")
    return Plot("devices", Text("Devices"), said, tuple(series), upright(end, plain))


def _queue(known: dict[int, Trend]) -> Plot:
    mean, most = {s: row.waiting for s, row in known.items()}, {s: float(row.waiting_max) for s, row in known.items()}
    end = end_of(max(most.values()))
    series = (
        Series(Text("most"), "pale", _area(dict.fromkeys(most, 0.0), most, end), 5),
        Series(Text("on average"), "first", _line(mean, end), 4),
    )
    said = Text("%(most)s waited at most, %(mean)s on average.", most=f"{max(most.values()):,.0f}", mean=f"{_mean(mean):,.1f}")
    return Plot("queue", Text("Length of the queue"), said, series, upright(end, plain))


def _waits(known: dict[int, Trend]) -> Plot:
    half = {step: row.wait_p50_seconds for step, row in known.items() if row.wait_p50_seconds is not None}
    most = {step: row.wait_p95_seconds for step, row in known.items() if row.wait_p95_seconds is not None}
    longest = max(most.values(), default=0.0)
    unit, text = unit_of_seconds(longest)
    end = end_of(longest / unit) * unit
    series = (
        Series(Text("95 %% waited less"), "second", _line(most, end), 8),
        Series(Text("half waited less"), "first", _line(half, end), 7),
    )
    granted = sum(row.grants for row in known.values())
    said = Text("%(count)s leases were granted.", count=f"{granted:,}")
    return Plot("waits", Text("Wait for a device"), said, series, upright(end, lambda value: text(plain(value / unit))))


def _efficiency(known: dict[int, Trend]) -> Plot:
    values = {step: row.efficiency for step, row in known.items() if row.efficiency is not None}
    end = end_of(max(values.values(), default=0.0))
    said = Text("%(mean)s on average.", mean=f"{_mean(values):.2f}")
    series = (Series(Text("devices of users for each that is held"), "first", _line(values, end), 9),)
    return Plot("efficiency", Text("Service efficiency"), said, series, upright(end, plain))


def _mean(numbers: Numbers) -> float:
    return sum(numbers.values()) / len(numbers) if numbers else 0.0


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """Steps that follow one another."""
    runs: list[list[int]] = []
    for step in sorted(numbers):
        if runs and runs[-1][-1] == step - 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return runs


def _y(value: float, end: float) -> str:
    return f"{HEIGHT - HEIGHT * value / end:.2f}".rstrip("0").rstrip(".")


def _stairs(values: Numbers, run: Sequence[int], end: float) -> str:
    return "V".join(f"{_y(values[step], end)}H{step + 1}" for step in run)


def _line(values: Numbers, end: float) -> str:
    return "".join(f"M{run[0]} {_stairs(values, run, end)}" for run in _runs(values))


def _area(below: Numbers, above: Numbers, end: float) -> str:
    def back(run: Sequence[int]) -> str:
        return "".join(f"V{_y(below[step], end)}H{step}" for step in reversed(run))

    return "".join(f"M{run[0]} {_stairs(above, run, end)}{back(run)}Z" for run in _runs(above))


def revenue(over: Over, hours: Sequence[RevenueHour], now_ns: int, zone: tzinfo) -> tuple[Chart, ...]:
    """A chart for each currency: by hour of the last day, else by the viewer's days, to which hours belong by their beginnings."""
    by_currency: dict[str, dict[int, int]] = {}
    for hour in hours:
        by_currency.setdefault(hour.currency, {})[hour.hour_ns] = hour.amount_nano
    if over == "day":
        last_ns = now_ns - now_ns % HOUR_NS
        shown = range(last_ns - 23 * HOUR_NS, last_ns + 1, HOUR_NS)
        return tuple(by_hour(currency, costs, shown, zone) for currency, costs in sorted(by_currency.items()))
    rows = [
        SummaryRow(day=moment(at_ns).astimezone(zone).date(), currency=currency, cost_nano=cost, duration_ns=0, leases=0)
        for currency, costs in by_currency.items()
        for at_ns, cost in costs.items()
    ]
    days = 7 if over == "week" else 30
    return charts(rows, Period(over, OVERS[over], now_ns - (days - 1) * 24 * HOUR_NS, now_ns + 1), now_ns, zone)
