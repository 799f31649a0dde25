"""How devices were used over time: stretches of minutes that are folded to longer ones by adding. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from forebay_pool.model.metering import HOUR_NS, SECOND_NS

MINUTE_NS = 60 * SECOND_NS
DAY_NS = 24 * HOUR_NS
STEPS_PER_DOUBLING = 4
"""Waits are counted in buckets, each 2^(1/4) times as wide as the one below: a quantile is off by 9 % at most."""
BUCKET_MAX = 120
"""The last one ends after 12 days; longer waits are in it."""
SHORTEST_WAIT_NS = 1_000_000
"""What the first bucket ends at: shorter waits are told as none."""

Over = Literal["day", "week", "month"]


@dataclass(frozen=True, slots=True)
class Reach:
    """What is asked for: how far back, in stretches of which length."""

    length_ns: int
    step_ns: int
    kept_ns: int
    """Of which length those are that it is folded from."""


REACHES: dict[Over, Reach] = {
    "day": Reach(DAY_NS, 10 * MINUTE_NS, MINUTE_NS),
    "week": Reach(7 * DAY_NS, HOUR_NS, HOUR_NS),
    "month": Reach(30 * DAY_NS, 6 * HOUR_NS, HOUR_NS),
}
KEPT: dict[int, int] = {MINUTE_NS: 25 * HOUR_NS, HOUR_NS: 31 * DAY_NS}
"""By the length of a stretch, for how long it is kept: at most 1,500 minutes and 744 hours."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The pool at one moment. Devices are counted by what they do, requests by waiting; milli are thousandths of devices."""

    held: int
    idle: int
    free: int
    closed: int
    waiting: int
    asked_milli: int
    """What all sessions' flavors add up to."""
    held_milli: int
    """What leases hold."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A stretch of time from ``start_ns`` (Unix time) on: sums over its ``samples``, and the waits that ended in it, by bucket."""

    start_ns: int
    samples: int = 0
    held: int = 0
    idle: int = 0
    free: int = 0
    closed: int = 0
    waiting: int = 0
    waiting_max: int = 0
    asked_milli: int = 0
    held_milli: int = 0
    waits: Mapping[int, int] = field(default_factory=dict)

    def with_sample(self, sample: Sample) -> Trend:
        """With one more."""
        one = Trend(
            self.start_ns, 1, sample.held, sample.idle, sample.free, sample.closed, sample.waiting, sample.waiting,
            sample.asked_milli, sample.held_milli,
        )  # fmt: skip
        return self.with_all(one)

    def with_all(self, other: Trend) -> Trend:
        """The sum of both, which begins where this one does."""
        return Trend(
            start_ns=self.start_ns,
            samples=self.samples + other.samples,
            held=self.held + other.held,
            idle=self.idle + other.idle,
            free=self.free + other.free,
            closed=self.closed + other.closed,
            waiting=self.waiting + other.waiting,
            waiting_max=max(self.waiting_max, other.waiting_max),
            asked_milli=self.asked_milli + other.asked_milli,
            held_milli=self.held_milli + other.held_milli,
            waits=Counter(self.waits) + Counter(other.waits),
        )

    @property
    def efficiency(self) -> float | None:
        """Devices that users' flavors add up to, for each that leases hold; None where none was held."""
        return self.asked_milli / self.held_milli if self.held_milli else None

    def mean(self, total: int) -> float:
        """A sum of this stretch for one sample."""
        return total / self.samples if self.samples else 0.0


def folded(trends: Iterable[Trend], step_ns: int) -> list[Trend]:
    """Those that begin in one step of time are one, which begins with the step; steps of which nothing is known are left out."""
    found: dict[int, Trend] = {}
    for trend in trends:
        start_ns = trend.start_ns - trend.start_ns % step_ns
        found[start_ns] = found.get(start_ns, Trend(start_ns)).with_all(trend)
    return [found[start_ns] for start_ns in sorted(found)]


def bucket_of(wait_ns: int) -> int:
    """Of a wait: 0 up to SHORTEST_WAIT_NS, and so on."""
    if wait_ns <= SHORTEST_WAIT_NS:
        return 0
    return min(BUCKET_MAX, math.ceil(STEPS_PER_DOUBLING * math.log2(wait_ns / SHORTEST_WAIT_NS)))


def wait_seconds(waits: Mapping[int, int], part: float) -> float | None:
    """What so large a part of the waits was not longer than: the middle of the bucket, by its logarithm. None without any wait."""
    rank, passed = math.ceil(part * sum(waits.values())), 0
    for bucket in sorted(waits):
        passed += waits[bucket]
        if passed >= max(1, rank):
            middle = 2 ** ((bucket - 0.5) / STEPS_PER_DOUBLING) if bucket else 0.0
            return SHORTEST_WAIT_NS / SECOND_NS * middle
    return None
