"""Products of matrices in a library: by PyTorch's own kernel, or by oneDNN's where that is quicker on this processor.

PyTorch hands them to MKL, which takes narrower instructions on processors of other makers than Intel: on an AMD EPYC with AVX-512 it has
half of oneDNN's speed. Which one is quicker is measured by the processor's time, for each geometry, where the library is made.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

ATEN = torch.ops.aten
_LIBRARY = torch.library.Library("forebay_products", "DEF")  # type: ignore[no-untyped-call] # PyTorch's, as the next ones
_LIBRARY.define("linear(Tensor rows, Tensor matrix, Tensor? bias) -> Tensor")  # type: ignore[no-untyped-call]
OPERATIONS_MIN = 1 << 20
"""Multiplications and additions of a product, from which on it is looked at: 10 µs and less are not worth it."""
SIZE_MAX = 1024
QUICKER = 0.9
"""Of the time of PyTorch's own, at most."""
TIMED_SECONDS = 0.02
TIMED_MIN, TIMED_MAX = 3, 50
"""Times that a kernel is tried, as many as fit."""


def _linear(rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """By oneDNN: ``rows @ matrix.t() + bias``. A name of its own keeps it from what Inductor makes of oneDNN's, for constants alone."""
    made: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, matrix, bias, "none", [], "")
    return made


_LIBRARY.impl("linear", _linear, "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake(
    "forebay_products::linear", lambda rows, matrix, _: rows.new_empty((rows.shape[0], matrix.shape[0])), lib=_LIBRARY
)
LINEAR = torch.ops.forebay_products.linear.default


class Matrix(NamedTuple):
    """One to be timed: of its sizes, but no larger than tells which kernel is quicker."""

    rows: int
    columns: int
    by_columns: bool
    """Whether those lie together, and not its rows."""

    def made(self) -> Tensor:
        return torch.ones(self.columns, self.rows).t() if self.by_columns else torch.ones(self.rows, self.columns)


def _geometry(value: Any) -> Matrix | None:
    """None of what is no matrix in single precision on the host. A size that is a symbol is what it was in the segment."""
    if not isinstance(value, Tensor) or value.dim() != 2 or value.dtype != torch.float32 or value.device.type != "cpu":
        return None
    rows, columns, *strides = (one if isinstance(one, int) else one.node.hint for one in (*value.shape, *value.stride()))
    return Matrix(min(rows, SIZE_MAX), min(columns, SIZE_MAX), strides[0] < strides[1])


def take_quicker(module: GraphModule) -> int:
    """Has oneDNN multiply where it is quicker. Returns how many products it has."""
    if not torch._C._has_mkldnn or not _can_be_called():
        return 0
    count = 0
    for node in list(module.graph.nodes):
        product = _product(node)
        if product is None:
            continue
        bias, one, other = product
        matrices = [_geometry(factor.meta["val"]) for factor in (one, other)]
        if None in matrices or not _is_quicker(*matrices, bias is not None):
            continue
        with module.graph.inserting_before(node):
            turned = module.graph.call_function(ATEN.permute.default, (other, [1, 0]))
            made = module.graph.call_function(LINEAR, (one, turned, bias))
        turned.meta["val"], made.meta["val"] = other.meta["val"].permute(1, 0), node.meta["val"]
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
        count += 1
    module.recompile()
    return count


def _product(node: Node) -> tuple[Node | None, Node, Node] | None:
    """What is added to each row, and both factors."""
    if node.target == ATEN.mm.default:
        return None, node.args[0], node.args[1]  # type: ignore[return-value]
    if node.target != ATEN.addmm.default or any(factor != 1 for factor in node.kwargs.values()):
        return None
    bias: Node = node.args[0]  # type: ignore[assignment]
    value = bias.meta["val"]
    if value.dim() != 1 or value.shape[0] != node.meta["val"].shape[1] or value.dtype != torch.float32:
        return None
    return bias, node.args[1], node.args[2]  # type: ignore[return-value]


@functools.cache
def _is_quicker(one: Matrix, other: Matrix, biased: bool) -> bool:
    if 2 * one.rows * one.columns * other.columns < OPERATIONS_MIN:
        return False
    first, second = one.made(), other.made()
    bias = torch.ones(other.columns) if biased else None
    return _least_seconds(lambda: _linear(first, second.t(), bias)) <= QUICKER * _least_seconds(
        lambda: torch.mm(first, second) if bias is None else torch.addmm(bias, first, second)
    )


def _least_seconds(multiply: Callable[[], Tensor]) -> float:
    """Of this thread's processor, which alone multiplies."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        multiply()
        least, began = float("inf"), time.thread_time()
        for count in range(TIMED_MAX):
            before = time.thread_time()
            if count >= TIMED_MIN and before - began > TIMED_SECONDS:
                break
            multiply()
            least = min(least, time.thread_time() - before)
        return least
    finally:
        torch.set_num_threads(threads)


@functools.cache
def _can_be_called() -> bool:
    """Whether this PyTorch's compiler calls oneDNN's kernel with a matrix that is none of its constants: its own way asks for one."""
    try:
        from torch._inductor import ir, lowering
        from torch._inductor.mkldnn_ir import LinearUnary
    except ImportError:
        return False

    def linear(rows: Any, matrix: Any, bias: Any) -> Any:
        given = [ir.ExternKernel.realize_input(one) for one in (rows, matrix, bias) if one is not None]
        sizes = [rows.get_size()[0], matrix.get_size()[0]]
        layout = ir.FixedLayout(device=rows.get_device(), dtype=rows.get_dtype(), size=sizes)
        constants = [*([] if bias is not None else [None]), "none", [-1], ""]
        return ir.TensorBox.create(LinearUnary(layout=layout, inputs=given, constant_args=constants))

    lowering.lowerings[LINEAR] = linear
    return True
