"""Finds the step that repeats, as a program uploads one batch after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay_wire.steps import Called, Event, Freed, Made
from forebay_wire.stream import Copy, Write, WriteShared

from forebay.toolkit.planner.calls import CallShapes

PERIOD_CHUNKS_MAX = 1024
"""Uploads between two updates of the weights that are looked through."""


@dataclass(frozen=True)
class Iteration:
    """Events of one iteration, from its first upload on, by their numbers in the recording."""

    start: int
    end: int


@dataclass(frozen=True)
class _Chunk:
    """From an upload to the next upload that calls come before."""

    start: int
    end: int
    uploads: tuple[int, ...]
    calls: int
    """Stands for the calls, in their order."""


class IterationFinder:
    """Looks for the shortest run of chunks that came twice in a row, and in which weights are read and then written."""

    def __init__(self, events: Sequence[Event], shapes: CallShapes) -> None:
        self.iteration: Iteration | None = None
        self.iterations = 0
        """How many came, the first ones included, which make an optimizer's states."""
        self.calls = 0
        self._events, self._shapes = events, shapes
        self._seen = 0
        self._chunks: list[_Chunk] = []
        self._start = 0
        self._uploads: list[int] = []
        self._numbers: list[int] = []
        self._born: dict[int, int] = {}

    def look(self) -> None:
        """At the events that came since the last time."""
        for index in range(self._seen, len(self._events)):
            event = self._events[index]
            if isinstance(event, Called):
                self.calls += 1
                shape = self._shapes.of(event)
                self._numbers.append(shape.number)
                for made in shape.made:
                    self._born[event.words[made.word]] = index
            elif isinstance(event, Made):
                self._born[event.storage] = index
            elif isinstance(event, Freed):
                for storage in event.storages:
                    self._born.pop(storage, None)
            elif (size := uploaded_bytes(event)) is not None:
                if self._numbers:
                    self._close(index)
                self._uploads.append(size)
        self._seen = len(self._events)

    def finish(self) -> None:
        """No more comes."""
        self.look()
        self._close(len(self._events))

    def enough(self, iterations: int) -> bool:
        return self.iteration is not None and self.iterations >= iterations

    def _close(self, end: int) -> None:
        """Allocations just before an upload are the next chunk's."""
        while end > self._start and isinstance(self._events[end - 1], Made):
            end -= 1
        self._chunks.append(_Chunk(self._start, end, tuple(self._uploads), hash(tuple(self._numbers))))
        self._start, self._uploads, self._numbers = end, [], []
        for period in range(1, min(len(self._chunks) // 2, PERIOD_CHUNKS_MAX) + 1):
            if self._repeats(period) and self._updates(period):
                self.iteration = Iteration(self._chunks[-period].start, self._chunks[-1].end)
                self.iterations = self._comings(period)
                return

    def _repeats(self, period: int) -> bool:
        last, before = self._chunks[-period:], self._chunks[-2 * period : -period]
        return bool(last[0].uploads) and all(a.calls == b.calls and a.uploads == b.uploads for a, b in zip(last, before, strict=True))

    def _updates(self, period: int) -> bool:
        """Whether something that was there before is given to one call, and written by a later one that is given something else, too."""
        start = self._chunks[-2 * period].start
        read: set[int] = set()
        for event in self._events[self._chunks[-period].start : self._chunks[-1].end]:
            if not isinstance(event, Called):
                continue
            tensors = self._shapes.of(event).tensors
            for use in tensors:
                storage = event.words[use.word]
                if use.written and storage in read and self._born.get(storage, start) < start:
                    return True
            read |= {event.words[use.word] for use in tensors if not use.written}
        return False

    def _comings(self, period: int) -> int:
        """How often such uploads came one after the other, whatever was computed of them."""
        uploads = [chunk.uploads for chunk in self._chunks]
        count, last = 1, uploads[-period:]
        while len(uploads) >= (count + 1) * period and uploads[-(count + 1) * period : -count * period] == last:
            count += 1
        return count


def uploaded_bytes(event: Event) -> int | None:
    """Of an upload, or of one that the device held already; None of other events."""
    match event:
        case Write():
            return len(event.data)
        case WriteShared() | Copy():
            return event.bytes
    return None
