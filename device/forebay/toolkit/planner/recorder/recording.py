"""A recording: what a program sent to the null device, in memory and as a file."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

from forebay_wire.steps import Event, StepReader
from forebay_wire.stream import Operator, WireError, Write, WriteShared

from forebay.errors import ForebayError

MAGIC = b"FBAYPLAN1\n"
LENGTH_BYTES = 4
PACKING_LEVEL = 1
CONTENTS_BYTES = 32
"""Shorter uploads are found nowhere in a frame for certain, and are kept as they are."""
STREAM_BYTES_MAX = 1 << 30
"""Of a file's frames, unpacked."""


class Recording:
    """Events in their order, without what uploads contain, and the operators that their templates number."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.operators: list[Operator] = []

    def add(self, body: bytes, events: Sequence[Event]) -> None:
        """A frame, with what it says."""
        self.operators += [event for event in events if isinstance(event, Operator)]
        self.events += [_without_contents(event) for event in events]


class NewRecording(Recording):
    """One that can be saved, since its frames are packed as they come."""

    def __init__(self) -> None:
        super().__init__()
        self._packing = zlib.compressobj(PACKING_LEVEL)
        self._packed: list[bytes] = [MAGIC]

    def add(self, body: bytes, events: Sequence[Event]) -> None:
        super().add(body, events)
        kept = _with_zeros(body, events)
        self._packed += [self._packing.compress(len(kept).to_bytes(LENGTH_BYTES, "little")), self._packing.compress(kept)]

    def save(self, path: Path) -> None:
        """Writes the frames, with zeros for what uploads contain. Nothing can be added afterwards. Raises OSError."""
        path.write_bytes(b"".join([*self._packed, self._packing.flush()]))


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


def _without_contents(event: Event) -> Event:
    """An upload as one whose bytes lie elsewhere."""
    return WriteShared(event.storage, event.offset_bytes, len(event.data), 0) if isinstance(event, Write) else event


def _with_zeros(body: bytes, events: Sequence[Event]) -> bytes:
    """The frame, with zeros for the contents of uploads that are longer than a few numbers."""
    kept, place = bytearray(body), 0
    for event in events:
        if isinstance(event, Write) and len(event.data) >= CONTENTS_BYTES:
            place = body.index(event.data, place)
            kept[place : place + len(event.data)] = bytes(len(event.data))
            place += len(event.data)
    return bytes(kept)
