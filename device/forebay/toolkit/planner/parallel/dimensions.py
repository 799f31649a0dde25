"""Along which dimensions of its tensors an operator can be carried out part by part, none of which needs another.

What is not known here counts as mixing all, so that nothing is divided by mistake.
"""

from __future__ import annotations

from forebay_wire.stream import Tag

from forebay.toolkit.planner.calls import CallShape
from forebay.toolkit.planner.rows import REDUCTIONS

ELEMENTWISE = frozenset(
    """_to_copy abs add addcdiv addcmul bernoulli bitwise_and bitwise_not bitwise_or ceil clamp clamp_max clamp_min clone copy
    cos div elu elu_backward eq erf exp fill floor ge gelu gelu_backward gt isfinite isinf isnan isneginf le leaky_relu
    leaky_relu_backward lerp log logical_and logical_not logical_or lt masked_fill maximum minimum mul native_dropout
    native_dropout_backward ne neg normal pow reciprocal relu round rsqrt rsub sigmoid sigmoid_backward sign silu
    silu_backward sin softplus softplus_backward sqrt square sub tan tanh tanh_backward threshold threshold_backward uniform
    where zero""".split()
)
"""Operators whose results have each element of elements at the same place, in place or not."""
SOFTMAX = frozenset({"_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"})
NORMS = frozenset({"native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"})
LOOKUPS = frozenset({"embedding", "index_select"})
LOSSES = frozenset({"nll_loss_forward", "nll_loss_backward"})
PRODUCTS = {"mm": (0, 1), "addmm": (1, 2)}
"""Products of two matrices, with the numbers of the arguments that are multiplied."""


def is_elementwise(name: str) -> bool:
    return name.removesuffix("_") in ELEMENTWISE or name in ELEMENTWISE


def divides(shape: CallShape, place: int, dimension: int) -> bool:
    """Whether a call can be carried out on parts of its tensor number ``place`` along a dimension, with the like parts of the others.

    Results are like parts of the whole one, or of a sum over that dimension.
    """
    name, sizes = shape.name, shape.tensors[place].geometry.sizes
    if is_elementwise(name) or name in REDUCTIONS:
        return True
    if name in SOFTMAX:
        return dimension != _first_integer(shape) % len(sizes)
    if name in NORMS:
        return dimension < len(sizes) - _normalized(shape)
    if "attention" in name:
        heads_last = name.startswith(("_efficient", "_flash"))
        return dimension in (0, 2 if heads_last else 1)
    if name in LOOKUPS:
        return place > 0  # indices
    if name == "embedding_dense_backward":
        return dimension < len(shape.tensors[1].geometry.sizes)
    if name in ("bmm", "baddbmm", *LOSSES):
        return dimension == 0
    if name == "select_backward":
        return True
    return name in ("cat", "slice_backward") and dimension != _first_integer(shape) % len(sizes)


def _first_integer(shape: CallShape) -> int:
    """0 without one."""
    return next((argument.integer for argument in shape.arguments if argument.tag == Tag.INT), 0)


def _normalized(shape: CallShape) -> int:
    """How many of the last dimensions a norm is over; all where that is not told."""
    sizes = next((argument.list for argument in shape.arguments if argument.tag == Tag.INT_LIST), None)
    return len(shape.tensors[0].geometry.sizes) if sizes is None else len(sizes)
