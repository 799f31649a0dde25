"""Placement policies of the literature, for comparison: rankings in the pool's own placement."""

from __future__ import annotations

from forebay_pool.model.policies import Policy
from forebay_pool.model.types import Seat
from forebay_pool.placement.fragmentation import Demand
from forebay_pool.placement.ranking import Candidate, Rank, gradient


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
