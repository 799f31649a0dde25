"""Which dimension of a tensor the batch's rows lie along, followed through calls by geometry.

A storage that holds rows has a *pitch*: how many elements lie from one row to the next. In any view a dimension holds the rows where
``stride <= pitch < stride * size``. What an operator does with that dimension follows from the sizes of what it is given and makes; matrix
products, reductions and backward passes that sum over the rows have rules of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from forebay_wire.stream import Argument, Geometry, Tag

from forebay.toolkit.planner.calls import CallShape

REDUCTIONS = frozenset(
    {"sum", "mean", "amax", "amin", "prod", "var", "std", "var_mean", "linalg_vector_norm", "norm", "argmax", "any", "all"}
)
FIRST_RESULT_ALONE = frozenset(
    {
        "convolution_backward",
        "native_layer_norm_backward",
        "native_group_norm_backward",
        "_fused_rms_norm_backward",
        "native_batch_norm",
        "cudnn_batch_norm",
        "_native_batch_norm_legit",
        "native_batch_norm_backward",
        "cudnn_batch_norm_backward",
        "_batch_norm_with_update",
        "batch_norm_backward",
        "miopen_batch_norm",
        "miopen_batch_norm_backward",
    }
)
"""Their other results are sums over the rows."""
SUMMING = frozenset(
    {"embedding_dense_backward", "_embedding_bag_dense_backward", "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "dot"}
)


def rows_dimension(geometry: Geometry, pitch: int) -> int | None:
    """The dimension of a view that holds rows of this pitch; None if none does."""
    for dimension, (size, stride) in enumerate(zip(geometry.sizes, geometry.strides, strict=True)):
        if 0 < stride <= pitch < stride * size:
            return dimension
    return None


def pitch_of(geometry: Geometry, dimension: int, given: Geometry, given_dimension: int, pitch: int) -> int:
    """Of a result that holds along ``dimension`` the rows that a given view has along another one."""
    return geometry.strides[dimension] * max(1, pitch // given.strides[given_dimension])


def result_dimension(shape: CallShape, output: int, made: Geometry, place: int, dimension: int) -> int | None:
    """Where the rows that a call is given along ``dimension`` of its tensor number ``place`` lie in a result; None: they are summed."""
    use = shape.tensors[place]
    if shape.name in SUMMING:
        return None
    if shape.name in FIRST_RESULT_ALONE and output > 0:
        return None
    product = _product_dimension(shape, place, dimension)
    if product is not False:
        return product
    if shape.name == "cat":
        return dimension if len(made.sizes) == len(use.geometry.sizes) else None
    if shape.name in REDUCTIONS:
        return _left_over(shape.arguments, use.geometry, made, dimension)
    return _same_dimension(use.geometry.sizes, made.sizes, dimension)


def _product_dimension(shape: CallShape, place: int, dimension: int) -> int | bool | None:
    """Of matrix products, and of gradients with regard to weights; False where the call is none."""
    argument = shape.tensors[place].argument
    match shape.name:
        case "mm":
            return (0 if dimension == 0 else None) if argument == 0 else (1 if dimension == 1 else None)
        case "addmm" if argument > 0:
            return (0 if dimension == 0 else None) if argument == 1 else (1 if dimension == 1 else None)
        case "bmm" | "baddbmm" if shape.name == "bmm" or argument > 0:
            first = argument == (0 if shape.name == "bmm" else 1)
            return 0 if dimension == 0 else (dimension if dimension == (1 if first else 2) else None)
        case "convolution" | "convolution_overrideable":
            return 0 if argument == 0 and dimension == 0 else None
    return False


def _left_over(arguments: Sequence[Argument], given: Geometry, made: Geometry, dimension: int) -> int | None:
    """After a reduction over the dimensions that its first list of whole numbers names; over all without one."""
    count = len(given.sizes)
    named = next((argument for argument in arguments[1:] if argument.tag in (Tag.INT_LIST, Tag.INT)), None)
    if named is None:
        return None
    reduced = {value % count for value in (named.list if named.tag == Tag.INT_LIST else (named.integer,))}
    if not reduced or dimension in reduced:
        return None
    return dimension if len(made.sizes) == count else dimension - sum(one < dimension for one in reduced)


def _same_dimension(given: Sequence[int], made: Sequence[int], dimension: int) -> int | None:
    """Where sizes match from the front, or from the back as broadcasting has it, or at the same place."""
    size = given[dimension]
    if tuple(made[: dimension + 1]) == tuple(given[: dimension + 1]):
        return dimension
    from_back = len(made) - (len(given) - dimension)
    if from_back >= 0 and made[from_back] == size and (len(given) - dimension == 1 or made[from_back + 1 :] == given[dimension + 1 :]):
        return from_back
    return dimension if len(made) == len(given) and made[dimension] == size else None
