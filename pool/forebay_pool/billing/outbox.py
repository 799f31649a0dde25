"""Delivers usage records to billing: in order, as soon as they are durable, for as long as it takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from forebay_pool import failpoints
from forebay_pool.errors import BillingRefused, BillingUnavailable, StoreUnavailable
from forebay_pool.store.database import Store, Undelivered

BATCH_RECORDS_MAX = 500
RETRY_SECONDS_FIRST = 0.1
RETRY_SECONDS_MAX = 5.0
REFUSED_RETRY_SECONDS = 300.0
"""How often records that billing refused are sent again: what it lacked, such as a price, may be there by then."""

log = logging.getLogger(__name__)


T = TypeVar("T")


class JobWriter(Protocol):
    """Who makes a write between two commits, as :class:`forebay_pool.store.writer.Writer` does."""

    def call(self, job: Callable[[], T]) -> Future[T]: ...


class UsageSink(Protocol):
    """Who takes usage records."""

    async def send_usage(self, records: Sequence[Mapping[str, Any]]) -> None: ...


class Outbox:
    """The loop that empties the table ``usage_outbox``. Billing tells repeated records by (source, id), so sending twice is safe."""

    def __init__(
        self,
        store: Store,
        writer: JobWriter,
        sink: UsageSink,
        source: str,
        on_delivered: Callable[[int, bool], None],
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._writer = writer
        self._sink = sink
        self._source = source
        self._on_delivered = on_delivered
        self._on_failure = on_failure
        self._wake = asyncio.Event()
        self._wake.set()

    def wake(self) -> None:
        """There are new rows."""
        self._wake.set()

    async def run(self) -> None:
        """Delivers until cancelled."""
        pause_seconds = 0.0
        while True:
            if pause_seconds:
                await asyncio.sleep(pause_seconds)
            else:
                await self._wake.wait()
            pause_seconds = 0.0 if await self.deliver() else min(RETRY_SECONDS_MAX, max(RETRY_SECONDS_FIRST, 2 * pause_seconds))

    async def retry_refused(self) -> None:
        """Now and every REFUSED_RETRY_SECONDS, until cancelled, puts what billing refused back into the queue."""
        while True:
            try:
                again = await asyncio.wrap_future(self._writer.call(self._store.retry_refused))
            except StoreUnavailable as error:
                log.warning("refused usage records stay aside: %s", error, extra={"action": "store_failed"})
            else:
                if again:
                    log.info("%d refused usage records are sent again", again, extra={"action": "refused_again", "records": again})
                    self.wake()
            await asyncio.sleep(REFUSED_RETRY_SECONDS)

    async def deliver(self) -> bool:
        """Delivers what is there; False if it must be tried again later."""
        self._wake.clear()
        try:
            while True:
                rows = await asyncio.to_thread(self._store.undelivered, self._source, BATCH_RECORDS_MAX)
                if not rows:
                    return True
                await self._send(rows)
        except (BillingUnavailable, StoreUnavailable, SQLAlchemyError) as error:
            log.warning("usage records wait for billing: %s", error, extra={"action": "delivery_failed"})
            self._on_failure()
            return False

    async def _send(self, rows: Sequence[Undelivered]) -> None:
        """Sends the rows; a batch that billing refuses is halved until the record that it refuses stands alone."""
        try:
            failpoints.reach("usage.before")
            await self._sink.send_usage([row.payload for row in rows])
            failpoints.reach("usage.after")
        except BillingRefused as error:
            if len(rows) > 1:
                await self._send(rows[: len(rows) // 2])
                await self._send(rows[len(rows) // 2 :])
                return
            await self._set_aside(rows[0], str(error))
            return
        seqs = [row.seq for row in rows]
        await asyncio.wrap_future(self._writer.call(lambda: self._store.delivered(seqs)))
        self._on_delivered(len(rows), True)

    async def _set_aside(self, row: Undelivered, answer: str) -> None:
        """Keeps a refused record for people to look at, out of the way of the others."""
        fields = {"action": "record_refused", "record": row.payload["id"]}
        log.error("billing refuses usage record %s: %s", row.payload["id"], answer, extra=fields)
        await asyncio.wrap_future(self._writer.call(lambda: self._store.refused(row.seq, answer)))
        self._on_delivered(1, False)
