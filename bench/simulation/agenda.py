"""Virtual time: what is to happen when. No wall clock; the same seed gives the same history."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class Agenda:
    """A discrete event loop. Actions of the same moment run in the order in which they were put down."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._entries: list[tuple[int, int, Action]] = []
        self._count = 0

    def at(self, when_ns: int, action: Action) -> None:
        """Runs ``action`` at ``when_ns``, or now if that is past."""
        self._count += 1
        heapq.heappush(self._entries, (max(when_ns, self.now_ns), self._count, action))

    def after(self, delay_ns: int, action: Action) -> None:
        self.at(self.now_ns + delay_ns, action)

    def run(self, until_ns: int) -> None:
        """Lets time pass until ``until_ns``, with all that is to happen up to and at that moment."""
        entries = self._entries
        while entries and entries[0][0] <= until_ns:
            self.now_ns, _, action = heapq.heappop(entries)
            action()
        self.now_ns = max(self.now_ns, until_ns)
