"""Random programs as people's come down to operators, run by PyTorch and described as the executor describes them: views, writes in place
and to parts, lists, dropout, draws, casts, branches on masks, indices that are computed, ``out``, storages that go, numbers that
change, parts of data that lie elsewhere from time to time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from conftest import DTYPE_OF, DTYPES, Recording, default_dtype_flags, geometry_of
from forebay_wire import steps, stream
from forebay_wire.stream import Argument, Geometry, Tag, Template
from forebay_worker.descriptions import Call, Description, Guard, Place, Window, Word, WordKind
from hypothesis import strategies as st

aten = torch.ops.aten
KINDS = {steps.STORAGE: WordKind.USED, steps.NEW: WordKind.MADE}
FRACTIONS = (0.5, 0.25, -0.75, 1.5, 0.1)
WHOLE = (8, -12)
CHANGING = FRACTIONS + WHOLE
"""Numbers that change where a program's do."""


class Encoding(Recording):
    """A call in which a number stands for a tensor as PyTorch wraps it."""

    def _argument(self, value: Any, argument: Any) -> Argument:
        if "Generator" in str(argument.type):
            return Argument(Tag.GENERATOR)
        if str(argument.type) != "Tensor" or not isinstance(value, int | float):
            return super()._argument(value, argument)
        self.flat.append(None)
        self.bindings.append(value)
        return Argument(Tag.SCALAR_TENSOR, dtype=DTYPES[torch.float64 if isinstance(value, float) else torch.int64], flag=True)


class Sent(NamedTuple):
    """A step as a client sends it, with the program's numbers of storages."""

    op: torch._ops.OpOverload | None
    """None: it allocates the result."""
    template: Template
    bindings: tuple[stream.Binding, ...]
    made: tuple[int, ...]
    freed: tuple[int, ...]
    """Before it."""

    @property
    def draws(self) -> bool:
        return bool(self.template.flags & stream.RANDOM)


