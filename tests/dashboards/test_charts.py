"""Charts and maps as numbers: what stands where, in which colour, and what is said of it."""

from __future__ import annotations

import re
from datetime import UTC, date
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from forebay_dashboards.errors import FormError
from forebay_dashboards.http.templating import open_environment
from forebay_dashboards.live.pool_copy import PoolCopy, Snapshot
from forebay_dashboards.rows.billing import EnergyHour, RevenueHour, SummaryRow, UsageRecord
from forebay_dashboards.rows.pool import Device, Lease, Node, Stretch, Timeline, Trend, Trends
from forebay_dashboards.settings import Settings
from forebay_dashboards.tables.chart import SERIES_MAX, charts
from forebay_dashboards.tables.energy import energy_chart
from forebay_dashboards.tables.fleet import fleet
from forebay_dashboards.tables.scale import end_of, natural
from forebay_dashboards.tables.timeline import devices_of, gantt, labels_of, own_timeline, read_window
from forebay_dashboards.tables.trends import STEPS, history, revenue
from forebay_dashboards.tables.visible import Running
from forebay_dashboards.text.quantities import short_seconds
from forebay_dashboards.text.times import Period
from hypothesis import given
from hypothesis import strategies as st

SECOND = 10**9
HOUR_NS, DAY_NS = 3_600 * SECOND, 86_400 * SECOND
NOON_NS = 20_000 * DAY_NS + DAY_NS // 2
WEEK = Period("week", "", NOON_NS - 6 * DAY_NS, NOON_NS + DAY_NS)  # type: ignore[arg-type] # its label is not looked at


def used(day: int, notebook: str, cost: int) -> SummaryRow:
    when = date.fromordinal(date(1970, 1, 1).toordinal() + 20_000 + day)
    return SummaryRow(day=when, notebook=notebook, currency="USD", cost_nano=cost * SECOND, duration_ns=SECOND, leases=1)


@given(st.floats(1e-9, 1e12))
def test_an_axis_has_room_for_the_highest_and_is_half_full_at_least(highest: float) -> None:
    assert highest * (1 - 1e-8) <= end_of(highest) <= 2 * highest


