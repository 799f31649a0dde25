"""HTTP without sockets: requests to a Tornado application, the pool's client, and Stripe's, each in the moment it happens."""

from __future__ import annotations

import asyncio
import io
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import stripe
from forebay_billing.tasks.webhooks import Undelivered
from stripe_emulator import Emulator
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.httputil import HTTPConnection, HTTPHeaders, RequestStartLine, ResponseStartLine
from tornado.web import Application


@dataclass(frozen=True)
class Request:
    """As it is on the wire."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    status: int
    headers: HTTPHeaders
    body: bytes


class _Peer:
    remote_ip = "127.0.0.1"
    protocol = "http"
    address = ("127.0.0.1", 0)


class Exchange(HTTPConnection):
    """One request to an application, and its answer."""

    context = _Peer()

    def __init__(self) -> None:
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._status, self._headers, self._body = 0, HTTPHeaders(), b""

    async def ask(self, application: Application, request: Request) -> Response:
        """Raises ConnectionResetError where the process dies."""
        delegate = application.start_request(object(), self)
        start = RequestStartLine(request.method, request.target, "HTTP/1.1")
        await _maybe(delegate.headers_received(start, HTTPHeaders({"Host": "billing", **request.headers})))
        if request.body:
            await _maybe(delegate.data_received(request.body))
        delegate.finish()
        return await self.response

    def breaks(self) -> None:
        if not self.response.done():
            self.response.set_exception(ConnectionResetError("billing died"))

    def write_headers(self, start_line: Any, headers: HTTPHeaders, chunk: bytes | None = None) -> asyncio.Future[None]:
        if not isinstance(start_line, ResponseStartLine):
            raise TypeError(f"an application writes answers, not {start_line}")
        self._status, self._headers = start_line.code, headers
        return self.write(chunk or b"")

    def write(self, chunk: bytes) -> asyncio.Future[None]:
        self._body += chunk
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def finish(self) -> None:
        if not self.response.done():
            self.response.set_result(Response(self._status, self._headers, self._body))

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        """Nobody leaves before the answer."""


async def _maybe(waits: Awaitable[None] | None) -> None:
    if waits is not None:
        await waits


class DirectHttp(AsyncHTTPClient):
    """What :class:`forebay_pool.billing.client.BillingClient` calls billing with. ``carry`` raises OSError where no answer comes."""

    def initialize(self, defaults: dict[str, Any] | None = None, *, carry: Callable[[Request], Awaitable[Response]]) -> None:
        super().initialize(defaults)
        self._carry = carry

    def fetch_impl(self, request: HTTPRequest, callback: Callable[[HTTPResponse], None]) -> None:
        self._last = asyncio.ensure_future(self._fetch(request, callback))

    async def _fetch(self, request: HTTPRequest, callback: Callable[[HTTPResponse], None]) -> None:
        url = urlsplit(request.url)
        target = url.path + (f"?{url.query}" if url.query else "")
        headers = dict(request.headers.get_all())
        try:
            answer = await self._carry(Request(request.method, target, headers, request.body or b""))
        except OSError as error:
            callback(HTTPResponse(request, 599, error=error))
            return
        callback(HTTPResponse(request, answer.status, headers=answer.headers, buffer=io.BytesIO(answer.body)))


class DirectStripe(stripe.HTTPClient):
    """Stripe's client without a network. A connection that ends without an answer is what it always is: an error that tells nothing."""

    name = "direct"

    def __init__(self, emulator: Emulator) -> None:
        super().__init__(verify_ssl_certs=False)
        self._emulator = emulator

    def request(
        self, method: str, url: str, headers: Mapping[str, str] | None, post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        body = post_data.decode() if isinstance(post_data, bytes) else post_data or ""
        address = urlsplit(url)
        answer = self._emulator.serve(method.upper(), f"{address.path}?{address.query}", headers or {}, body)
        if answer is None:
            raise stripe.APIConnectionError("The connection ended without an answer.")
        status, given, content = answer
        return content, status, {**given, "Request-Id": "req_emu"}

    def close(self) -> None:
        """Nothing is open."""


class Doorbell:
    """Everybody's webhooks, as :class:`forebay_billing.tasks.webhooks.Webhooks` sends them.

    Some never arrive, of some the answer does not.
    """

    def __init__(self, chance: random.Random, loses: Callable[[], float]) -> None:
        self.heard: Counter[str] = Counter()
        """How often each arrived, by its id."""
        self._chance, self._loses = chance, loses

    async def send(self, url: str, secret: str, id: str, timestamp_seconds: int, body: bytes) -> None:
        """Raises Undelivered."""
        if self._chance.random() < self._loses():
            raise Undelivered("The webhook was lost.")
        self.heard[id] += 1
        if self._chance.random() < self._loses():
            raise Undelivered("The webhook's answer was lost.")

    def close(self) -> None:
        """Nothing is open."""
