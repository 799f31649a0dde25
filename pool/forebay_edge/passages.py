"""A WebSocket from outside, and the worker's door that it leads to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter as Counts
from collections import deque
from dataclasses import dataclass, field

from forebay_service.errors import Forbidden, TooManyRequests
from forebay_service.handler import HealthHandler, JsonHandler, MetricsHandler, NotFoundHandler
from forebay_service.identity import COMPUTE, Authenticator, Identity
from prometheus_client import Counter, Gauge, disable_created_metrics, generate_latest
from tornado.ioloop import PeriodicCallback
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from forebay_edge.doors import PIECE_BYTES, DoorClosed, Doors
from forebay_edge.settings import Settings

PIECES_UNDER_WAY = 4
"""Pieces that a client has not taken yet while more is read of its worker: it and the proxy work meanwhile."""
CLOSE_UNSUPPORTED = 1003
CLOSE_TRY_LATER = 1013

disable_created_metrics()  # type: ignore[no-untyped-call] # a gauge beside each counter that nobody reads
STREAMS = Gauge("forebay_edge_streams", "Streams of programs outside that are open")
BYTES = Counter("forebay_edge_bytes", "Bytes that were passed on", ["direction"])
REFUSED = Counter("forebay_edge_refused", "Streams that were refused or came to no worker", ["reason"])
UP, DOWN = BYTES.labels("up"), BYTES.labels("down")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Context:
    """What handlers need of the service."""

    settings: Settings
    authenticator: Authenticator
    doors: Doors
    open_streams: Counts[tuple[str | None, str]] = field(default_factory=Counts)
    """By tenant and user."""


class Passage(WebSocketHandler, JsonHandler):
    """``GET api/workers/{worker}/stream``: the command stream of a session from outside, in binary messages whose borders mean nothing.

    The token says whose it is, and the pool whether the worker serves them; the worker itself looks at the ticket, in the stream.
    """

    service = "edge"
    context: Context

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self._writer: asyncio.StreamWriter | None = None
        self._downward: asyncio.Task[None] | None = None
        self._counted: tuple[str | None, str] | None = None

    async def prepare(self) -> None:
        super().prepare()
        identity = await self.bearer(COMPUTE)
        if identity.tenant is None:
            raise Forbidden(f"{identity.name} belongs to no tenant; ask an operator to add you to one.")
        self._check_share(identity)
        self._door = await self.context.doors.of(self.path_args[0], identity)
        self._identity = identity

    def _check_share(self, identity: Identity) -> None:
        """Raises TooManyRequests."""
        most = self.context.settings.streams_per_user
        if self.context.open_streams[identity.tenant, identity.name] >= most:
            REFUSED.labels("too_many").inc()
            raise TooManyRequests(f"{identity.name} has {most} streams open already; end a program first.")

    async def open(self, *_arguments: str) -> None:
        self._counted = (self._identity.tenant, self._identity.name)
        self.context.open_streams[self._counted] += 1
        STREAMS.inc()
        self.set_nodelay(True)
        self._pings = PeriodicCallback(self._ping, self.context.settings.ping_seconds * 1000)
        try:
            reader, writer = await asyncio.wait_for(self._door.open(), self.context.settings.upstream_seconds)
        except (DoorClosed, TimeoutError) as error:
            REFUSED.labels("unreachable").inc()
            fields = {"action": "door_closed", "worker": self.path_args[0], "user": self._identity.name}
            log.warning("a worker is not reached: %s", error or "no answer in time", extra=fields)
            self.close(CLOSE_TRY_LATER, "the worker is not reached")
            return
        if self.ws_connection is None:  # the client is gone meanwhile
            writer.close()
            return
        self._writer = writer
        self._pings.start()
        self._downward = asyncio.create_task(self._pass_down(reader), name="edge-down")

    def _ping(self) -> None:
        with contextlib.suppress(WebSocketClosedError):
            self.ping(b"")

    async def _pass_down(self, reader: asyncio.StreamReader) -> None:
        """What the worker says, as fast as the client takes it."""
        under_way: deque[asyncio.Future[None]] = deque()
        try:
            with contextlib.suppress(OSError, WebSocketClosedError):
                while data := await reader.read(PIECE_BYTES):
                    DOWN.inc(len(data))
                    under_way.append(self.write_message(data, binary=True))
                    if len(under_way) == PIECES_UNDER_WAY:
                        await under_way.popleft()
        finally:
            await asyncio.gather(*under_way, return_exceptions=True)
        self.close()

    async def on_message(self, message: str | bytes) -> None:  # Tornado waits for it before it reads on
        """What the client says, as fast as the worker takes it."""
        if isinstance(message, str):
            self.close(CLOSE_UNSUPPORTED, "bytes alone")
            return
        if self._writer is None:
            return
        UP.inc(len(message))
        try:
            self._writer.write(message)
            await self._writer.drain()
        except OSError:
            self.close()

    def on_close(self) -> None:
        if self._counted is None:
            return
        self.context.open_streams[self._counted] -= 1
        if not self.context.open_streams[self._counted]:
            del self.context.open_streams[self._counted]
        self._counted = None
        STREAMS.dec()
        self._pings.stop()
        if self._downward is not None:
            self._downward.cancel()
        if self._writer is not None:
            self._writer.close()


class NotFoundPage(NotFoundHandler):
    """Everything that is no endpoint."""

    service = "edge"


class Health(HealthHandler):
    """``GET health``."""

    service = "edge"

    def troubles(self) -> dict[str, str | None]:
        return {"hub": self.authenticator.ill}


class Metrics(MetricsHandler):
    """``GET metrics``."""

    service = "edge"

    async def exposition(self) -> bytes:
        return generate_latest()


ROUTES = (
    (r"api/workers/([A-Za-z0-9._-]{1,128})/stream", Passage),
    (r"health", Health),
    (r"metrics", Metrics),
)
"""Paths under the service's prefix."""