@dataclass
class Program:
    """What ran so far, on tensors of this process."""

    changing: bool = False
    """Whether those of its numbers that may change do."""
    calls: list[Call] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    storages: dict[int, int] = field(default_factory=dict)
    geometries: list[Geometry] = field(default_factory=list)
    before: dict[int, torch.Tensor] = field(default_factory=dict)
    alive: list[torch.Tensor] = field(default_factory=list)
    """One tensor over all of each storage."""
    written: set[int] = field(default_factory=set)
    sent: list[Sent] = field(default_factory=list)
    drawn: list[torch.Tensor] = field(default_factory=list)
    """What its dropouts kept, and what others drew."""
    data: dict[int, int] = field(default_factory=dict)
    """By the numbers of storages: by how much elements that are read of them lie farther where the program's numbers change."""
    windows: list[tuple[int, Geometry, int]] = field(default_factory=list)
    """Tensors over data: the number of the storage, and the offset."""
    freed: set[int] = field(default_factory=set)
    freed_since: list[int] = field(default_factory=list)
    """The last step."""
    lowest: torch.dtype = torch.float32
    """Of the dtypes that it computes in, the one that rounds most."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """As hypothesis shows it: all of it is too long."""
        printer.text(f"a program of {len(self.sent)} steps")

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

    def given_data(self, whole: torch.Tensor, farther: int) -> torch.Tensor:
        """No part that is looked at is among its last ``farther`` elements. One that is written to is all that is looked at."""
        self.given(whole)
        self.data[self.upload(whole)] = farther
        return whole

    def allocate(self, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Nobody has written to it, so it is zeros."""
        whole = self.given(torch.zeros(sizes, dtype=dtype))
        self._number(whole)
        self._send(Sent(None, Template(0, (), ()), (), (len(self.geometries) - 1,), ()))
        return whole

    def free(self, whole: torch.Tensor) -> None:
        number = self.storages.pop(whole.untyped_storage().data_ptr())
        self.alive = [one for one in self.alive if one is not whole]
        self.freed.add(number)
        self.freed_since.append(number)

    def _send(self, step: Sent) -> None:
        self.sent.append(step._replace(freed=tuple(self.freed_since)))
        self.freed_since.clear()

    def _number(self, whole: torch.Tensor) -> None:
        self.storages[whole.untyped_storage().data_ptr()] = len(self.geometries)
        self.geometries.append(geometry_of(whole))

    def run(self, op: torch._ops.OpOverload, *args: Any, guards: tuple[Guard, ...] = ()) -> Any:
        """Runs the operator on the tensors themselves."""
        recording: Any = Encoding(self, op, args, {})  # type: ignore[arg-type] # all that it needs of a client is here
        named = {argument.name: _taken(op, argument, value) for argument, value in zip(op._schema.arguments, recording.values, strict=True)}
        positional = [named.pop(argument.name) for argument in op._schema.arguments if not argument.kwarg_only]
        result = op(*positional, **named)
        self._note_written(recording, op)
        results = [] if not op._schema.returns else list(result) if len(op._schema.returns) > 1 else [result]
        outputs = recording.outputs(results)
        for (number, geometry), made in zip(recording.news, recording.here, strict=True):
            self.storages[made.untyped_storage().data_ptr()], self.geometries[number] = number, geometry
            self.given(made)
        draws = op in DRAWS
        template = Template(0, tuple(recording.arguments), tuple(outputs), default_dtype_flags() | (stream.RANDOM if draws else 0))
        told = tuple(recording.bindings[: len(recording.bindings) - len(recording.news)])
        self._send(Sent(op, template, told, tuple(number for number, _ in recording.news), ()))
        kinds = steps.word_kinds(template)
        random = stream.Random(0, 0) if draws else None
        before = [-1, *kinds]
        words = [*map(self._word, kinds, steps._words(kinds, stream.Call(0, tuple(recording.bindings), random)), before)]
        self._look_at_data(recording, kinds, words)
        if draws:
            words[-2:] = Word(WordKind.DRAWN, len(self.drawn)), Word(WordKind.IGNORED, 0)
            self.drawn.append(results[-1].clone(memory_format=torch.contiguous_format if len(results) == 1 else torch.preserve_format))
        self.calls.append(Call(op._schema.name, op._schema.overload_name, template, tuple(words), guards))
        return result

    def _note_written(self, recording: Any, op: torch._ops.OpOverload) -> None:
        for argument, value in zip(op._schema.arguments, recording.values, strict=True):
            if op is aten.native_batch_norm.default and argument.name.startswith("running_"):  # its schema does not say so
                self.written.add(self.upload(value))
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in value if isinstance(value, list | tuple) else [value]:
                    number = self.upload(tensor)
                    recording.written.append((tensor, number))
                    self.written.add(number)

    def _look_at_data(self, recording: Any, kinds: list[int], words: list[Word]) -> None:
        tensors = (one for one in recording.flat if one is not None)
        for index, kind in enumerate(kinds):
            tensor = next(tensors) if kind == steps.STORAGE else None
            if tensor is not None and words[index].value in self.data:
                words[index + 1] = Word(WordKind.WINDOW, len(self.windows))
                self.windows.append((words[index].value, geometry_of(tensor), int(tensor.storage_offset())))

    def _word(self, kind: int, word: int, before: int) -> Word:
        value = steps.struct.unpack("<d", steps.struct.pack("<Q", word))[0] if kind == steps.BITS else 0.0
        if kind == steps.NUMBER and before != steps.STORAGE:
            value = float(word >> 1 ^ -(word & 1))
        if self.changing and value in CHANGING:
            self.numbers.append(value)
            return Word(WordKind.NUMBER, len(self.numbers) - 1)
        return Word(KINDS.get(kind, WordKind.CONSTANT), word)

    def description(self) -> Description:
        given = self.before.keys() - self.data.keys()
        places = (Place(number in given, self._is_output(number), geometry) for number, geometry in enumerate(self.geometries))
        windows = tuple(Window(number in self.written, geometry) for number, geometry, _ in self.windows)
        return Description(len(self.numbers), tuple(places), tuple(self.calls), len(self.drawn), windows)

    def _is_output(self, number: int) -> bool:
        made = {number for step in self.sent for number in step.made}
        used = {word.value for call in self.calls for word in call.words if word.kind in (WordKind.USED, WordKind.MADE)}
        return number in (made | self.written - self.data.keys()) & used - self.freed

    def bytes_of(self, number: int) -> int:
        geometry = self.geometries[number]
        return geometry.span() * DTYPE_OF[geometry.dtype].itemsize

    def inputs(self, description: Description) -> list[torch.Tensor]:
        """As a library takes them, copies of what was there before."""
        places = [(number, place.geometry) for number, place in enumerate(description.places) if place.is_input]
        assert [number for number, _ in places] == sorted(self.before.keys() - self.data.keys())
        given = [_as(self.before[number].clone(), geometry) for number, geometry in places]
        numbers = [torch.tensor(self.numbers, dtype=torch.float64)] if description.numbers else []
        return [*given, *numbers, *self.drawn, *(_as(self.before[number], geometry, offset) for number, geometry, offset in self.windows)]

    def outputs(self, description: Description) -> list[torch.Tensor]:
        """As a library gives them: what the storages hold now."""
        whole = {self.storages.get(one.untyped_storage().data_ptr()): one for one in self.alive}
        windows = [_as(whole[number], geometry, offset) for number, geometry, offset in self.windows if number in self.written]
        return [*(_as(whole[number], place.geometry) for number, place in enumerate(description.places) if place.is_output), *windows]


