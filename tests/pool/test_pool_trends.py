"""How devices were used over time, and who held which when: folding, what the database keeps of it, and what operators are told."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from forebay_pool.model.timeline import Holding, stretches
from forebay_pool.model.trends import DAY_NS, KEPT, MINUTE_NS, Sample, Trend, bucket_of, folded, wait_seconds
from forebay_pool.store.database import Store
from forebay_pool.store.trends import TrendStore
from forebay_pool.views.trends import sample
from hypothesis import given
from hypothesis import strategies as st

Make = Callable[..., Any]
SECOND = 1_000_000_000
HOUR_NS = 3_600 * SECOND
NOW_NS = 1_699_984_800 * SECOND
"""A full hour, and the beginning of a step of all spans."""
BUSY = Sample(held=6, idle=1, free=2, closed=1, waiting=4, asked_milli=9_000, held_milli=6_000)
QUIET = Sample(held=0, idle=0, free=9, closed=1, waiting=0, asked_milli=3_000, held_milli=0)


def minute(number: int, *samples: Sample, waits: dict[int, int] | None = None) -> Trend:
    """A minute, so many after NOW_NS; before it where the number is below zero."""
    trend = Trend(NOW_NS + number * MINUTE_NS, waits=waits or {})
    for one in samples:
        trend = trend.with_sample(one)
    return trend


# Folding


def test_a_stretch_has_means_of_its_samples_and_the_most_that_waited() -> None:
    trend = minute(0, BUSY, QUIET, BUSY)
    assert [trend.mean(total) for total in (trend.held, trend.free, trend.waiting)] == [4.0, 13 / 3, 8 / 3]
    assert (trend.waiting_max, trend.efficiency) == (4, 21 / 12), "efficiency is of sums: a moment without leases has no weight of its own"
    assert minute(0, QUIET).efficiency is None and minute(0).mean(0) == 0.0


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3), st.integers(0, 40)), max_size=40),
    st.sampled_from([MINUTE_NS, 10 * MINUTE_NS, HOUR_NS, 6 * HOUR_NS]),
)
def test_nothing_is_lost_or_counted_twice_however_stretches_are_folded(given: list[tuple[int, int, int]], step_ns: int) -> None:
    trends = [minute(number, *[BUSY] * count, waits={bucket: 2}) for number, count, bucket in given]
    found = folded(trends, step_ns)
    assert [one.start_ns % step_ns for one in found] == [0] * len(found) and sorted({one.start_ns for one in found}) == [
        one.start_ns for one in found
    ]
    assert sum(one.samples for one in found) == sum(count for _, count, _ in given)
    assert sum(one.held for one in found) == 6 * sum(one.samples for one in found)
    assert sum((Counter(one.waits) for one in found), Counter()) == Counter({b: 2 * n for b, n in Counter(b for *_, b in given).items()})
    assert folded(folded(trends, MINUTE_NS), step_ns) == found, "minutes folded to hours are hours"


def test_quantiles_of_waits_are_off_by_nine_percent_at_most() -> None:
    chance = random.Random(3)
    waits = sorted(int(SECOND * 10 ** chance.uniform(-2.5, 5)) for _ in range(999))
    counts = Counter(bucket_of(wait) for wait in waits)
    for part, place in ((0.5, 499), (0.95, 949), (0.002, 1)):
        found = wait_seconds(counts, part)
        assert found is not None and abs(found / (waits[place] / SECOND) - 1) < 0.0906
    assert wait_seconds({}, 0.5) is None and wait_seconds({bucket_of(0): 3, 50: 1}, 0.5) == 0.0
    assert bucket_of(10**30) == bucket_of(10**29), "the last bucket has no end"


# What is kept


def test_minutes_become_hours_and_neither_outlives_its_time(store: Store) -> None:
    trends = TrendStore(store)
    trends.add([minute(number, BUSY, QUIET, waits={8: 1}) for number in range(-2 * 24 * 60, 0, 10)], NOW_NS)
    rows = [(row.step_ns, row.start_ns) for row in _rows(store)]
    assert sum(step == MINUTE_NS for step, _ in rows) == 150 and sum(step == HOUR_NS for step, _ in rows) == 48
    day, week, month = (trends.over(over, NOW_NS) for over in ("day", "week", "month"))
    assert (len(day), len(week), len(month)) == (143, 48, 8)
    assert day[5].samples == 2 and day[5].waits == {8: 1} and day[5].start_ns % (10 * MINUTE_NS) == 0
    assert sum(one.samples for one in week) == sum(one.samples for one in month) == 2 * 2 * 24 * 6
    trends.add([], NOW_NS + 32 * DAY_NS)
    assert _rows(store) == []
    assert sum(kept // step for step, kept in KEPT.items()) == 2_244, "the most rows there are"


def test_who_leads_next_adds_to_the_same_minute(store: Store) -> None:
    trends = TrendStore(store)
    trends.add([minute(-5, BUSY, waits={4: 1})], NOW_NS)
    trends.add([minute(-5, QUIET, waits={4: 1, 9: 1})], NOW_NS)
    assert trends.over("day", NOW_NS)[0].waits == {4: 2, 9: 1}
    assert trends.over("week", NOW_NS)[0].samples == 2


def _rows(store: Store) -> list[Any]:
    with store.engine.connect() as connection:
        return list(connection.exec_driver_sql("select step_ns, start_ns from trends").all())


# Who held which


def held(lease: str, started: float, ended: float, device: str = "a/0", number: int | None = 1) -> Holding:
    """By seconds; without a number it is open."""
    return Holding(device, round(started * SECOND), round(ended * SECOND), lease, None if number is None else f"{lease}/{number}")


def drawn(*holdings: Holding, seconds: int = 100, since: int = 0) -> list[tuple[Any, ...]]:
    """Of a picture in which a second is the shortest that can be seen: device, lane, seconds, and how many leases."""
    found = stretches(holdings, since * SECOND, (since + seconds) * SECOND)
    return [(one.device, one.lane, one.started_ns / SECOND, one.ended_ns / SECOND, one.leases) for one in found]


def test_segments_of_a_lease_are_one_stretch_and_what_is_not_shown_is_cut_off() -> None:
    assert drawn(held("l", 10, 50), held("l", 50, 90, number=2), held("l", 90, 500, number=None)) == [("a/0", 0, 10, 100, 1)]
    assert drawn(held("l", 10, 50), held("m", 60, 90), since=30) == [("a/0", 0, 30, 50, 1), ("a/0", 0, 60, 90, 1)]
    assert drawn(held("l", 10, 50), since=50) == []


def test_what_is_too_short_to_be_seen_is_put_together_and_told_apart_again_from_near_by() -> None:
    cells = [held(f"l{number}", 10 + number / 2, 10.4 + number / 2) for number in range(20)]
    assert drawn(*cells) == [("a/0", 0, 10, 13.9, 8), ("a/0", 0, 14, 17.9, 8), ("a/0", 0, 18, 19.9, 4)], "but not more than four seconds"
    assert sum(one.held_ns for one in stretches(cells, 0, 100 * SECOND)) == 8 * SECOND, "what was held, without the pauses"
    assert len(drawn(*cells, seconds=20)) == 20
    assert len(drawn(held("l", 10, 50), held("m", 50.1, 90))) == 2, "long ones stay apart however near they are"


def test_shares_of_a_device_lie_in_lanes_of_their_own() -> None:
    assert drawn(held("l", 0, 100), held("m", 50, 150), held("n", 100, 200), seconds=200) == [
        ("a/0", 0, 0, 100, 1),
        ("a/0", 1, 50, 150, 1),
        ("a/0", 0, 100, 200, 1),
    ]


# A running pool


TWO = [{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 2}]


def test_operators_are_told_how_devices_are_used_and_who_held_which(pool: Make) -> None:
    async def scenario() -> None:
        begun_ns = time.time_ns()
        asked = f"api/timeline?devices=main/cpu:0,main/cpu:1&since_ns={begun_ns}&until_ns="
        async with pool(devices=TWO) as running:
            client = await running.client()
            await client.hello()
            await client.acquire()
            now = sample(running.machine)
            assert (now.held, now.free, now.waiting, now.held_milli) == (1, 1, 0, 1000)
            one = (await running.get(f"{asked}{time.time_ns()}"))["stretches"]
            assert [(row["is_open"], row["holder"]["user"], row["holder"]["span"]["cell"]) for row in one] == [(True, "ada", 1)]
            client.work("mark")
            await running.until(lambda: running.records())
            await client.acquire(2)
            far = (await running.get(f"{asked}{begun_ns + HOUR_NS}"))["stretches"]
            assert [(row["leases"], row["is_open"], row["holder"]) for row in far] == [(2, True, None)], "too short to be told apart"
            running.service._trends.take()
        async with pool(devices=TWO) as running:
            row = (await running.get("api/trends?over=week"))["rows"][-1]
            assert (row["held"], row["free"], row["grants"], row["efficiency"]) == (1.0, 1.0, 2, 1.0)
            for cell, record in enumerate(running.records(), start=1):
                started_ns = record["started_at_unix_ns"]
                ended_ns = max(started_ns + record["duration_ns"], started_ns + 10**6)
                near = await running.get(f"api/timeline?devices=main/cpu:0,main/cpu:1&since_ns={started_ns}&until_ns={ended_ns}")
                assert [row["holder"]["span"]["cell"] for row in near["stretches"]] == [cell] and not near["more"]
            assert (await running.get(f"api/timeline?devices=main/cpu:9&since_ns=0&until_ns={HOUR_NS}"))["stretches"] == []
            assert (await running.call("GET", f"{asked}{begun_ns}")).code == 400
            for path in ("api/trends", f"{asked}{time.time_ns()}"):
                assert (await running.call("GET", path, "olga")).code == 403

    asyncio.run(scenario())
