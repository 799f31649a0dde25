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
lerp pow maximum minimum clamp clamp_min clamp_max where eq ne lt le gt ge floor_divide logical_and
logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not masked_fill
isnan isinf isneginf isposinf atan2 fmod remainder hardswish hardswish_backward hardsigmoid hardsigmoid_backward mish mish_backward
_prelu_kernel _prelu_kernel_backward elu_backward softplus_backward softshrink log_sigmoid_forward log_sigmoid_backward glu glu_backward
asin acos atan sinh cosh asinh acosh atanh erfc nan_to_num xlogy logaddexp copysign hypot fmin fmax frac logit logit_backward sgn sinc
exp2 log10 logaddexp2 signbit angle hardshrink hardshrink_backward softshrink_backward lgamma digamma polygamma erfinv i0
special_i0e special_i1 special_i1e special_erfcx special_ndtri special_log_ndtr special_entr special_xlog1py
"""
COPIES = """
_to_copy clone cat stack flip repeat roll tril triu constant_pad_nd slice_backward select_backward diagonal_backward unfold_backward
pixel_shuffle pixel_unshuffle channel_shuffle diag_embed im2col col2im slice_scatter select_scatter diagonal_scatter
reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward
replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward
upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward
_upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
upsample_linear1d upsample_linear1d_backward upsample_bilinear2d upsample_bilinear2d_backward upsample_trilinear3d
upsample_trilinear3d_backward upsample_bicubic2d upsample_bicubic2d_backward
"""
INDEXED = """
gather index_select index index_put _index_put_impl scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce take
embedding embedding_dense_backward isin bucketize
"""
NEW = "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange scalar_tensor linspace eye"
REDUCTIONS = """
sum mean var std amax amin max min argmax argmin prod any all cumsum linalg_vector_norm var_mean norm logsumexp topk sort aminmax
cumprod logcumsumexp nansum std_mean count_nonzero trace renorm
"""
PRODUCTS = "mm addmm bmm baddbmm dot mv addmv addr addbmm vdot linalg_cross _trilinear _cdist_forward _cdist_backward"
MATRICES = """
linalg_cholesky_ex cholesky _cholesky_solve_helper cholesky_inverse linalg_solve_triangular triangular_solve linalg_qr _linalg_svd
_linalg_eigh linalg_inv_ex _linalg_det _linalg_slogdet _linalg_solve_ex linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp
"""
LAYERS = """
_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data native_layer_norm native_layer_norm_backward native_batch_norm
native_batch_norm_backward native_dropout_backward native_group_norm native_group_norm_backward convolution convolution_backward
max_pool2d_with_indices
max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
adaptive_max_pool2d adaptive_max_pool2d_backward max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward
_adaptive_avg_pool3d _adaptive_avg_pool3d_backward grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward
_weight_norm_interface _weight_norm_interface_backward
_scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward
"""
LOSSES = """
nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward
huber_loss huber_loss_backward binary_cross_entropy binary_cross_entropy_backward soft_margin_loss soft_margin_loss_backward
"""

PURE = frozenset(" ".join((POINTWISE, COPIES, INDEXED, NEW, REDUCTIONS, PRODUCTS, MATRICES, LAYERS, LOSSES)).split())
"""Names after ``aten::``, of all overloads."""

OPTIONS = ("dtype", "layout", "device", "pin_memory")
"""Arguments that say what kind of tensor is made; one that is there says it itself."""

_LIBRARY = torch.library.Library("forebay", "FRAGMENT")  # type: ignore[no-untyped-call] # PyTorch's
"""Where no worker has defined them: in the process that compiles."""


def own(name: str) -> Any:
    """The operator of that name after ``forebay::``. Raises AttributeError where there is none."""
    return getattr(torch.ops.forebay, name).default


def overload_alike(name: str, declared: Sequence[torch._C.Argument]) -> str | None:
    """That of ``aten::name`` which takes the same, but for options; and is told nowhere to put its results."""

    def kinds(arguments: Sequence[torch._C.Argument]) -> list[tuple[str, str]]:
        return [(one.name, str(one.type)) for one in arguments if one.name not in OPTIONS]

    packet = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        if kinds(getattr(packet, overload)._schema.arguments) == kinds(declared):
            return str(overload)
    return None


def taking(name: str, overload: str, arguments: Sequence[Any]) -> Any:
    """That overload of ``aten::name``; or the one for a number, where a number stands for a tensor and the operator takes none. Arguments
    at the end may be left out."""
    packet = getattr(torch.ops.aten, name)
    function = getattr(packet, overload or "default")
    pairs = zip(function._schema.arguments, arguments, strict=False)
    has_number = any(str(one.type) == "Tensor" and isinstance(value, int | float) for one, value in pairs)
    if has_number and not torch._C._should_allow_numbers_as_tensors(name) and "Scalar" in packet.overloads():
        return packet.Scalar
    return function


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
