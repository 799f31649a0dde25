"""How long leases last, and from that how long somebody who waits has to wait yet."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

MEMORY = 16
"""The averages are over about so many of the last leases: each counts 15/16 of the one after it."""
SAMPLE_MAX = 256
"""How many of the last leases of a flavor say how long the next ones last."""
FEW = 4
"""Fewer leases of a flavor say less than those of all flavors."""


class Lifetimes:
    """What to expect of the next length, in nanoseconds, after lengths that are known and leases that still run.

    A lease that reached a known length ends there with chance 1 / (n + 1), where n leases reached it: those as long, and those
    that run for as long already (Kaplan and Meier 1958; n + 1, since the next lease is one of them). With none running the lengths
    cut the time axis into pieces of equal chance, whatever the distribution (exchangeability). Within a piece chances are even. In
    the last, which has no end, what is left after a time that none outlasted is as likely as not as long again (Pareto's tail of
    index 1).
    """

    def __init__(self, lengths_ns: Iterable[int], running_ns: Iterable[int] = (), each: int = 1) -> None:
        """``running_ns`` are the ages of leases that still run, one out of ``each``."""
        self._known = sorted(max(1, length) for length in lengths_ns)
        if not self._known:
            raise ValueError("no length is known, so nothing can be expected; ask for those of all flavors")
        ages = sorted(running_ns)
        self._longest = max(self._known[-1], ages[-1] if ages else 0)
        self._passed = [0.0]
        """The chance that a lease is over by each known length, from 0 on."""
        outlasts = 1.0
        for place, length in enumerate(self._known):
            reached = len(self._known) - place + each * (len(ages) - bisect_left(ages, length))
            outlasts *= reached / (reached + 1)
            self._passed.append(1 - outlasts)

    def passed(self, age_ns: float) -> float:
        """The chance that a lease is over by that age."""
        known = self._known
        place = bisect_right(known, age_ns)
        if place == len(known):
            return 1 - known[-1] / age_ns * (1 - self._passed[-1])
        begin = known[place - 1] if place else 0
        return self._passed[place] + (age_ns - begin) / (known[place] - begin) * (self._passed[place + 1] - self._passed[place])

    def length_ns(self, part: float) -> float:
        """What so great a part (below 1) of the leases does not outlast."""
        place = bisect_right(self._passed, part) - 1
        if place == len(self._known):
            return self._known[-1] / (1 - part) * (1 - self._passed[-1])
        begin = self._known[place - 1] if place else 0
        return begin + (part - self._passed[place]) / (self._passed[place + 1] - self._passed[place]) * (self._known[place] - begin)

    def seen_ns(self, part: float) -> float:
        """The same, and no longer than any lease has been: beyond that nothing is known, and nobody is told a number."""
        return min(self.length_ns(part), self._longest)

    def left_ns(self, age_ns: float, part: float) -> float:
        """What so great a part (below 1) of those that reached the age does not outlast from there on; 0 for who outlasted all.

        An age below 0 is none: after a step of the clock a lease may have begun later than now.
        """
        age_ns = max(0, age_ns)
        passed = self.passed(age_ns)
        return max(0.0, self.seen_ns(min(passed + part * (1 - passed), NEARLY_ALL)) - age_ns)


NEARLY_ALL = 1 - 1e-9


class LeaseLengths:
    """Decayed averages of the lengths of leases, and the last of them, by flavor."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[int, float]] = {}
        self._all: tuple[int, float] = (0, 0.0)
        self._last: dict[str | None, deque[int]] = {None: deque(maxlen=SAMPLE_MAX)}
        """Under no flavor: those of all."""
        self._sorted: dict[str | None, list[int]] = {}

    def add(self, flavor: str, duration_ns: int) -> None:
        """A lease of the flavor lasted so long."""
        self._means[flavor] = _with(self._means.get(flavor, (0, 0.0)), duration_ns)
        self._all = _with(self._all, duration_ns)
        for key in (flavor, None):
            self._last.setdefault(key, deque(maxlen=SAMPLE_MAX)).append(duration_ns)
            self._sorted.pop(key, None)

    def lifetimes(self, flavor: str, running_ns: Iterable[int] = (), each: int = 1) -> Lifetimes | None:
        """What to expect of the flavor's leases, of which one out of ``each`` runs for so long; where few of it ended, of any ended ones.

        None where none ended at all.
        """
        last = self._last.get(flavor, ())
        key = flavor if len(last) >= FEW else None
        if not self._last[key]:
            return None
        known = self._sorted.get(key)
        if known is None:
            known = self._sorted[key] = sorted(self._last[key])
        return Lifetimes(known, running_ns, each)

    @property
    def known(self) -> bool:
        """Whether any lease has ended."""
        return bool(self._all[0])

    def mean_ns(self, flavor: str) -> int | None:
        """How long a lease of the flavor lasts; that of any where there was none of it; None where there was none at all."""
        count, mean = self._means.get(flavor, self._all)
        return int(mean) if count else None


class Outlook(NamedTuple):
    """What somebody who comes now would meet."""

    waiting: int
    """Requests in the queue that compete for the same devices."""
    wait_seconds: float | None
    """Until the grant, for three of four who come now; zero where a place is free, None where nobody knows."""


def _with(known: tuple[int, float], value: int) -> tuple[int, float]:
    """The average with one more value: of all while they are few, decayed from then on."""
    count, mean = min(known[0] + 1, MEMORY), known[1]
    return count, mean + (value - mean) / count


def rough(value: float) -> int:
    """The value in steps that people notice: its two leading digits, and nothing after the point."""
    whole = value if isinstance(value, int) else round(value)
    if whole < 100:
        return whole
    step = 10 ** (len(str(whole)) - 2)
    return int(round(whole / step) * step)
