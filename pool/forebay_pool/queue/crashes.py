"""How often calls of a user's programs ended their workers, and who waits before the next worker for that."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from forebay_pool.model.causes import Cause
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Session

WINDOW_SECONDS = 3_600
"""Crashes count for so long."""
TOGETHER_SECONDS = 10
"""Ranks of one program that crash within so long of each other crashed once."""
DOUBLINGS_MAX = 32
COUNTED_MAX = 1_000
"""How many crashes of a user are remembered; more change nothing."""

User = tuple[str, str]
"""A tenant, and a user of it. A session ends with its worker, so the count is its user's."""


class Crash(NamedTuple):
    at_ns: int
    group: str
    """Of whose ranks one crashed; empty where the process was alone."""


class CrashWait(NamedTuple):
    """Until when a user gets no new worker."""

    until_ns: int
    seconds: int
    crashes: int
    """How many crashes brought it about."""

    def why(self, session: Session) -> Cause:
        whom = Cause("whom_user", user=session.user, tenant=session.tenant)
        return Cause("crashes_wait", whom, count=self.crashes, seconds=self.seconds)


class Crashes:
    """Counts by user. Workers that a user's sessions have are not touched, and sessions with tensors anywhere go on."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._seen: dict[User, deque[Crash]] = {}
        self._waits: dict[User, CrashWait] = {}

    def add(self, session: Session, now_ns: int) -> CrashWait | None:
        """A call of the session ended its worker; the wait, if that begins one or makes it longer."""
        user, group = (session.tenant, session.user), "" if session.group is None else session.group.name
        seen = self._seen.setdefault(user, deque(maxlen=COUNTED_MAX))
        if group and any(one.group == group and now_ns - one.at_ns <= TOGETHER_SECONDS * SECOND for one in seen):
            return None
        seen.append(Crash(now_ns, group))
        self._forget(now_ns)
        beyond = len(seen) - self._limits.crashes_max
        if beyond < 0 or not self._limits.crash_wait_seconds:
            return None
        longest = max(self._limits.crash_wait_seconds, self._limits.crash_wait_seconds_max)
        seconds = min(longest, self._limits.crash_wait_seconds * 2 ** min(beyond, DOUBLINGS_MAX))
        wait = CrashWait(now_ns + int(seconds * SECOND), round(seconds), len(seen))
        self._waits[user] = wait
        return wait

    def bars(self, session: Session) -> CrashWait | None:
        """What keeps the session from a worker now; None if nothing does, or it needs no new one."""
        if not self._waits or session.worker is not None or session.image is not None:
            return None
        return self._waits.get((session.tenant, session.user))

    def end_waits(self, now_ns: int) -> bool:
        """Whether somebody's wait is over."""
        over = [user for user, wait in self._waits.items() if wait.until_ns <= now_ns]
        for user in over:
            del self._waits[user]
        self._forget(now_ns)
        return bool(over)

    def _forget(self, now_ns: int) -> None:
        for user, seen in list(self._seen.items()):
            while seen and now_ns - seen[0].at_ns > WINDOW_SECONDS * SECOND:
                seen.popleft()
            if not seen:
                del self._seen[user]