def _taken(op: torch._ops.OpOverload, argument: torch._C.Argument, value: Any) -> Any:
    """A number in place of a tensor is one for operators that take none there."""
    is_number = str(argument.type) == "Tensor" and isinstance(value, int | float)
    return torch.tensor(value) if is_number and not torch._C._should_allow_numbers_as_tensors(op._opname) else value


def _as(whole: torch.Tensor, geometry: Geometry | None, offset: int = 0) -> torch.Tensor:
    """The storage, in that geometry."""
    assert geometry is not None
    return whole.as_strided(geometry.sizes, geometry.strides, offset)


VIEWS: tuple[Any, ...] = (
    lambda x: x,
    lambda x: x.t(),
    lambda x: x[1:3].expand(2, 4)[:1].expand(4, 4),
    lambda x: x[:, 2:3].expand(4, 4),
    lambda x: x[::2][1].expand(4, 4),
    lambda x: x.view(2, 2, 4).transpose(1, 2)[0][:, 1:].expand(4, 4) if x.is_contiguous() else x.t(),
    lambda x: x.view(16)[4:8].expand(4, 4) if x.is_contiguous() else x,
)
UNIFORM = (aten.uniform_.default, aten.bernoulli_.float, aten.random_.to, aten.randperm.generator_out)
DRAWS = (aten.native_dropout.default, aten.normal_.default, aten.exponential_.default, *UNIFORM)
UNARY = (aten.relu.default, aten.tanh.default, aten.sigmoid.default, aten.neg.default)


def lists(number: int) -> st.SearchStrategy[list[Program]]:
    return st.lists(programs(), min_size=number, max_size=number)


