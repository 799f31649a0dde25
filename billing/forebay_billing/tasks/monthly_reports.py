"""Mails each tenant's report of a month once it is over; a task of the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from forebay_billing.documents.messages import Attachment, Message, of_report
from forebay_billing.documents.monthly_report import Report, report_of
from forebay_billing.documents.pdf import pdf_of_report
from forebay_billing.ledger.books import Books
from forebay_billing.tasks.delivery import Courier, Outbox
from forebay_billing.tasks.election import Leads, always
from forebay_billing.tasks.loop import run_until_stopped
from forebay_billing.tasks.month_end import due_month
from forebay_billing.writes import mailings as mailings_writes
from forebay_billing.writes.mailings import Mailing
from forebay_billing.writes.store import Store

log = logging.getLogger(__name__)

STEP_SECONDS = 30.0
GRACE_DAYS = 1
"""A report is made so long after its month's end, when late usage has come."""

T = TypeVar("T")


def _message(connection: Connection, mailing: Mailing, language: str) -> Message:
    report = report_of(connection, mailing.recipient.tenant, mailing.month)
    file = Attachment(file_name(report), "application/pdf", pdf_of_report(report, language))
    return of_report(report, mailing.recipient.id, file, language)


REPORTS = Outbox("report", mailings_writes.CLAIMS, mailings_writes.claim, _message)


class MonthlyReports:
    """Owns its task, from :meth:`start` on, until :meth:`close`."""

    def __init__(self, store: Store, courier: Courier, clock_ns: Callable[[], int]) -> None:
        self._store = store
        self._clock_ns = clock_ns
        self._courier = courier
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, leads: Leads = always) -> None:
        """Begins to look for months that are over."""
        rounds = run_until_stopped(self.step, self._stop, STEP_SECONDS, log, "reports", leads)
        self._task = asyncio.create_task(rounds, name="billing-reports")

    async def close(self) -> None:
        """Lets the mails that are under way come to their end."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def step(self) -> int:
        """Writes what is owed and delivers what is due; returns how many deliveries were tried."""
        now_ns = self._clock_ns()
        last = due_month(now_ns, GRACE_DAYS)
        if await self._store.read(lambda connection: mailings_writes.owed(connection, last)):
            await self._write(lambda books: mailings_writes.write(books, last, now_ns))
        return await self._courier.deliver(REPORTS)

    async def _write(self, job: Callable[[Books], T]) -> T:
        return await asyncio.wrap_future(self._store.submit(job))


def file_name(report: Report) -> str:
    """What a download or an attachment is called."""
    return f"usage-{report.month}.pdf"
