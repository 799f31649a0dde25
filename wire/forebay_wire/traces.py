"""The commands by which calls that came before come again, and what is told of them: ``docs/wire.md``, Traces, TELL_SEGMENTS, SEGMENTS.

What the commands expect is ``traces.h``'s to know.
"""

from __future__ import annotations

from dataclasses import astuple

from forebay_wire import _stream
from forebay_wire._stream import Reader, WireError, Writer
from forebay_wire.vocabulary import Change, Cut, Follow, Segment, Segments, Step

_NARROW_MAX = 1 << 56
"""Larger words of a step are shorter as eight bytes."""
COUNTS = 7
"""Whole numbers behind a segment's identity."""
REASON_BYTES_MAX = 512
"""Why a segment's tier is not higher, or what is said of its library, in UTF-8."""


def put_trace_command(out: Writer, command: Follow | Step | Cut) -> None:
    """Appends the command with its opcode."""
    match command:
        case Follow():
            out.u8(20)
            out.varint(command.steps)
        case Step():
            out.u8(21)
            out.varint(0 if command.child is None else command.child + 1)
            out.varint(len(command.changes))
            before: Change | None = None
            for change in command.changes:
                same = before is not None and change.word == before.word
                wide = change.word > _NARROW_MAX
                out.varint(change.position - (before.position if before else 0) << 2 | (2 if same else wide))
                if not same:
                    out.u64(change.word) if wide else out.varint(change.word)
                before = change
        case Cut():
            out.u8(22)
            out.u8(command.forget)


def get_trace_command(reader: Reader, opcode: int) -> Follow | Step | Cut:
    """Reads what comes after the opcode. Raises WireError."""
    if opcode == 20:
        return Follow(reader.bounded(_stream.STEPS_MAX, "the number of steps"))
    if opcode == 22:
        return Cut(bool(reader.u8()))
    child = reader.varint()
    changes: list[Change] = []
    position = word = 0
    for _ in range(reader.count(_stream.STEP_WORDS_MAX, "the number of changes")):
        head = reader.varint()
        form = head & 3
        position += head >> 2
        if form == 3 or (form == 2 and not changes):
            raise WireError("a change of unknown form")
        if form != 2:
            word = reader.u64() if form == 1 else reader.varint()
        changes.append(Change(position, word))
    return Step(child - 1 if child else None, tuple(changes))


def put_segments(out: Writer, reply: Segments) -> None:
    """Appends the reply with its opcode."""
    out.u8(77)
    out.varint(reply.request)
    out.varint(len(reply.segments))
    for segment in reply.segments:
        identity, *counts, tier, why = astuple(segment)
        out.u64(identity)
        for count in counts:
            out.varint(count)
        out.u8(tier)
        out.string(why)


def get_segments(reader: Reader) -> Segments:
    """Reads what comes after the opcode. Raises WireError."""
    request = reader.varint()
    number = reader.count(_stream.STEPS_MAX, "the number of segments")
    return Segments(request, tuple(_segment(reader) for _ in range(number)))


def _segment(reader: Reader) -> Segment:
    identity = reader.u64()
    times, calls, allocations, words, varying, births, frees = (reader.varint() for _ in range(COUNTS))
    tier, why = reader.u8(), reader.string(REASON_BYTES_MAX).decode()
    return Segment(identity, times, calls, allocations, words, varying, births, frees, tier, why)
