"""The leases that a higher priority may take, in the order in which they are taken: the lowest priority first, of these the latest."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from operator import itemgetter

from sortedcontainers import SortedDict, SortedList

from forebay_pool.types import Lease

Entry = tuple[int, str]
"""Minus the time at which the lease was opened, and its id."""


class Revocable:
    """Open leases that nobody takes back yet, by priority and model of device."""

    def __init__(self) -> None:
        self._leases: dict[str, tuple[Lease, Entry]] = {}
        self._filed: SortedDict[int, dict[str, SortedList[Entry]]] = SortedDict()

    @property
    def lowest(self) -> int | None:
        """The lowest priority of any; None where there is none."""
        return self._filed.peekitem(0)[0] if self._filed else None

    def add(self, lease: Lease) -> None:
        entry = (-lease.opened_ns, lease.id)
        self._leases[lease.id] = (lease, entry)
        models = self._filed.setdefault(lease.priority, {})
        filed = models.get(lease.device.model)
        if filed is None:
            filed = models[lease.device.model] = SortedList()
        filed.add(entry)

    def discard(self, lease: Lease) -> None:
        """It is taken back, or closed."""
        known = self._leases.pop(lease.id, None)
        if known is None:
            return
        models = self._filed[lease.priority]
        filed = models[lease.device.model]
        filed.remove(known[1])
        if not filed:
            del models[lease.device.model]
        if not models:
            del self._filed[lease.priority]

    def victims(self, models: Iterable[str], priority_max: int) -> Iterator[Lease]:
        """Those on the models of this priority or a lower one. None may be added or discarded before the next is asked for."""
        wanted = list(models)
        for priority in list(self._filed.irange(maximum=priority_max)):
            filed = self._filed[priority]
            for _, name in heapq.merge(*(filed[model] for model in wanted if model in filed), key=itemgetter(0)):
                yield self._leases[name][0]
