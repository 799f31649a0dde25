"""A segment's description as a graph of pure operators: storages are values, and what writes to one gives it a new value.

What this does not take raises Unsupported, and the segment stays as it is. Each operator also runs on tensors without contents, so that
the graph's geometries are known, and held against what the client predicted.
"""

from __future__ import annotations

import functools
import itertools
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from forebay_wire.stream import Argument, Geometry, Output, OutputTag, Tag
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from forebay_worker import fused_optimizers
from forebay_worker.descriptions import Call, Description, Guard, Place, Word, WordKind
from forebay_worker.pure_operators import PURE, overload_alike, own, taking

ATEN = torch.ops.aten
OWN = "forebay::"
_NUMBERED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
DTYPES = {**dict(enumerate(_NUMBERED)), 11: torch.bool, 15: torch.bfloat16}
"""By PyTorch's ScalarType number."""
INDICES = ("index", "indices", "target")
"""Arguments that lead into others, where they hold whole numbers."""
ODD_INDICES = (torch.uint8, torch.int8, torch.int16)
SCALED_MAX = 1 << 20
"""Places along a side of a picture, up to which single precision tells from where in another one they are scaled."""
MEMORY_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


class Unsupported(Exception):
    """Why a segment is not compiled."""


REFUSALS = (RuntimeError, ValueError, NotImplementedError, IndexError)
"""What PyTorch raises of a call that it does not take. Other exceptions are faults of this module, and are not caught."""


class Changing(NamedTuple):
    """A number that changes from time to time."""

    node: Node
    """A tensor without dimensions, in double precision."""


@dataclass(frozen=True)
class Target:
    """A tensor argument, where it lies."""

    place: int
    geometry: Geometry
    offset: int
    """0 of a window, which lies elsewhere from time to time."""
    node: Node
    window: int | None = None
    """Its number."""


class Hyperslab(NamedTuple):
    """A view of a storage, as a slab of its elements in their order in memory."""

    dims: list[int]
    """The view's dimensions that the slab has, the one with the farthest neighbours first. Those that lie together are one of it; behind
    them it has one of size 1."""
    whole: list[int]
    """The sizes of all elements, seen in as many dimensions."""
    starts: list[int]
    sizes: list[int]


@dataclass(frozen=True)
class SegmentGraph:
    """A graph with tensors such as its inputs are, but for their contents."""

    module: GraphModule
    inputs: list[torch.Tensor]


def build(description: Description) -> SegmentGraph:
    """Raises Unsupported."""
    return _Builder(description).build()


def empty(geometry: Geometry) -> torch.Tensor:
    """A tensor of that geometry."""
    return torch.empty_strided(geometry.sizes, geometry.strides, dtype=dtype_of(geometry.dtype))


def dtype_of(number: int) -> torch.dtype:
    """Raises Unsupported for dtypes that no graph has."""
    if number not in DTYPES:
        raise Unsupported(f"tensors of dtype {number}")
    return DTYPES[number]


