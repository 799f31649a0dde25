"""The books as one object: jobs for the writer's thread, snapshots on the readers' threads, answers as awaitables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import tzinfo
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from forebay_billing.errors import CLOSING, StoreUnavailable
from forebay_billing.ledger.access import Scope
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.idempotency import Done, Key, once
from forebay_billing.ledger.writer import JobWriter, OnCommit, Share, Writer
from forebay_billing.model.months import Month
from forebay_billing.model.types import Statement
from forebay_billing.reads import checks, standings, summaries
from forebay_billing.reads import usage as usage_reads
from forebay_billing.rules.prices import PriceBook
from forebay_billing.tables.engines import READERS_MAX, Engines, migrate, reading, writing
from forebay_billing.writes import prices

T = TypeVar("T")


class Store:
    """Owns ``engines`` and its threads until :meth:`close`. ``prepare`` brings the database up to this version.

    Every method may raise StoreUnavailable; of the writing ones nothing has happened then.
    """

    def __init__(
        self,
        engines: Engines,
        clock_ns: Callable[[], int],
        on_commit: OnCommit = lambda jobs, seconds: None,
        writer: Callable[[Engines, OnCommit], JobWriter] = Writer,
        prepare: Callable[[Engines], None] = migrate,
    ) -> None:
        self._engines = engines
        self._clock_ns = clock_ns
        prepare(engines)
        with writing(engines) as connection:
            self.seeded = prices.seed(Books(connection), clock_ns())
        self._readers = ThreadPoolExecutor(READERS_MAX, thread_name_prefix="billing-reader")
        self._writer = writer(engines, on_commit)
        self._closed = False

    @property
    def writes_waiting(self) -> int:
        """Writes that wait for the writer."""
        return self._writer.waiting

    def close(self) -> None:
        """Finishes what was accepted and closes the database."""
        self._closed = True
        self._writer.close()
        self._readers.shutdown()
        self._engines.dispose()

    async def change(
        self, key: Key | None, work: Callable[[Books], T], document: Callable[[T], Any], share: Share | None = None
    ) -> Done[T]:
        """Does ``work`` in the writer's next transaction, once for a ``key``. See :func:`forebay_billing.ledger.idempotency.once`.

        Without a key it may be done along with others of its ``share``.
        """
        if key is None and share is not None:
            result = await asyncio.wrap_future(self._writer.submit(work, share))
            return Done(json.dumps(document(result)), result)
        return await asyncio.wrap_future(self._writer.submit(lambda books: once(books, key, work, document, self._clock_ns())))

    async def price_book(self) -> PriceBook:
        """All prices."""
        return await self.read(usage_reads.price_book)

    async def usage_page(self, scope: Scope, window: usage_reads.Window, limit: int, after: tuple[int, int] | None) -> usage_reads.Page:
        """See :func:`~forebay_billing.reads.usage.usage_page`."""
        return await self.read(lambda connection: usage_reads.usage_page(connection, scope, window, limit, after))

    async def summary(
        self, scope: Scope, window: usage_reads.Window, by: Sequence[summaries.By], zone: tzinfo
    ) -> list[summaries.SummaryRow]:
        """See :func:`summaries.summary`."""
        return await self.read(lambda connection: summaries.summary(connection, scope, window, by, zone))

    async def outlook(self, scope: Scope) -> list[summaries.Outlook]:
        """See :func:`summaries.outlooks`."""
        return await self.read(lambda connection: summaries.outlooks(connection, scope, self._clock_ns()))

    async def statement(self, tenant: str, user: str | None, month: Month) -> Statement:
        """See :func:`~forebay_billing.reads.usage.statement`."""
        return await self.read(lambda connection: usage_reads.statement(connection, tenant, user, month, self._clock_ns()))

    async def check_tenant(self, tenant: str) -> None:
        """See :func:`tenants.check_known`."""
        await self.read(lambda connection: standings.check_known(connection, tenant))

    async def differences(self) -> list[checks.Difference]:
        """See :func:`checks.differences`."""
        return await self.read(checks.differences)

    async def check(self) -> None:
        """Returns when the database answers."""
        await self.read(lambda connection: connection.execute(text("SELECT 1")).scalar_one())

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Runs ``work`` in a snapshot on a reader's thread."""
        if self._closed:
            raise StoreUnavailable(CLOSING)
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.snapshot, work)

    def snapshot(self, work: Callable[[Connection], T]) -> T:
        """Runs ``work`` in a snapshot on the caller's thread."""
        with reading(self._engines) as connection:
            return work(connection)

    def submit(self, work: Callable[[Books], T]) -> Future[T]:
        """Does ``work`` in the writer's next transaction: for the service's own threads, which need no key."""
        return self._writer.submit(work)
