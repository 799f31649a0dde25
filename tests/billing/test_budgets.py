"""What budgets make of spending: states, alerts, graces, and the forecast of a month's end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from forebay_billing.errors import Forbidden, InvalidRequest
from forebay_billing.model.money import GRAINS_PER_UNIT
from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from forebay_billing.rules.budgets import (
    DAY_NS,
    IDLE,
    NOTHING,
    SECOND_NS,
    SETTLING_NS,
    TOTAL,
    Budget,
    Running,
    Spent,
    Standing,
    Subject,
    alerts_due,
    check_new,
    forecast,
    forecast_range,
    standing,
    verdicts,
)
from forebay_billing.tasks.open_leases import OVERTAKEN_NS_MAX, OpenLeases
from hypothesis import given
from hypothesis import strategies as st

NOVEMBER = Month(2026, 11)
NOW_NS = NOVEMBER.start_ns + 20 * DAY_NS
UNIT = GRAINS_PER_UNIT
RATE = 3600 * 10**9
"""One unit of currency a second."""


def budget(**changes: Any) -> Budget:
    usual = Budget(1, Subject("acme"), "USD", "month", "operator", 100 * UNIT, (50, 80, 100), "drain", 10, NOVEMBER.start_ns, "operator")
    return replace(usual, **changes)


def spent(units: int, period: str = "2026-11") -> Spent:
    return Spent({period: units * UNIT}, {})


def stands(of: Budget, units: int, running: Running = IDLE, last_rate: int = 0) -> Standing:
    return standing(of, spent(units), running, last_rate, NOW_NS)


def test_a_budget_does_what_it_says_once_it_is_used_up_and_nothing_before() -> None:
    for on_limit, state in (("notify", "open"), ("refuse", "refuse"), ("drain", "drain")):
        at_limit = budget(on_limit=on_limit)
        assert stands(at_limit, 99).state == "open"
        assert stands(at_limit, 100).state == state
        assert stands(at_limit, 101).state == state


def test_what_runs_counts_in_its_own_month_and_in_a_total() -> None:
    running = Running({"2026-10": 7 * UNIT, "2026-11": 5 * UNIT}, RATE)
    assert stands(budget(), 90, running).used_grains == 95 * UNIT
    assert standing(budget(window="total"), spent(90, "2026-09"), running, 0, NOW_NS).used_grains == 102 * UNIT


def test_last_months_spending_leaves_this_months_budget_alone() -> None:
    assert standing(budget(), spent(500, "2026-10"), IDLE, 0, NOW_NS).used_grains == 0


def test_a_drain_begins_so_early_that_its_grace_ends_at_the_limit() -> None:
    running = Running({"2026-11": 0}, RATE)
    assert stands(budget(), 88, running).state == "open"
    begun = stands(budget(), 89, running)
    assert (begun.state, begun.grace_ns) == ("drain", 10 * SECOND_NS)
    assert begun.code == "nearly_used_up" and "nearly used up" in (begun.sentence or "")
    assert stands(budget(), 100, running).code == "used_up"
    assert (stands(budget(), 88, running).code, stands(budget(), 88, running).sentence) == (None, None)


def test_a_drain_that_begins_late_has_what_grace_the_budget_can_still_pay() -> None:
    running = Running({"2026-11": 0}, RATE)
    assert [stands(budget(), units, running).grace_ns // SECOND_NS for units in (95, 98, 99, 100, 150)] == [4, 1, 0, 0, 0]


def test_a_budget_that_could_not_pay_a_second_stays_drained_when_nothing_runs() -> None:
    assert stands(budget(), 99, IDLE, last_rate=RATE).state == "drain"
    assert stands(budget(), 98, IDLE, last_rate=RATE).state == "open"
    assert stands(budget(limit_grains=101 * UNIT), 99, IDLE, last_rate=RATE).state == "open"


@given(
    limit=st.integers(0, 10**21),
    grace=st.integers(0, 120),
    heartbeat_ns=st.integers(2 * SECOND_NS, 60 * SECOND_NS),
    rate=st.integers(1, 10**10),
    already=st.integers(0, 10**21),
)
def test_a_drain_overspends_at_most_one_heartbeat_of_what_runs(limit: int, grace: int, heartbeat_ns: int, rate: int, already: int) -> None:
    """A lease that opens right after a heartbeat, and goes on as long as anybody lets it."""
    drains, used, last_rate = budget(limit_grains=limit, grace_seconds=grace), min(already, limit), 0
    ends_ns = None
    for _ in range(2000):
        if standing(drains, Spent({"2026-11": used}, {}), IDLE, last_rate, NOW_NS).state != "open":
            break
        running_ns = 0
        while ends_ns is None:
            running_ns += heartbeat_ns
            accrued = Running({"2026-11": rate * running_ns}, rate)
            now = standing(drains, Spent({"2026-11": used}, {}), accrued, last_rate, NOW_NS)
            if now.state == "drain":
                ends_ns = running_ns + now.grace_ns
            elif (limit - used) // rate > 50 * heartbeat_ns + running_ns:
                running_ns += ((limit - used) // rate - running_ns) // heartbeat_ns // 2 * heartbeat_ns  # nothing happens for long
        used, last_rate, ends_ns = used + rate * ends_ns, rate, None
    assert used <= max(limit, already) + rate * heartbeat_ns
    assert used >= limit - rate * SETTLING_NS


def test_each_threshold_that_is_reached_is_due_in_its_window() -> None:
    assert [due.threshold for due in alerts_due(budget(), spent(79), IDLE, NOW_NS)] == [50]
    assert [due.threshold for due in alerts_due(budget(), spent(80), IDLE, NOW_NS)] == [50, 80]
    running = Running({"2026-11": 20 * UNIT}, RATE)
    assert [(due.period, due.threshold) for due in alerts_due(budget(), spent(80), running, NOW_NS)] == [
        ("2026-11", 50), ("2026-11", 80), ("2026-11", 100)
    ]  # fmt: skip
    assert [due.period for due in alerts_due(budget(window="total"), spent(50, "2025-01"), IDLE, NOW_NS)] == [TOTAL]
    assert alerts_due(budget(), NOTHING, IDLE, NOW_NS) == []


def test_usage_of_last_month_is_still_told_of_where_the_budget_was_there_then() -> None:
    old = budget(set_at_ns=Month(2026, 10).start_ns)
    assert [due.period for due in alerts_due(old, spent(60, "2026-10"), IDLE, NOW_NS)] == ["2026-10"]
    assert alerts_due(budget(), spent(60, "2026-10"), IDLE, NOW_NS) == []
    assert alerts_due(old, spent(60, "2026-09"), IDLE, NOW_NS) == []


def test_a_limit_of_nothing_lets_nothing_be_spent() -> None:
    assert stands(budget(limit_grains=0, on_limit="refuse"), 0).state == "refuse"
    assert stands(budget(limit_grains=0, on_limit="drain"), 0).state == "drain"


# The forecast: what was used, and the mean of the last seven days for the rest of the month


def test_a_steady_week_goes_on_to_the_end_of_the_month() -> None:
    today = NOW_NS // DAY_NS
    by_day = {today - back: 3 * UNIT for back in range(0, 20)}
    assert forecast(60 * UNIT, by_day, NOW_NS) == (60 + 3 * 10) * UNIT  # ten days are left


def test_days_without_usage_count_once_usage_has_begun() -> None:
    today = NOW_NS // DAY_NS
    assert forecast(0, {today - 4: 8 * UNIT}, NOW_NS) == 20 * UNIT  # 8 in 4 days, 10 days left
    assert forecast(0, {today - 4: 7 * UNIT, today - 30: UNIT}, NOW_NS) == 10 * UNIT  # 7 in 7 days


def test_the_first_day_is_taken_for_what_it_cost_so_far() -> None:
    noon_ns = NOW_NS + DAY_NS // 2
    today = noon_ns // DAY_NS
    assert forecast(UNIT, {today: UNIT}, noon_ns) == UNIT + 19 * UNIT  # 2 a day, 9.5 days left
    assert forecast(UNIT, {today: UNIT}, NOW_NS + 1) < 10 * 24 * UNIT + UNIT + 1  # not a nanosecond's rate


def test_people_are_told_a_forecast_after_a_whole_day_and_then_a_range() -> None:
    """A first day of an hour's work at noon promised twenty times that."""
    today = NOW_NS // DAY_NS
    assert forecast_range(UNIT, {today: UNIT}, NOW_NS) is None and forecast_range(0, {}, NOW_NS) is None
    assert forecast_range(0, {today - 30: UNIT}, NOW_NS) is None, "nothing in the last days, so nothing to go by"
    one_day = {today - 1: 3 * UNIT, today: UNIT}
    assert forecast_range(4 * UNIT, one_day, NOW_NS) == pytest.approx((4 * UNIT, 64 * UNIT)), "up to twice as much on each"
    assert forecast_range(70 * UNIT, {today - day: 10 * UNIT for day in range(1, 8)}, NOW_NS) == pytest.approx((170 * UNIT, 170 * UNIT))
    low, high = forecast_range(7 * UNIT, {today - 7: 7 * UNIT}, NOW_NS) or (0, 0)
    assert low == 7 * UNIT and 7 * UNIT < forecast(7 * UNIT, {today - 7: 7 * UNIT}, NOW_NS) < high < 100 * UNIT


