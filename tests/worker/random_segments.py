"""Random programs of views, writes in place, lists and numbers that change, run by PyTorch and described as the executor describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from conftest import Recording, geometry_of
from forebay_wire import steps, stream
from forebay_wire.stream import Geometry, Template
from forebay_worker.descriptions import Call, Description, Place, Word, WordKind
from hypothesis import strategies as st

aten = torch.ops.aten
KINDS = {steps.STORAGE: WordKind.USED, steps.NEW: WordKind.MADE}


@dataclass
class Program:
    """What ran so far, on tensors of this process."""

    changing: bool = False
    """Whether its numbers with a fraction are such that change."""
    calls: list[Call] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    storages: dict[int, int] = field(default_factory=dict)
    geometries: list[Geometry] = field(default_factory=list)
    before: dict[int, torch.Tensor] = field(default_factory=dict)
    alive: list[torch.Tensor] = field(default_factory=list)
    """One tensor over all of each storage."""
    written: set[int] = field(default_factory=set)

    def upload(self, tensor: torch.Tensor) -> int:
        """As a client's: the number of the storage, which is an input where it is new."""
        key = tensor.untyped_storage().data_ptr()
        if key not in self.storages:
            whole = next(one for one in self.alive if one.untyped_storage().data_ptr() == key)
            self._number(whole)
            self.before[self.storages[key]] = whole.clone()
        return self.storages[key]

    def storage(self) -> int:
        """As a client's: the number of a result, which is told with it."""
        self.geometries.append(Geometry(6, (), ()))
        return len(self.geometries) - 1

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        self.alive.append(tensor)
        return tensor

    def _number(self, whole: torch.Tensor) -> None:
        self.storages[whole.untyped_storage().data_ptr()] = len(self.geometries)
        self.geometries.append(geometry_of(whole))

    def run(self, op: torch._ops.OpOverload, *args: Any) -> Any:
        """Runs the operator on the tensors themselves."""
        recording: Any = Recording(self, op, args, {})  # type: ignore[arg-type] # all that it needs of a client is here
        named = {argument.name: value for argument, value in zip(op._schema.arguments, recording.values, strict=True)}
        positional = [named.pop(argument.name) for argument in op._schema.arguments if not argument.kwarg_only]
        result = op(*positional, **named)
        self._note_written(recording, op)
        results = [] if not op._schema.returns else list(result) if len(op._schema.returns) > 1 else [result]
        outputs = recording.outputs(results)
        for (number, geometry), made in zip(recording.news, recording.here, strict=True):
            self.storages[made.untyped_storage().data_ptr()], self.geometries[number] = number, geometry
            self.given(made)
        template = Template(0, tuple(recording.arguments), tuple(outputs))
        words = steps._words(steps.word_kinds(template), stream.Call(0, tuple(recording.bindings), None))
        kinds = steps.word_kinds(template)
        self.calls.append(Call(op._schema.name, op._schema.overload_name, template, tuple(map(self._word, kinds, words))))
        return result

    def _note_written(self, recording: Any, op: torch._ops.OpOverload) -> None:
        for argument, value in zip(op._schema.arguments, recording.values, strict=True):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in value if isinstance(value, list | tuple) else [value]:
                    number = self.upload(tensor)
                    recording.written.append((tensor, number))
                    self.written.add(number)

    def _word(self, kind: int, word: int) -> Word:
        value = steps.struct.unpack("<d", steps.struct.pack("<Q", word))[0] if kind == steps.BITS else 0.0
        if self.changing and value != int(value):
            self.numbers.append(value)
            return Word(WordKind.NUMBER, len(self.numbers) - 1)
        return Word(KINDS.get(kind, WordKind.CONSTANT), word)

    def description(self) -> Description:
        made = {word.value for call in self.calls for word in call.words if word.kind == WordKind.MADE}
        places = (Place(number in self.before, number in made | self.written, geometry) for number, geometry in enumerate(self.geometries))
        return Description(len(self.numbers), tuple(places), tuple(self.calls))

    def inputs(self) -> list[torch.Tensor]:
        """As a library takes them, copies of what was there before."""
        given = [self.before[number].clone() for number in sorted(self.before)]
        return [*given, torch.tensor(self.numbers, dtype=torch.float64)] if self.numbers else given

    def outputs(self) -> list[torch.Tensor]:
        """As a library gives them: what the storages hold now."""
        places = [self.storages.get(one.untyped_storage().data_ptr()) for one in self.alive]
        whole = {place: one for place, one in zip(places, self.alive, strict=True) if place is not None}
        return [whole[number] for number, place in enumerate(self.description().places) if place.is_output]


