"""The nodes that a request of one size may go to, in the order in which they may be best: a placement looks at the first few."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any, NamedTuple

from forebay_pool.model.policies import Policy
from forebay_pool.model.types import Equivalent, Seat
from forebay_pool.placement.fragmentation import Demand, Profile
from forebay_pool.placement.ranking import Rank, Ranking, candidate

Key = tuple[Profile, int, tuple[int, int]]
"""The key of a bucket: what is free in its nodes, the free share of the device, and the devices' memory and speed."""
Order = tuple[int, int, int]
"""A node's place in a bucket: failures of the best of these devices, its order by the ranking, the node's number."""


class Bucket:
    """Nodes where just so much is free, by the best of their devices with the same share free."""

    __slots__ = ("begin", "key", "number", "orders", "profile", "share_milli")

    def __init__(self, key: Key, number: int) -> None:
        self.key = key
        self.profile, self.share_milli, _ = key
        self.number = number
        """How many buckets of the model were made before this one."""
        self.orders: list[Order] = []
        self.begin = 0
        """How many of its first nodes the last look found unfit: the next look begins behind them."""


class Size(NamedTuple):
    """What is needed: one device, or a share of one, and memory; and what it costs beside the flavor's price."""

    equivalent: Equivalent
    memory_bytes: int
    surcharge: int


class CandidateOrder:
    """Buckets, by the rank that the best of their devices has for the size; a device with a started worker is found otherwise."""

    __slots__ = ("_count", "_demand", "_floors", "_judged_by", "_ranking", "_size", "least_milli", "order", "stale")

    def __init__(self, size: Size, ranking: Ranking, demand: Demand) -> None:
        self.least_milli = size.equivalent.share_milli
        """What must be free on the device at hand."""
        self.order: list[tuple[Rank, Key, int, Bucket]] = []
        """Of buckets that are equally good, the one with less free, or with smaller devices, is first."""
        self.stale: dict[Bucket, None] = {}
        """Buckets whose first node is another, or that are gone."""
        self._size = size
        self._count = size.equivalent.count
        self._ranking = ranking
        self._demand = demand
        self._judged_by: tuple[int, Policy] | None = None
        self._floors: dict[Bucket, Rank] = {}

    def refresh(self, policy: Policy, best_of: Callable[[Bucket], Seat]) -> None:
        """Orders anew what has changed; all of it if something did by which places are judged."""
        mix = self._demand.mix
        if self._judged_by is None or self._judged_by[0] != mix or self._judged_by[1] is not policy:
            self._judged_by = (mix, policy)
            self.stale |= dict.fromkeys(self._floors)
        if not self.stale:
            return
        floors, order, count = self._floors, self.order, self._count
        for bucket in self.stale:
            if bucket.share_milli < self.least_milli or (count > 1 and bucket.profile.count(bucket.share_milli) < count):
                continue
            known = floors.get(bucket)
            floor = self._floor(best_of(bucket), bucket.profile, policy) if bucket.orders else None
            if floor == known:
                continue
            if known is not None:
                drop(order, (known, bucket.key, bucket.number, bucket))
                del floors[bucket]
            if floor is not None:
                floors[bucket] = floor
                insort(order, (floor, bucket.key, bucket.number, bucket))
        self.stale.clear()

    def _floor(self, best: Seat, profile: Profile, policy: Policy) -> Rank:
        equivalent, memory_bytes, surcharge = self._size
        alone = candidate(best, profile, equivalent, memory_bytes, False, surcharge)
        return (best.failures, *self._ranking.rank(alone, self._demand, policy))


def drop(ordered: list[Any], entry: Any) -> None:
    """Takes the entry out of a sorted list that has it. A list is quicker than a tree up to far more nodes than there are."""
    del ordered[bisect_left(ordered, entry)]
