"""Calls to pool and billing: one place for tokens, timeouts, and the translation of what goes wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import ClientConnectorError, ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector, TraceConfig
from forebay_service.languages import Text
from forebay_service.peers.tls import Trust
from pydantic import TypeAdapter, ValidationError
from yarl import URL

from forebay_dashboards.errors import SERVICES, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.metrics import UPSTREAM_CALLS
from forebay_dashboards.rows.pool import Fault
from forebay_dashboards.text.causes import refusal

T = TypeVar("T")
Query = Mapping[str, str | int | None]

CONNECTIONS_MAX = 64
MESSAGE_CHARACTERS_MAX = 1000
NO_HEADERS: Mapping[str, str] = {}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Document:
    """An answer that is passed on as it is."""

    body: bytes
    headers: Mapping[str, str]


def open_client(trust: Trust) -> ClientSession:
    """An HTTP client with our bounds; its owner closes it. Made inside an event loop."""

    async def refresh(*_: object) -> None:
        trust.refresh()

    connections = TraceConfig()
    connections.on_connection_create_start.append(refresh)
    connector = TCPConnector(limit=CONNECTIONS_MAX, ssl=trust.context)
    return ClientSession(connector=connector, trace_configs=[connections], trust_env=False)


class Upstream:
    """One service behind HTTP. Every call is made with a given token, so that the service decides again who may what."""

    def __init__(self, name: str, url: str, timeout_seconds: float, client: ClientSession) -> None:
        self.name = name
        self._url = url.rstrip("/") + "/"
        self._timeout_seconds = timeout_seconds
        self._client = client

    async def read(
        self, adapter: TypeAdapter[T], token: str, path: str, query: Query | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> T:
        """The JSON answer to a GET as typed rows. Raises UpstreamUnavailable, UpstreamRefused."""
        return self._decode(adapter, (await self.fetch(token, path, query, headers)).body)

    async def write(
        self, adapter: TypeAdapter[T], token: str, path: str, body: Mapping[str, Any] | str, method: str = "PUT",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> T:  # fmt: skip
        """The JSON answer to a PUT, or POST, of a JSON body or a text. Raises UpstreamUnavailable, UpstreamRefused."""
        sent: dict[str, Any] = {"data": body.encode()} if isinstance(body, str) else {"json": body}
        async with self._call(method, token, path, self._whole, headers, **sent) as response:
            return self._decode(adapter, await response.read())

    async def delete(self, token: str, path: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Has something be no more. Raises UpstreamUnavailable, UpstreamRefused."""
        async with self._call("DELETE", token, path, self._whole, headers):
            pass

    async def fetch(self, token: str, path: str, query: Query | None = None, headers: Mapping[str, str] = NO_HEADERS) -> Document:
        """The answer to a GET, as it is. Raises UpstreamUnavailable, UpstreamRefused."""
        given = {key: str(value) for key, value in (query or {}).items() if value is not None}
        async with self._call("GET", token, path, self._whole, headers, params=given) as response:
            return Document(await response.read(), response.headers)

    @asynccontextmanager
    async def stream(self, token: str, path: str, silence_seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The chunks of an endless answer, once it began. Silence for longer is an error.

        Raises UpstreamUnavailable, UpstreamRefused, also out of the iteration inside.
        """
        timeout = ClientTimeout(total=None, sock_connect=self._timeout_seconds, sock_read=silence_seconds)
        async with self._call("GET", token, path, timeout) as response:
            yield response.content.iter_any()

    @property
    def _whole(self) -> ClientTimeout:
        return ClientTimeout(total=self._timeout_seconds)

    @asynccontextmanager
    async def _call(
        self, method: str, token: str, path: str, timeout: ClientTimeout, more_headers: Mapping[str, str] = NO_HEADERS, **more: Any
    ) -> AsyncIterator[ClientResponse]:
        outcome = "unavailable"
        try:
            headers = {**more_headers, "Authorization": f"token {token}"}
            url = URL(self._url + path, encoded=True)
            async with self._client.request(method, url, headers=headers, timeout=timeout, allow_redirects=False, **more) as response:
                outcome = "answered" if response.ok else "refused"
                if not response.ok:
                    raise await self._refusal(response)
                yield response
        except (TimeoutError, ClientError, OSError) as error:
            outcome = "unavailable"
            fields = {"action": "upstream_unavailable", "service": self.name, "path": path, "problem": error}
            logger.warning("a service does not answer", extra=fields)
            raise UpstreamUnavailable(self.name, _reason(error)) from None
        finally:
            UPSTREAM_CALLS.labels(self.name, outcome).inc()

    async def _refusal(self, response: ClientResponse) -> UpstreamUnavailable | UpstreamRefused:
        name, answer = SERVICES.get(self.name, self.name), f"{response.status} {response.reason}"
        code, message = "refused", Text("The %(service)s service refused this (%(answer)s).", service=name, answer=answer)
        try:
            error = json.loads(await response.read())["error"]
            code = str(error["code"])
            fault = None if error.get("fault") is None else Fault.model_validate(error["fault"])
            message = refusal(code, str(error["message"])[:MESSAGE_CHARACTERS_MAX], fault)
        except (ValueError, KeyError, TypeError, AttributeError):
            fields = {"action": "unexpected_refusal", "service": self.name, "status": response.status}
            logger.warning("a service refused what it should take", extra=fields)
        if response.status >= 500:
            fields = {"action": "upstream_failed", "service": self.name, "status": response.status, "problem": str(message)}
            logger.warning("a service failed", extra=fields)
            return UpstreamUnavailable(self.name, Text("it failed with status %(status)s", status=response.status))
        return UpstreamRefused(self.name, response.status, code, message)

    def _decode(self, adapter: TypeAdapter[T], body: bytes) -> T:
        try:
            return adapter.validate_json(body)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            fields = {"action": "unexpected_answer", "service": self.name, "where": where, "problem": first["msg"]}
            logger.error("a service answered what it should not", extra=fields)
            detail = Text("its answer is of another version (%(problem)s)", problem=f"{where}: {first['msg']}")
            raise UpstreamUnavailable(self.name, detail) from None


def _reason(error: Exception) -> Text:
    """For people; addresses and system messages stand in the log."""
    if isinstance(error, TimeoutError):
        return Text("it took too long")
    if isinstance(error, ClientConnectorError):
        return Text("it cannot be reached")
    return Text("the connection to it broke")
