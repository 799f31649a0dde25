"""How much of what is free on a node nobody could use: the fragmentation gradient.

After Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023).
For one kind of request, what is free on a node and cannot serve it is a fragment: all of it if the node cannot serve the request at
all, else the devices with less free than it takes. A node's fragmentation is the sum over the kinds of requests, each weighed by its
part of the recent demand; a placement is the better, the less it adds. Everything is an integer: thousandths of a device times demand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from forebay_pool.model.types import WHOLE_MILLI, Flavor

Profile = tuple[int, ...]
"""What is free on the devices of one model in a node, in thousandths, least first; devices without anything free are left out."""

FORGET_REQUESTS = 1024
"""After so many requests all counts are halved: the mix follows the demand."""
REFRESH_REQUESTS = 256
"""The mix that placements are judged by is renewed this often."""
DRIFT_MAX = 1 / 20
"""The mix stays while no kind's part of the demand for a model has changed by more: all that was worked out by it stays too."""
ENTRIES_MAX = 65_536

Kinds = dict[str, list[tuple[int, int, int]]]
"""By model, what is asked for: devices, thousandths of each, and how often."""


class Demand:
    """How often each flavor was asked for lately; every flavor counts once from the start, so that none is forgotten."""

    def __init__(self, flavors: Mapping[str, Flavor]) -> None:
        self._flavors = flavors
        self._asked: Counter[str] = Counter()
        self._since_halved = 0
        self._since_refreshed = 0
        self._kinds: Kinds = {}
        self._cache: dict[tuple[str, Profile, int, int], int] = {}
        self.mix = 0
        """Grows when placements are judged by another mix."""
        self.refresh()

    def add(self, flavor: str) -> None:
        """Somebody asked for the flavor."""
        self._asked[flavor] += 1
        self._since_halved += 1
        self._since_refreshed += 1
        if self._since_halved >= FORGET_REQUESTS:
            self._since_halved = 0
            self._asked = Counter({name: count // 2 for name, count in self._asked.items() if count > 1})
        if self._since_refreshed >= REFRESH_REQUESTS:
            self.refresh()

    def refresh(self) -> None:
        """Takes the counts, and the flavors as they are, for the mix that placements are judged by."""
        weights: dict[str, Counter[tuple[int, int]]] = {}
        for flavor in self._flavors.values():
            for equivalent in flavor.equivalents:
                kinds = weights.setdefault(equivalent.model, Counter())
                kinds[equivalent.count, equivalent.share_milli] += 1 + self._asked[flavor.name]
        kinds_of = {model: [(*kind, weight) for kind, weight in kinds.items()] for model, kinds in weights.items()}
        self._since_refreshed = 0
        if _drifted(self._kinds, kinds_of):
            self._kinds = kinds_of
            self._cache.clear()
            self.mix += 1

    def fragmentation(self, model: str, profile: Profile) -> int:
        """Free thousandths that a request of the mix cannot use, times demand."""
        total = sum(profile)
        whole = profile.count(WHOLE_MILLI)
        lost = 0
        for count, share_milli, weight in self._kinds.get(model, ()):
            if whole < count if count > 1 else not profile or profile[-1] < share_milli:
                lost += weight * total
            else:
                lost += weight * sum(free for free in profile if free < share_milli)
        return lost

    def gradient(self, model: str, profile: Profile, free_milli: int, share_milli: int, count: int = 1) -> int:
        """What a placement adds: ``count`` devices with ``free_milli`` free each give ``share_milli``."""
        key = (model, profile, free_milli * WHOLE_MILLI + share_milli, count)
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= ENTRIES_MAX:
                self._cache.clear()
            left = list(profile)
            for _ in range(count):
                left.remove(free_milli)
                if free_milli > share_milli:
                    left.append(free_milli - share_milli)
            found = self.fragmentation(model, tuple(sorted(left))) - self.fragmentation(model, profile)
            self._cache[key] = found
        return found


def _drifted(known: Kinds, now: Kinds) -> bool:
    """Whether a kind of request came or went, or some kind's part is not what it was."""
    for model in known.keys() | now.keys():
        before, after = _parts(known.get(model, [])), _parts(now.get(model, []))
        if before.keys() != after.keys() or any(abs(before[kind] - after[kind]) > DRIFT_MAX for kind in before):
            return True
    return False


def _parts(kinds: list[tuple[int, int, int]]) -> dict[tuple[int, int], float]:
    total = sum(weight for _, _, weight in kinds)
    return {(count, share_milli): weight / total for count, share_milli, weight in kinds}
