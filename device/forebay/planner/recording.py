"""A recording: what a program sent to the null device, in memory and as a file."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path

from forebay_wire.steps import Event, StepReader
from forebay_wire.stream import Operator, WireError, Write, Writer, WriteShared

from forebay.errors import ForebayError

MAGIC = b"FBAYPLAN1\n"
LENGTH_BYTES = 4
STREAM_BYTES_MAX = 1 << 30
"""Of a file's frames, unpacked."""


@dataclass
class Recording:
    """Events in their order, and the operators that their templates number."""

    events: list[Event] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    _frames: list[bytes] = field(default_factory=list)

    def add(self, body: bytes, events: list[Event]) -> None:
        """A frame, with what it says."""
        self.events += events
        self.operators += [event for event in events if isinstance(event, Operator)]
        self._frames.append(_without_contents(body, events))

    def save(self, path: Path) -> None:
        """Writes the frames, without the contents of uploads that have one of their own. Raises OSError."""
        packed = zlib.compressobj(6)
        parts = [MAGIC]
        for body in self._frames:
            parts += [packed.compress(len(body).to_bytes(LENGTH_BYTES, "little")), packed.compress(body)]
        path.write_bytes(b"".join([*parts, packed.flush()]))


def load(path: Path) -> Recording:
    """A recording that was saved. Raises ForebayError where the file is none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ForebayError(f"The stream {path} cannot be read: {error.strerror or error}.") from None
    if not data.startswith(MAGIC):
        raise ForebayError(f"{path} is no stream of `forebay plan`; give another file's name, or remove it to record anew.")
    recording, reader = Recording(), StepReader()
    try:
        for body in _bodies(data[len(MAGIC) :]):
            recording.add(body, reader.read(body))
    except (zlib.error, WireError, IndexError) as error:
        raise ForebayError(f"The stream {path} is damaged ({error}); remove it to record anew.") from None
    return recording


def _bodies(packed: bytes) -> list[bytes]:
    unpacked = zlib.decompressobj()
    data = unpacked.decompress(packed, STREAM_BYTES_MAX)
    if not unpacked.eof:
        raise WireError("it ends too early, or is longer than a gibibyte")
    bodies, place = [], 0
    while place < len(data):
        size = int.from_bytes(data[place : place + LENGTH_BYTES], "little")
        place += LENGTH_BYTES + size
        bodies.append(data[place - size : place])
    return bodies


def _without_contents(body: bytes, events: list[Event]) -> bytes:
    """A frame that is one upload, told as one whose bytes lie elsewhere."""
    if len(events) != 1 or not isinstance(events[0], Write):
        return body
    write, out = events[0], Writer()
    events[0] = WriteShared(write.storage, write.offset_bytes, len(write.data), 0)
    out.u8(15)
    for number in (write.storage, write.offset_bytes, len(write.data), 0):
        out.varint(number)
    return out.bytes()
