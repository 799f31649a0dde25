"""An HTTP proxy by which alone a network lets programs out: CONNECT (RFC 9110), with Basic authorization (RFC 7617) or without."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

PIECE_BYTES = 65_536


class ConnectingProxy:
    """``credentials`` is NAME:PASSWORD, which it wants; ``refused`` gives the status that a tunnel gets, counted from 0, or nothing."""

    def __init__(self, host: str, credentials: str | None, refused: Callable[[int], str | None]) -> None:
        self.host, self.port = host, 0
        self._wanted = None if credentials is None else f"Basic {base64.b64encode(credentials.encode()).decode()}"
        self._refused = refused
        self.targets: list[str] = []
        """Of the tunnels that were opened, in order."""
        self.strangers = 0
        """Who did not say the right credentials."""
        self._writers: set[asyncio.StreamWriter] = set()

    def address(self, credentials: str = "") -> str:
        return f"http://{credentials}{'@' if credentials else ''}{self.host}:{self.port}"

    def cut(self) -> None:
        """Ends all tunnels."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._connect(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        assert method == "CONNECT" and headers.get("host", target) == target, first  # urllib sends none
        if self._wanted is not None and headers.get("proxy-authorization") != self._wanted:
            self.strangers += 1
            await self._say(writer, '407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm="out"\r\nContent-Length: 0')
            return
        refusal = self._refused(len(self.targets))
        self.targets.append(target)
        if refusal is not None:
            await self._say(writer, f"{refusal}\r\nContent-Length: 0")
            return
        host, _, port = target.rpartition(":")
        there, back = await asyncio.open_connection(host.strip("[]"), int(port))
        self._writers.add(back)
        try:
            await self._say(writer, "200 Connection established\r\nVia: 1.1 tests")
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        finally:
            self._writers.discard(back)
            back.close()

    async def _say(self, writer: asyncio.StreamWriter, answer: str) -> None:
        """In pieces, as a network may bring it."""
        for letter in f"HTTP/1.1 {answer}\r\n\r\n".encode():
            writer.write(bytes([letter]))
            await writer.drain()
            await asyncio.sleep(0)


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await source.read(PIECE_BYTES):
            target.write(piece)
            await target.drain()
    target.close()


@asynccontextmanager
async def proxy(
    host: str = "127.0.0.1", credentials: str | None = None, refused: Callable[[int], str | None] = lambda number: None
) -> AsyncIterator[ConnectingProxy]:
    made = ConnectingProxy(host, credentials, refused)
    server = await asyncio.start_server(made.serve, host, 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.cut()
        await server.wait_closed()