def test_the_forecast_at_the_end_of_the_month_is_what_was_used() -> None:
    today = (NOVEMBER.end_ns - 1) // DAY_NS
    assert forecast(5 * UNIT, {today - 1: 700 * UNIT}, NOVEMBER.end_ns - 1) - 5 * UNIT < UNIT // 10**6


# Several budgets of one subject


def test_the_strictest_budget_of_a_subject_counts() -> None:
    notify, refuse, drain = (stands(budget(id=n, on_limit=on), 100) for n, on in enumerate(("notify", "refuse", "drain")))
    found = verdicts([notify, refuse, drain, stands(budget(id=9, subject=Subject("acme", "ben")), 1)])
    assert [(v.subject, v.state) for v in found] == [(Subject("acme"), "drain"), (Subject("acme", "ben"), "open")]
    assert [v.state for v in verdicts([refuse, notify])] == ["refuse"]


def test_a_subject_covers_what_is_within_it() -> None:
    notebook = Subject("acme", "ben", "digits.ipynb")
    assert all(subject.covers(notebook) for subject in (Subject("acme"), Subject("acme", "ben"), notebook))
    assert not any(s.covers(notebook) for s in (Subject("globex"), Subject("acme", "ann"), Subject("acme", "ben", "other.ipynb")))


