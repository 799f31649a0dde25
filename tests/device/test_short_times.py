"""Times are told in the unit and to the digit that people say them in."""

from __future__ import annotations

import pytest
from forebay.toolkit.profiling.report import per_call
from forebay.waiting import short


@pytest.mark.parametrize(("seconds", "told"), [(1.86663, "1.9"), (0.05, "0.05"), (0.0499999, "0.05"), (10.0, "10"), (125.25, "125.2")])
def test_a_lease_is_taken_back_in_seconds_that_people_can_read(seconds: float, told: str) -> None:
    assert short(seconds) == told


@pytest.mark.parametrize(("duration_ns", "told"), [(9_480_505_100, "9.5 s"), (2_500_000, "2.5 ms"), (1_234, "1.2 us")])
def test_what_a_call_took_has_the_unit_that_makes_it_short(duration_ns: float, told: str) -> None:
    assert per_call(duration_ns) == told
