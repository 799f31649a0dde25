"""How often somebody may try what should succeed the first time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

ADDRESSES_MAX = 10_000


class RateLimit:
    """At most ``most`` tries within ``seconds`` of one address, and twenty times as many of all."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._tries: dict[str, deque[float]] = {}
        self._all: deque[float] = deque()

    def takes(self, address: str) -> bool:
        """Whether the address may try once more; if so, it has."""
        now = self._clock()
        if len(self._tries) >= ADDRESSES_MAX:
            self._tries = {one: tries for one, tries in self._tries.items() if tries and tries[-1] > now - self._seconds}
        own = self._tries.setdefault(address, deque())
        for tries in (own, self._all):
            while tries and tries[0] <= now - self._seconds:
                tries.popleft()
        if len(own) >= self._most or len(self._all) >= 20 * self._most:
            return False
        own.append(now)
        self._all.append(now)
        return True
