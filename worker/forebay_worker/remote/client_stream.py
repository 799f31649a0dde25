"""The worker's end of the stream to the client of a process: :mod:`forebay_wire.remote.frames`."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from forebay_wire.message_parts import Message
from forebay_wire.remote.frames import HEAD, FrameKind, StreamError, frame, head_of, said

SILENCE_SECONDS_MAX = 4
"""A client's host that acknowledges nothing for so long is gone; it may be stopped itself."""


class ClientStream:
    """Sends and receives frames. All methods raise ConnectionError where the connection has ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        made = writer.get_extra_info("socket")
        if made is not None and made.family != socket.AF_UNIX:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, SILENCE_SECONDS_MAX - 1)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS_MAX * 1000)

    async def next(self) -> tuple[FrameKind, bytes]:
        """The next frame. Raises StreamError for what is none."""
        try:
            kind, length = head_of(await self._reader.readexactly(HEAD.size))
            return kind, await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ConnectionError(str(error)) from None

    async def message(self) -> bytes:
        """The next frame, which must be a message. Raises StreamError for another one."""
        kind, contents = await self.next()
        if kind != FrameKind.MESSAGE:
            raise StreamError(f"{kind.name} where a message was awaited")
        return contents

    async def say(self, message: Message) -> None:
        """Sends a message."""
        self._writer.write(said(message))
        await self._drain()

    async def send(self, kind: FrameKind, contents: bytes) -> None:
        """Sends contents, as fast as the client takes them."""
        self._writer.write(frame(kind, contents))
        await self._drain()

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionError(str(error)) from None

    async def close(self) -> None:
        """Ends the connection."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