# What may be set


def test_an_owner_stays_within_what_operators_allow() -> None:
    cap = budget()
    check_new(budget(origin="owner", subject=Subject("acme", "ben")), [cap])
    for subject in (Subject("acme"), Subject("acme", "ben"), Subject("acme", "ben", "a.ipynb")):
        with pytest.raises(Forbidden, match="operator allows 100"):
            check_new(budget(origin="owner", subject=subject, limit_grains=101 * UNIT), [cap])
    check_new(budget(origin="owner", limit_grains=101 * UNIT, window="total"), [cap])
    check_new(budget(origin="owner", limit_grains=101 * UNIT, currency="EUR"), [cap])
    check_new(budget(limit_grains=101 * UNIT), [cap])


@pytest.mark.parametrize("thresholds", [(0,), (80, 50), (50, 50), (1001,), tuple(range(1, 12))])
def test_absurd_thresholds_are_refused(thresholds: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="thresholds"):
        check_new(budget(thresholds=thresholds), [])


def test_a_notebook_is_somebodys() -> None:
    with pytest.raises(InvalidRequest, match="names its user"):
        check_new(budget(subject=Subject("acme", None, "a.ipynb")), [])


def test_a_heartbeat_that_was_overtaken_is_not_listened_to_but_one_of_a_clock_that_was_set_back_is(
    usage: Callable[..., UsageRecord],
) -> None:
    leases, now_ns = OpenLeases(), 10**18
    leases.hear("pool", now_ns, [usage("a.1/1")], now_ns)
    leases.hear("pool", now_ns - 1, [usage("late.1/1")], now_ns + SECOND_NS)
    assert [lease.record.id for lease in leases.all()] == ["a.1/1"]
    set_back_ns = now_ns - 3600 * SECOND_NS
    leases.hear("pool", set_back_ns, [usage("b.1/1")], now_ns + OVERTAKEN_NS_MAX)
    assert {lease.record.id: lease.fresh for lease in leases.all()} == {"a.1/1": False, "b.1/1": True}
    leases.hear("pool", set_back_ns + 1, [usage("b.1/1")], now_ns + OVERTAKEN_NS_MAX + SECOND_NS)
    assert [lease.record.id for lease in leases.all()] == ["b.1/1"]
