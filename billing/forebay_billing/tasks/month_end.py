"""Finalises the invoices of months that are over, when the days of grace are, and writes off what expired; a task of the service.

Each tenant's month is one transaction, which happens once however often it is tried. One that the books refuse stays open, with the reason
in the log, and holds up nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from forebay_billing import failpoints
from forebay_billing.errors import BillingError
from forebay_billing.ledger.books import Books
from forebay_billing.model.months import Month
from forebay_billing.reads.invoices import Invoice, open_months, tenants_with_open_months
from forebay_billing.tasks.election import Leads, always
from forebay_billing.tasks.loop import run_until_stopped
from forebay_billing.writes import credits, invoices
from forebay_billing.writes.invoices import Conditions
from forebay_billing.writes.store import Store

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
WHO = "billing"

T = TypeVar("T")


def due_month(now_ns: int, grace_days: int) -> Month:
    """The last month that is over since ``grace_days`` or longer."""
    return Month.of(max(0, now_ns - grace_days * invoices.DAY_NS)).previous


class MonthEnd:
    """Owns its task, from :meth:`start` on, until :meth:`close`."""

    def __init__(self, store: Store, conditions: Conditions, grace_days: int, clock_ns: Callable[[], int]) -> None:
        self._store = store
        self._conditions = conditions
        self._grace_days = grace_days
        self._clock_ns = clock_ns
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, leads: Leads = always) -> None:
        """Begins to look for months that are over."""
        rounds = run_until_stopped(self._step, self._stop, SWEEP_SECONDS, log, "invoice", leads)
        self._task = asyncio.create_task(rounds, name="billing-closer")

    async def close(self) -> None:
        """Lets the transaction that is under way come to its end."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def _step(self) -> int:
        """There is never more to do at once."""
        await self.sweep()
        return 0

    async def sweep(self) -> list[Invoice]:
        """Finalises all that is due, each tenant's months in order."""
        last = due_month(self._clock_ns(), self._grace_days)
        made: list[Invoice] = []
        for tenant in await self._store.read(lambda connection: tenants_with_open_months(connection, last)):
            try:
                made += await self._close_tenant(tenant, last)
            except BillingError as error:
                fields = {"action": "invoice.finalise.failed", "tenant": tenant, "error": str(error)}
                log.error("an invoice could not be made final", extra=fields)
        expired = await self._submit(lambda books: credits.expire(books, last.end_ns, self._clock_ns()))
        if expired:
            log.info("credits have expired", extra={"action": "credit.expired", "count": expired})
        return made

    async def _close_tenant(self, tenant: str, last: Month) -> list[Invoice]:
        made: list[Invoice] = []
        for month in await self._store.read(lambda connection: open_months(connection, tenant, last)):
            made += await self._close_month(tenant, month)
        return made

    async def _close_month(self, tenant: str, month: Month) -> list[Invoice]:
        failpoints.reach("invoice.finalise.before")
        done = await self._submit(lambda books: invoices.finalise(books, tenant, month, self._conditions, WHO, self._clock_ns()))
        failpoints.reach("invoice.finalise.after")
        for about in done:
            log.info("invoices are final", extra={"action": "invoice.finalise", "tenant": tenant, "month": month, "invoice": about.name})
        return done

    async def _submit(self, work: Callable[[Books], T]) -> T:
        return await asyncio.wrap_future(self._store.submit(work))
