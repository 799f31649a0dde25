"""What a client asks of the segments that came, and is told: ``docs/wire.md``, TELL_SEGMENTS and SEGMENTS."""

from __future__ import annotations

from dataclasses import astuple

from forebay_wire import _stream
from forebay_wire._stream import Reader, Writer
from forebay_wire.vocabulary import Segment, Segments

COUNTS = 7
"""Whole numbers behind a segment's identity."""
REASON_BYTES_MAX = 512
"""Why a segment's tier is not higher, or what is said of its library, in UTF-8."""


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
