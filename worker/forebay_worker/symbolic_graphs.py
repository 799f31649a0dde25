"""Segments that differ in a size and what follows from it, as one graph: a loop's whose batches or sequences have several lengths.

The graphs of two of them are held against each other, number by number. One that is another in each must be an expression of the size,
else there is no such graph. It is made with a size that has no value, so that the compiler's library takes it from its inputs; what the
compiler took for granted of the size is asked of it afterwards.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils import _pytree as pytree

from forebay_worker import graphs
from forebay_worker.graphs import ATEN, SegmentGraph

POWER_MAX = 3
"""Of a size: attention's scores have the second of a sequence's length."""
DIVISOR_MAX = 16
SIZE_MAX = 1 << 14
"""Up to which it is known whether a library may have a size."""
TRIED_MAX = 4
"""Sizes that all others may follow from."""
KINDS = {
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ModularIndexing": lambda base, divisor, modulus: base // divisor % modulus,
    "Min": min,
    "Max": max,
}
"""What the compiler's conditions are made of, beside arithmetic."""

Pair = tuple[int, int]


class SeveralSizes(graphs.Unsupported):
    """The segments differ in more than one size."""

    def __init__(self) -> None:
        super().__init__(
            "it is for its own sizes alone: it differs from an earlier segment of the same calls in more than one size, such as "
            "rows and length; a library serves further values of a single size only, so each combination is compiled"
        )


class Expression(NamedTuple):
    """``(times * size ** power + plus) // divisor``."""

    times: int
    power: int
    plus: int = 0
    divisor: int = 1
    form: str = "whole"
    """Or that with a fraction of 0 (``float``), or one over it (``reciprocal``)."""

    def of(self, size: Any, do: Callable[..., Any]) -> Any:
        """Of a size; ``do`` carries out each operation."""
        value = size
        for _ in range(self.power - 1):
            value = do(operator.mul, value, size)
        value = do(operator.mul, value, self.times) if self.times != 1 else value
        value = do(operator.add, value, self.plus) if self.plus else value
        value = do(operator.floordiv, value, self.divisor) if self.divisor > 1 else value
        match self.form:
            case "float":
                return do(torch.sym_float, value)
            case "reciprocal":
                return do(operator.truediv, 1.0, value)
        return value

    def at(self, size: int) -> Any:
        """What it is at a size."""
        return self.of(size, lambda function, *values: function(*values))


class _Part(NamedTuple):
    """A node of a graph."""

    node: Node
    like: Any
    """What is the same in graphs that differ in numbers alone."""
    leaves: list[Any]
    """Its arguments; of an input its sizes and strides. A node is told by its place."""


class _Place(NamedTuple):
    """The place of a node among a graph's."""

    number: int


@dataclass(frozen=True)
class SizedGraph:
    """A graph whose size has no value yet."""

    module: GraphModule
    inputs: list[torch.Tensor]
    """With one of the two sizes that it was made of."""
    _env: ShapeEnv
    _symbol: sympy.Symbol

    def sizes(self) -> list[Pair]:
        """From which size to which the graph is right, as far as was asked of the size until now; ranges that rise, each with its end."""
        conditions = [self._condition(expression) for expression in {guard.expr for guard in self._env.guards}]
        known = self._env.var_to_range[self._symbol]
        ranges: list[list[int]] = []
        for size in range(max(2, int(known.lower)), int(min(SIZE_MAX, known.upper)) + 1):
            if all(holds(size) for holds in conditions):
                if ranges and ranges[-1][1] == size - 1:
                    ranges[-1][1] = size
                else:
                    ranges.append([size, size])
        return [(first, last) for first, last in ranges]

    def _condition(self, expression: Any) -> Callable[[int], bool]:
        compiled = sympy.lambdify([self._symbol], expression, modules=[KINDS, "math"])

        def holds(size: int) -> bool:
            with contextlib.suppress(ArithmeticError, NameError, TypeError):
                return bool(compiled(size))
            return False

        return holds