class _Builder:
    def __init__(self, description: Description) -> None:
        self._description = description
        self._graph = Graph()
        self._mode = FakeTensorMode()
        self._values: dict[int, Node] = {}
        self._views: dict[tuple[Node, Geometry, int], Node] = {}
        self._numbers: Node | None = None
        self._changing: dict[int, Changing] = {}
        self._draws: dict[int, Node] = {}
        self._windows: list[Node] = []
        self._held: dict[tuple[Node, Guard], Node] = {}
        self._astray: list[Node] = []

    def build(self) -> SegmentGraph:
        inputs = [empty(_geometry(place)) for place in self._description.places if place.is_input]
        given = iter(inputs)
        for number, place in enumerate(self._description.places):
            if place.is_input:
                self._values[number] = self._placeholder(f"storage_{number}", next(given))
        if self._description.numbers:
            inputs.append(torch.zeros(self._description.numbers, dtype=torch.float64))
            self._numbers = self._placeholder("numbers", inputs[-1])
        for number, drawn in enumerate(self._drawn_geometries()):
            inputs.append(empty(drawn))
            self._draws[number] = self._placeholder(f"draw_{number}", inputs[-1])
        for number, window in enumerate(self._description.windows):
            inputs.append(empty(window.geometry))
            self._windows.append(self._placeholder(f"window_{number}", inputs[-1]))
        for call in self._description.calls:
            try:
                self._call(call)
            except REFUSALS as error:
                raise Unsupported(f"{call.operator}: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from error
        outputs = [self._value(number) for number, place in enumerate(self._description.places) if place.is_output]
        outputs += [value for value, window in zip(self._windows, self._description.windows, strict=True) if window.is_output]
        self._graph.output((*self._own(outputs), *self._all_astray()))
        return SegmentGraph(GraphModule(torch.nn.Module(), self._graph), inputs)

    def _drawn_geometries(self) -> list[Geometry]:
        """A dropout makes its result, and then its mask. What other calls draw fills their tensor."""
        found: dict[int, Geometry] = {}
        for call in self._description.calls:
            made = [word.value for word in call.words if word.kind == WordKind.MADE]
            filled = [one.geometry for one in call.template.arguments if one.geometry is not None]
            for word in call.words:
                if word.kind == WordKind.DRAWN and made:
                    found[word.value] = _geometry(self._description.places[made[-1]])
                elif word.kind == WordKind.DRAWN and filled:
                    found[word.value] = _together(filled[0])
        if sorted(found) != list(range(self._description.draws)):
            raise Unsupported("draws that no call makes")
        return [found[number] for number in sorted(found)]

    def _all_astray(self) -> list[Node]:
        """How many numbers do not lie where their guards say, as one tensor; nothing where there are no guards."""
        return [functools.reduce(lambda sum_, one: self.call(ATEN.add.Tensor, sum_, one), self._astray)] if self._astray else []

    def _own(self, outputs: Sequence[Node]) -> Iterator[Node]:
        """Outputs that are nobody else's: copies of inputs, of views, and of what is given twice."""
        seen: set[Node] = set()
        for node in outputs:
            fresh = node.op == "call_function" and node not in seen and not _is_view(node)
            seen.add(node)
            yield node if fresh else self.call(ATEN.clone.default, node)

    def _placeholder(self, name: str, like: torch.Tensor) -> Node:
        node = self._graph.placeholder(name)
        node.meta["val"] = self._mode.from_tensor(like)
        return node

    def call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Adds a node, and returns it; of an operator with several results, a list of one for each."""
        node = self._graph.call_function(function, arguments, options)
        known = torch.fx.node.map_arg((arguments, options), lambda one: one.meta["val"])
        with self._mode:
            node.meta["val"] = function(*known[0], **known[1])
        if isinstance(node.meta["val"], torch.Tensor):
            return node
        return [self._item(node, index) for index in range(len(node.meta["val"]))]

    def _item(self, node: Node, index: int) -> Node:
        item = self._graph.call_function(operator.getitem, (node, index))
        item.meta["val"] = node.meta["val"][index]
        return item

    # Storages.

    def _value(self, number: int) -> Node:
        """What the storage holds now; what nobody has written to is zeros."""
        if number not in self._values:
            geometry = _geometry(self._description.places[number])
            order = _order(geometry)
            zeros = self.call(ATEN.zeros.default, [geometry.sizes[dim] for dim in order], dtype=dtype_of(geometry.dtype))
            self._values[number] = self.call(ATEN.permute.default, zeros, _inverse(order)) if order else zeros
        return self._values[number]

    def _look(self, number: int, geometry: Geometry, offset: int) -> Node:
        """A tensor over the storage, as it is now."""
        value = self._value(number)
        key = (value, geometry, offset)
        if key not in self._views:
            self._views[key] = self._view(value, _geometry(self._description.places[number]), geometry, offset)
        return self._views[key]

    def _view(self, value: Node, base: Geometry, wanted: Geometry, offset: int) -> Node:
        if base.sizes == wanted.sizes and _same_strides(base, wanted) and offset == 0:
            return value
        slab = _slab(base, wanted, offset)
        rows = self._rows(value, base, slab)
        for dim, (start, size) in enumerate(zip(slab.starts, slab.sizes, strict=True)):
            if size < slab.whole[dim]:
                rows = self.call(ATEN.slice.Tensor, rows, dim, start, start + size)
        rows = self.call(ATEN.reshape.default, rows, [wanted.sizes[dim] for dim in slab.dims])
        if slab.dims != sorted(slab.dims):
            rows = self.call(ATEN.permute.default, rows, [slab.dims.index(dim) for dim in sorted(slab.dims)])
        for dim in range(len(wanted.sizes)):
            if dim not in slab.dims:
                rows = self.call(ATEN.unsqueeze.default, rows, dim)
        view: Node = self.call(ATEN.expand.default, rows, list(wanted.sizes))
        return view

    def _rows(self, value: Node, base: Geometry, slab: Hyperslab) -> Node:
        """The storage's elements in their order in memory."""
        order = _order(base)
        rows = self.call(ATEN.permute.default, value, order) if order else value
        reshaped: Node = self.call(ATEN.reshape.default, rows, slab.whole)
        return reshaped

    def _write(self, target: Target, value: Node) -> None:
        """The storage gets a new value: the old one, but for what the tensor covers."""
        base, wanted = _geometry(self._description.places[target.place]), target.geometry
        value = self._as(value, base.dtype)
        if tuple(value.meta["val"].shape) != wanted.sizes:
            value = self.call(ATEN.expand.default, value, list(wanted.sizes))
        if target.window is not None:
            self._windows[target.window] = value
            return
        if base.sizes != wanted.sizes or not _same_strides(base, wanted) or target.offset != 0:
            value = self._put(target, base, value)
        self._values[target.place] = value

    def _put(self, target: Target, base: Geometry, value: Node) -> Node:
        slab = _slab(base, target.geometry, target.offset)
        if _count(slab.sizes) != _count(target.geometry.sizes):
            raise Unsupported("a write to elements that share their place")
        rest = [dim for dim in range(len(target.geometry.sizes)) if dim not in slab.dims]
        value = self.call(ATEN.permute.default, value, [*slab.dims, *rest]) if target.geometry.sizes else value
        value = self.call(ATEN.reshape.default, value, slab.sizes)
        if slab.sizes != slab.whole:
            value = self._insert(self._rows(self._value(target.place), base, slab), value, slab)
        order = _order(base)
        value = self.call(ATEN.reshape.default, value, [base.sizes[dim] for dim in order])
        written: Node = self.call(ATEN.permute.default, value, _inverse(order)) if order else value
        return written

    def _insert(self, rows: Node, value: Node, slab: Hyperslab, dim: int = 0) -> Node:
        """The rows with the value in place of the slab. Parts side by side, since a compiler may take scattering for writing in place."""
        if dim == len(slab.sizes):
            return value
        start, end, whole = slab.starts[dim], slab.starts[dim] + slab.sizes[dim], slab.whole[dim]
        if slab.sizes[dim] == whole:
            return self._insert(rows, value, slab, dim + 1)
        parts = [self._insert(self.call(ATEN.slice.Tensor, rows, dim, start, end), value, slab, dim + 1)]
        if start > 0:
            parts.insert(0, self.call(ATEN.slice.Tensor, rows, dim, 0, start))
        if end < whole:
            parts.append(self.call(ATEN.slice.Tensor, rows, dim, end, whole))
        joined: Node = self.call(ATEN.cat.default, parts, dim)
        return joined

    def _as(self, value: Node, dtype: int) -> Node:
        if value.meta["val"].dtype == dtype_of(dtype):
            return value
        converted: Node = self.call(ATEN._to_copy.default, value, dtype=dtype_of(dtype))
        return converted

    # Calls.

    def _call(self, call: Call) -> None:
        if dtype_of(call.template.default_dtype) != torch.get_default_dtype():
            raise Unsupported("its calls are made under several default dtypes")
        words = iter(call.words)
        schema = _overload(call.operator, call.overload)._schema
        pairs = zip(call.template.arguments, schema.arguments, strict=True)
        arguments = [self._argument(source, words, declared) for source, declared in pairs]
        for guard in call.guards:
            self._guard(arguments, guard)
        for argument, value in zip(schema.arguments, arguments, strict=True):
            if argument.name in INDICES and any(_is_odd(one) for one in (value if isinstance(value, list) else [value])):
                raise Unsupported(f"{call.operator} is given indices of few bits")
        results = self._results(call, arguments)
        made = [word.value for word in words if word.kind == WordKind.MADE]
        self._keep(call.template.outputs, results, iter(made))

    def _guard(self, arguments: list[Any], guard: Guard) -> None:
        """Nothing but numbers that lie where they must is used, and the library tells of others."""
        held = arguments[guard.argument]
        if guard.item:
            held[guard.item - 1] = replace(held[guard.item - 1], node=self._within(held[guard.item - 1].node, guard))
        else:
            arguments[guard.argument] = replace(held, node=self._within(held.node, guard))

    def _within(self, numbers: Node, guard: Guard) -> Node:
        key = (numbers, guard._replace(argument=0, item=0))
        if key not in self._held:
            dtype = numbers.meta["val"].dtype
            held = self.call(ATEN.clamp.default, numbers, guard.least, guard.most)
            if guard.excepted is not None:
                if not torch.iinfo(dtype).min <= guard.excepted <= torch.iinfo(dtype).max:
                    raise Unsupported(f"{guard.excepted} among indices of {dtype}")
                held = self.call(ATEN.where.self, self.call(ATEN.eq.Scalar, numbers, guard.excepted), numbers, held)
            self._astray.append(self.call(ATEN.sum.default, self.call(ATEN.ne.Tensor, numbers, held)))
            self._held[key] = held
        return self._held[key]

    def _results(self, call: Call, arguments: list[Any]) -> list[Any]:
        name = call.operator.removeprefix("aten::")
        drawn = next((word.value for word in call.words if word.kind == WordKind.DRAWN), None)
        if drawn is not None and name != "native_dropout":
            self._write(next(one for one in arguments if isinstance(one, Target)), self._draws[drawn])
            return []
        if call.operator.startswith(OWN):
            return [self.call(_overload(call.operator, call.overload), *_nodes(arguments))]
        if name in fused_optimizers.MADE_OF:
            for target, value in fused_optimizers.MADE_OF[name](self.call, arguments):
                self._write(target, value)
            return []
        if name.startswith("_foreach_"):
            return self._each(name.removeprefix("_foreach_"), call, arguments)
        if name == "native_dropout":
            return self._dropout(call, arguments)
        if name == "native_batch_norm" and arguments[5]:
            return self._batch_norm(arguments)
        declared = _overload(call.operator, call.overload)._schema.arguments
        if name.endswith("_") and not name.endswith("__"):
            self._write(arguments[0], self._pure(name[:-1], overload_alike(name[:-1], declared) or call.overload, arguments))
            return []
        told = sum(one.is_out for one in declared)
        if told and all(isinstance(one, Target) for one in arguments[-told:]):
            self._out(name, declared[:-told], arguments[:-told], arguments[-told:])
            return []
        if any(argument.alias_info is not None and argument.alias_info.is_write for argument in declared):
            raise Unsupported(f"{call.operator}.{call.overload} writes to an argument")
        found = self._pure(name, call.overload, arguments)
        return found if isinstance(found, list) else [found]

    def _out(self, name: str, declared: Sequence[torch._C.Argument], arguments: list[Any], targets: list[Target]) -> None:
        """What an operator makes that is told where to put it: by the overload that is not."""
        overload = overload_alike(name, declared)
        if overload is None:
            raise Unsupported(f"aten::{name} writes to an argument")
        given = {one.name: value for one, value in zip(declared, arguments, strict=True)}
        options = {"dtype": dtype_of(targets[0].geometry.dtype)} | given
        taken = _overload(f"aten::{name}", overload)._schema.arguments
        results = self._pure(name, overload, [options.get(one.name) for one in taken])
        for target, result in zip(targets, results if isinstance(results, list) else [results], strict=True):
            self._write(target, result)

    def _dropout(self, call: Call, arguments: list[Any]) -> list[Any]:
        """With the mask that is given; in the order in which PyTorch multiplies."""
        drawn = next((word.value for word in call.words if word.kind == WordKind.DRAWN), None)
        if drawn is None or not isinstance(arguments[1], float):
            raise Unsupported("a dropout without a mask")
        kept = 1 - arguments[1]
        mask = self._draws[drawn]
        left = self.call(ATEN.mul.Tensor, _node(arguments[0]), mask)
        return [self.call(ATEN.mul.Scalar, left, 0.0 if kept == 0 else 1 / kept), mask]

    def _batch_norm(self, arguments: list[Any]) -> list[Any]:
        """In training it writes to the running statistics, though its schema does not say so."""
        if arguments[3] is None or arguments[4] is None:
            return list(self.call(ATEN._native_batch_norm_legit.no_stats, *_nodes([*arguments[:3], True, *arguments[6:]])))
        results: list[Any]
        *results, mean, variance = self.call(ATEN._native_batch_norm_legit_functional.default, *_nodes(arguments))
        self._write(arguments[3], mean)
        self._write(arguments[4], variance)
        return results

    def _each(self, name: str, call: Call, arguments: list[Any]) -> list[Any]:
        """Of an operator on lists, that on each of their items."""
        base = name.removesuffix("_")
        if base == "norm":
            dtype = arguments[2] if len(arguments) > 2 else None
            return [[self.call(ATEN.linalg_vector_norm.default, one.node, arguments[1], None, False, dtype=dtype) for one in arguments[0]]]
        overload = {"List": "Tensor", "ScalarList": "Scalar"}.get(call.overload, call.overload)
        if overload not in getattr(ATEN, base).overloads() or base in ("addcmul", "addcdiv"):
            overload = "default"
        found = []
        for index, target in enumerate(arguments[0]):
            rest = [one[index] if isinstance(one, list) else one for one in arguments[1:]]
            result = self._pure(base, "" if overload == "default" else overload, [target, *rest])
            if name.endswith("_"):
                self._write(target, result)
            found.append(result)
        return [] if name.endswith("_") else [found]

    def _pure(self, name: str, overload: str, arguments: list[Any]) -> Any:
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, overload, arguments)
        if any(isinstance(one, Changing) for one in arguments):
            return self._with_changing(name, arguments)
        if name not in PURE:
            raise Unsupported(f"aten::{name} is not compiled")
        if name.startswith(("upsample_", "_upsample_")):
            _check_scales(name, arguments)
        divides = name in ("fmod", "remainder", "floor_divide") or overload == "Tensor_mode"
        if divides and all(_is_whole(one) or one == 0 for one in arguments[:2]):
            raise Unsupported(f"aten::{name} of whole numbers by some that may be 0")
        function = taking(name, overload, arguments)
        declared = function._schema.arguments
        count = sum(not one.kwarg_only for one in declared)
        options = {one.name: value for one, value in zip(declared[count:], _nodes(arguments[count:]), strict=True)}
        return self.call(function, *_nodes(arguments[:count]), **options)

    def _with_changing(self, name: str, arguments: list[Any]) -> Any:
        """With tensors in place of numbers; the rounding differs from that of numbers in the last bit."""
        first, *rest = (one.node if isinstance(one, Changing) else one for one in _nodes(arguments))
        match name, rest:
            case ("mul" | "div", [by]):
                return self.call(getattr(ATEN, name).Tensor, first, by)
            case ("lt" | "le" | "gt" | "ge" | "eq" | "ne", [by]) if _is_floating(first) or not _is_floating(by):
                return self.call(getattr(ATEN, name).Tensor, first, by)
            case ("add" | "sub", [by, 1]):
                return self.call(getattr(ATEN, name).Tensor, first, by)
            case ("add" | "sub", [by]):
                return self.call(getattr(ATEN, name).Tensor, first, by)
            case ("add" | "sub", [by, Node() as alpha]):
                return self.call(getattr(ATEN, name).Tensor, first, self.call(ATEN.mul.Tensor, by, alpha))
            case ("addcmul", [one, other, Node() as value]):
                return self.call(ATEN.add.Tensor, first, self.call(ATEN.mul.Tensor, self.call(ATEN.mul.Tensor, one, other), value))
            case ("addcdiv", [one, other, Node() as value]):
                return self.call(ATEN.add.Tensor, first, self.call(ATEN.mul.Tensor, self.call(ATEN.div.Tensor, one, other), value))
            case ("lerp", [end, Node() as weight]):
                return self.call(ATEN.add.Tensor, first, self.call(ATEN.mul.Tensor, self.call(ATEN.sub.Tensor, end, first), weight))
        raise Unsupported(f"aten::{name} is given a number that changes")

    def _index_put(self, overload: str, arguments: list[Any]) -> Node:
        """By a mask it is another operator, where it puts one number."""
        target, indices, values, accumulate = arguments[:4]
        if not any(one is not None and one.node.meta["val"].dtype == torch.bool for one in indices):
            put: Node = self.call(ATEN.index_put.default, *_nodes([target, indices, values, accumulate]))
            return put
        if len(indices) != 1 or accumulate or _count(values.geometry.sizes) != 1:
            raise Unsupported("a mask among indices")
        sizes = indices[0].geometry.sizes
        mask = self.call(ATEN.reshape.default, indices[0].node, [*sizes, *[1] * (len(target.geometry.sizes) - len(sizes))])
        where: Node = self.call(ATEN.where.self, mask, self.call(ATEN.reshape.default, values.node, []), target.node)
        return where

    def _embedding_bag_backward(self, overload: str, arguments: list[Any]) -> Node:
        """Rows of the gradient, each where its index says. Which bag one is in is not always told: then as many begin before it."""
        gradient, indices, offsets, bags, sizes, _, rows, by_frequency, mode, is_sparse, weights, padding = arguments
        count, take = indices.geometry.sizes[0], ATEN.index_select.default
        if by_frequency or is_sparse or mode > 1 or weights is not None or count == 0:
            raise Unsupported("aten::_embedding_bag_backward of a kind that is not compiled")
        bag = bags.node
        if bags.geometry.sizes[0] == 0:
            begun = self.call(ATEN.zeros.default, [count + 1], dtype=torch.int64)
            ones = self.call(ATEN.ones.default, list(offsets.geometry.sizes), dtype=torch.int64)
            begun = self.call(ATEN.cumsum.default, self.call(ATEN.index_add.default, begun, 0, offsets.node, ones), 0)
            bag = self.call(ATEN.sub.Scalar, self.call(ATEN.slice.Tensor, begun, 0, 0, count), 1)
        given = self.call(take, gradient.node, 0, bag)
        if mode == 1:
            each = self.call(take, sizes.node, 0, bag)
            given = self.call(ATEN.div.Tensor, given, self.call(ATEN.unsqueeze.default, each, 1))
        if padding >= 0:
            is_padding = self.call(ATEN.unsqueeze.default, self.call(ATEN.eq.Scalar, indices.node, padding), 1)
            given = self.call(ATEN.masked_fill.Scalar, given, is_padding, 0)
        table = self.call(ATEN.zeros.default, [rows, gradient.geometry.sizes[1]], dtype=dtype_of(gradient.geometry.dtype))
        added: Node = self.call(ATEN.index_add.default, table, 0, indices.node, given)
        return added

    def _copy(self, overload: str, arguments: list[Any]) -> Node:
        target, source = arguments[:2]
        copy: Node = self.call(ATEN.expand.default, self._as(_node(source), target.geometry.dtype), list(target.geometry.sizes))
        return copy

    def _zero(self, overload: str, arguments: list[Any]) -> Node:
        return self._full(arguments[0], 0)

    def _fill(self, overload: str, arguments: list[Any]) -> Node:
        value = arguments[1]
        if isinstance(value, (Changing, Target, Node)):
            return self._copy(overload, arguments)
        return self._full(arguments[0], value)

    def _full(self, like: Target, value: float) -> Node:
        made: Node = self.call(ATEN.full.default, list(like.geometry.sizes), value, dtype=dtype_of(like.geometry.dtype))
        return made

    def _keep(self, outputs: Sequence[Output], results: Sequence[Any], made: Iterator[int]) -> None:
        for index, output in enumerate(outputs):
            if output.tag == OutputTag.LIST:
                self._keep(output.items, results[index] if results else [], made)
            elif output.tag == OutputTag.NEW:
                place = next(made)
                geometry = _geometry(self._description.places[place])
                node = self._as(results[index], geometry.dtype)
                if tuple(node.meta["val"].shape) != geometry.sizes:
                    raise Unsupported(f"a result of sizes {tuple(node.meta['val'].shape)}, not {geometry.sizes}")
                self._values[place] = node

    # Arguments.

    def _argument(self, source: Argument, words: Iterator[Word], declared: torch._C.Argument) -> Any:
        match source.tag:
            case Tag.NONE | Tag.GENERATOR:
                return None
            case Tag.TENSOR:
                return self._tensor(source, words)
            case Tag.TENSOR_LIST | Tag.SCALAR_LIST:
                return [self._argument(item, words, declared) for item in source.items]
            case Tag.SCALAR_TENSOR:
                return self._scalar_tensor(source, words)
            case Tag.DOUBLE | Tag.SCALAR_DOUBLE:
                return self._number(next(words), True)
            case Tag.SCALAR_INT:
                return self._number(next(words), False)
            case Tag.SCALAR_BOOL:
                return bool(next(words).value)
            case Tag.DOUBLE_LIST:
                return [self._number(next(words), True) for _ in range(source.count)]
            case Tag.INT:
                return _integer(source.integer, declared)
            case Tag.BOOL:
                return source.flag
            case Tag.INT_LIST | Tag.BOOL_LIST:
                return [bool(one) if source.tag == Tag.BOOL_LIST else one for one in source.list]
            case Tag.STRING:
                return source.text
            case Tag.DEVICE:
                return torch.device("cpu")
        raise Unsupported(f"an argument of kind {source.tag.name.lower()}")

    def _tensor(self, source: Argument, words: Iterator[Word]) -> Target:
        storage, offset = next(words), next(words)
        if source.geometry is None or offset.kind not in (WordKind.CONSTANT, WordKind.WINDOW):
            raise Unsupported("a tensor without a place")
        if offset.kind == WordKind.WINDOW:
            return Target(storage.value, source.geometry, 0, self._windows[offset.value], offset.value)
        return Target(storage.value, source.geometry, offset.value, self._look(storage.value, source.geometry, offset.value))

    def _scalar_tensor(self, source: Argument, words: Iterator[Word]) -> Any:
        """A number that PyTorch has wrapped is one again: then dtypes are promoted as before."""
        dtype = dtype_of(source.dtype)
        value = self._number(next(words), dtype.is_floating_point)
        if isinstance(value, Changing):
            if dtype == torch.bool:
                raise Unsupported("a truth changes from time to time")
            return value if source.flag else self.call(ATEN._to_copy.default, value.node, dtype=dtype)
        return value if source.flag else self.call(ATEN.scalar_tensor.default, value, dtype=dtype)

    def _number(self, word: Word, is_floating: bool) -> float | Changing:
        if word.kind == WordKind.NUMBER:
            if word.value not in self._changing:
                number = self.call(ATEN.select.int, self._numbers, 0, word.value)
                exact = number if is_floating else self.call(ATEN._to_copy.default, number, dtype=torch.int64)
                self._changing[word.value] = Changing(exact)
            return self._changing[word.value]
        if is_floating:
            return float(struct.unpack("<d", struct.pack("<Q", word.value))[0])
        return word.value >> 1 ^ -(word.value & 1)


