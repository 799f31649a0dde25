"""The nodes that one size of request may go to, those first that may be best: a placement looks at few of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any, NamedTuple

from forebay_pool.fragmentation import Demand, Profile
from forebay_pool.policies import Policy
from forebay_pool.ranking import Rank, Ranking, candidate
from forebay_pool.types import Equivalent, Seat

Key = tuple[Profile, int, tuple[int, int]]
"""What names a file: what is free in its nodes, what is on the device at hand, and the devices' memory and speed."""
Order = tuple[int, int, int]
"""A node's place in a file: failures of the best of these devices, its order by the ranking, the node's number."""


class File:
    """Nodes where just so much is free, by the best of their devices with the same share free."""

    __slots__ = ("begin", "orders", "profile", "share_milli")

    def __init__(self, profile: Profile, share_milli: int) -> None:
        self.profile = profile
        self.share_milli = share_milli
        self.orders: list[Order] = []
        self.begin = 0
        """So many were looked at of late, and none of them would do: the next look begins behind them."""


class Size(NamedTuple):
    """What is needed: one device, or a share of one, and memory."""

    equivalent: Equivalent
    memory_bytes: int


class Way:
    """Files, by the rank that the best of their devices has for the size; one with a started worker is found otherwise."""

    def __init__(self, size: Size, ranking: Ranking, demand: Demand) -> None:
        self.order: list[tuple[Rank, Key]] = []
        self.stale: dict[Key, None] = {}
        """Those of which the first is another, or that are gone."""
        self._size = size
        self._ranking = ranking
        self._demand = demand
        self._judged_by: tuple[int, Policy] | None = None
        self._floors: dict[Key, Rank] = {}

    def refresh(self, policy: Policy, best_of: Callable[[Key], Seat | None]) -> None:
        """Orders anew what has changed; all of it if something did by which places are judged."""
        judged_by = (self._demand.mix, policy)
        if self._judged_by is None or self._judged_by[0] != judged_by[0] or self._judged_by[1] is not policy:
            self._judged_by = judged_by
            self.stale |= dict.fromkeys(self._floors)
        for key in self.stale:
            if self._serves(*key[:2]):
                best, known = best_of(key), self._floors.pop(key, None)
                if known is not None:
                    drop(self.order, (known, key))
                if best is not None:
                    self._floors[key] = floor = self._floor(best, key[0], policy)
                    insort(self.order, (floor, key))
        self.stale.clear()

    def _serves(self, profile: Profile, share_milli: int) -> bool:
        count = self._size.equivalent.count
        return share_milli >= self._size.equivalent.share_milli and (count == 1 or profile.count(share_milli) >= count)

    def _floor(self, best: Seat, profile: Profile, policy: Policy) -> Rank:
        alone = candidate(best, profile, *self._size, spare=False)
        return (best.failures, *self._ranking.rank(alone, self._demand, policy))


def drop(ordered: list[Any], entry: Any) -> None:
    """Takes the entry out of a sorted list that has it. A list is quicker than a tree up to far more nodes than there are."""
    del ordered[bisect_left(ordered, entry)]
