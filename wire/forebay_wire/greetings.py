"""What comes first over a connection, alone in its frame: who is there, and shows the ticket."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_wire import _stream
from forebay_wire._stream import MAGIC, VERSION, Reader, WireError, Writer


@dataclass(frozen=True)
class Hello:
    ticket: bytes
    torch: str
    version: int = VERSION
    magic: int = MAGIC


@dataclass(frozen=True)
class Fetch:
    """In place of a :class:`Hello`, of the worker that a session moves to; answered by the image (:mod:`forebay_wire.images`)."""

    ticket: bytes
    torch: str
    version: int = VERSION
    magic: int = MAGIC


@dataclass(frozen=True)
class Resume:
    """In place of a :class:`Hello`, of a client whose connection broke, over another one; answered by :class:`Resumed`."""

    ticket: bytes
    torch: str
    received: int
    """Bytes, as docs/wire.md counts them."""
    version: int = VERSION
    magic: int = MAGIC


@dataclass(frozen=True)
class Resumed:
    received: int
    """Bytes, as docs/wire.md counts them."""


Greeting = Hello | Fetch | Resume
OPCODES: dict[type[Greeting], int] = {Hello: 1, Fetch: 19, Resume: 38}


def put_greeting(out: Writer, greeting: Greeting) -> None:
    """Appends it."""
    out.u8(OPCODES[type(greeting)])
    out.raw(greeting.magic.to_bytes(4, "little"))
    out.varint(greeting.version)
    out.raw(greeting.ticket)
    out.string(greeting.torch)
    if isinstance(greeting, Resume):
        out.varint(greeting.received)


def get_greeting(opcode: int, reader: Reader) -> Greeting:
    """What follows the opcode. Raises WireError."""
    magic = int.from_bytes(reader.raw(4), "little")
    version = reader.varint()
    ticket, torch = reader.raw(_stream.TICKET_BYTES), _text(reader)
    match opcode:
        case 1:
            return Hello(ticket, torch, version, magic)
        case 19:
            return Fetch(ticket, torch, version, magic)
    return Resume(ticket, torch, reader.varint(), version, magic)


def _text(reader: Reader) -> str:
    try:
        return reader.string().decode()
    except UnicodeDecodeError:
        raise WireError("a string that is not UTF-8") from None