_SPECIAL: dict[str, Callable[[_Builder, str, list[Any]], Node]] = {
    "copy": _Builder._copy,
    "zero": _Builder._zero,
    "fill": _Builder._fill,
    "index_put": _Builder._index_put,
    "_index_put_impl": _Builder._index_put,
    "_embedding_bag_backward": _Builder._embedding_bag_backward,
}


def _overload(operator: str, overload: str) -> Any:
    if operator.startswith(OWN):
        return own(operator.removeprefix(OWN))
    packet = getattr(ATEN, operator.removeprefix("aten::"), None) if operator.startswith("aten::") else None
    found = getattr(packet, overload or "default", None)
    if found is None:
        raise Unsupported(f"{operator} is not compiled")
    return found


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def _check_scales(name: str, arguments: list[Any]) -> None:
    """A library computes places in the smaller picture from them, and looks at these no more. Raises Unsupported where one leads out."""
    large, small = arguments[1], arguments[2] if name.endswith("_backward") else arguments[0].geometry.sizes
    sides = len(large)
    for inner, outer, scale in zip(small[-sides:], large, arguments[-sides:], strict=True):
        if isinstance(scale, Changing) or outer > SCALED_MAX or (scale is not None and int(inner * scale) != outer):
            raise Unsupported(f"aten::{name} is given a scale that is not that of its sizes")


