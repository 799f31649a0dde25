"""Where workers are: the pool tells the edge, and the edge goes there."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

from forebay_service.errors import NotFound, Unavailable
from forebay_service.identity import Identity
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from forebay_edge.settings import Settings

PIECE_BYTES = 256 * 1024
"""Of what a worker sends, read at a time."""


class DoorClosed(Exception):
    """Nobody answers at a worker's door, or another than the worker."""


@dataclass(frozen=True)
class Door:
    """Where a worker is reached."""

    address: str
    """``unix:/path`` or ``tcp:host:port``."""
    certificate: str | None
    """The SHA-256 of what it shows, in hex; None: in clear, on this host."""

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the worker. Raises DoorClosed."""
        try:
            if self.address.startswith("unix:"):
                return await asyncio.open_unix_connection(self.address.removeprefix("unix:"), limit=PIECE_BYTES)
            host, _, port = self.address.removeprefix("tcp:").rpartition(":")
            context = None if self.certificate is None else _context()
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context, limit=PIECE_BYTES)
        except (OSError, ValueError) as error:
            raise DoorClosed(str(error)) from None
        if self.certificate is not None and not _shows(writer, self.certificate):
            writer.transport.abort()  # which waits for nothing that a stranger would have to answer
            raise DoorClosed("it shows another certificate than the pool told of")
        return reader, writer


class Doors:
    """Asks the pool."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.pool_url.rstrip("/")
        self._headers = {"Authorization": f"token {settings.hub_token}"}
        self._seconds = settings.upstream_seconds

    async def of(self, worker: str, identity: Identity) -> Door:
        """Where a worker is that serves somebody's session from outside. Raises NotFound, Unavailable."""
        path = "/".join(quote(part, safe="") for part in (identity.tenant or "", identity.name, worker))
        request = HTTPRequest(f"{self._url}/api/doors/{path}", headers=self._headers, request_timeout=self._seconds)
        try:
            answer = json.loads((await AsyncHTTPClient().fetch(request)).body)
            return Door(answer["address"], answer["certificate"])
        except HTTPClientError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                raise NotFound("No worker of this name serves a session of yours from outside.") from None
            raise Unavailable(f"The pool answered {error.code} when asked for a worker; try again.") from None
        except (OSError, ValueError, KeyError, TypeError):
            raise Unavailable("The pool cannot be asked for a worker at present; try again.") from None


def _context() -> ssl.SSLContext:
    """A worker is known by the hash of its certificate alone, as clients inside know it (docs/wire.md, TLS)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _shows(writer: asyncio.StreamWriter, certificate: str) -> bool:
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
    return hmac.compare_digest(hashlib.sha256(shown).hexdigest(), certificate)
