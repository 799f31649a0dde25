"""The commands by which calls that came before come again: ``docs/wire.md``, Traces. What they expect is ``traces.h``'s to know."""

from __future__ import annotations

from forebay_wire import _stream
from forebay_wire._stream import Reader, WireError, Writer
from forebay_wire.vocabulary import Change, Cut, Follow, Step

_NARROW_MAX = 1 << 56
"""Larger words of a step are shorter as eight bytes."""


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