def _is_floating(node: Node) -> bool:
    return bool(node.meta["val"].dtype.is_floating_point)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Target) and not _is_floating(value.node)


def _is_odd(value: Any) -> bool:
    return isinstance(value, Target) and value.node.meta["val"].dtype in ODD_INDICES


def _together(geometry: Geometry) -> Geometry:
    """As large, with all elements in their order."""
    strides = [_count(geometry.sizes[dim + 1 :]) for dim in range(len(geometry.sizes))]
    return Geometry(geometry.dtype, geometry.sizes, tuple(strides), 0)


def _node(value: Any) -> Any:
    return value.node if isinstance(value, (Target, Changing)) else value


def _nodes(values: Sequence[Any]) -> list[Any]:
    """Nodes in place of tensors; numbers that change stay as they are."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, list):
            found.append([_node(one) for one in value])
        else:
            found.append(value.node if isinstance(value, Target) else value)
    return found


def _integer(value: int, declared: torch._C.Argument) -> Any:
    """As Python has what the schema calls a whole number."""
    kind = str(declared.real_type).removeprefix("Optional[").removesuffix("]").removesuffix("?")
    if kind == "ScalarType":
        return dtype_of(value)
    if kind == "Layout":
        return torch.strided
    if kind == "MemoryFormat":
        return MEMORY_FORMATS[value]
    return value


def _geometry(place: Place) -> Geometry:
    if place.geometry is None:
        raise Unsupported("a storage that nothing is known of")
    return place.geometry


def _slab(base: Geometry, wanted: Geometry, offset: int) -> Hyperslab:
    """Raises Unsupported for views that are none."""
    dims = [dim for dim in _order(wanted) if wanted.sizes[dim] > 1 and wanted.strides[dim] > 0]
    sizes, strides = [1], [_count(base.sizes)]
    for dim in dims:
        size, stride = wanted.sizes[dim], wanted.strides[dim]
        if len(sizes) > 1 and strides[-1] == size * stride:
            size *= sizes.pop()
            strides.pop()
        sizes.append(size)
        strides.append(stride)
    strides.append(1)
    if 0 in wanted.sizes or any(before % after for before, after in itertools.pairwise(strides)):
        raise Unsupported("a view that is no slice of its storage")
    whole = [before // after for before, after in itertools.pairwise(strides)]
    sizes = [*sizes[1:], 1]
    starts = []
    for stride in strides[1:]:
        start, offset = divmod(offset, stride)
        starts.append(start)
    if any(start + size > count for start, size, count in zip(starts, sizes, whole, strict=True)):
        raise Unsupported("a view that is no slice of its storage")
    return Hyperslab(dims, whole, starts, sizes)


def _count(sizes: Sequence[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def _order(geometry: Geometry) -> list[int]:
    """The dimensions, the one with the farthest neighbours first."""
    return sorted(range(len(geometry.sizes)), key=lambda dim: (-geometry.strides[dim], -geometry.sizes[dim]))


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(dim) for dim in range(len(order))]


def _same_strides(one: Geometry, other: Geometry) -> bool:
    return all(size == 1 or a == b for size, a, b in zip(one.sizes, one.strides, other.strides, strict=True))