VIEWS: tuple[Any, ...] = (
    lambda x: x,
    lambda x: x.t(),
    lambda x: x[1:3].expand(2, 4)[:1].expand(4, 4),
    lambda x: x[:, 2:3].expand(4, 4),
    lambda x: x[::2][1].expand(4, 4),
    lambda x: x.view(2, 2, 4).transpose(1, 2)[0][:, 1:].expand(4, 4) if x.is_contiguous() else x.t(),
    lambda x: x.view(16)[4:8].expand(4, 4) if x.is_contiguous() else x,
)
UNARY = (aten.relu.default, aten.tanh.default, aten.sigmoid.default, aten.neg.default)
FRACTIONS = st.sampled_from((0.5, 0.25, -0.75, 1.5, 0.1))


@st.composite
def programs(draw: st.DrawFn, length: int = 12) -> Program:
    """A program on matrices of four rows and columns, some of them transposed."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    program = Program(changing=draw(st.booleans()))
    tensors = [program.given(torch.randn(4, 4)) for _ in range(3)] + [program.given(torch.randn(4, 4).t().contiguous().t())]
    for _ in range(length):
        statement = draw(st.sampled_from((_pointwise, _product, _in_place, _copied, _each)))
        statement(draw, program, tensors)
    return program


def _any(draw: st.DrawFn, tensors: list[torch.Tensor]) -> torch.Tensor:
    view: torch.Tensor = draw(st.sampled_from(VIEWS))(draw(st.sampled_from(tensors)))
    return view


PARTS: tuple[Any, ...] = (
    lambda x: x,
    lambda x: x.t(),
    lambda x: x[1:3],
    lambda x: x[:, 2],
    lambda x: x[::2, 1:],
    lambda x: x[3, 1],
    lambda x: x.view(2, 8)[1, 1:7].view(2, 3) if x.is_contiguous() else x.t()[:, 1:],
    lambda x: x.view(2, 2, 4).transpose(1, 2)[0][:, 1:] if x.is_contiguous() else x.t()[1:2],
)
"""Of all elements or some, each of them once."""


def _part(draw: st.DrawFn, tensors: list[torch.Tensor]) -> torch.Tensor:
    part: torch.Tensor = draw(st.sampled_from(PARTS))(draw(st.sampled_from(tensors)))
    return part


def _other(draw: st.DrawFn, tensors: list[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """Over another storage, and as large as the target."""
    storage = target.untyped_storage().data_ptr()
    other = _any(draw, [one for one in tensors if one.untyped_storage().data_ptr() != storage])
    return other[(0,) * (2 - target.dim()) + tuple(slice(size) for size in target.shape)]


def _pointwise(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    if draw(st.booleans()):
        tensors.append(program.run(draw(st.sampled_from(UNARY)), _any(draw, tensors)))
    else:
        operator = draw(st.sampled_from((aten.add.Tensor, aten.sub.Tensor)))
        tensors.append(program.run(operator, _any(draw, tensors), _any(draw, tensors), draw(FRACTIONS)))


def _product(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    tensors.append(program.run(aten.tanh.default, program.run(aten.mm.default, _any(draw, tensors), _any(draw, tensors))))


def _in_place(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    target = _part(draw, tensors)
    if draw(st.booleans()):
        program.run(aten.mul_.Scalar, target, draw(FRACTIONS))
    else:
        program.run(aten.add_.Tensor, target, _other(draw, tensors, target), draw(FRACTIONS))


def _copied(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    target = _part(draw, tensors)
    if draw(st.integers(0, 3)) == 0:
        program.run(aten.zero_.default, target)
    else:
        program.run(aten.copy_.default, target, _other(draw, tensors, target))


def _each(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    """On two tensors at once, and their neighbours."""
    first, second, *_ = draw(st.permutations(tensors[:4]))
    others = [_any(draw, tensors[4:] or [torch.ones(4, 4)]) for _ in range(2)] if len(tensors) > 4 else None
    if others is None or draw(st.booleans()):
        program.run(aten._foreach_mul_.ScalarList, [first, second], [draw(FRACTIONS), draw(FRACTIONS)])
    elif draw(st.booleans()):
        program.run(aten._foreach_add_.List, [first, second], others, draw(FRACTIONS))
    else:
        program.run(aten._foreach_addcmul_.Scalar, [first, second], others, others, draw(FRACTIONS))
