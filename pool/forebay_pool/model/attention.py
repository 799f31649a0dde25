"""How long the pool's own process has stood still: stopped, swapped out, moved to another host.

Others' words lie in its sockets then. So nobody is judged by a silence that was the pool's own.
"""

from __future__ import annotations

from collections.abc import Callable

NANO = 10**9


class Attention:
    """Looks come every ``period_seconds``; one that is later by ``late_seconds`` or more tells of a time in which nothing was heard."""

    def __init__(self, clock_ns: Callable[[], int], period_seconds: float, late_seconds: float) -> None:
        self._clock_ns = clock_ns
        self._period_ns = int(period_seconds * NANO)
        self._late_ns = int(late_seconds * NANO)
        self._looked_ns: int | None = None
        self._missed_ns = 0

    def begin(self) -> None:
        """Looks come from now on."""
        self._looked_ns = self._clock_ns()

    def look(self) -> tuple[int, int]:
        """The time, and how much of what passed since the last look was missed, in nanoseconds."""
        now_ns = self._clock_ns()
        late_ns = self._late(now_ns)
        self._missed_ns += late_ns
        self._looked_ns = now_ns
        return now_ns, late_ns

    @property
    def seconds(self) -> float:
        """A clock that stands still while the process does, also between its awakening and the next look."""
        now_ns = self._clock_ns()
        return (now_ns - self._missed_ns - self._late(now_ns)) / NANO

    def _late(self, now_ns: int) -> int:
        late_ns = 0 if self._looked_ns is None else now_ns - self._looked_ns - self._period_ns
        return late_ns if late_ns >= self._late_ns else 0
