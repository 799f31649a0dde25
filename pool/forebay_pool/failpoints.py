"""Where a test may stop the pool: before and after each commit and each call to billing.

A simulator arms an object that is told the name of each point that is reached, from the thread that reaches it. To be killed there,
it raises an exception that no code of the service catches (a ``BaseException``). Nothing but a call of :func:`armed` arms it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_reached: Callable[[str], None] | None = None


def reach(name: str) -> None:
    """Says that the point ``name`` is reached: nothing happens, unless a test listens."""
    if _reached is not None:
        _reached(name)


@contextmanager
def armed(reached: Callable[[str], None]) -> Iterator[None]:
    """Tells ``reached`` the name of every point until the end of the block."""
    global _reached
    before, _reached = _reached, reached
    try:
        yield
    finally:
        _reached = before
