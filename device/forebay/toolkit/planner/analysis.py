"""Makes the step of a recording's iteration: goes through its events once, and follows the batch's rows to the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

from forebay_wire.steps import Called, Event, Freed, Made
from forebay_wire.stream import Geometry, Resize

from forebay.errors import ForebayError
from forebay.toolkit.planner.calls import HALVES, OVERWRITING, CallShape, CallShapes, TensorUse
from forebay.toolkit.planner.flops import flops_of
from forebay.toolkit.planner.iteration import Iteration, uploaded_bytes
from forebay.toolkit.planner.rows import pitch_of, result_dimension, rows_dimension
from forebay.toolkit.planner.step import Block, Domain, Part, Step, StepCall


def analyse(events: Sequence[Event], iteration: Iteration, shapes: CallShapes, rows: int | None = None) -> Step:
    """The step of a recording, whose batch has so many rows where that is told. Raises ForebayError where none can be followed."""
    within = events[iteration.start : iteration.end]
    rows = rows or _rows_of(within, shapes)
    before = _alive(events[: iteration.start], shapes)
    uploaded = {event.storage for event in within if uploaded_bytes(event) is not None}  # type: ignore[union-attr]
    analysis = _Analysis(shapes, before, uploaded, rows)
    analysis.note_zeroed(within)
    for index, event in enumerate(within):
        analysis.take(index, event)
    if not analysis.gradients:
        raise ForebayError("No sum over the batch's rows reaches an optimizer in the step, so it trains nothing that could be planned.")
    uploads = tuple(size for event in within if (size := uploaded_bytes(event)) is not None)
    return analysis.step(len(within), uploads)


def _alive(events: Sequence[Event], shapes: CallShapes) -> dict[int, int]:
    """Storages with their bytes after these events."""
    alive: dict[int, int] = {}
    for event in events:
        match event:
            case Made() | Resize():
                alive[event.storage] = event.bytes
            case Freed():
                for storage in event.storages:
                    alive.pop(storage, None)
            case Called():
                for made in shapes.of(event).made:
                    alive[event.words[made.word]] = made.storage_bytes
    return alive


def _rows_of(events: Sequence[Event], shapes: CallShapes) -> int:
    """What divides the first dimension of every use of an upload, and of attention's queries: uses may be flat, or parts.

    Raises ForebayError where no upload is used."""
    uploads: set[int] = set()
    rows = 0
    for event in events:
        if uploaded_bytes(event) is not None:
            uploads.add(event.storage)  # type: ignore[union-attr]
        elif isinstance(event, Called):
            shape = shapes.of(event)
            for use in shape.tensors:
                if event.words[use.word] in uploads and use.geometry.sizes:
                    rows = gcd(rows, use.geometry.sizes[0])
            if rows and shape.name.startswith("_scaled_dot_product"):
                rows = gcd(rows, shape.tensors[0].geometry.sizes[0])
    if not rows:
        raise ForebayError("No upload of the step is used as a batch of rows, so nothing can be divided among devices.")
    return rows


class _Given(NamedTuple):
    """A tensor that holds rows, given to a call."""

    place: int
    use: TensorUse
    dimension: int
    pitch: int


class _Analysis:
    """Knows of each storage whether it holds rows, a sum over them, what an update made, or nothing of the batch."""

    def __init__(self, shapes: CallShapes, before: dict[int, int], uploaded: set[int], rows: int) -> None:
        self.gradients: dict[int, int] = {}
        self._shapes, self._uploaded, self._rows = shapes, uploaded, rows
        self._blocks = {storage: Block(storage, size, Part.COPY, -1) for storage, size in before.items()}
        self._pitch: dict[int, int] = {}
        self._summed: dict[int, int] = {}
        """Sums over the rows, with the event that wrote each last."""
        self._of_updates: set[int] = set()
        """What updates made and wrote, of gradients and of what was there before."""
        self._kept_written: set[int] = set()
        self._read: set[int] = set()
        self._calls: list[StepCall] = []
        self._used: dict[int, CallShape] = {}
        self._cast_from: dict[int, int] = {}
        """What was copied from one tensor, perhaps in another type, with that tensor's storage."""

    def note_zeroed(self, events: Sequence[Event]) -> None:
        """What was there before and the step sets to zero is a gradient that stays from step to step."""
        for event in events:
            if isinstance(event, Called) and (shape := self._shapes.of(event)).name in ("zero_", "_foreach_zero_"):
                names = (event.words[use.word] for use in shape.tensors)
                self._summed |= {name: -1 for name in names if name in self._blocks}

    def take(self, index: int, event: Event) -> None:
        match event:
            case Called():
                self._call(index, event)
            case Made():
                self._blocks[event.storage] = Block(event.storage, event.bytes, Part.COPY, index)
            case Freed():
                for storage in event.storages:
                    if storage in self._blocks:
                        self._blocks[storage].freed = index

    def step(self, events: int, uploads: tuple[int, ...]) -> Step:
        trained = frozenset(self._kept_written & self._read)
        for block in self._blocks.values():
            if block.born < 0:
                self._name_kept(block)
        self._name_leftovers()
        self._name_casts()
        weights = {number for number, block in self._blocks.items() if block.part is Part.WEIGHT}
        for call in self._calls:
            call.weights = tuple(name for name in call.weights if name in weights)
        held = frozenset(self._uploaded & self._pitch.keys())
        return Step(self._rows, self._blocks, self._calls, events, self.gradients, trained & weights, uploads, self._used, held)

    def _name_kept(self, block: Block) -> None:
        """What was there before the step."""
        if block.number in self.gradients or block.number in self._pitch:
            block.part = Part.GRADIENT if block.number in self.gradients else Part.ROWS
        elif block.number in self._read:
            block.part = Part.WEIGHT
        elif block.number in self._kept_written:
            block.part = Part.STATE

    def _name_leftovers(self) -> None:
        """What was there before and is freed in the step unused is what the step before it left: gradients, for one."""
        made = {block.bytes: block.part for block in self._blocks.values() if block.born >= 0 and block.freed is None}
        for block in self._blocks.values():
            if block.born < 0 and block.freed is not None and block.part is Part.COPY:
                block.part = made.get(block.bytes, Part.COPY)

    def _note_cast(self, shape: CallShape, event: Called, names: Sequence[int]) -> None:
        if shape.name == "copy_" and len(names) == 2:
            self._cast_from[names[0]] = names[1]
        elif shape.name == "_to_copy":
            self._cast_from |= {event.words[made.word]: names[0] for made in shape.made}

    def _name_casts(self) -> None:
        for name, source in self._cast_from.items():
            block = self._blocks[name]
            if block.part is Part.COPY and block.born >= 0 and self._blocks[source].part in (Part.WEIGHT, Part.CAST):
                block.part = Part.CAST

    def _call(self, index: int, event: Called) -> None:
        shape = self._shapes.of(event)
        names = [event.words[use.word] for use in shape.tensors]
        kept = [not self._overwrites(shape, use, name) for use, name in zip(shape.tensors, names, strict=True)]
        given = [found for place, name in enumerate(names) if kept[place] and (found := self._given(place, shape.tensors[place], name))]
        sums = [name for place, name in enumerate(names) if kept[place] and name in self._summed]
        domain = self._domain(shape, names, kept, bool(given), bool(sums))
        if domain is Domain.UPDATE:
            self._note_update(names, sums)
        for made in shape.made:
            name = event.words[made.word]
            self._blocks[name] = Block(name, made.storage_bytes, Part.COPY, index)
            self._hold(index, shape, name, (made.output, made.geometry), given, domain, bool(sums))
        self._note_cast(shape, event, names)
        for place, use in enumerate(shape.tensors):
            if use.written:
                self._write(index, shape, place, names, given, domain, bool(sums))
            elif domain is not Domain.UPDATE:
                self._read.add(names[place])
        self._used[shape.number] = shape
        self._calls.append(self._costs(index, event, shape, names, domain))

    def _overwrites(self, shape: CallShape, use: TensorUse, name: int) -> bool:
        """All of a storage; where a part of it is written, what was there before counts."""
        return use.written and shape.name in OVERWRITING and use.bytes >= self._blocks[name].bytes

    def _given(self, place: int, use: TensorUse, name: int) -> _Given | None:
        sizes = use.geometry.sizes
        if name in self._uploaded and name not in self._pitch and sizes and sizes[0] % self._rows == 0:
            self._pitch[name] = use.geometry.strides[0] * (sizes[0] // self._rows)
            self._blocks[name].part = Part.ROWS
        pitch = self._pitch.get(name)
        dimension = None if pitch is None else rows_dimension(use.geometry, pitch)
        return None if dimension is None or pitch is None else _Given(place, use, dimension, pitch)

    def _domain(self, shape: CallShape, names: Sequence[int], kept: Sequence[bool], rows: bool, sums: bool) -> Domain:
        if rows:
            return Domain.ROWS
        writes_old = any(use.written and self._blocks[name].born < 0 for name, use in zip(names, shape.tensors, strict=True))
        updated = any(keep and name in self._of_updates for name, keep in zip(names, kept, strict=True))
        return Domain.UPDATE if sums or writes_old or updated else Domain.COPY

    def _note_update(self, names: Sequence[int], sums: Sequence[int]) -> None:
        """Sums that come together with what was there before are the gradients of a step."""
        if any(self._blocks[name].born < 0 and name not in self._summed for name in names):
            for name in sums:
                self.gradients.setdefault(name, self._summed[name])

    def _hold(
        self, index: int, shape: CallShape, name: int, result: tuple[int, Geometry], given: Sequence[_Given], domain: Domain, sums: bool
    ) -> None:
        """What a call makes, or writes anew, holds rows, a sum over them, or neither."""
        block = self._blocks[name]
        for one in given:
            dimension = result_dimension(shape, *result, one.place, one.dimension)
            if dimension is not None:
                self._pitch[name] = pitch_of(result[1], dimension, one.use.geometry, one.dimension, one.pitch)
                block.part = Part.ROWS
                return
        if given or (sums and not self.gradients):
            self._summed[name] = index
            block.part = Part.GRADIENT
        elif domain is Domain.UPDATE:
            self._of_updates.add(name)
            block.part = Part.UPDATE

    def _write(
        self, index: int, shape: CallShape, place: int, names: Sequence[int], given: Sequence[_Given], domain: Domain, sums: bool
    ) -> None:
        name, geometry = names[place], shape.tensors[place].geometry
        if self._overwrites(shape, shape.tensors[place], name):
            self._pitch.pop(name, None)
            self._summed.pop(name, None)
            others = [one for one in given if one.place != place]
            self._hold(index, shape, name, (0, geometry), others, domain, sums)
            return
        if name in self._pitch:
            return
        if given:
            self._hold(index, shape, name, (0, geometry), given, domain, sums)
        elif name in self._summed:
            if self._is_added_to(shape, place, names):
                self._summed[name] = index
        elif domain is Domain.UPDATE and self._blocks[name].born < 0:
            self._kept_written.add(name)
            self._of_updates.add(name)

    def _is_added_to(self, shape: CallShape, place: int, names: Sequence[int]) -> bool:
        """Whether the call gives a sum another one of its size, not a factor alone, as clipping and scaling do."""
        target = shape.tensors[place]
        others = (use for use, name in zip(shape.tensors, names, strict=True) if not use.written and name in self._summed)
        return any(use.item == target.item and use.elements == target.elements for use in others)

    def _costs(self, index: int, event: Called, shape: CallShape, names: Sequence[int], domain: Domain) -> StepCall:
        rows_bytes = other_bytes = 0
        for use, name in zip(shape.tensors, names, strict=True):
            size = use.bytes * (2 if use.written else 1)
            rows_bytes, other_bytes = (rows_bytes + size, other_bytes) if name in self._pitch else (rows_bytes, other_bytes + size)
        for made in shape.made:
            rows_bytes, other_bytes = (
                (rows_bytes + made.storage_bytes, other_bytes) if domain is Domain.ROWS else (rows_bytes, other_bytes + made.storage_bytes)
            )
        half = any(use.geometry.dtype in HALVES for use in shape.tensors)
        read = () if domain is Domain.UPDATE else tuple(name for name in names if self._blocks[name].born < 0)
        new = tuple(event.words[made.word] for made in shape.made)
        return StepCall(index, shape.name, domain, flops_of(shape), half, rows_bytes, other_bytes, read, shape.number, tuple(names), new)
