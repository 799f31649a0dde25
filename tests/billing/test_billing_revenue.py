"""Revenue by hour: each posting counts once in the hour in which it was booked, corrections take it back, and old hours are forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forebay_billing.writes import revenue
from running_billing import Running

Make = Callable[..., Any]
HOUR_NS, DAY_NS = 3_600 * 10**9, 86_400 * 10**9
WHOLE_NS = 36 * 10**9
"""What costs a whole number of nano-units."""


def folded(run: Any) -> list[tuple[int, int]]:
    """After all was summed up: each hour, counted from the full hour before the clock's first moment, and its amount."""
    while run._run(run.service.revenue.step()):
        pass
    rows = run.get("operator", "/api/revenue").json()
    assert {row["currency"] for row in rows} <= {"USD"}
    return [(row["hour_ns"], row["amount_nano"]) for row in rows]


def test_each_hour_has_what_was_booked_in_it_less_what_was_taken_back(running_anywhere: Running, usage: Make, clock: Any) -> None:
    run, hour_ns = running_anywhere, clock.now_ns - clock.now_ns % HOUR_NS
    assert folded(run) == []
    run.post_usage(usage("a/1", duration_ns=WHOLE_NS), usage("b/1", duration_ns=WHOLE_NS))
    cost = run.get("operator", "/api/usage").json()["records"][0]["cost_nano"]
    assert cost > 0 and folded(run) == [(hour_ns, 2 * cost)] == folded(run), "once, however often it is summed up"
    clock.now_ns += HOUR_NS
    run.post_usage(usage("c/1", duration_ns=WHOLE_NS), usage("d/1", duration_ns=WHOLE_NS), usage("e/1", duration_ns=WHOLE_NS))
    assert run.request("operator", "POST", "/api/corrections", json={"source": "pool", "id": "a/1", "reason": "no"}).status_code == 200
    assert folded(run) == [(hour_ns, 2 * cost), (hour_ns + HOUR_NS, 2 * cost)], "where it was taken back, not where it was booked"
    assert [row["hour_ns"] for row in run.get("pool", "/api/revenue", since_ns=hour_ns + 1).json()] == [hour_ns + HOUR_NS]
    assert run.get("acme-owner", "/api/revenue").status_code == 403


def test_many_postings_are_summed_up_in_parts_and_none_is_passed_by(
    running: Running, usage: Make, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revenue, "POSTINGS_MAX", 3)
    for number in range(8):
        running.post_usage(usage(f"a{number}/1", duration_ns=WHOLE_NS))
    cost = running.get("operator", "/api/usage").json()["records"][0]["cost_nano"]
    assert [amount for _, amount in folded(running)] == [8 * cost]


def test_hours_are_kept_for_31_days_and_nothing_is_counted_again_after_them(running: Running, usage: Make, clock: Any) -> None:
    running.post_usage(usage("a/1", duration_ns=WHOLE_NS))
    first = folded(running)
    clock.now_ns += 40 * DAY_NS
    assert folded(running) == first, "the last hour says how far the sums have come"
    running.post_usage(usage("b/1", duration_ns=WHOLE_NS))
    folded(running)
    assert [amount for _, amount in folded(running)] == [first[0][1]]
