"""When a service dies: at a failpoint, or when somebody kills it."""

from __future__ import annotations


class Killed(BaseException):
    """The process ends here: no code of the service catches this."""


class Deaths:
    """Of one service. Once it died every further point kills as well, so that nothing of the dead process goes on."""

    def __init__(self) -> None:
        self.died_at: str | None = None
        self.seen: set[str] = set()
        self._left: int | None = None

    def comes_after(self, points: int) -> None:
        """It dies at the ``points``-th point from now on."""
        self._left = points

    def spares(self) -> None:
        """It lives, or lives again."""
        self.died_at = self._left = None

    def reach(self, name: str) -> None:
        """Raises Killed."""
        if self.died_at is not None:
            raise Killed(name)
        self.seen.add(name)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.died_at = name
                raise Killed(name)
