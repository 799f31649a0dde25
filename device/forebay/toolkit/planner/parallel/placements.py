"""What lies in parts on the devices of a tensor group, and what they send each other, found by following the calls of a step once.

Two things can be in parts. Between products it is the *positions* of each row, as sequence parallelism has it (Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 4.2.2). From a product whose weight is divided by
what it makes to one whose weight is divided by what it takes it is the *features* (Shoeybi et al., "Megatron-LM", arXiv 1909.08053,
section 3). Before the first of these products devices gather its input, and after the second one they sum and scatter its result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import gcd, prod
from typing import NamedTuple

from forebay_wire.stream import Geometry

from forebay.toolkit.planner.calls import OVERWRITING, CallShape, TensorUse
from forebay.toolkit.planner.parallel.dimensions import PRODUCTS, divides, is_elementwise
from forebay.toolkit.planner.rows import pitch_of, result_dimension, rows_dimension
from forebay.toolkit.planner.step import Domain, Part, Step, StepCall

COPIED = 0
"""Stands for the pitch of a weight that is whole on each device."""


class Place(NamedTuple):
    """Where a block that holds rows has what may be in parts, as pitches (see rows.py)."""

    positions: int | None
    features: int | None = None
    """None: the positions are in parts."""
    openers: frozenset[int] = frozenset()
    """Templates of the products that divided the features."""

    @property
    def pitch(self) -> int | None:
        return self.positions if self.features is None else self.features


class Exchange(NamedTuple):
    """A collective: a block that is gathered, or summed and scattered, and that is whole meanwhile."""

    block: int
    begin: int
    end: int
    """Events of the first and of the last call that has it whole."""


class Conflict(Exception):
    """A call that cannot be carried out on the parts that it is given."""

    def __init__(self, openers: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.openers = openers


class _Held(NamedTuple):
    """A tensor with its place, given to a call."""

    argument: int
    """Its number among the call's tensors."""
    use: TensorUse
    place: Place

    @property
    def dimension(self) -> int:
        """That is in parts. Raises Conflict where the view has none."""
        return self.find(self.place.pitch)

    def find(self, pitch: int | None) -> int:
        found = None if pitch is None else rows_dimension(self.use.geometry, pitch)
        if found is None:
            raise Conflict(self.place.openers)
        return found


