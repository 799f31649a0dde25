"""What a template says of its calls: the operator, which words are its tensors, which of them it writes, and what it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from forebay_wire.steps import NEW, STORAGE, Called, word_kinds
from forebay_wire.stream import Argument, Geometry, Operator, Output, OutputTag, Tag, Template

ITEM_BYTES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 8: 4, 9: 8, 10: 16, 11: 1, 15: 2}
"""By PyTorch's ScalarType number; what is missing has one byte, as the float8 types."""
HALVES = frozenset({5, 15})
OVERWRITING = frozenset({"zero_", "fill_", "copy_", "_foreach_zero_", "_foreach_copy_", "normal_", "uniform_", "bernoulli_"})
"""What is there before does not count."""
WRITTEN_LISTS = {
    "_fused_adam_": (0, 2, 3, 4, 5),
    "_fused_adamw_": (0, 2, 3, 4, 5),
    "_fused_sgd_": (0, 2),
    "_fused_adagrad_": (0, 2),
    "native_batch_norm": (3, 4),
    "cudnn_batch_norm": (3, 4),
    "_native_batch_norm_legit": (3, 4),
    "_batch_norm_with_update": (3, 4),
    "_amp_foreach_non_finite_check_and_unscale_": (0, 1),
    "_amp_update_scale_": (0, 1),
}
"""Arguments that an operator writes to, where its name does not tell."""


@dataclass(frozen=True)
class TensorUse:
    """A tensor that a call is given."""

    word: int
    """Of its storage; its offset is the next."""
    geometry: Geometry
    argument: int
    """Its number, or that of the list that it is in."""
    item: int
    """Its place in that list; 0 outside of lists."""
    written: bool

    @cached_property
    def elements(self) -> int:
        return prod(self.geometry.sizes)

    @cached_property
    def bytes(self) -> int:
        """That a kernel reads."""
        return self.elements * item_bytes(self.geometry.dtype)


@dataclass(frozen=True)
class Made:
    """A tensor that a call makes."""

    word: int
    geometry: Geometry
    storage_bytes: int
    output: int
    """Its number among the outputs."""


@dataclass
class CallShape:
    """A template, read."""

    number: int
    name: str
    """Without namespace and overload."""
    arguments: tuple[Argument, ...]
    tensors: list[TensorUse] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)


def item_bytes(dtype: int) -> int:
    return ITEM_BYTES.get(dtype, 1)


class CallShapes:
    """The templates of a recording, each read once."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self._operators = operators
        self._by_identity: dict[int, tuple[Template, CallShape]] = {}
        self._numbers: dict[Template, int] = {}

    def of(self, call: Called) -> CallShape:
        known = self._by_identity.get(id(call.template))
        if known is None:
            number = self._numbers.setdefault(call.template, len(self._numbers))
            known = self._by_identity[id(call.template)] = call.template, _read(number, call.template, self._operators)
        return known[1]


def _read(number: int, template: Template, operators: Sequence[Operator]) -> CallShape:
    name = operators[template.op].name.removeprefix("aten::")
    shape = CallShape(number, name, template.arguments)
    kinds = word_kinds(template)
    places = iter([index for index, kind in enumerate(kinds) if kind == STORAGE])
    flat = [entry for index, argument in enumerate(template.arguments) for entry in _flat(index, argument)]
    written = _written(name, flat, template.outputs, operators[template.op].overload)
    for place, (index, item, geometry) in enumerate(flat):
        if geometry is not None:
            shape.tensors.append(TensorUse(next(places), geometry, index, item, place in written))
    new = iter([index for index, kind in enumerate(kinds) if kind == NEW])
    for index, output in enumerate(template.outputs):
        for one in (output, *output.items):
            if one.tag == OutputTag.NEW and one.geometry is not None:
                shape.made.append(Made(next(new), one.geometry, one.storage_bytes, index))
    return shape


def _flat(index: int, argument: Argument) -> list[tuple[int, int, Geometry | None]]:
    """What outputs count as tensor arguments: tags 0 to 2, items of lists, and parts of sparse tensors."""
    if argument.tag in (Tag.NONE, Tag.TENSOR, Tag.SCALAR_TENSOR):
        return [(index, 0, argument.geometry)]
    if argument.tag in (Tag.TENSOR_LIST, Tag.SPARSE):
        return [(index, item, one.geometry) for item, one in enumerate(argument.items)]
    return []


def _written(name: str, flat: Sequence[tuple[int, int, Geometry | None]], outputs: Sequence[Output], overload: str) -> set[int]:
    """Places among the flat arguments that a call writes to."""
    same = {one.same for output in outputs for one in (output, *output.items) if one.tag == OutputTag.SAME}
    known = WRITTEN_LISTS.get(name, (0,) if name.endswith("_") else ())
    named = {place for place, (index, _, _) in enumerate(flat) if index in known}
    return same | named
