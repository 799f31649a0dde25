"""Tells JupyterHub whose notebook servers are in use, so that what stops idle ones does not stop them.

The hub knows of a notebook what its browser does. A cell that computes for hours without a word, one that waits for a device, and
tensors that wait for their owner are known here alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from forebay_pool.errors import HubRefused, HubUnavailable
from forebay_pool.jobs.hub import Servers
from forebay_pool.model.types import Session

TELL_SECONDS = 120.0
"""How often; what stops idle servers waits longer."""

log = logging.getLogger(__name__)


def in_use(sessions: Iterable[Session], now_ns: int, held_ns: int) -> set[str]:
    """The users who compute, wait for a device, or computed less than ``held_ns`` ago with tensors that are still held. Pure."""

    def counts(session: Session) -> bool:
        doing = session.doing
        return doing in ("active", "queued") or (doing in ("resident", "parked") and now_ns - session.used_ns < held_ns)

    return {session.user for session in sessions if counts(session)}


class Activity:
    """``users`` are those in use now; ``clock`` is the time of day in seconds."""

    def __init__(self, users: Callable[[], set[str]], servers: Servers, clock: Callable[[], float]) -> None:
        self._users = users
        self._servers = servers
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(TELL_SECONDS)

    async def tell(self) -> None:
        """Of all, one after the other. Who has no notebook server, as who computes elsewhere, is left out."""
        now = datetime.fromtimestamp(self._clock(), UTC).isoformat()
        for user in sorted(self._users()):
            try:
                await self._servers.tell_active(user, now)
            except HubRefused as error:
                log.debug("no server of %s is in use: %s", user, error, extra={"action": "activity_refused", "user": user})
            except HubUnavailable as error:
                log.warning("nobody is told of activity: %s", error, extra={"action": "activity_untold"})
                return
