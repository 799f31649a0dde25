"""Keeps the sums of usage by hour, day and month up to date; a task of the service."""

from __future__ import annotations

import asyncio
import logging

from forebay_billing.tasks.election import Leads, always
from forebay_billing.tasks.loop import run_until_stopped
from forebay_billing.writes import rollups
from forebay_billing.writes.store import Store

STEP_SECONDS = 2.0
TOLD_EVERY = 1_000_000
"""Records after which the log says how far the sums have come, where there are so many."""

log = logging.getLogger(__name__)


class UsageRollups:
    """Owns its task, from :meth:`start` on, until :meth:`close`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._folded = 0

    def start(self, leads: Leads = always) -> None:
        """Begins to sum up."""
        rounds = run_until_stopped(self.step, self._stop, STEP_SECONDS, log, "rollups", leads)
        self._task = asyncio.create_task(rounds, name="billing-rollups")

    async def close(self) -> None:
        """Lets the transaction that is under way come to its end."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def step(self) -> int:
        """Sums up what came since, or a part of it; whether there is more to do at once."""
        found = await asyncio.wrap_future(self._store.submit(rollups.fold))
        before, self._folded = self._folded, self._folded + found
        if self._folded // TOLD_EVERY > before // TOLD_EVERY:
            log.info("usage is summed up", extra={"action": "rollups.step", "records": self._folded})
        return int(found == rollups.FOLDED_MAX)