@st.composite
def programs(draw: st.DrawFn, length: int = 12) -> Program:
    """A program on matrices of four rows and columns, some of them transposed. ``length`` is in statements."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    program = Program(changing=draw(st.booleans()))
    tensors = [program.given(torch.randn(4, 4)) for _ in range(3)] + [program.given(torch.randn(4, 4).t().contiguous().t())]
    for _ in range(length):
        draw(st.sampled_from(STATEMENTS))(draw, program, tensors)
    _pointwise(draw, program, tensors)  # what is freed is freed before a step
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
        tensors.append(program.run(operator, _any(draw, tensors), _any(draw, tensors), draw(st.sampled_from(FRACTIONS))))


def _of_data(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    """Rows and columns of a larger matrix, one row below in other rounds."""
    data = next((one for one in program.alive if one.shape == (8, 6)), None)
    if data is None:
        data = program.given_data(torch.randn(8, 6), 6)
    row, column = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    part = data[row : row + 4, column : column + 4]
    tensors.append(program.run(aten.add.Tensor, part.t() if draw(st.booleans()) else part, _any(draw, tensors), 0.5))


def _kept(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    """In a row of its own, the one below in other rounds."""
    record = program.given_data(torch.randn(4, 4), 4)
    row = record[draw(st.integers(0, 2))]
    if draw(st.booleans()):
        program.run(aten.copy_.default, row, _any(draw, tensors)[1])
    else:
        program.run(aten.add_.Tensor, row, _any(draw, tensors)[:, 2], 0.5)


def _product(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    tensors.append(program.run(aten.tanh.default, program.run(aten.mm.default, _any(draw, tensors), _any(draw, tensors))))


def _in_place(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    target = _part(draw, tensors)
    if draw(st.booleans()):
        program.run(aten.mul_.Tensor, target, draw(st.sampled_from(FRACTIONS)))
    else:
        program.run(aten.add_.Tensor, target, _other(draw, tensors, target), draw(st.sampled_from(FRACTIONS)))


def _copied(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    target = _part(draw, tensors)
    if draw(st.integers(0, 3)) == 0:
        program.run(aten.zero_.default, target)
    else:
        program.run(aten.copy_.default, target, _other(draw, tensors, target))


def _counted(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    """With a whole number, of a sum that holds such and of one that does not."""
    number, counts = draw(st.sampled_from(WHOLE)), program.allocate(4, 4, dtype=torch.int64)
    program.run(aten.fill_.Scalar, counts, number)
    program.run(aten.add_.Tensor, counts, number, 1)
    likely = program.run(aten.mul.Tensor, _any(draw, tensors), 0.125)
    tensors.append(program.run(aten.add.Tensor, likely, number, 1))
    tensors.append(program.run(aten.where.self, program.run(aten.gt.Scalar, counts, number), tensors[-1], likely))


def _each(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    """On two tensors at once, and their neighbours."""
    first, second, *_ = draw(st.permutations(tensors[:4]))
    others = [_any(draw, tensors[4:] or [torch.ones(4, 4)]) for _ in range(2)] if len(tensors) > 4 else None
    if others is None or draw(st.booleans()):
        program.run(aten._foreach_mul_.ScalarList, [first, second], [draw(st.sampled_from(FRACTIONS)), draw(st.sampled_from(FRACTIONS))])
    elif draw(st.booleans()):
        program.run(aten._foreach_add_.List, [first, second], others, draw(st.sampled_from(FRACTIONS)))
    else:
        program.run(aten._foreach_addcmul_.Scalar, [first, second], others, others, draw(st.sampled_from(FRACTIONS)))


def _allocated(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    tensors.append(program.allocate(4, 4))
    _copied(draw, program, [*tensors[:1], tensors[-1]])


def _freed(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    made = [one for one in tensors[4:] if one.untyped_storage().data_ptr() in program.storages]
    if made:
        gone = draw(st.sampled_from(made))
        tensors[:] = [one for one in tensors if one is not gone]
        program.free(gone)


def _dropped(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    tensors.append(program.run(aten.native_dropout.default, _any(draw, tensors), draw(st.sampled_from((0.3, 0.0, 1.0))), True)[0])


def _filled(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    """With what is drawn, all or a part."""
    target = _part(draw, tensors)
    match draw(st.integers(0, 2)):
        case 0:
            program.run(aten.normal_.default, target, 0.1, 0.5)
        case 1:
            program.run(aten.uniform_.default, target, -0.75, 1.5)
        case _:
            program.run(aten.bernoulli_.float, target, 0.25)


def _cast(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    """A product in half the precision, as autocast makes it."""
    program.lowest, low = torch.bfloat16, []
    for _ in range(2):
        low.append(program.allocate(4, 4, dtype=torch.bfloat16))
        program.run(aten.copy_.default, low[-1], _any(draw, tensors))
    tensors.append(program.allocate(4, 4))
    program.run(aten.copy_.default, tensors[-1], program.run(aten.tanh.default, program.run(aten.mm.default, low[0], low[1].t())))


def _normalized(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    x = draw(st.sampled_from(tensors))
    match draw(st.integers(0, 2)):
        case 0:
            tensors.append(program.run(aten._softmax.default, x, 1, False))
        case 1:
            tensors.append(program.run(aten.native_layer_norm.default, x, [4], None, None, 0.0625)[0])
        case _:
            running = [program.given(torch.full((4,), value)) for value in (0.0, 1.0)]
            tensors.append(program.run(aten.native_batch_norm.default, x, None, None, *running, True, 0.125, 0.0625)[0])


def _reduced(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    x, operator = _any(draw, tensors), draw(st.sampled_from((aten.sum.dim_IntList, aten.mean.dim, aten.amax.default)))
    sums = program.run(operator, x, [draw(st.integers(0, 1))], True)
    tensors.append(program.run(aten.sub.Tensor, x, sums.expand(4, 4), 1))


def _branched(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    """What of two happens, element by element."""
    x, y = _any(draw, tensors), _any(draw, tensors)
    mask = program.run(draw(st.sampled_from((aten.gt.Scalar, aten.le.Scalar))), x, 0)
    if draw(st.booleans()):
        mask = program.run(aten.bitwise_xor.Tensor, mask, program.run(aten.lt.Tensor, x, y))
    if draw(st.booleans()):
        tensors.append(program.run(aten.where.self, mask, x, y))
    else:
        target = draw(st.sampled_from(tensors))
        program.run(aten.masked_fill_.Scalar, target, mask.t(), 2)


def _places(draw: st.DrawFn, program: Program, x: torch.Tensor) -> torch.Tensor:
    """Four indices below four: computed, drawn, or counted, and then each of them once."""
    kind = draw(st.sampled_from(("computed", "drawn", "counted")))
    if kind == "computed":
        places: torch.Tensor = program.run(aten.argmax.default, x, 1)
        return places
    places = program.allocate(4, dtype=torch.int64)
    if kind == "drawn":
        program.run(aten.random_.to, places, 4)
    else:
        program.run(aten.arange.start_out, 0, 4, 1, places)
    return places


def _indexed(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    """Read by indices."""
    x = _any(draw, tensors)
    places = _places(draw, program, x)
    match draw(st.integers(0, 5)):
        case 0:
            tensors.append(program.run(aten.index_select.default, x, 0, places, guards=(Guard(2, 0, 0, 3, None),)))
        case 1:
            wide = places.unsqueeze(1).expand(4, 4)
            tensors.append(program.run(aten.gather.default, x, 1, wide, guards=(Guard(2, 0, 0, 3, None),)))
        case 2:
            below = program.run(aten.sub.Tensor, places, 4, 1)
            tensors.append(program.run(aten.index.Tensor, x, [None, below], guards=(Guard(1, 2, -4, 3, None),)))
        case 3:
            below = program.run(aten.mul.Tensor, places, -5)
            program.run(aten.take.default, x, below, guards=(Guard(1, 0, -16, 15, None),))
        case 4:
            likely = program.run(aten._log_softmax.default, x, 1, False)
            program.run(aten.nll_loss_forward.default, likely, places, None, 2, 1, guards=(Guard(1, 0, 0, 3, 1),))
        case _:
            program.run(aten.add_.Tensor, places, 3, 1)
            program.run(aten.mul.Tensor, places, places)


def _scattered(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    """Added where indices say."""
    target = draw(st.sampled_from(tensors))
    other = _other(draw, tensors, target)
    places = _places(draw, program, _any(draw, tensors))
    match draw(st.integers(0, 3)):
        case 0:
            wide = places.unsqueeze(1).expand(4, 4)
            program.run(aten.scatter_add_.default, target, 1, wide, other, guards=(Guard(2, 0, 0, 3, None),))
        case 1:
            program.run(aten.index_add_.default, target, 0, places, other, guards=(Guard(2, 0, 0, 3, None),))
        case 2:
            below = program.run(aten.sub.Tensor, places, 4, 1)
            program.run(aten._index_put_impl_.default, target, [below], other, True, guards=(Guard(1, 1, -4, 3, None),))
        case _:
            guard = Guard(1, 0, 0, 3, None)
            tensors.append(program.run(aten.embedding_dense_backward.default, other, places, 4, 1, False, guards=(guard,)))


def _told(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    """Where the result goes."""
    target = _part(draw, tensors)
    one, other = (_other(draw, tensors, target) for _ in range(2))
    if draw(st.booleans()):
        program.run(aten.add.out, one, other, draw(st.sampled_from(FRACTIONS)), target)
    else:
        program.run(draw(st.sampled_from((aten.mul.out, aten.maximum.out))), one, other, target)


def _joined(draw: st.DrawFn, program: Program, tensors: list[torch.Tensor]) -> None:
    x, y = _any(draw, tensors), _any(draw, tensors)
    match draw(st.integers(0, 2)):
        case 0:
            tensors.append(program.run(aten.cat.default, [x[:1], y[1:]], 0))
        case 1:
            tensors.append(program.run(aten.flip.default, x, [draw(st.integers(0, 1))]))
        case _:
            tensors.append(program.run(aten.roll.default, x, [1], [0]))


STATEMENTS: tuple[Callable[[st.DrawFn, Program, list[torch.Tensor]], None], ...] = (
    _pointwise, _product, _in_place, _copied, _each, _allocated, _freed, _dropped, _filled, _cast, _normalized, _reduced, _branched,
    _indexed, _scattered, _told, _joined, _of_data, _kept, _counted,
)  # fmt: skip


def reading_and_writing_by_indices() -> Program:
    """Of eight rows each, by indices that are computed from those that are given."""
    program = Program()
    table, places = program.given(torch.randn(8, 8)), program.given(torch.tensor([3, 1, 0, 2, 7, 6, 5, 4]))
    whole, either = (Guard(2, 0, 0, 7, None),), Guard(1, 1, -8, 7, None)
    for _ in range(3):
        computed = program.run(aten.mul.Tensor, places, 1)
        rows = program.run(aten.index_select.default, table, 0, computed, guards=whole)
        program.run(aten.add_.Tensor, table, program.run(aten.index.Tensor, rows, [None, computed], guards=(either._replace(item=2),)), 0.5)
        program.run(aten.scatter_add_.default, table, 1, computed.unsqueeze(1).expand(8, 8), rows, guards=whole)
        program.run(aten._index_put_impl_.default, table, [computed], rows, True, guards=(either,))
        program.run(aten.index_add_.default, table, 0, computed, rows, guards=whole)
        program.run(aten.gather.default, table, 1, computed.unsqueeze(1), guards=whole)
        program.run(aten.embedding_dense_backward.default, rows, computed, 8, -1, False, guards=(Guard(1, 0, 0, 7, None),))
        program.run(aten.nll_loss_forward.default, rows, computed, None, 1, -100, guards=(Guard(1, 0, 0, 7, -100),))
        noise = program.allocate(8, 8)
        program.run(aten.normal_.default, noise, 0.0, 1.0)
        program.run(aten.add_.Tensor, table, noise, 0.25)
    return program
