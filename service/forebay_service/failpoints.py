"""Where a test may stop a service: before and after each commit and each call to another service.

A simulator arms an object that is told the name of each point that is reached, from the thread that reaches it. To be killed there,
it raises an exception that no code of the service catches (a ``BaseException``). Nothing but a call of ``armed`` arms it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Failpoints:
    """The points of one service."""

    def __init__(self) -> None:
        self._reached: Callable[[str], None] | None = None

    def reach(self, name: str) -> None:
        """Says that the point ``name`` is reached: nothing happens, unless a test listens."""
        if self._reached is not None:
            self._reached(name)

    @contextmanager
    def armed(self, reached: Callable[[str], None]) -> Iterator[None]:
        """Tells ``reached`` the name of every point until the end of the block."""
        before, self._reached = self._reached, reached
        try:
            yield
        finally:
            self._reached = before
