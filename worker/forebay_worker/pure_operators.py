"""Operators that are compiled: without effects, and the same each time. In-place forms and lists are made of them.

Those of our own a library calls as tier 1 does; what is known of them here is the geometry of what they give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from forebay_wire._stream import OWN_OPERATORS
from torch import Tensor

POINTWISE = """
abs add sub rsub mul div neg reciprocal sqrt rsqrt square exp expm1 log log1p log2 sin cos tan tanh sigmoid erf floor ceil round trunc sign
relu gelu gelu_backward silu silu_backward elu leaky_relu leaky_relu_backward hardtanh hardtanh_backward softplus
threshold threshold_backward sigmoid_backward tanh_backward addcmul addcdiv
lerp pow maximum minimum clamp clamp_min clamp_max where eq ne lt le gt ge logical_and
logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not masked_fill
isnan isinf isneginf isposinf atan2 fmod remainder hardswish hardswish_backward hardsigmoid hardsigmoid_backward mish mish_backward
_prelu_kernel _prelu_kernel_backward elu_backward softplus_backward softshrink log_sigmoid_forward log_sigmoid_backward glu glu_backward
asin acos atan sinh cosh asinh acosh atanh erfc nan_to_num xlogy logaddexp copysign hypot fmin fmax frac logit logit_backward sgn sinc
"""
COPIES = """
_to_copy clone cat stack flip repeat roll tril triu constant_pad_nd slice_backward select_backward diagonal_backward unfold_backward
pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward replication_pad1d
replication_pad2d upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward
"""
INDEXED = """
gather index_select index index_put _index_put_impl scatter scatter_add scatter_reduce index_add index_copy index_fill take embedding
embedding_dense_backward
"""
NEW = "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange scalar_tensor linspace eye"
REDUCTIONS = """
sum mean var std amax amin max min argmax argmin prod any all cumsum linalg_vector_norm var_mean norm logsumexp topk sort aminmax
"""
PRODUCTS = "mm addmm bmm baddbmm dot mv"
LAYERS = """
_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data native_layer_norm native_layer_norm_backward native_batch_norm
native_batch_norm_backward native_dropout_backward native_group_norm native_group_norm_backward convolution convolution_backward
max_pool2d_with_indices
max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
_scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward
"""
LOSSES = """
nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward
huber_loss huber_loss_backward binary_cross_entropy binary_cross_entropy_backward soft_margin_loss soft_margin_loss_backward
"""

PURE = frozenset(" ".join((POINTWISE, COPIES, INDEXED, NEW, REDUCTIONS, PRODUCTS, LAYERS, LOSSES)).split())
"""Names after ``aten::``, of all overloads."""

_LIBRARY = torch.library.Library("forebay", "FRAGMENT")  # type: ignore[no-untyped-call] # PyTorch's
"""Where no worker has defined them: in the process that compiles."""


def own(name: str) -> Any:
    """The operator of that name after ``forebay::``. Raises AttributeError where there is none."""
    return getattr(torch.ops.forebay, name).default


def _recurrent_layer(
    input: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], cell: int, bidirectional: bool, keeps: bool
) -> list[Tensor]:
    steps, rows, _ = input.shape
    directions, _, hidden = state[0].shape
    made = [input.new_empty(steps, rows, directions * hidden), *(one.new_empty(one.shape) for one in state)]
    return [*made, input.new_empty(0, dtype=torch.uint8)] if keeps else made


def _recurrent_layer_backward(
    gradients: Sequence[Tensor | None],
    results: Sequence[Tensor],
    input: Tensor,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
    cell: int,
    bidirectional: bool,
) -> list[Tensor]:
    return [one.new_empty(one.shape) for one in (input, *state, *weights)]


for _name, _schema in OWN_OPERATORS.items():
    if not hasattr(torch.ops.forebay, _name):
        _LIBRARY.define(_schema)  # type: ignore[no-untyped-call] # PyTorch's
torch.library.register_fake("forebay::recurrent_layer", _recurrent_layer, lib=_LIBRARY)
torch.library.register_fake("forebay::recurrent_layer_backward", _recurrent_layer_backward, lib=_LIBRARY)