def test_days_are_stacked_by_notebook_the_costliest_below_and_what_is_left_last() -> None:
    rows = [used(0, f"n{number}.ipynb", 10 - number) for number in range(9)] + [used(-1, "n0.ipynb", 40)]
    (chart,) = charts(rows, WEEK, NOON_NS, UTC, lambda row: row.notebook)
    assert chart.series[:SERIES_MAX] == tuple(f"n{number}.ipynb" for number in range(6)) and chart.series[SERIES_MAX:] == ("others",)
    before, today = chart.bars[-2:]
    assert [(part.series, part.cost_nano) for part in before.parts] == [(0, 40 * SECOND)]
    assert [(part.series, part.cost_nano // SECOND) for part in today.parts] == [(0, 10), (1, 9), (2, 8), (3, 7), (4, 6), (5, 5), (6, 9)]
    assert chart.ticks[0].text == "60" and today.parts[-1].y == pytest.approx(100 - 100 * 54 / 60), "54 of 60 from the bottom"
    for below, above in zip(today.parts, today.parts[1:], strict=False):
        assert above.y + above.height == pytest.approx(below.y, abs=0.01), "one on the other"
    assert [bar.label for bar in chart.used] == [before.label, today.label] and len(chart.bars) == 7
    seven = charts(rows[:7], WEEK, NOON_NS, UTC, lambda row: row.notebook)[0]
    assert seven.series == tuple(f"n{number}.ipynb" for number in range(7)), "one alone is not called others"


def known(*steps: tuple[int, int]) -> Trends:
    """Ten minutes each, so many steps before the present one, with so many devices held of ten."""
    at = NOON_NS - NOON_NS % (600 * SECOND)
    rows = [
        Trend(start_ns=at - back * 600 * SECOND, held=held, idle=0, free=10 - held, closed=0, waiting=held / 2, waiting_max=held, grants=1,
              wait_p50_seconds=1.0, wait_p95_seconds=200.0, efficiency=2.0)
        for back, held in steps
    ]  # fmt: skip
    return Trends(step_seconds=600, until_ns=NOON_NS, rows=tuple(rows))


def test_the_plots_stand_on_one_another_and_what_is_not_known_is_a_gap() -> None:
    shown = history("day", known((3, 5), (1, 10), (0, 0)), UTC)
    devices, queue, waits, efficiency = shown.plots
    last = STEPS["day"] - 1
    held, _, free, _ = devices.series
    assert held.path == f"M{last - 3} 50H{last - 2}V100H{last - 3}ZM{last - 1} 0H{last}V100H{last + 1}V100H{last}V100H{last - 1}Z"
    assert re.findall(r"M\d+ [\d.]+", free.path) == [f"M{last - 3} 0", f"M{last - 1} 0"], "all of them reach ten"
    assert str(devices.said) == "On average 5.0 of 10 devices were held."
    assert [tick.text for tick in waits.ticks] == ["4 min", "2 min", "0 min"] and [tick.text for tick in queue.ticks] == ["10", "5", "0"]
    assert efficiency.series[0].path.count("M") == 2
    assert [row.step for row in shown.table] == [last - 3, last - 1, last]
    assert [str(cell) for cell in shown.table[0].cells] == ["5.0", "0.0", "5.0", "0.0", "2.5", "5", "1", "1 s", "3.33 min", "2.00"]
    assert history("day", known(), UTC).plots == ()


def test_times_along_the_plots_are_the_viewers_round_ones() -> None:
    assert [tick.text for tick in history("day", known((0, 1)), UTC).labels] == ["18:00", f"{date(2024, 10, 4):%m-%d}", "06:00"]
    seoul = history("day", known((0, 1)), ZoneInfo("Asia/Seoul")).labels
    assert [tick.text for tick in seoul] == ["10-04", "06:00", "12:00", "18:00"]


def test_revenue_is_by_hour_for_a_day_and_by_the_viewers_days_for_longer() -> None:
    hours = [RevenueHour(hour_ns=NOON_NS - back * HOUR_NS, currency="USD", amount_nano=SECOND) for back in range(30)]
    (day,) = revenue("day", hours, NOON_NS, UTC)
    assert len(day.bars) == 24 and day.bars[-1].label.endswith("12:00") and {bar.cost_nano for bar in day.bars} == {SECOND}
    (week,) = revenue("week", hours, NOON_NS, ZoneInfo("Asia/Seoul"))
    assert [bar.cost_nano // SECOND for bar in week.bars] == [0, 0, 0, 0, 0, 8, 22], "noon in UTC is nine at night"
    assert revenue("month", [], NOON_NS, UTC) == ()


def test_energy_is_by_hour_for_a_day_and_by_the_viewers_days_for_longer() -> None:
    wh = 3_600_000
    hours = [
        EnergyHour(hour_ns=NOON_NS - back * HOUR_NS, energy_mj=wh, energy_duration_ns=1, duration_ns=2, co2_mg=400) for back in range(30)
    ]
    day = energy_chart("day", hours, NOON_NS, UTC)
    assert (len(day.bars), day.unit, day.bars[-1].height, day.ticks[0].text) == (24, "Wh", 100, "1")
    assert day.drawn is not None and (day.drawn.drawn_mj, day.drawn.co2_mg, day.drawn.told_milli) == (24 * wh, 24 * 400, 500)
    week = energy_chart("week", hours, NOON_NS, ZoneInfo("Asia/Seoul"))
    assert [bar.drawn and bar.drawn.drawn_mj // wh for bar in week.bars] == [None] * 5 + [8, 22], "noon in UTC is nine at night"
    assert len(energy_chart("month", hours, NOON_NS, UTC).bars) == 30


def test_energy_that_nobody_measures_is_told_apart_from_devices_that_nobody_used() -> None:
    silent = energy_chart("day", [EnergyHour(hour_ns=NOON_NS, duration_ns=1)], NOON_NS, UTC)
    idle = energy_chart("day", [], NOON_NS, UTC)
    assert (silent.drawn, silent.used, idle.drawn, idle.used) == (None, True, None, False)
    settings = Settings(prefix="/", hub_token="x", pool_url="http://pool", billing_url="http://billing")
    macro = open_environment(settings).get_template("macros.html").module.energy_chart  # type: ignore[attr-defined] # a macro
    assert "No device of this fleet measures energy." in macro(silent, "Hour")
    assert "No device was used in this time." in macro(idle, "Hour") and "<svg" not in macro(idle, "Hour")


def test_seconds_are_short_in_tables() -> None:
    assert [str(short_seconds(one)) for one in (0, 0.0042, 1, 12.34, 125, 7_300)] == ["0 ms", "4 ms", "1 s", "12.3 s", "2.08 min", "2.03 h"]


# The timeline


def device(number: int, node: str = "node-1", **changes: Any) -> Device:
    whole = {"device": f"{node}/gpu:{number}", "node": node, "kind": "cuda", "model": "H200", "memory_bytes": 1, "state": "free"}
    return Device.model_validate(whole | changes)


def copy_of(*devices: Device) -> PoolCopy:
    copy = PoolCopy()
    nodes = tuple(Node(node=name, state="up", devices=1) for name in {one.node for one in devices})
    copy.replace(Snapshot((), (), devices, nodes), 0)
    return copy


def stretch(lane: int, since: int, until: int, tenant: str | None = "acme", leases: int = 1, held: int | None = None) -> dict[str, Any]:
    """By seconds before noon."""
    span = {"id": "s", "kind": "cell", "label": "n.ipynb", "cell": 3}
    holder = None if tenant is None else {"lease": "l", "tenant": tenant, "user": "ada", "flavor": "f", "span": span}
    held_ns = (since - until if held is None else held) * SECOND
    times = {"started_ns": NOON_NS - since * SECOND, "ended_ns": NOON_NS - until * SECOND, "held_ns": held_ns}
    return {"device": "node-1/gpu:0", "lane": lane, **times, "leases": leases, "is_open": False, "holder": holder}


def test_bars_lie_where_and_as_high_as_devices_were_held() -> None:
    window = read_window({"ms": "100000"}, NOON_NS)
    rows = [stretch(0, 100, 50), stretch(1, 75, 25, "globex"), stretch(0, 40, 20, None, 9, 5), stretch(0, 10, 0, "acme")]
    timeline = Timeline.model_validate({"since_ns": 0, "until_ns": 0, "more": False, "stretches": rows})
    chart = gantt([("node-1/gpu:0", "H200"), ("node-1/gpu:1", "H200")], timeline, window, NOON_NS, UTC, attrgetter("tenant"))
    assert [(bar.style, bar.x, bar.width, bar.y, bar.height) for bar in chart.tracks[0].bars] == [
        ("s0", 0, 50, 0, 50), ("s1", 25, 50, 50, 50), ("several", 60, 20, 37.5, 12.5), ("s0", 90, 10, 0, 50),
    ]  # fmt: skip
    assert chart.tracks[1].bars == () and chart.series == ("acme", "globex") and chart.others == 0
    assert [pair[1].stretch.started_ns for pair in chart.newest] == sorted((row["started_ns"] for row in rows), reverse=True)
    assert [tick.text for tick in chart.ticks] == ["11:58:30", "11:59:00", "11:59:30"]


def record(lease: str, since: float, until: float, label: str = "n.ipynb", **changes: Any) -> UsageRecord:
    """By seconds before noon."""
    times = {"started_at_ns": NOON_NS - round(since * SECOND), "duration_ns": round((since - until) * SECOND)}
    whose = {"tenant": "acme", "user": "ada", "flavor": "f", "device_model": "H200", "lease": lease, "id": f"{lease}/{since}"}
    span = {"id": "s", "kind": "cell", "label": label, "cell": 3}
    return UsageRecord.model_validate(
        {**whose, **times, "span": span, "price_nano_per_hour": 1, "cost_nano": 1, "currency": "USD", **changes}
    )


def test_own_leases_lie_by_notebook_cut_to_what_is_seen_and_beside_each_other_where_they_overlap() -> None:
    window = read_window({"ms": "100000"}, NOON_NS)
    records = [
        record("a", 120, 90), record("b", 50, 30), record("c", 40, 20), record("d", 60, 10, "train.py"),
        record("e", 300, 200), record("f", 30, 0, parked_bytes=5),
    ]  # fmt: skip
    open_lease = Lease.model_validate({
        "lease": "d", "session": "s", "tenant": "acme", "user": "ada", "flavor": "g", "device_model": "H200", "duration_ns": 1,
        "span": {"id": "s", "kind": "process", "label": "train.py"}, "opened_at_ns": NOON_NS - 60 * SECOND,
    })  # fmt: skip
    told = own_timeline(records, [Running(open_lease, 1, None)], False, window, NOON_NS)
    ago = [((NOON_NS - one.started_ns) // SECOND, (NOON_NS - one.ended_ns) // SECOND) for one in told.stretches]
    by_seconds = [(one.device, one.lane, *times, one.is_open) for one, times in zip(told.stretches, ago, strict=True)]
    assert by_seconds == [
        ("n.ipynb", 0, 100, 90, False), ("train.py", 0, 60, 10, False), ("n.ipynb", 0, 50, 30, False),
        ("n.ipynb", 1, 40, 20, False), ("train.py", 0, 10, 0, True),
    ]  # fmt: skip
    assert labels_of(told, window).rows == ("train.py", "n.ipynb")
    assert own_timeline(records, [], True, read_window({"ms": "100000", "q": "TRAIN"}, NOON_NS), NOON_NS).stretches[0].device == "train.py"


def test_one_comes_from_a_month_to_a_cell_and_back_by_links_alone() -> None:
    month = read_window({"ms": str(31 * 86_400_000), "q": "h200", "page": "2"}, NOON_NS)
    assert month.follows and month.arguments() == {"ms": 31 * 86_400_000, "q": "h200", "page": 2}
    cell = month.around(Stretch.model_validate(stretch(0, 20, 10)))
    assert (cell.length_ms, cell.until_ms - NOON_NS // 10**6, cell.follows) == (12_001, -8_999, False)
    assert read_window({name: str(value) for name, value in cell.arguments().items()}, NOON_NS) == cell
    assert cell.scaled(0.5).length_ms == 6_000 and cell.scaled(2).scaled(0.5).since_ms == pytest.approx(cell.since_ms, abs=2)
    assert cell.scaled(1e-9).length_ms == 10 and cell.scaled(1e9).length_ms == 31 * 86_400_000
    later = cell.moved(10, NOON_NS // 10**6)
    assert later.follows and later.until_ms == NOON_NS // 10**6, "never later than now"
    assert month.of_length(60).length_ms == 60_000 and month.of_length(60).follows


NO_TIMES = ({"ms": "1"}, {"ms": "x"}, {"until": "-5"}, {"ms": "60000", "until": "5"}, {"page": "0"}, {"ms": "9" * 14})


@pytest.mark.parametrize("asked", NO_TIMES)
def test_what_is_no_time_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(FormError):
        read_window(asked, NOON_NS)


def test_devices_are_found_by_words_and_come_in_the_order_of_their_numbers() -> None:
    copy = copy_of(*(device(number) for number in range(11)), device(2, "node-10", model="L40S"))
    window = read_window({}, NOON_NS)
    assert [one.device for one in devices_of(copy.seen_devices(), window).rows][:3] == ["node-1/gpu:0", "node-1/gpu:1", "node-1/gpu:2"]
    assert devices_of(copy.seen_devices(), read_window({"q": "l40s node-10"}, NOON_NS)).count == 1
    assert sorted(["b", "a10", "a9", "a"], key=natural) == ["a", "a9", "a10", "b"]


# The map


def test_the_map_has_every_device_by_model_and_node_and_one_by_one_where_they_are_few_or_looked_for() -> None:
    four = (device(0, leases=["l"]), device(1, residents=["s"]), device(2, cordoned=True), device(0, "node-2", model="L40S"))
    few = fleet(copy_of(*four), "")
    assert [(make.model, make.count, make.uses) for make in few.makes] == [
        ("H200", 3, {"held": 1, "idle": 1, "free": 0, "closed": 1}), ("L40S", 1, {"held": 0, "idle": 0, "free": 1, "closed": 0}),
    ]  # fmt: skip
    assert [host.node.node for host in few.hosts] == ["node-1", "node-2"]
    many = copy_of(*(device(number, f"node-{node}") for node in range(20) for number in range(10)))
    whole, found = fleet(many, ""), fleet(many, "node-7/")
    assert (whole.nodes, whole.hosts, whole.makes[0].count, whole.makes[0].hosts[0].rows) == (20, (), 200, 2)
    assert [host.node.node for host in found.hosts] == ["node-7"] and found.makes[0].count == 10
