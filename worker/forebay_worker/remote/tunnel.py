"""Carries bytes between two connections, both ways."""

from __future__ import annotations

import asyncio

PIECE_BYTES = 65_536
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def join(one: Connection, other: Connection) -> None:
    """Until both ways have ended and all is sent, or one connection breaks; both are closed then. The end of one way is passed on."""
    writers = one[1], other[1]
    ways = [asyncio.create_task(_carry(one[0], other[1])), asyncio.create_task(_carry(other[0], one[1]))]
    try:
        await asyncio.gather(*ways)
        for writer in writers:
            writer.close()  # what is not sent yet is sent first
        for writer in writers:
            await writer.wait_closed()
    except OSError:
        pass  # nobody is there to tell
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
