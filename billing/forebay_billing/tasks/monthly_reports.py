"""Mails each tenant's report of a month once it is over; a task of the service."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from forebay_billing import failpoints
from forebay_billing.documents.monthly_report import Report, report_of
from forebay_billing.documents.pdf import pdf_of_report
from forebay_billing.ledger.books import Books
from forebay_billing.rules.retries import GIVE_UP_NS, backoff_seconds
from forebay_billing.settings import Settings
from forebay_billing.tasks.alert_delivery import mailbox_of
from forebay_billing.tasks.alert_webhooks import Undelivered
from forebay_billing.tasks.loop import run_until_stopped
from forebay_billing.tasks.month_end import due_month
from forebay_billing.tasks.smtp import Attachment
from forebay_billing.writes import mailings as mailings_writes
from forebay_billing.writes.mailings import Mailing
from forebay_billing.writes.store import Store

log = logging.getLogger(__name__)

STEP_SECONDS = 30.0
GRACE_DAYS = 1
"""A report is made so long after its month's end, when late usage has come."""

T = TypeVar("T")


class MonthlyReports:
    """Owns its task, from :meth:`start` on, until :meth:`close`."""

    def __init__(self, store: Store, settings: Settings, clock_ns: Callable[[], int]) -> None:
        self._store = store
        self._clock_ns = clock_ns
        self._mailbox = mailbox_of(settings)
        self._chance = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to look for months that are over."""
        rounds = run_until_stopped(self.step, self._stop, STEP_SECONDS, log, "reports")
        self._task = asyncio.create_task(rounds, name="billing-reports")

    async def close(self) -> None:
        """Lets the mail that is under way come to its end."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def step(self) -> int:
        """Writes what is owed and delivers what is due; returns how many deliveries were tried."""
        now_ns = self._clock_ns()
        last = due_month(now_ns, GRACE_DAYS)
        if await self._store.read(lambda connection: mailings_writes.owed(connection, last)):
            await self._write(lambda books: mailings_writes.write(books, last, now_ns))
        mailings: list[Mailing] = []
        if await self._store.read(lambda connection: mailings_writes.CLAIMS.is_due(connection, now_ns)):
            mailings = await self._write(lambda books: mailings_writes.claim(books.connection, now_ns))
        for mailing in mailings:
            await self._deliver(mailing)
        return len(mailings)

    async def _deliver(self, mailing: Mailing) -> None:
        settle: Callable[[Connection], bool]
        try:
            failpoints.reach("report.before")
            await self._bring(mailing)
            failpoints.reach("report.after")
        except Undelivered as error:
            now_ns, reason = self._clock_ns(), str(error)
            if now_ns - mailing.created_at_ns >= GIVE_UP_NS:
                settle = partial(mailings_writes.CLAIMS.give_up, held=mailing, now_ns=now_ns, reason=reason)
            else:
                at_ns = now_ns + int(backoff_seconds(mailing.attempt, self._chance.random()) * 10**9)
                settle = partial(mailings_writes.CLAIMS.later, held=mailing, at_ns=at_ns, reason=reason)
            fields = {"action": "report.undelivered", "recipient": mailing.recipient.id, "month": mailing.month}
            log.warning("a report is not delivered", extra=fields)
        else:
            settle = partial(mailings_writes.CLAIMS.done, held=mailing, now_ns=self._clock_ns())
            fields = {"action": "report.delivered", "recipient": mailing.recipient.id, "month": mailing.month}
            log.info("a report is delivered", extra=fields)
        await self._write(lambda books: settle(books.connection))

    async def _bring(self, mailing: Mailing) -> None:
        if self._mailbox is None:
            raise Undelivered("No mail server is set (setting smtp_host).")
        tenant, now_ns = mailing.recipient.tenant, self._clock_ns()
        report = await self._store.read(lambda connection: report_of(connection, tenant, mailing.month))
        attachment = Attachment(file_name(report), "application/pdf", await asyncio.to_thread(pdf_of_report, report))
        subject = f"Usage of {tenant} in {mailing.month}"
        text = f"{subject} is attached: by day, member, flavor and notebook, at list prices.\nWhat is owed is on the month's invoice.\n"
        id = f"forebay-report-{mailing.recipient.id}-{mailing.month}"
        await asyncio.to_thread(self._mailbox.send, mailing.recipient.target, subject, text, id, now_ns, attachment)

    async def _write(self, job: Callable[[Books], T]) -> T:
        return await asyncio.wrap_future(self._store.submit(job))


def file_name(report: Report) -> str:
    """What a download or an attachment is called."""
    return f"usage-{report.month}.pdf"
