"""What a decision looks at hardly grows with the fleet: work is counted in calls, so that it does not matter what else the machine does."""

from __future__ import annotations

import math
import statistics
import sys
from itertools import islice

import pytest
from simulation.rush import UNKIND, Rush

EVENTS = 1_500


def calls_of_decisions(devices: int) -> list[int]:
    """The calls of Python functions of each event that is neither a tick nor a look."""
    rush = Rush(devices, devices * 5 // 3)
    for _ in rush.play(UNKIND.settled_ns):
        pass
    handle, counts, count = rush.machine.handle, [], 0

    def tally(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    def counted(event, now_ns):  # type: ignore[no-untyped-def]
        nonlocal count
        count = 0
        sys.setprofile(tally)
        try:
            return handle(event, now_ns)
        finally:
            sys.setprofile(None)

    rush.machine.handle = counted  # type: ignore[method-assign]
    for took in islice(rush.play(), EVENTS):
        if took.kind not in ("Tick", "Look"):
            counts.append(count)
    return sorted(counts)


@pytest.mark.full_sweep
def test_the_work_of_a_decision_grows_no_faster_than_the_logarithm_of_the_fleet() -> None:
    few, many = 60, 960
    small, large = calls_of_decisions(few), calls_of_decisions(many)
    growth = math.log(many) / math.log(few)
    means = statistics.fmean(small), statistics.fmean(large)
    assert means[1] < growth * means[0], f"{means[0]:.0f} calls with {few} devices, {means[1]:.0f} with {many}"
    late = small[len(small) * 99 // 100], large[len(large) * 99 // 100]
    assert late[1] < 2 * growth * late[0], f"the 99th of 100: {late[0]} calls with {few} devices, {late[1]} with {many}"
