"""Which of several billing services on one PostgreSQL does the periodic tasks: month ends, reports, deliveries, payments, sums.

All of them answer requests. One at a time does the tasks, so that the work is not done twice and no two deliver the same message; what
keeps the books right is that each task writes once, however many try. On SQLite there is one service, and it does them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from forebay_service.processes.leadership import Leadership, reason
from sqlalchemy.exc import SQLAlchemyError

LOCK = 0x62696C6C696E67
"""PostgreSQL's advisory lock of whoever does the tasks ("billing")."""
FOLLOW_SECONDS = 0.5
"""How often one that waits looks whether the tasks are its own."""

Leads: TypeAlias = Callable[[], bool]

log = logging.getLogger(__name__)


def always() -> bool:
    """Of a service that is alone on its database."""
    return True


class Election:
    """Owns the claim, from :meth:`start` on, until :meth:`close`."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._claim = Leadership(database_url, LOCK)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def leads(self) -> bool:
        """Whether the tasks are this service's at the moment, and nobody else's."""
        return self._claim.sure

    def start(self) -> None:
        """Begins to claim them; where nobody else can, they are its own at once."""
        if self._claim.shared:
            self._task = asyncio.create_task(self._run(), name="billing-election")

    async def close(self) -> None:
        """Leaves them to another service. Tasks that look at :meth:`leads` have ended before."""
        self._stop.set()
        if self._task is not None:
            await self._task
        await asyncio.to_thread(self._claim.release)

    async def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if await asyncio.to_thread(self._claim.take):
                    await self._lead()
            except SQLAlchemyError as error:
                fields = {"action": "election.unsure", "error": reason(error)}
                log.warning("the database does not say who does the periodic tasks", extra=fields)
            await rest(self._stop, FOLLOW_SECONDS)

    async def _lead(self) -> None:
        """Until the claim is lost or the service stops."""
        loop, lost = asyncio.get_running_loop(), asyncio.Event()
        self._claim.hold(always, lambda: _tell(loop, lost))
        log.info("the periodic tasks are this service's", extra={"action": "election.won"})
        ends = [asyncio.ensure_future(event.wait()) for event in (lost, self._stop)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if lost.is_set():
            log.warning("another service does the periodic tasks now", extra={"action": "election.lost"})


async def rest(stop: asyncio.Event, seconds: float) -> None:
    """Returns after so long, or as soon as ``stop`` is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


def _tell(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Sets the event from another thread."""
    loop.call_soon_threadsafe(event.set)
