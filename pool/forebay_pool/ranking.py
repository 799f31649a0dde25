"""By what a place is preferred to another. A strategy ranks candidates; the least rank wins."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from forebay_pool.fragmentation import Demand, Profile
from forebay_pool.policies import Policy
from forebay_pool.types import Equivalent, Seat

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


class Ranking(Protocol):
    """A strategy. It may keep state, but knows neither the time nor chance."""

    def order(self, seat: Seat) -> int:
        """Which of two nodes with the same devices free is looked at first, by the best of their seats: the one with less."""

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


class FragmentationRanking:
    """Least fragmentation alone, as the paper has it."""

    def order(self, seat: Seat) -> int:
        return seat.number

    def rank(self, candidate: Candidate, demand: Demand, policy: Policy) -> Rank:
        return (gradient(candidate, demand), candidate.seat.number)


class BestFitRanking:
    """Where least is left: on the device, then in the node."""

    def order(self, seat: Seat) -> int:
        return seat.number

    def rank(self, candidate: Candidate, demand: Demand, policy: Policy) -> Rank:
        return (candidate.seat.free_milli - candidate.equivalent.share_milli, sum(candidate.profile))


class FirstFitRanking:
    """The first in the list of devices."""

    def order(self, seat: Seat) -> int:
        return seat.number

    def rank(self, candidate: Candidate, demand: Demand, policy: Policy) -> Rank:
        return (candidate.seat.number,)


class RandomRanking:
    """Any, by a multiplicative generator (Park and Miller, 1988) from a seed."""

    def __init__(self, seed: int = 1) -> None:
        self._state = 1 + seed % 2147483646

    def _draw(self) -> int:
        self._state = self._state * 48271 % 2147483647
        return self._state

    def order(self, seat: Seat) -> int:
        return self._draw()

    def rank(self, candidate: Candidate, demand: Demand, policy: Policy) -> Rank:
        return (self._draw(),)


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
    return (policy.surcharge_of(device.model), power)
