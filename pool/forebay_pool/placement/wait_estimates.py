"""How long those who wait, and who would come now, will wait yet; and when that is news for who was told before."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from forebay_wire import messages as wire

from forebay_pool.model.metering import SECOND_NS
from forebay_pool.model.records import Estimate
from forebay_pool.model.types import Lane, Session, Standing
from forebay_pool.placement.capacity import can_start
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.lease_lengths import LeaseLengths, Lifetimes, rough
from forebay_pool.placement.wait_simulation import HELD_MAX, Arrival, Held, Prospect

NEWS_SHARE = 0.25
"""An estimate that moves by less than this part of it, against what is left of the one told, is no news."""
NEWS_SECONDS = 1.0
"""Nor is one that moves by less than that."""


class Foresight:
    """Prospects of lanes, made as they are asked for."""

    def __init__(self, fleet: Fleet, lengths: LeaseLengths, made_ns: int, made_unix_ns: int) -> None:
        self.made_ns = made_ns
        self._made_unix_ns = made_unix_ns
        self._fleet, self._lengths = fleet, lengths
        self._lifetimes: dict[str, Lifetimes | None] = {}
        self._prospects: dict[Lane, tuple[Prospect, int, int] | None] = {}
        """Each with how many hold what it waits for, and the oldest one's age."""

    def estimate(self, lane: Lane, ahead: int, work_ns: int) -> Estimate | None:
        """For who comes after so many, whose leases last so long together."""
        if lane not in self._prospects:
            self._prospects[lane] = self._prospect(lane)
        found = self._prospects[lane]
        if found is None:
            return None
        prospect, running, oldest_ns = found
        expected = prospect.range(ahead, work_ns, self._lengths.mean_ns(lane[1]) or 0)
        if expected is None:
            return None
        return Estimate(*expected, running, oldest_ns / SECOND_NS, self.made_ns, self._made_unix_ns)

    def _prospect(self, lane: Lane) -> tuple[Prospect, int, int] | None:
        own = self._lifetimes_of(lane[1])
        if own is None:
            return None
        there, free_milli, scale = self._held(lane)
        held = [Held(age_ns, milli, self._lifetimes_of(flavor) or own) for flavor, age_ns, milli in there]
        if not lane[0]:
            held += self._starting(lane)
        prospect = Prospect(held, free_milli, self._fleet.demand_milli(lane), own, scale)
        return prospect, len(there) * scale, max((age_ns for _, age_ns, _ in there), default=0)

    def _starting(self, lane: Lane) -> list[Held]:
        """The devices of nodes on their way, as if they were held until they are there."""
        flavor, barred = self._fleet.flavors[lane[1]], lane[2]
        ways = [growth for growth in self._fleet.growth.values() if growth.group.model not in barred and can_start(growth.group, flavor)]
        coming = [(growth.group, left_ns) for growth in ways for left_ns in islice(growth.starts_left_ns(self.made_ns), HELD_MAX)]
        return [Held(0, group.node_milli, Arrival(left_ns)) for group, left_ns in coming]

    def _lifetimes_of(self, flavor: str) -> Lifetimes | None:
        if flavor not in self._lifetimes:
            self._lifetimes[flavor] = self._lengths.lifetimes(flavor, *self._fleet.ends.ages(flavor, HELD_MAX, self.made_ns))
        return self._lifetimes[flavor]

    def _held(self, lane: Lane) -> tuple[list[tuple[str, int, int]], int, int]:
        """Leases that hold what the lane needs (flavor, age, thousandths), what is free of it, and of how many leases these are one."""
        if not lane[0]:
            makes = self._fleet.makes_of(lane[1])
            some, scale = self._fleet.ends.some(makes, HELD_MAX, self.made_ns)
            return some, sum(self._fleet.ends.free_milli[make] for make in makes), scale
        seats = [self._fleet.seats[device] for device in lane[0]]
        held: Counter[Session] = Counter()
        for seat in seats:
            held.update({session: hold.share_milli for session, hold in seat.holders.items()})
        return [(*self._holding(session), milli) for session, milli in held.items()], sum(seat.free_milli for seat in seats), 1

    def _holding(self, session: Session) -> tuple[str, int]:
        """The flavor of its lease, or of the one that is being opened for it, and for how long that has run."""
        lease = session.lease
        return (session.flavor, 0) if lease is None else (lease.flavor.name, self.made_ns - lease.opened_ns)


def is_news(told: Standing | None, standing: Standing, now_ns: int) -> bool:
    """Whether who was told one is to be told the other: a position far back changes by steps, an estimate by what is left of it."""
    return told is None or _steps(told) != _steps(standing) or _moved(told.estimate, standing.estimate, now_ns)


def _steps(standing: Standing) -> tuple[object, ...]:
    return rough(standing.position), standing.code, standing.reason, rough(standing.ahead_tenant)


def _moved(told: Estimate | None, estimate: Estimate | None, now_ns: int) -> bool:
    """Whether it is to be told anew. Who was told counts down; that a lease just goes on makes no wait longer, but longer than usual."""
    if told is None or estimate is None:
        return told is not estimate
    passed = (now_ns - told.made_ns) / SECOND_NS
    left = max(0.0, told.high - passed)
    if abs(left - estimate.high) <= max(NEWS_SECONDS, NEWS_SHARE * max(left, estimate.high)):
        return False
    return estimate.high < left or not _go_on(told, estimate, passed)


def _go_on(told: Estimate, estimate: Estimate, passed_seconds: float) -> bool:
    """Whether the leases that hold what is waited for are the same, as far as their number and the age of the oldest tell."""
    ran = told.running_seconds + passed_seconds
    return estimate.running == told.running and estimate.running_seconds > ran - NEWS_SECONDS


def wire_estimate(estimate: Estimate) -> wire.Estimate:
    return wire.Estimate(
        low_seconds=estimate.low,
        middle_seconds=estimate.middle,
        high_seconds=estimate.high,
        running=estimate.running,
        running_seconds=max(0.0, estimate.running_seconds),
    )
