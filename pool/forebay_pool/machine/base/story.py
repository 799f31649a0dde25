"""What happened to an object: the answer to a broken invariant."""

from __future__ import annotations

import re
from collections import deque

from forebay_pool.model.events import Event
from forebay_pool.model.instructions import Instruction, Show
from forebay_pool.model.types import Node, Seat

EVENTS_MAX = 500
"""At most this many of the last events are remembered, without those that led to no instructions, like most heartbeats. More would not fit
into the processor's caches, and each that is forgotten would have to be fetched for that."""
TICKET = re.compile(r"\b[0-9a-f]{64}\b")
"""A story may be logged; tickets may not."""

Page = tuple[int, Event, list[Instruction]]


class Story:
    """The last events with the instructions they led to."""

    def __init__(self) -> None:
        self._pages: deque[Page] = deque(maxlen=EVENTS_MAX)
        self._last: Page | None = None

    def add(self, now_ns: int, event: Event, out: list[Instruction]) -> None:
        """The event happens; what it leads to comes into ``out``."""
        if self._last is not None and self._last[2]:
            self._pages.append(self._last)
        self._last = (now_ns, event, out)

    def of(self, *ids: str) -> str:
        """The remembered events and instructions that name any of the ids, a line each."""
        named = re.compile("|".join(rf"(?<![\w/]){re.escape(name)}(?!\w)" for name in ids) or r"(?!)")
        lines: list[str] = []
        for now_ns, event, out in (*self._pages, *(() if self._last is None else (self._last,))):
            told = [f"  -> {text}" for text in map(_text, out) if named.search(text)]
            if told or named.search(str(event)):
                lines += [f"{now_ns} {event}", *told]
        return "\n".join(lines)


def _text(instruction: Instruction) -> str:
    if isinstance(instruction, Show):
        record = instruction.record
        name = record.device.id if isinstance(record, Seat) else record.name if isinstance(record, Node) else record.id
        return f"Show({type(record).__name__} {name} {record.state})"
    return TICKET.sub("a ticket", str(instruction))
