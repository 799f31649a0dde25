"""How long somebody who waits will wait yet: scenarios of how leases go on, drawn from the lengths of leases so far.

No scenario is more likely than another. Each draws what is left of every lease, given how long it has run, and the lengths of leases that
come before; so the waits of all scenarios, in order, are the quantiles of the wait (Latin hypercube sampling: of each draw every scenario
takes another part of the distribution; M. D. McKay and others, Technometrics 21, 1979). The draws are fixed: the same state gives the
same range.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from forebay_pool.placement.lease_lengths import Lifetimes

SCENARIOS = 24
CUT = 6
"""How many of the longest waits lie outside of the range, one in four: a wait that is longer than its high end is longer than usual."""
DRAWS = 128
"""Draws that do not follow one another; the next ones begin anew."""
HELD_MAX = 64
"""How many leases are simulated; of more, a sample stands for all."""
AHEAD_MAX = 64
"""How many of those ahead are simulated; each of the others is taken to need their average."""


def _parts() -> list[list[float]]:
    """For each draw what part of the distribution every scenario takes: all of them once, in an order of its own."""
    chance = random.Random(1)  # noqa: S311 - nobody gains by guessing it
    return [chance.sample([(scenario + 0.5) / SCENARIOS for scenario in range(SCENARIOS)], SCENARIOS) for _ in range(DRAWS)]


PARTS = _parts()


class Ending(Protocol):
    """When what is held is free."""

    def left_ns(self, age_ns: float, part: float) -> float:
        """What so great a part (below 1) of those that reached the age does not outlast from there on."""


class Arrival(NamedTuple):
    """Devices that are on their way, and free once they are there."""

    nanoseconds: int

    def left_ns(self, age_ns: float, part: float) -> float:
        return self.nanoseconds


class Held(NamedTuple):
    """Compute that a lease has, in thousandths of a device, for so long already."""

    age_ns: int
    milli: int
    lifetimes: Ending


class Range(NamedTuple):
    """Seconds until the grant."""

    low: float
    middle: float
    high: float


class Scenario:
    """One way that things may go on: when what is held is free again."""

    __slots__ = ("_at_ns", "_ends", "_free_milli")

    def __init__(self, ends: list[tuple[float, int]], free_milli: int) -> None:
        heapq.heapify(ends)
        self._ends, self._free_milli, self._at_ns = ends, free_milli, 0.0

    def free_at_ns(self, milli: int) -> float:
        """When so much is free."""
        while self._free_milli < milli and self._ends:
            end_ns, freed_milli = heapq.heappop(self._ends)
            self._free_milli += freed_milli
            self._at_ns = max(self._at_ns, end_ns)
        return self._at_ns

    def start(self, milli: int, length_ns: float) -> None:
        """A lease that takes so much opens as soon as it can."""
        at_ns = self.free_at_ns(milli)
        self._free_milli -= milli
        heapq.heappush(self._ends, (at_ns + length_ns, milli))


class Prospect:
    """The waits of those who stand one after the other for the same. Ask in their order."""

    def __init__(self, held: Sequence[Held], free_milli: int, demand_milli: int, own: Lifetimes, scale: int = 1) -> None:
        """``held`` is one lease out of ``scale``. What is free does not suffice, or lies apart."""
        ends = [
            [(one.lifetimes.left_ns(one.age_ns, part), one.milli) for part in PARTS[draw % DRAWS]] for draw, one in enumerate(held)
        ]
        free_milli = min(free_milli // scale, demand_milli - 1)
        enough = free_milli + sum(one.milli for one in held) >= demand_milli
        self._scenarios = [Scenario(list(scenario), free_milli) for scenario in zip(*ends, strict=True)] if enough else []
        self._demand_milli, self._own, self._scale = demand_milli, own, scale
        self._draws, self._ahead, self._work_ns = len(held), 0, 0

    def range(self, ahead: int, work_ns: int, mean_ns: int) -> Range | None:
        """For who comes after so many, who will compute for so long; leases like its own last for ``mean_ns``. None: nobody knows."""
        if not self._scenarios:
            return None
        ahead, work_ns = ahead // self._scale, work_ns // self._scale
        if ahead > self._ahead:
            self._precede(ahead, (work_ns - self._work_ns) / (ahead - self._ahead) / max(1, mean_ns))
            self._work_ns = work_ns
        beyond = (ahead + 1) / (self._ahead + 1)
        waits = sorted(scenario.free_at_ns(self._demand_milli) * beyond / 1e9 for scenario in self._scenarios)
        return Range(waits[0], (waits[(SCENARIOS - 1) // 2] + waits[SCENARIOS // 2]) / 2, waits[-1 - CUT])

    def _precede(self, ahead: int, each: float) -> None:
        """Some more come before, up to so many; their leases are so many times as long as one's own."""
        while self._ahead < min(ahead, AHEAD_MAX):
            for scenario, part in zip(self._scenarios, PARTS[self._draws % DRAWS], strict=True):
                scenario.start(self._demand_milli, each * self._own.seen_ns(part))
            self._draws, self._ahead = self._draws + 1, self._ahead + 1
