"""The leases that a higher priority may take, in the order in which they are taken: the lowest priority first, of these the latest."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from sortedcontainers import SortedDict

from forebay_pool.model.types import Lease


class Preemptible:
    """Open leases that nobody takes back yet, by priority and model of device; those in the order in which they were opened."""

    def __init__(self) -> None:
        self._filed: SortedDict[int, dict[str, dict[str, Lease]]] = SortedDict()

    @property
    def lowest(self) -> int | None:
        """The lowest priority of any; None where there is none."""
        return self._filed.peekitem(0)[0] if self._filed else None

    def add(self, lease: Lease) -> None:
        models = self._filed.get(lease.priority)
        if models is None:
            models = self._filed[lease.priority] = {}
        filed = models.get(lease.device.model)
        if filed is None:
            filed = models[lease.device.model] = {}
        late = bool(filed) and next(reversed(filed.values())).opened_ns > lease.opened_ns
        filed[lease.id] = lease
        if late:  # another pool opened it
            models[lease.device.model] = {known.id: known for known in sorted(filed.values(), key=_opened)}

    def discard(self, lease: Lease) -> None:
        """Removes a lease that is taken back, or closed."""
        models = self._filed.get(lease.priority, {})
        filed = models.get(lease.device.model, {})
        if filed.pop(lease.id, None) is not None and not filed:
            del models[lease.device.model]
            if not models:
                del self._filed[lease.priority]

    def victims(self, models: Iterable[str], priority_max: int) -> Iterator[Lease]:
        """Those on the models of this priority or a lower one. None may be added or discarded before the next is asked for."""
        wanted = list(models)
        for priority in list(self._filed.irange(maximum=priority_max)):
            filed = self._filed[priority]
            yield from heapq.merge(*(reversed(filed[model].values()) for model in wanted if model in filed), key=_opened, reverse=True)


def _opened(lease: Lease) -> int:
    return lease.opened_ns
