"""The front of an HTTP service: what every connection and every request passes before the service's own handlers.

- A request waits for its turn (:mod:`forebay_service.peers.rate_limit`) before its body is read. Too many at a time are refused with 429.
- Of one peer one long body is read at a time, and each part of it takes a turn.
- Connections are bounded: where there are too many, the one goes that has been idle for longest, and then the one whose body comes slowest.
- A connection whose peer does not read its answer is closed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    HTTPServerRequest,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.ioloop import PeriodicCallback
from tornado.iostream import IOStream
from tornado.web import Application

from forebay_service.errors import RequestError, TooManyRequests
from forebay_service.peers.rate_limit import Crowded, Peer, RateLimit

REQUEST_SECONDS = 0.001
"""What a request takes of the service's time, about."""
BYTES_PER_SECOND = 1e9
"""How fast a body is read, about."""
LONG_BODY_BYTES = 64 * 1024
Start: TypeAlias = RequestStartLine | ResponseStartLine
Cost: TypeAlias = Callable[[Start], float]
"""Seconds of the service's time that a request takes, about, by its first line."""
SECRETS_MAX = 20_000
"""Tokens and cookies whose bearers are remembered, only to tell whose turn it is."""
STRANGERS = "@strangers"
"""Stands for the tenant of those of whom nothing is known yet."""
STRANGERS_WAITING_MAX = 1_000
STRANGERS_BODIES = 8
LOOPBACK = ("127.0.0.1", "::1")
STALL_SECONDS = 30.0
"""A peer that takes nothing of its answer for so long does not read."""
SWEEP_SECONDS = 5.0
REFUSED_SECONDS = 1.0
"""So long who was refused has to read why, before the connection is closed."""
FILES_SHARE = 0.75
"""Of the files that the process may have open, connections take so many at most."""


def same_cost(start_line: Start) -> float:
    """Every request takes as much."""
    return REQUEST_SECONDS


class Front(HTTPServerConnectionDelegate):
    """Lets requests through to the application. ``rate_limit`` is None where nobody is slowed down."""

    def __init__(self, application: Application, rate_limit: RateLimit | None, trusts: Callable[[str], bool], cost: Cost) -> None:
        self.rate_limit = rate_limit
        self.cost = cost
        self._trusts = trusts
        self.connections: Connections | None = None
        self._application = application
        self._peers: dict[bytes, Peer | None] = {}
        application.settings["front"] = self

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        stream = request_conn.stream if isinstance(request_conn, HTTP1Connection) else None
        if self.connections is not None and stream is not None:
            self.connections.idles(stream)
        return _Gate(self, self._application.start_request(server_conn, request_conn), request_conn, stream)

    def on_close(self, server_conn: object) -> None:
        self._application.on_close(server_conn)

    def peer_of(self, headers: Mapping[str, str], address: str) -> Peer | None:
        """Who asks, as far as that is known; None: nobody who is slowed down."""
        if self.rate_limit is None:
            return None
        secret = _secret_in(headers)
        if secret is not None and secret in self._peers:
            return self._peers[secret]
        if secret is not None and self._trusts(headers.get("Authorization", "").partition(" ")[2].strip()):
            return None
        forwarded = headers.get("X-Forwarded-For", "").rpartition(",")[2].strip() if address in LOOPBACK else ""
        return self.rate_limit.peer(STRANGERS, forwarded or address, STRANGERS_WAITING_MAX, STRANGERS_BODIES)

    def learn(self, request: HTTPServerRequest, tenant: str | None, name: str, is_service: bool) -> None:
        """Whose token or cookie it is. Services of the installation are not slowed down: they ask for many."""
        secret = _secret_in(request.headers)
        if self.rate_limit is None or secret is None or secret in self._peers:
            return
        if len(self._peers) >= SECRETS_MAX:
            self._peers.clear()
        self._peers[secret] = None if is_service else self.rate_limit.peer(tenant, name)


def learn(request: HTTPServerRequest, settings: Mapping[str, Any], tenant: str | None, name: str, is_service: bool = False) -> None:
    """As :meth:`Front.learn`, where the application stands behind a front."""
    front: Front | None = settings.get("front")
    if front is not None:
        front.learn(request, tenant, name, is_service)


def refusal_document(error: RequestError) -> bytes:
    """As handlers refuse."""
    return json.dumps({"error": {"code": error.code, "message": str(error)}}).encode()


def _secret_in(headers: Mapping[str, str]) -> bytes | None:
    """A hash of what the request shows that it comes from somebody."""
    shown = headers.get("Authorization") or headers.get("Cookie")
    return hashlib.blake2b(shown.encode("utf-8", "replace"), digest_size=16).digest() if shown else None


