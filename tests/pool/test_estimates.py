"""How long a wait lasts: what is left of leases given how long they have run, as a range, and when a range is news."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.model.events import Look
from forebay_pool.model.records import Estimate
from forebay_pool.model.types import Device, Equivalent, Flavor, Standing
from forebay_pool.placement.lease_lengths import SAMPLE_MAX, LeaseLengths, Lifetimes
from forebay_pool.placement.wait_estimates import is_news
from forebay_pool.placement.wait_simulation import AHEAD_MAX, Held, Prospect
from forebay_wire import messages as wire
from hypothesis import given
from hypothesis import strategies as st
from pool_world import World

GIB = 2**30
SECOND = 1_000_000_000
LENGTHS = st.lists(st.integers(0, 10**15), min_size=1, max_size=40)
PARTS = st.floats(0.0, 0.999)
Make = Callable[..., World]


# Lifetimes


@given(LENGTHS, st.floats(0.0, 1e15), st.floats(0.0, 1e15))
def test_the_chance_to_be_over_grows_with_the_age(lengths: list[int], one: float, other: float) -> None:
    lifetimes = Lifetimes(lengths)
    young, old = sorted((one, other))
    assert 0 <= lifetimes.passed(young) <= lifetimes.passed(old) < 1


@given(LENGTHS, st.floats(0.0, 1e15), PARTS, PARTS)
def test_what_is_left_is_a_time_and_grows_with_the_part(lengths: list[int], age_ns: float, one: float, other: float) -> None:
    lifetimes = Lifetimes(lengths)
    less, more = sorted((one, other))
    assert 0 <= lifetimes.left_ns(age_ns, less) <= lifetimes.left_ns(age_ns, more) + 1e-3 * (age_ns + 1) < float("inf")


@given(LENGTHS, LENGTHS, PARTS)
def test_length_and_chance_belong_together(lengths: list[int], running: list[int], part: float) -> None:
    lifetimes = Lifetimes(sorted(set(lengths)), running)
    assert lifetimes.passed(lifetimes.length_ns(part)) == pytest.approx(part, abs=1e-6)


@given(LENGTHS, LENGTHS, st.floats(0.0, 1e15), PARTS)
def test_nobody_is_told_to_wait_for_longer_than_any_lease_has_lasted(
    lengths: list[int], running: list[int], age_ns: float, part: float
) -> None:
    lifetimes, longest = Lifetimes(lengths, running), max(1, *lengths, *running)
    assert lifetimes.seen_ns(part) <= longest
    assert lifetimes.left_ns(age_ns, part) <= max(0, longest - age_ns)


def test_of_a_lease_that_outlasted_all_nothing_is_known_any_more() -> None:
    lifetimes = Lifetimes([10, 20, 30])
    assert lifetimes.left_ns(30, 0.9) == lifetimes.left_ns(300, 0.1) == 0
    assert lifetimes.left_ns(20, 0.9) == pytest.approx(10)


def test_leases_that_still_run_count_for_as_long_as_they_have_run() -> None:
    """Of 10, 20+ and 30, where + still runs, with one more at risk at each: 3/4 outlast 10, and half of these 30."""
    lifetimes = Lifetimes([10, 30], [20])
    assert lifetimes.passed(10) == pytest.approx(1 / 4)
    assert lifetimes.passed(30) == pytest.approx(1 - 3 / 4 * 1 / 2)
    assert Lifetimes([10], [1_000] * 9).left_ns(0, 0.5) > 10, "nine of ten leases run on, though the only one that is over was short"


def test_what_is_left_depends_on_what_has_passed() -> None:
    lifetimes = Lifetimes([10] * 90 + [1_000] * 10)
    assert lifetimes.left_ns(0, 0.5) <= 10
    assert lifetimes.left_ns(11, 0.5) > 400, "the short ones are over by then"


def test_of_few_leases_of_a_flavor_those_of_all_tell_more() -> None:
    lengths = LeaseLengths()
    assert lengths.lifetimes("a") is None
    for _ in range(8):
        lengths.add("b", 1_000)
    lengths.add("a", 5)
    few, any_of_all = lengths.lifetimes("a"), lengths.lifetimes("never seen")
    assert few is not None and any_of_all is not None and few.length_ns(0.5) == any_of_all.length_ns(0.5) > 5
    for _ in range(3):
        lengths.add("a", 5)
    own = lengths.lifetimes("a")
    assert own is not None and own.length_ns(0.5) == 5


def test_only_the_last_leases_count() -> None:
    lengths = LeaseLengths()
    for duration in [10**9] * 50 + [10] * SAMPLE_MAX:
        lengths.add("a", duration)
    known = lengths.lifetimes("a")
    assert known is not None and known.length_ns(0.9) == 10


# Ranges


HELD = st.lists(st.tuples(st.integers(0, 10**13), st.sampled_from([250, 500, 1000, 4000])), max_size=20)


@given(LENGTHS, HELD, st.sampled_from([250, 1000, 2000]), st.lists(st.integers(0, 200), min_size=1, max_size=6), st.integers(1, 3))
def test_ranges_are_in_order_finite_and_grow_with_who_is_ahead(
    lengths: list[int], held: list[tuple[int, int]], demand_milli: int, aheads: list[int], scale: int
) -> None:
    own = Lifetimes(lengths)
    prospect = Prospect([Held(age, milli, own) for age, milli in held], 0, demand_milli, own, scale)
    mean_ns = max(1, sum(lengths) // len(lengths))
    before = 0.0
    for ahead in sorted(aheads):
        found = prospect.range(ahead, ahead * mean_ns, mean_ns)
        if found is None:
            assert sum(milli for _, milli in held) + demand_milli - 1 < 2 * demand_milli
            return
        assert 0 <= found.low <= found.middle <= found.high < float("inf")
        assert found.middle >= before * (1 - 1e-9)
        before = found.middle


def test_with_nothing_held_nobody_knows() -> None:
    assert Prospect([], 0, 1000, Lifetimes([5])).range(0, 0, 5) is None


def test_the_wait_for_one_device_is_what_its_lease_has_left() -> None:
    chance = random.Random(3)
    lengths = [int(chance.expovariate(1 / (60 * SECOND))) for _ in range(200)]
    lifetimes = Lifetimes(lengths)
    found = Prospect([Held(30 * SECOND, 1000, lifetimes)], 0, 1000, lifetimes).range(0, 0, 60 * SECOND)
    assert found is not None
    assert found.middle == pytest.approx(lifetimes.left_ns(30 * SECOND, 0.5) / SECOND, rel=0.15)
    assert found.low == pytest.approx(lifetimes.left_ns(30 * SECOND, 0.5 / 24) / SECOND, rel=0.5)


def test_in_a_long_line_each_one_further_back_waits_a_lease_more_for_each_device() -> None:
    own = Lifetimes([60 * SECOND] * 50)
    prospect = Prospect([Held(0, 1000, own)] * 4, 0, 1000, own)
    near, far = prospect.range(8, 8 * 60 * SECOND, 60 * SECOND), prospect.range(4 * AHEAD_MAX, 4 * AHEAD_MAX * 60 * SECOND, 60 * SECOND)
    assert near is not None and far is not None
    assert near.middle == pytest.approx(150, rel=0.25)
    assert far.middle == pytest.approx(60 * (AHEAD_MAX + 1), rel=0.25)


# News


def standing(low: float, high: float, made_seconds: float = 0.0, position: int = 1, ran: float | None = None) -> Standing:
    """The lease before began five seconds before the first estimate, unless it has run for another time."""
    ran = 5.0 + made_seconds if ran is None else ran
    return Standing(position, "shortage", "Held.", 0, Estimate(low, (low + high) / 2, high, 1, ran, int(made_seconds * SECOND)))


@pytest.mark.parametrize(
    ("told", "standing", "now_seconds", "news"),
    [
        (standing(10, 40), standing(10, 40, 0.0), 0, False),
        (standing(10, 40), standing(5, 35, 5.0), 5, False),
        (standing(10, 40), standing(5, 20, 5.0), 5, True),
        (standing(10, 40), standing(5, 28, 5.0), 5, False),
        (standing(10, 40), standing(10, 70, 5.0), 5, False),
        (standing(10, 40), standing(10, 70, 5.0, ran=0.0), 5, True),
        (standing(10, 40), standing(0, 500, 60.0), 60, False),
        (standing(10, 40), standing(0, 500, 60.0, ran=3.0), 60, True),
        (standing(10, 40), standing(0, 500, 60.0, position=2), 60, True),
        (standing(0.1, 0.3), standing(0.3, 0.9), 0, False),
        (standing(10, 40), Standing(1, "shortage", "Held."), 0, True),
    ],
)
def test_an_estimate_is_news_when_what_is_left_of_it_moves(told: Standing, standing: Standing, now_seconds: float, news: bool) -> None:
    assert is_news(told, standing, int(now_seconds * SECOND)) == news


# In the line


def crowded(world: Make) -> Any:
    """One device; four leases of 20 s are over, ``a`` holds it, and ``b`` waits."""
    w = world(
        [Device("main/cpu:0", "main", "cpu", 0, "cpu-dev", 64 * GIB)], [Flavor("one", GIB, (Equivalent("cpu-dev"),))], heartbeat_seconds=1e6
    )
    for number in range(1, 5):
        w.lease("a", number, flavor="one")
        w.wait(20)
        w.drain("a")
    w.lease("a", 5, flavor="one")
    w.join("b", "one")
    return w


def test_who_comes_when_a_lease_has_run_for_long_is_told_what_is_left_of_it(world: Make) -> None:
    w = crowded(world)
    w.wait(15)
    w.acquire("b")
    early = w.last("b").estimate
    assert (early.running, early.running_seconds) == (1, 15.0)
    assert early.low_seconds < early.high_seconds <= 5, "none has lasted for more than 20 s"
    w.client("b", wire.Cancel(request=1))
    w.wait(85)
    w.acquire("b", 2)
    late = w.last("b").estimate
    assert (late.running_seconds, late.high_seconds) == (100.0, 0.0), "it outlasted all: longer than usual, by nobody knows how much"


def test_who_waits_is_told_what_the_flavor_said_before_and_never_again_while_the_same_lease_runs(world: Make) -> None:
    """Leases took 2 s to 521 s, and the one before runs for 500 s: no number grows, and none is beyond what any lease took."""
    w = world(
        [Device("main/cpu:0", "main", "cpu", 0, "cpu-dev", 64 * GIB)], [Flavor("one", GIB, (Equivalent("cpu-dev"),))], heartbeat_seconds=1e6
    )
    for number, seconds in enumerate((2, 3, 5, 521, 4, 40, 55, 70), 1):
        w.lease("a", number, flavor="one")
        w.wait(seconds)
        w.drain("a")
    w.lease("a", 9, flavor="one")
    w.join("b", "one")
    offered = w.machine.outlook(w.machine.fleet.flavors["one"], "acme")
    w.acquire("b")
    told = w.last("b").estimate
    assert offered.wait_seconds == told.high_seconds
    assert 40 < told.high_seconds < 521
    before = len(w.told("b"))
    for _ in range(50):
        w.wait(10)
        w.machine.queue.changes += 1
        w.do(Look())
    assert len(w.told("b")) == before
    w.wait(100)
    w.client("b", wire.Cancel(request=1))
    assert w.machine.outlook(w.machine.fleet.flavors["one"], "acme") == (0, None), "it outlasted all"


def test_nothing_is_told_again_while_a_range_counts_down_as_expected(world: Make) -> None:
    w = crowded(world)
    w.acquire("b")
    before = len(w.told("b"))
    for _ in range(4):
        w.wait(1)
        w.machine.queue.changes += 1  # somebody elsewhere came or went
        w.do(Look())
    assert len(w.told("b")) == before
