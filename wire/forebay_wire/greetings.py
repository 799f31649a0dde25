"""What comes first over a connection, alone in its frame: who is there, and shows the ticket."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_wire import _stream
from forebay_wire._stream import MAGIC, VERSION, Reader, WireError, Writer

IMAGES_TOLD_MAX = 64


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
class Welcome:
    version: int
    torch: str
    device_kind: str
    device_model: str
    memory_limit_bytes: int
    no_kernels: str
    """Why it takes no kernels of programs; empty: it does."""
    grace_ms: int = 0
    """How long it waits for a client whose connection broke."""
    keeps_images: bool = False
    checkpoints: int = 0
    """0: it keeps none; 1: it does; 2: it makes images of them for other sessions, too."""
    begun: int = 0
    """What it has of the session: 0: nothing; 1: what another worker had; 2: an image of that."""
    images: tuple[int, ...] = ()
    """The numbers of the session's images that are there."""


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


def put_welcome(out: Writer, welcome: Welcome) -> None:
    """Appends it behind its opcode."""
    out.varint(welcome.version)
    for text in (welcome.torch, welcome.device_kind, welcome.device_model):
        out.string(text)
    out.varint(welcome.memory_limit_bytes)
    out.string(welcome.no_kernels)
    out.varint(welcome.grace_ms)
    for byte in (welcome.keeps_images, welcome.checkpoints, welcome.begun):
        out.u8(byte)
    out.varint(len(welcome.images))
    for number in welcome.images:
        out.varint(number)


def get_welcome(reader: Reader) -> Welcome:
    """What follows the opcode; older workers end earlier. Raises WireError."""
    words = (reader.varint(), _text(reader), _text(reader), _text(reader), reader.varint(), _text(reader))
    grace_ms, keeps_images = (0, False) if reader.done() else (reader.varint(), bool(reader.u8()))
    checkpoints = 0 if reader.done() else reader.u8()
    if reader.done():
        return Welcome(*words, grace_ms, keeps_images, checkpoints)
    begun, count = reader.u8(), reader.count(IMAGES_TOLD_MAX, "the number of images")
    return Welcome(*words, grace_ms, keeps_images, checkpoints, begun, tuple(reader.varint() for _ in range(count)))


def _text(reader: Reader) -> str:
    try:
        return reader.string().decode()
    except UnicodeDecodeError:
        raise WireError("a string that is not UTF-8") from None