class _Gate(HTTPMessageDelegate):
    """One request on its way in."""

    def __init__(self, front: Front, inner: HTTPMessageDelegate, connection: HTTPConnection, stream: IOStream | None) -> None:
        self._front = front
        self._inner = inner
        self._connection = connection
        self._stream = stream
        self._peer: Peer | None = None
        self._has_slot = False
        self._refused = False

    async def headers_received(self, start_line: Start, headers: HTTPHeaders) -> None:
        connections, context = self._front.connections, getattr(self._connection, "context", None)
        if connections is not None and self._stream is not None:
            connections.reads(self._stream)
        self._peer = self._front.peer_of(headers, getattr(context, "remote_ip", ""))
        try:
            await self._take_turn(start_line, headers)
        except Crowded:
            self._refuse()
            return
        result = self._inner.headers_received(start_line, headers)
        if result is not None:
            await result

    async def _take_turn(self, start_line: Start, headers: HTTPHeaders) -> None:
        """Raises Crowded."""
        rate_limit, peer = self._front.rate_limit, self._peer
        if rate_limit is None or peer is None:
            return
        await rate_limit.turn(peer, self._front.cost(start_line))
        length = headers.get("Content-Length", "0")
        if "Transfer-Encoding" in headers or not length.isdigit() or int(length) > LONG_BODY_BYTES:
            if peer.bodies.locked() and peer.waiting >= peer.waiting_max:
                raise Crowded
            peer.waiting += 1
            try:
                await peer.bodies.acquire()
            finally:
                peer.waiting -= 1
            self._has_slot = True

    def _refuse(self) -> None:
        """In JSON, as every refusal; its body is not read, so the connection closes."""
        self._refused = True
        body = refusal_document(TooManyRequests("Too many of your requests wait for their turn; send fewer at once."))
        lines = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Retry-After": "1", "Connection": "close"}
        start = ResponseStartLine("HTTP/1.1", TooManyRequests.status, "Too Many Requests")
        self._connection.write_headers(start, HTTPHeaders(lines), body)
        self._connection.finish()
        if self._stream is not None:
            asyncio.get_running_loop().call_later(REFUSED_SECONDS, self._stream.close)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        if self._refused:
            return None
        rate_limit, peer = self._front.rate_limit, self._peer
        result = self._inner.data_received(chunk)
        if rate_limit is None or peer is None or not self._has_slot:
            return result
        return self._turn_after(result, rate_limit, peer, len(chunk))

    async def _turn_after(self, result: Awaitable[None] | None, rate_limit: RateLimit, peer: Peer, size: int) -> None:
        if result is not None:
            await result
        try:
            await rate_limit.turn(peer, size / BYTES_PER_SECOND)
        except Crowded:
            await asyncio.sleep(1)  # no more is read of it meanwhile

    def finish(self) -> None:
        self._release()
        if self._refused:
            return
        if self._front.connections is not None and self._stream is not None:
            self._front.connections.answers(self._stream)
        self._inner.finish()

    def on_connection_close(self) -> None:
        self._release()
        if not self._refused:
            self._inner.on_connection_close()

    def _release(self) -> None:
        if self._has_slot and self._peer is not None:
            self._has_slot = False
            self._peer.bodies.release()


class Connections:
    """The connections of a server. Each is idle, or sends a request, or has one answered."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: dict[IOStream, None] = {}
        self._reading: dict[IOStream, None] = {}
        """These two in the order in which they came to be so."""
        self._answering: dict[IOStream, tuple[int, int]] = {}
        """How much the peer had taken, and at how many looks it had taken no more."""

    def __len__(self) -> int:
        return len(self._idle) + len(self._reading) + len(self._answering)

    def idles(self, stream: IOStream) -> None:
        """It waits for a request."""
        self.forget(stream)
        self._idle[stream] = None
        while len(self) > self._most and (self._idle or self._reading):
            oldest = next(iter(self._idle if len(self._idle) > 1 else self._reading or self._idle))
            self.forget(oldest)
            oldest.close()

    def reads(self, stream: IOStream) -> None:
        """The head of a request is there; the rest may take long."""
        if self._idle.pop(stream, False) is None:
            self._reading[stream] = None

    def answers(self, stream: IOStream) -> None:
        """All of a request is there."""
        self.forget(stream)
        self._answering[stream] = (-1, 0)

    def forget(self, stream: IOStream) -> None:
        self._idle.pop(stream, None)
        self._reading.pop(stream, None)
        self._answering.pop(stream, None)

    def sweep(self) -> None:
        """Closes those whose peers do not read, and forgets those that are closed."""
        for stream, (taken, looks) in list(self._answering.items()):
            now_taken = stream._total_write_done_index  # Tornado tells no progress
            stalls = stream.writing() and now_taken == taken
            self._answering[stream] = (now_taken, looks + 1 if stalls else 0)
            if stalls and looks + 1 >= STALL_SECONDS / SWEEP_SECONDS:
                stream.close()
        for stream in [one for one in (*self._idle, *self._reading, *self._answering) if one.closed()]:
            self.forget(stream)


class FrontServer(HTTPServer):
    """An HTTP server behind a front."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As :meth:`initialize`, which is how Tornado makes servers."""

    def initialize(  # type: ignore[override] # Tornado's own takes no part of these
        self,
        request_callback: Application,
        *,
        share: float = 1.0,
        connections_max: int = 10_000,
        trusts: Callable[[str], bool] = lambda token: False,
        cost: Cost = same_cost,
        **options: Any,
    ) -> None:
        """``share``: see :mod:`forebay_service.peers.rate_limit`; 1: nobody is slowed down. ``trusts``: whose tokens are not either."""
        self._front = Front(request_callback, RateLimit(share) if share < 1 else None, trusts, cost)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._front.connections = Connections(max(1, min(connections_max, int(FILES_SHARE * files))))
        self._sweeper = PeriodicCallback(self._front.connections.sweep, SWEEP_SECONDS * 1000)
        super().initialize(self._front, **options)

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        self._sweeper.start()
        super().add_sockets(sockets)

    def stop(self) -> None:
        self._sweeper.stop()
        super().stop()

    def on_close(self, server_conn: object) -> None:
        stream = getattr(server_conn, "stream", None)
        if stream is not None and self._front.connections is not None:
            self._front.connections.forget(stream)
        super().on_close(server_conn)
