"""Carries bytes between two connections, both ways."""

from __future__ import annotations

import asyncio
import contextlib

PIECE_BYTES = 65_536


async def join(one: tuple[asyncio.StreamReader, asyncio.StreamWriter], other: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Until both ways have ended, or one connection is gone; both are closed then. The end of one way is passed on."""
    ways = [asyncio.create_task(_carry(one[0], other[1])), asyncio.create_task(_carry(other[0], one[1]))]
    try:
        with contextlib.suppress(OSError):
            await asyncio.gather(*ways)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for writer in (one[1], other[1]):
            writer.transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
