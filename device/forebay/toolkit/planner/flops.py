"""Floating-point operations of the calls that have many: matrix products, convolutions and attention. All else is bound by memory.

A multiplication and an addition are two. Backward attention takes two and a half times the forward pass, since it computes the scores
again (Dao, FlashAttention-2, arXiv:2307.08691, section 4.1).
"""

from __future__ import annotations

from math import prod

from forebay_wire.stream import Tag

from forebay.toolkit.planner.calls import CallShape

BACKWARD_ATTENTION = 2.5


def flops_of(shape: CallShape) -> float:
    """Of one call of the template."""
    sizes = [use.geometry.sizes for use in shape.tensors]
    name = shape.name
    if name in ("mm", "bmm"):
        return 2.0 * prod(sizes[0]) * sizes[1][-1]
    if name in ("addmm", "baddbmm"):
        return 2.0 * prod(sizes[1]) * sizes[2][-1]
    if name == "convolution":
        return 2.0 * prod(shape.made[0].geometry.sizes) * prod(sizes[1][1:])
    if name == "convolution_backward":
        return 2.0 * prod(sizes[0]) * prod(sizes[2][1:]) * min(2, len(shape.made))
    if "attention" in name:
        return _attention(shape)
    return 0.0


def _attention(shape: CallShape) -> float:
    backward = shape.name.endswith("_backward")
    query, key, value = (use.geometry.sizes for use in shape.tensors[1 if backward else 0 :][:3])
    if len(query) != 4:
        return 0.0
    heads_last = shape.name.startswith("_efficient") or shape.name.startswith("_flash")
    queries, keys = (query[1], key[1]) if heads_last else (query[2], key[2])
    heads = query[2] if heads_last else query[1]
    pairs = query[0] * heads * queries * keys
    causal = any(argument.tag == Tag.BOOL and argument.flag for argument in shape.arguments)
    forward = 2.0 * pairs * (query[3] + value[3]) * (0.5 if causal else 1.0)
    return forward * BACKWARD_ATTENTION if backward else forward