class Alike:
    """Two segments that differ in a size, and what follows from it. Raises Unsupported where they differ otherwise, and SeveralSizes where
    sizes of their inputs do not follow from one."""

    def __init__(self, first: SegmentGraph, second: SegmentGraph) -> None:
        self._graphs = (first, second)
        self._parts = (_parts(first), _parts(second))
        pairs = [*_pairs(*self._parts)]
        given = _given_sizes(self._parts[0], pairs)
        candidates = sorted({pair for pair in given if pair[0] != pair[1] and min(pair) > 1})[:TRIED_MAX]
        for sizes in candidates:
            found = [_expression(sizes, one, other) for one, other in pairs]
            if all(isinstance(expression, Expression) or _is_same(*pair) for expression, pair in zip(found, pairs, strict=True)):
                self.sizes, self._numbers = sizes, found
                return
        if candidates and not any(all(_expression(sizes, *pair) is not None for pair in given) for sizes in candidates):
            raise SeveralSizes
        raise graphs.Unsupported("its numbers do not follow from one of its sizes")

    def size_of(self, graph: SegmentGraph) -> int:
        """Of another segment, which differs from the two in its size. Raises Unsupported where it differs otherwise, and SeveralSizes where
        it does in further ones."""
        numbers = [other for _, other in _pairs(self._parts[0], _parts(graph))]
        size = next(number for number, known in zip(numbers, self._numbers, strict=True) if known == Expression(1, 1))
        expected = [known.at(size) if isinstance(known, Expression) else known for known in self._numbers]
        pairs = [*zip(numbers, expected, strict=True)]
        if not all(_is_same(*pair) for pair in _given_sizes(self._parts[0], pairs)):
            raise SeveralSizes
        if not all(_is_same(*pair) for pair in pairs):
            raise graphs.Unsupported("its numbers are not as those of the others")
        return int(size)

    def graph(self) -> SizedGraph:
        """For all sizes. Raises Unsupported."""
        which = self.sizes.index(max(self.sizes))
        return _Builder(self, self._parts[which], self._graphs[which], max(self.sizes)).build()

    def numbers(self) -> Iterator[Any]:
        """Of all nodes, in their order: an expression, or what it is."""
        return iter(self._numbers)

    def shapes(self) -> Iterator[tuple[list[Sequence[int]], list[Sequence[int]]]]:
        """Of all nodes, in their order: those of their results in both graphs."""
        for one, other in zip(*self._parts, strict=True):
            yield [list(found.shape) for found in _tensors(one.node)], [list(found.shape) for found in _tensors(other.node)]