class Placements:
    """Of all blocks of a step, for so many parts. ``units`` says by how many features at once each opening product is divided."""

    def __init__(self, step: Step, parts: int, by_rows: bool, units: Mapping[int, int]) -> None:
        self.places: dict[int, Place] = {}
        self.divided: set[int] = set()
        """Weights, casts, gradients, states and what updates make, of which a device has a part."""
        self.gathered: list[Exchange] = []
        self.summed: list[Exchange] = []
        self.divisor = 0
        """Into as many parts as divide this all of it can be divided so."""
        self.larger: dict[int, set[int]] = defaultdict(set)
        """By how many features at once each opening product might be divided as well: those of a head, for one."""
        self._step, self._parts, self._by_rows, self._units = step, parts, by_rows, units
        self._source: dict[int, int] = {}
        """Casts of weights, with these."""
        self._pitches: dict[int, int] = {}
        """How weights are divided."""
        self._whole: dict[int, int] = {}
        """Blocks that are gathered now, with their places in the list."""

    def follow(self) -> None:
        """Goes through the calls. Raises Conflict."""
        for call in self._step.calls:
            shape = self._step.shapes[call.template]
            if call.domain is Domain.UPDATE:
                self._update(call, shape)
            elif call.domain is Domain.COPY:
                self._note_cast(call, shape)
            elif not self._multiply(call, shape):
                self._carry(call, shape)
        self.divided |= {weight for weight, pitch in self._pitches.items() if pitch != COPIED}
        self.divided |= {cast for cast, weight in self._source.items() if weight in self.divided}

    def _note_cast(self, call: StepCall, shape: CallShape) -> None:
        if shape.name == "copy_" and len(call.given) == 2:
            target, source = shape.tensors
            if target.geometry.strides == source.geometry.strides:
                self._source[call.given[0]] = self._root(call.given[1])
        elif shape.name == "_to_copy" and shape.made and shape.made[0].geometry.strides == shape.tensors[0].geometry.strides:
            self._source[call.made[0]] = self._root(call.given[0])

    def _root(self, number: int) -> int:
        return self._source.get(number, number)

    def _held(self, call: StepCall, shape: CallShape) -> Iterator[_Held]:
        for index, (number, use) in enumerate(zip(call.given, shape.tensors, strict=True)):
            if use.written and shape.name in OVERWRITING and use.bytes >= self._step.blocks[number].bytes:
                continue
            if number in self._step.uploaded and number not in self.places:
                self.places[number] = self._uploaded(use.geometry)
            if number in self.places:
                yield _Held(index, use, self.places[number])

    def _uploaded(self, geometry: Geometry) -> Place:
        """Positions are the second dimension of a batch, or what its first one has more than rows."""
        sizes, strides = geometry.sizes, geometry.strides
        if not sizes:
            raise Conflict
        each = sizes[0] // self._step.rows
        if self._by_rows:
            return Place(strides[0] * each)
        return Place(strides[0] if each > 1 else strides[1] if len(sizes) > 1 else None)

    # Products

    def _multiply(self, call: StepCall, shape: CallShape) -> bool:
        """Whether the call is a product of two matrices, which is followed then."""
        arguments = PRODUCTS.get(shape.name)
        if arguments is None or not shape.made:
            return False
        held = {one.use.argument: one for one in self._held(call, shape) if one.use.argument in arguments}
        first, second = (held.get(argument) for argument in arguments)
        if first and second:
            self._contract(call, first, second)
        elif first is not None:
            self._weigh(call, shape, first, _index_of(shape, arguments[1]), outer=0)
        elif second is not None:
            self._weigh(call, shape, second, _index_of(shape, arguments[0]), outer=1)
        return True

    def _weigh(self, call: StepCall, shape: CallShape, rows: _Held, index: int, outer: int) -> None:
        """Of rows and a weight. ``outer`` is the dimension of the rows that the result has, and of the weight the other one."""
        place, made, weight = rows.place, shape.made[0].geometry, shape.tensors[index].geometry
        if rows.find(place.positions) != outer:
            raise Conflict(place.openers)
        pitch = self._pitch_of_weight(call.template, rows, self._root(call.given[index]), weight, outer)
        positions = pitch_of(made, outer, rows.use.geometry, outer, place.positions or 0)
        if pitch == COPIED:
            if place.features is not None:
                raise Conflict(place.openers)
            self.places[call.made[0]] = Place(positions)
        elif rows_dimension(weight, pitch) == 1 - outer:
            if place.features is not None:
                raise Conflict(place.openers | {call.template})
            self._gather(call, rows)
            features = pitch // weight.strides[1 - outer] * made.strides[1 - outer]
            self.places[call.made[0]] = Place(positions, features, frozenset({call.template}))
        else:
            if place.features is None:
                raise Conflict()
            self.places[call.made[0]] = Place(positions)
            self._sum(call)

    def _pitch_of_weight(self, template: int, rows: _Held, number: int, weight: Geometry, outer: int) -> int:
        """Decided where a weight is first used: by what it takes if that is in parts, else by what it makes."""
        if number not in self._pitches:
            features, unit = rows.place.features, self._units.get(template, 1)
            made, taken = 1 - outer, outer
            if self._step.blocks[number].part is not Part.WEIGHT:
                self._pitches[number] = COPIED
            elif features is not None:
                if rows.dimension == outer:
                    raise Conflict(rows.place.openers)
                self.divisor = gcd(self.divisor, weight.sizes[taken] * rows.use.geometry.strides[1 - outer] // features)
                self._pitches[number] = features // rows.use.geometry.strides[1 - outer] * weight.strides[taken]
            else:
                fits = unit != COPIED and weight.sizes[made] % (unit * self._parts) == 0
                self.divisor = gcd(self.divisor, weight.sizes[made] // unit if fits else 0)
                self._pitches[number] = unit * weight.strides[made] if fits else COPIED
        return self._pitches[number]

    def _contract(self, call: StepCall, first: _Held, second: _Held) -> None:
        """Of rows with rows: a sum over all positions, as the gradients of weights are."""
        openers = first.place.openers | second.place.openers
        if first.find(first.place.positions) != 1 or second.find(second.place.positions) != 0:
            raise Conflict(openers)
        divided = [one for one in (first, second) if one.place.features is not None]
        if len(divided) == 2:
            raise Conflict(openers)
        if divided:
            if divided[0].dimension != (0 if divided[0] is first else 1):
                raise Conflict(openers)
            self._gather(call, second if divided[0] is first else first)
            self.divided.add(call.made[0])

    def _gather(self, call: StepCall, rows: _Held) -> None:
        """Unless it is there whole."""
        number = call.given[rows.argument]
        if number in self._whole:
            at = self._whole[number]
            self.gathered[at] = self.gathered[at]._replace(end=call.event)
            return
        self._whole[number] = len(self.gathered)
        self.gathered.append(Exchange(number, call.event, call.event))

    def _sum(self, call: StepCall) -> None:
        self.summed.append(Exchange(call.made[0], call.event, call.event))
        self._whole.clear()

    # All else

    def _carry(self, call: StepCall, shape: CallShape) -> None:
        held = list(self._held(call, shape))
        if not held:
            return
        openers = frozenset[int]().union(*(one.place.openers for one in held))
        for one in held:
            self._note_larger(one)
        features = {one.place.features is not None for one in held}
        places = {len(one.use.geometry.sizes) - one.dimension if is_elementwise(shape.name) else one.dimension for one in held}
        missing = shape.name == "cat" and len(held) < sum(use.elements > 0 for use in shape.tensors)
        if len(features) > 1 or len(places) > 1 or missing or not all(self._fits(shape, one) for one in held):
            raise Conflict(openers)
        for number, output, geometry in _results(call, shape):
            self._place(number, shape, (output, geometry), held, openers)

    def _note_larger(self, held: _Held) -> None:
        """A view that has more of the features along a dimension of its own has them in heads, or the like."""
        place, geometry = held.place, held.use.geometry
        at = None if place.features is None else rows_dimension(geometry, place.features)
        if at is None or place.features is None:
            return
        end = geometry.sizes[at] * geometry.strides[at]
        beside = None if place.positions is None else rows_dimension(geometry, place.positions)
        strides = [stride for dimension, stride in enumerate(geometry.strides) if dimension != beside and geometry.sizes[dimension] > 1]
        if end in strides:
            for opener in place.openers:
                self.larger[opener].add(self._units.get(opener, 1) * end // place.features)

    def _fits(self, shape: CallShape, held: _Held) -> bool:
        sizes, strides, at = held.use.geometry.sizes, held.use.geometry.strides, held.dimension
        self.divisor = gcd(self.divisor, sizes[at] * strides[at] // (held.place.pitch or 1))
        joined = shape.name == "cat" and held.place.features is not None  # devices join their parts of each
        return (joined or divides(shape, held.argument, at)) and self.divisor % self._parts == 0

    def _place(
        self, number: int, shape: CallShape, result: tuple[int, Geometry], held: Sequence[_Held], openers: frozenset[int]
    ) -> None:
        positions = self._carried(shape, result, [(one, one.place.positions) for one in held])
        features = self._carried(shape, result, [(one, one.place.features) for one in held])
        is_features = held[0].place.features is not None
        if self._step.blocks[number].part is Part.ROWS:
            if (features if is_features else positions) is None:
                raise Conflict(openers)
            self.places[number] = Place(positions, features, openers)
        elif features is not None:
            self.divided.add(number)

    def _carried(self, shape: CallShape, result: tuple[int, Geometry], held: Sequence[tuple[_Held, int | None]]) -> int | None:
        """The pitch in a result."""
        for one, pitch in held:
            at = None if pitch is None else rows_dimension(one.use.geometry, pitch)
            to = None if at is None else result_dimension(shape, *result, one.argument, at)
            if at is not None and to is not None and pitch is not None:
                return pitch_of(result[1], to, one.use.geometry, at, pitch)
        return None

    def _update(self, call: StepCall, shape: CallShape) -> None:
        """Tensors of one size at one place of their lists are of one weight."""
        members = [(use.item, use.elements, number) for use, number in zip(shape.tensors, call.given, strict=True)]
        items: dict[int, int] = {}
        for made, number in zip(shape.made, call.made, strict=True):
            item = items[made.output] = items.get(made.output, -1) + 1
            members.append((item, prod(made.geometry.sizes), number))
        parts = {(item, elements) for item, elements, number in members if number in self.divided or self._pitches.get(number)}
        self.divided |= {number for item, elements, number in members if (item, elements) in parts}


def _index_of(shape: CallShape, argument: int) -> int:
    return next(index for index, use in enumerate(shape.tensors) if use.argument == argument)


def _results(call: StepCall, shape: CallShape) -> Iterator[tuple[int, int, Geometry]]:
    """What a call makes or writes, with the number of its output."""
    for made, number in zip(shape.made, call.made, strict=True):
        yield number, made.output, made.geometry
    for use, number in zip(shape.tensors, call.given, strict=True):
        if use.written:
            yield number, 0, use.geometry
