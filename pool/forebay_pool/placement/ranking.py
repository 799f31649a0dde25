"""By what a place is preferred to another: candidates are ranked, and the least rank wins."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from forebay_pool.model.policies import Policy
from forebay_pool.model.types import Equivalent, Seat
from forebay_pool.placement.fragmentation import Demand, Profile

Rank = tuple[Any, ...]


class Candidate(NamedTuple):
    """A seat, or the first of a gang's in one node, that could serve an equivalent now."""

    seat: Seat
    equivalent: Equivalent
    profile: Profile
    """What is free in its node, before."""
    evicted_bytes: int
    """What must be parked to make room."""
    spare: bool
    """Whether a worker is started there already."""
    surcharge: int
    """What an hour of a whole device costs who asks beside the flavor's price, in nano-units of its currency."""


def candidate(seat: Seat, profile: Profile, equivalent: Equivalent, memory_bytes: int, spare: bool, surcharge: int) -> Candidate:
    """The seat as a place for a flavor with so much memory."""
    device_bytes = seat.device.memory_bytes
    beyond = seat.taken_bytes - device_bytes + (memory_bytes if memory_bytes < device_bytes else device_bytes)
    return Candidate(seat, equivalent, profile, beyond if beyond > 0 else 0, spare, surcharge)


class Ranking(Protocol):
    """A strategy. It may keep state, but knows neither the time nor chance."""

    def order(self, seat: Seat) -> int:
        """Which of two nodes with the same devices free is looked at first, by the best of their seats: the one with less.

        Of two alike candidates without a started worker in such nodes, the one with less has no greater rank.
        """

    def rank(self, candidate: Candidate, demand: Demand, policy: Policy) -> Rank:
        """The rank; equal ranks go to the seat that was listed first."""


class ForebayRanking:
    """The pool's own: least eviction, then least fragmentation, then the operator's preference, then a started worker."""

    def order(self, seat: Seat) -> int:
        return seat.taken_bytes

    def rank(self, candidate: Candidate, demand: Demand, policy: Policy) -> Rank:
        seat = candidate.seat
        preference = _preference(candidate, policy)
        return (candidate.evicted_bytes, gradient(candidate, demand), *preference, not candidate.spare, seat.taken_bytes)


def gradient(candidate: Candidate, demand: Demand) -> int:
    """The fragmentation that the candidate adds to its node."""
    seat, equivalent = candidate.seat, candidate.equivalent
    count = min(equivalent.count, candidate.profile.count(seat.free_milli))
    return demand.gradient(seat.device.model, candidate.profile, seat.free_milli, equivalent.share_milli, count)


def _preference(candidate: Candidate, policy: Policy) -> tuple[int, ...]:
    device, equivalent = candidate.seat.device, candidate.equivalent
    power = device.speed * equivalent.count * equivalent.share_milli
    if policy.preference == "fastest":
        return (-power,)
    if policy.preference == "packed":
        return (sum(candidate.profile) - equivalent.count * equivalent.share_milli,)
    return (candidate.surcharge, power)
