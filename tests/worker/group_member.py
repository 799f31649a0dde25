"""A member of a worker's process group that a test plays: what it shows at the worker's door, and says."""

from __future__ import annotations

import socket
import struct
from typing import Any

import torch
from forebay_wire import stream, vocabulary
from forebay_wire._stream import Writer

MEET, MEETING, MET = 35, 80, 81
FLOAT = 6
PATIENCE_MS = 3000
HEADER = struct.Struct("<IBBBxQQ")
ENDS = 255


def path_of(door: str) -> str:
    """Of the socket at an address, which may say what its worker's device offers."""
    return door.partition(" via ")[0].removeprefix("unix:")


def opened(client: Any, group: int = 1, rank: int = 0, size: int = 2, patience_ms: int = PATIENCE_MS) -> vocabulary.Door:
    client.send(vocabulary.OpenDoor(client.request(), group, rank, size, patience_ms))
    door = client.reply()
    assert isinstance(door, vocabulary.Door), door
    return door


def greeting(ticket: bytes, rank: int) -> bytes:
    out = Writer()
    out.u8(MEET)
    out.raw(stream.MAGIC.to_bytes(4, "little"))
    out.varint(stream.VERSION)
    out.raw(ticket)
    out.string(torch.__version__)
    out.varint(rank)
    return bytes(out.bytes())


def read(peer: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = peer.recv(count - len(found))
        if not piece:
            return found
        found += piece
    return found


def header(what: int, size: int, number: int = 0, dtype: int = FLOAT, reduction: int = 0) -> bytes:
    return HEADER.pack(stream.MAGIC, what, dtype, reduction, number, size)


OTHER = bytes(range(32))
"""The ticket of the member that the test plays."""


def meet(peer: socket.socket, door: vocabulary.Door) -> None:
    """Of rank 1, which shows the ticket; the door speaks first."""
    assert stream.read_frame(peer) == bytes([MEETING]) + stream.MAGIC.to_bytes(4, "little") + bytes([stream.VERSION])
    peer.sendall(stream.frame(greeting(door.ticket, 1)))
    assert stream.read_frame(peer) == bytes([MET]) + OTHER
