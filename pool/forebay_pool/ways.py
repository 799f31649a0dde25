"""The nodes that one size of request may go to, those first that may be best: a placement looks at few of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any, NamedTuple

from forebay_pool.fragmentation import Demand, Profile
from forebay_pool.ranking import Rank, Ranking

Key = tuple[Profile, int]
"""What names a file: what is free in its nodes, and what is on the device at hand."""
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
    """What of one device is needed."""

    share_milli: int
    memory_bytes: int


class Way:
    """Files, by the least rank that a device of theirs may have for the size."""

    def __init__(self, size: Size, model: str, ranking: Ranking, demand: Demand) -> None:
        self.order: list[tuple[Rank, Key]] = []
        self.stale: dict[Key, None] = {}
        """Those of which the first is another, or that are gone."""
        self._size = size
        self._model = model
        self._ranking = ranking
        self._demand = demand
        self._mix = demand.mix
        self._floors: dict[Key, Rank] = {}

    def refresh(self, memory_bytes_max: int, files: Mapping[Key, File]) -> None:
        """Orders anew what has changed; all of it if the mix did by which places are judged."""
        if self._mix != self._demand.mix:
            self._mix = self._demand.mix
            self.stale |= dict.fromkeys(self._floors)
        room_bytes = max(0, memory_bytes_max - self._size.memory_bytes)
        for key in self.stale:
            if key[1] >= self._size.share_milli:
                file, known = files.get(key), self._floors.pop(key, None)
                if known is not None:
                    drop(self.order, (known, key))
                if file is not None:
                    self._floors[key] = floor = self._floor(file, room_bytes)
                    insort(self.order, (floor, key))
        self.stale.clear()

    def _floor(self, file: File, room_bytes: int) -> Rank:
        gradient = self._demand.gradient(self._model, file.profile, file.share_milli, self._size.share_milli)
        failures, order, _ = file.orders[0]
        return (failures, *self._ranking.floor(order, room_bytes, gradient))


def drop(ordered: list[Any], entry: Any) -> None:
    """Takes the entry out of a sorted list that has it. A list is quicker than a tree up to far more nodes than there are."""
    del ordered[bisect_left(ordered, entry)]
