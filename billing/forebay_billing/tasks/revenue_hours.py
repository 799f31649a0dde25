"""Keeps the sums of revenue by hour up to date; a task of the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from forebay_billing.tasks.election import Leads, always
from forebay_billing.tasks.loop import run_until_stopped
from forebay_billing.writes import revenue
from forebay_billing.writes.store import Store

STEP_SECONDS = 15.0

log = logging.getLogger(__name__)


class RevenueHours:
    """Owns its task, from :meth:`start` on, until :meth:`close`."""

    def __init__(self, store: Store, clock_ns: Callable[[], int]) -> None:
        self._store = store
        self._clock_ns = clock_ns
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, leads: Leads = always) -> None:
        """Begins to sum up."""
        rounds = run_until_stopped(self.step, self._stop, STEP_SECONDS, log, "revenue", leads)
        self._task = asyncio.create_task(rounds, name="billing-revenue")

    async def close(self) -> None:
        """Lets the transaction that is under way come to its end."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def step(self) -> int:
        """Sums up what came since, or a part of it; how many postings that were."""
        return await asyncio.wrap_future(self._store.submit(lambda books: revenue.fold(books, self._clock_ns())))
