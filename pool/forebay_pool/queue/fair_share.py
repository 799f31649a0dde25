"""Fair share: who used less of late goes first, and what was used is forgotten by halves.

The usage of a tenant, or of a user, is its device time, each instant weighted by ``2 ** (-age / half_life)``: the decayed usage of batch
schedulers (Slurm, *Multifactor Priority Plugin*, "PriorityDecayHalfLife"; J. Kay, P. Lauder, *A Fair Share Scheduler*, CACM 31(1), 1988).

It is kept by forward decay (G. Cormode et al., *Forward Decay*, ICDE 2009): a stretch of use counts ``2 ** (t / half_life)`` for its
time ``t``, and nothing ages any more. All decayed usages are those sums times one common factor, so the sums have the same order at every
later time, and a sum never falls. That is what lets :class:`Turns` be a heap. Sums are kept as logarithms to base 2, so they do not
overflow.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import islice
from math import expm1, log2
from typing import Generic, TypeVar

LN2 = math.log(2)
NOTHING = -math.inf
"""The logarithm of no usage at all."""
STALE_MAX = 64
"""Entries of a heap whose members left or were put in anew are dropped when there are more than this, and more than there are members."""


class Usage:
    """What somebody used, decayed, and still uses. Milli-devices times nanoseconds."""

    __slots__ = ("_asked_level", "_asked_ns", "_half_life_ns", "_level", "_rate_milli", "_since_ns")

    def __init__(self, half_life_ns: int) -> None:
        self._half_life_ns = half_life_ns
        self._level = NOTHING
        self._rate_milli = 0
        self._since_ns = 0
        self._asked_ns, self._asked_level = 0, NOTHING
        """When the level was asked for last, and what it was: within an event it is asked for often."""

    def hold(self, change_milli: int, now_ns: int) -> None:
        """From now on ``change_milli`` more thousandths of devices are held; fewer if negative."""
        self._level = level = self.level(now_ns)
        self._since_ns = now_ns
        self._rate_milli += change_milli
        self._asked_ns, self._asked_level = now_ns, level

    def spent(self, milli: int, start_ns: int, end_ns: int) -> None:
        """Notes ``milli`` thousandths of devices held from start to end; calls may come in any order."""
        if milli and end_ns > start_ns:
            self._level = _log_of_sum(self._level, self._integral(milli, start_ns, end_ns))

    def spent_at_once(self, amount: int, at_ns: int) -> None:
        """Notes ``amount`` milli-devices times nanoseconds used about ``at_ns``; calls may come in any order."""
        if amount:
            self._level = _log_of_sum(self._level, math.log2(amount) + at_ns / self._half_life_ns)

    @property
    def floor(self) -> float:
        """What the level was when the hold changed last; it has not fallen since."""
        return self._level

    def level(self, now_ns: int) -> float:
        """log2 of the forward-decayed sum: comparable with others' of the same half-life, never falling."""
        if self._asked_ns == now_ns:
            return self._asked_level
        level = self._level
        if self._rate_milli and now_ns > self._since_ns:
            level = _log_of_sum(level, self._integral(self._rate_milli, self._since_ns, now_ns))
        self._asked_ns, self._asked_level = now_ns, level
        return level

    def _integral(self, rate_milli: int, start_ns: int, end_ns: int) -> float:
        """log2 of the integral of rate * 2 ** (t / half_life)."""
        half_life_ns = self._half_life_ns
        shrunk = -expm1(-(end_ns - start_ns) * LN2 / half_life_ns)
        return log2(rate_milli * half_life_ns / LN2 * shrunk) + end_ns / half_life_ns

    def device_seconds(self, now_ns: int) -> float:
        """The decayed usage itself."""
        return float(2.0 ** (self.level(now_ns) - now_ns / self._half_life_ns)) / 1e12


def _log_of_sum(one: float, other: float) -> float:
    high, low = (one, other) if one >= other else (other, one)
    return high if low == NOTHING else high + log2(1 + 2.0 ** (low - high))


Key = TypeVar("Key", bound=tuple[float, ...])


class Turns(Generic[Key]):
    """Members by keys that only grow: the first one, at a cost of O(log n) for each member whose key had grown.

    A heap holds keys that were right once, so they are lower bounds. The one on top is looked at anew; if its key is still what it was,
    nobody comes before it.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Key, str]] = []
        self._keys: dict[str, Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def put(self, name: str, bound: Key) -> None:
        """Adds a member whose key is not less than this, or says that its key may have become as little."""
        known = self._keys.get(name)
        if known is None or bound < known:
            self._keys[name] = bound
            heapq.heappush(self._heap, (bound, name))
            if len(self._heap) > STALE_MAX + 2 * len(self._keys):
                self._heap = [(key, known_name) for known_name, key in self._keys.items()]
                heapq.heapify(self._heap)

    def drop(self, name: str) -> None:
        """Takes the member out, if it is one; its entry goes when it comes up."""
        self._keys.pop(name, None)

    def oldest(self, most: int) -> list[str]:
        """Those who were put in longest ago, at most so many."""
        return list(islice(self._keys, most))

    def first(self, key_of: Callable[[str], Key | None]) -> tuple[str, Key] | None:
        """The member with the least key, and its key. A member whose key is None is dropped."""
        while self._heap:
            known, name = self._heap[0]
            if self._keys.get(name) != known:
                heapq.heappop(self._heap)
                continue
            key = key_of(name)
            if key is None:
                heapq.heappop(self._heap)
                del self._keys[name]
            elif key <= known:
                return name, key
            else:
                entry = (key, name)
                heapq.heappop(self._heap)
                heapq.heappush(self._heap, entry)
                self._keys[name] = key
                if self._heap[0] is entry:
                    return name, key
        return None
