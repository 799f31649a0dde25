"""Follows the pool's event stream with the service's own token, and tells browsers what went out of date."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from forebay_service.languages import Text

from forebay_dashboards.errors import DashboardsError, PageError
from forebay_dashboards.live.browsers import Browsers
from forebay_dashboards.live.deliveries import Arrival, Deliveries
from forebay_dashboards.live.event_stream import EventParser, EventTooLong, ServerEvent
from forebay_dashboards.live.pool_copy import PoolCopy, Snapshot
from forebay_dashboards.metrics import FEED_CONNECTED, FEED_EVENTS, FEED_RECONNECTS, RECORD_SECONDS, RECORDS_LATE
from forebay_dashboards.rows.pool import Lease
from forebay_dashboards.upstream.billing import Billing
from forebay_dashboards.upstream.pool import Pool

RETRY_SECONDS_MIN = 0.25
RECORDS_READ_MAX = 1000
CLOCKS_NS = 60 * 10**9
"""How far the start of a lease and of its usage record may lie apart."""
LOOK_SECONDS_MIN = 0.03
LOOK_SECONDS_MAX = 1.0
LOOK_SECONDS_SOON = 0.15
"""At most, while leases go on ending."""
LOOK_REST = 4
"""So many times as long as a look takes nobody looks again: where many leases end, it reads many records."""

logger = logging.getLogger(__name__)


class Feed:
    """The one subscription to the pool. ``pool_copy`` is what it knows; ``connected`` says whether that is the present."""

    def __init__(
        self, pool: Pool, token: str, browsers: Browsers, deliveries: DeliveryWatch, silence_seconds: float, retry_seconds_max: float
    ) -> None:
        self.pool_copy = PoolCopy()
        self.connected = False
        self.problem = Text("The pool has not been reached yet.")
        self._pool = pool
        self._token = token
        self._browsers = browsers
        self._deliveries = deliveries
        self._silence_seconds = silence_seconds
        self._retry_seconds_max = retry_seconds_max

    async def run(self) -> None:
        """Follows the stream until cancelled; after a failure waits twice as long as before, and a little by chance."""
        pause = RETRY_SECONDS_MIN
        while True:
            try:
                await self._follow()
                self._lost(Text("The pool ended its event stream."))
            except PageError as error:
                self._lost(error.text)
            except EventTooLong:
                self._lost(Text("The pool sent an event that is too long to be one."))
            pause = RETRY_SECONDS_MIN if self.connected else min(pause * 2, self._retry_seconds_max)
            self.connected = False
            FEED_RECONNECTS.inc()
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311 - spreads reconnections, guards nothing

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        for lease in self.pool_copy.replace(snapshot, time.monotonic_ns()):
            self._deliveries.ended(lease)
        self.connected = True
        FEED_CONNECTED.set(1)
        self._browsers.tell_all("feed")
        counts = {"leases": len(snapshot.leases), "sessions": len(snapshot.sessions), "devices": len(snapshot.devices)}
        logger.info("the pool's events are heard", extra={"action": "feed_opened", **counts})

    def _take_event(self, event: ServerEvent) -> None:
        """One event of the open stream. One that cannot be read is logged and left out."""
        FEED_EVENTS.labels(event.name if event.name in ("lease", "session", "device", "node") else "other").inc()
        try:
            change = self.pool_copy.apply(event, time.monotonic_ns())
        except ValueError as error:
            logger.error("an event of the pool cannot be read", extra={"action": "feed_event_unreadable", "problem": str(error)})
            return
        if change is None:
            return
        self._browsers.tell(change.topic, change.owner)
        if change.removed and isinstance(change.row, Lease):
            self._deliveries.ended(change.row)

    async def _follow(self) -> None:
        """One opening of the stream: subscribe first, then take the snapshot, so that no change falls between them."""
        pool = self._pool
        async with pool.events(self._token, self._silence_seconds) as chunks:
            snapshot = Snapshot(
                *await asyncio.gather(
                    pool.leases(self._token), pool.sessions(self._token), pool.devices(self._token), pool.nodes(self._token)
                )
            )
            self._take_snapshot(snapshot)
            parser = EventParser()
            async for chunk in chunks:
                for event in parser.feed(chunk):
                    self._take_event(event)

    def _lost(self, problem: Text) -> None:
        self.problem = problem
        FEED_CONNECTED.set(0)
        if self.connected:
            self._browsers.tell_all("feed")
        logger.warning("the pool's events are lost", extra={"action": "feed_lost", "problem": str(problem)})


class DeliveryWatch:
    """Looks into billing until the record of each ended lease is there, then tells the browsers."""

    def __init__(self, billing: Billing, token: str, browsers: Browsers, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._billing = billing
        self._token = token
        self._browsers = browsers
        self._clock = clock
        self._deliveries = Deliveries()
        self._wake = asyncio.Event()

    def ended(self, lease: Lease) -> None:
        """Begins to look for the record of a lease that ended."""
        self._announce(self._deliveries.ended(lease, self._clock()))
        self._wake.set()

    async def run(self) -> None:
        """Looks until cancelled; less often the longer nothing comes."""
        pause = LOOK_SECONDS_MIN
        while True:
            if self._deliveries.since_ns is None:
                self._wake.clear()
                await self._wake.wait()
                pause = LOOK_SECONDS_MIN
            began_ns = self._clock()
            found = await self._look()
            took_seconds = (self._clock() - began_ns) / 1e9
            self._announce(found)
            pause = LOOK_SECONDS_MIN if found else min(pause * 1.5, LOOK_SECONDS_SOON if self._wake.is_set() else LOOK_SECONDS_MAX)
            self._wake.clear()
            await asyncio.sleep(max(pause, LOOK_REST * took_seconds))

    async def _look(self) -> list[Arrival]:
        since_ns = max(0, (self._deliveries.since_ns or 0) - CLOCKS_NS)
        try:
            page = await self._billing.usage(self._token, since_ns=since_ns, limit=RECORDS_READ_MAX)
        except DashboardsError as error:
            logger.warning("records of the pool could not be read", extra={"action": "records_unread", "problem": str(error)})
            return self._deliveries.expired(self._clock())
        return self._deliveries.found(page.records, self._clock()) + self._deliveries.expired(self._clock())

    def _announce(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            if arrival.late:
                RECORDS_LATE.inc()
            else:
                RECORD_SECONDS.observe(arrival.waited_ns / 1e9)
            self._browsers.tell("usage", arrival.owner)