class _Builder:
    def __init__(self, alike: Alike, parts: list[_Part], like: SegmentGraph, size: int) -> None:
        from torch._dynamo.source import ConstantSource  # slow to load, and not needed to tell a size

        self._alike, self._parts, self._like = alike, parts, like
        self._env = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._env)
        source = ConstantSource("size")
        symbol = self._env.create_symbol(size, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
        if not isinstance(symbol, sympy.Symbol):
            raise graphs.Unsupported("a size of 0 or 1")
        self._symbol = symbol
        self._size = self._env.create_symintnode(symbol, hint=size, source=source)
        self._graph = Graph()
        self._nodes: list[Node] = []
        self._expressions: dict[Expression, Node] = {}

    def build(self) -> SizedGraph:
        numbers = self._alike.numbers()
        try:
            for part, shapes in zip(self._parts, self._alike.shapes(), strict=True):
                leaves = [next(numbers) for _ in part.leaves]
                self._nodes.append(self._input(part, leaves) if part.node.op == "placeholder" else self._node(part, leaves))
                self._check(self._nodes[-1], shapes)
        except graphs.REFUSALS as error:
            raise graphs.Unsupported(
                f"not for several sizes: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            ) from error
        return SizedGraph(GraphModule(torch.nn.Module(), self._graph), self._like.inputs, self._env, self._symbol)

    def _input(self, part: _Part, leaves: list[Any]) -> Node:
        node = self._graph.placeholder(part.node.name)
        numbers = [self._number(one) for one in leaves]
        half = len(numbers) // 2
        with self._mode:
            node.meta["val"] = torch.empty_strided(numbers[:half], numbers[half:], dtype=part.node.meta["val"].dtype)
        return node

    def _number(self, leaf: Any) -> Any:
        return leaf.of(self._size, lambda function, *values: function(*values)) if isinstance(leaf, Expression) else leaf

    def _node(self, part: _Part, leaves: list[Any]) -> Node:
        values = [self._value(leaf) for leaf in leaves]
        arguments, options = pytree.tree_unflatten(values, part.like[-1])
        if part.node.op == "output":
            output: Node = self._graph.output(*arguments)
            return output
        return self._call(part.node.target, arguments, options)

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, _Place):
            return self._nodes[leaf.number]
        if not isinstance(leaf, Expression):
            return leaf
        if leaf not in self._expressions:
            self._expressions[leaf] = leaf.of(self._given(), lambda function, *values: self._call(function, values, {}))
        return self._expressions[leaf]

    def _given(self) -> Node:
        """The size, as the first input tells it that has it."""
        itself = Expression(1, 1)
        if itself not in self._expressions:
            for node in self._nodes:
                for dim, size in enumerate(node.meta["val"].shape if node.op == "placeholder" else ()):
                    if isinstance(size, torch.SymInt) and size.node.expr == self._symbol:
                        self._expressions[itself] = self._call(ATEN.sym_size.int, (node, dim), {})
                        return self._expressions[itself]
            raise graphs.Unsupported("no input has its size")
        return self._expressions[itself]

    def _call(self, function: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Node:
        node = self._graph.call_function(function, tuple(arguments), options)
        known = torch.fx.node.map_arg((tuple(arguments), options), lambda one: one.meta["val"])
        with self._mode, enable_python_dispatcher():
            node.meta["val"] = function(*known[0], **known[1])
        return node

    def _check(self, node: Node, shapes: tuple[list[Sequence[int]], list[Sequence[int]]]) -> None:
        """Both graphs' results have the sizes that the node's have there."""
        for size, expected in zip(self._alike.sizes, shapes, strict=True):
            if [[self._at(dim, size) for dim in found.shape] for found in _tensors(node)] != expected:
                raise graphs.Unsupported("its results are not of such sizes")

    def _at(self, dim: Any, size: int) -> int:
        return int(dim.node.expr.xreplace({self._symbol: sympy.Integer(size)})) if isinstance(dim, torch.SymInt) else int(dim)


def _tensors(node: Node) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(node.meta.get("val")) if isinstance(one, torch.Tensor)] if node.op != "output" else []


def _parts(graph: SegmentGraph) -> list[_Part]:
    places = {node: _Place(number) for number, node in enumerate(graph.module.graph.nodes)}
    found = []
    for node in places:
        if node.op == "placeholder":
            value = node.meta["val"]
            found.append(_Part(node, (node.op, node.name, value.dtype, value.dim()), [*value.shape, *value.stride()]))
        else:
            leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
            found.append(_Part(node, (node.op, node.target, spec), [places[one] if isinstance(one, Node) else one for one in leaves]))
    return found


def _pairs(some: list[_Part], others: list[_Part]) -> Iterator[tuple[Any, Any]]:
    """All arguments of both, side by side. Raises Unsupported where more than numbers differ."""
    if len(some) != len(others) or any(one.like != other.like for one, other in zip(some, others, strict=True)):
        raise graphs.Unsupported("its graph is not as that of the others")
    for one, other in zip(some, others, strict=True):
        yield from zip(one.leaves, other.leaves, strict=True)


def _given_sizes(parts: list[_Part], numbers: Sequence[Any]) -> list[Any]:
    """Of what there is for each number of the graph what there is for the sizes of its inputs."""
    found, rest = [], iter(numbers)
    for part in parts:
        of_part = [next(rest) for _ in part.leaves]
        found += of_part[: len(of_part) // 2] if part.node.op == "placeholder" else []
    return found


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (repr(one) == repr(other) if isinstance(one, float) else bool(one == other))


def _expression(sizes: Pair, one: Any, other: Any) -> Any:
    """What it is where both are the same; an expression that gives both at their sizes; else None."""
    if _is_same(one, other):
        return one
    if type(one) is int and type(other) is int:
        return whole_expression(sizes, (one, other))
    if type(one) is float and type(other) is float and one and other:
        for form, values in (("float", (one, other)), ("reciprocal", (1 / one, 1 / other))):
            whole = whole_expression(sizes, (round(values[0]), round(values[1]))) if max(map(abs, values)) < 2.0**53 else None
            found = whole and whole._replace(form=form)
            if found and [found.at(size) for size in sizes] == [one, other]:
                return found
    return None


def whole_expression(sizes: Pair, values: Pair) -> Expression | None:
    """The first of several kinds that gives both numbers at their sizes; none where they are the same, or no kind does."""
    if values[0] == values[1]:
        return None
    for power in range(1, POWER_MAX + 1):
        times, rest = divmod(values[0], sizes[0] ** power)
        if rest == 0 and times * sizes[1] ** power == values[1]:
            return Expression(times, power)
    times, rest = divmod(values[1] - values[0], sizes[1] - sizes[0])
    if rest == 0:
        return Expression(times, 1, values[0] - times * sizes[0])
    for divisor in (*range(2, DIVISOR_MAX + 1), sizes[0] // max(1, values[0])):
        for plus in (0, *range(min(divisor, DIVISOR_MAX) - 1, 0, -1), *range(-1, -DIVISOR_MAX, -1)):
            if divisor > 1 and all((size + plus) // divisor == value for size, value in zip(sizes, values, strict=True)):
                return Expression(1, 1, plus, divisor)
    return None
