"""Arguments of operators that draws by chance seldom fit: sizes that depend on each other, and places within them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Arguments = tuple[dict[str, Any], dict[str, Any]]
"""Inputs and attributes of an operator."""
NUMBERS = [0.5, 1.0, 1 / 3, 2.0, 0.25, 3.0, 0.7, 2.5, 1.25]


class Maker:
    """Makes tensors of one type by chance."""

    def __init__(self, kind: str, chance: np.random.Generator) -> None:
        self.kind, self.chance = kind, chance

    def __call__(self, *sizes: int, kind: str | None = None) -> tf.Tensor:
        return tf.cast(self.chance.choice(NUMBERS, sizes), kind or self.kind)


def whole(*values: Any, kind: str = "int32") -> tf.Tensor:
    return tf.constant(values[0] if len(values) == 1 else list(values), kind)


def convolution(places: int) -> dict[str, Any]:
    return {"strides": [1] * (places + 2), "padding": "SAME"}


def filters(make: Maker, places: int, *, is_first: bool) -> Arguments:
    """Of a convolution's filters (``is_first`` is false), or of its inputs."""
    image, filter_sizes, made = (2, *[4] * places, 3), (*[2] * places, 3, 5), (2, *[4] * places, 5)
    if is_first:
        return {"input_sizes": whole(image), "filter": make(*filter_sizes), "out_backprop": make(*made)}, convolution(places)
    return {"input": make(*image), "filter_sizes": whole(filter_sizes), "out_backprop": make(*made)}, convolution(places)


def convolved(make: Maker, places: int, *, is_by_depth: bool = False) -> Arguments:
    return {"input": make(2, *[4] * places, 3), "filter": make(*[2] * places, 3, 2 if is_by_depth else 5)}, convolution(places)


def by_depth(make: Maker, *, is_first: bool) -> Arguments:
    sizes, made = {"filter": (2, 2, 3, 2), "input": (2, 4, 4, 3)}, make(2, 4, 4, 6)
    if is_first:
        return {"input_sizes": whole(sizes["input"]), "filter": make(*sizes["filter"]), "out_backprop": made}, convolution(2)
    return {"input": make(*sizes["input"]), "filter_sizes": whole(sizes["filter"]), "out_backprop": made}, convolution(2)


def normalization(make: Maker, *, is_training: bool, statistics: str) -> Arguments:
    one = {name: make(3, kind=statistics) for name in ("scale", "offset", "mean", "variance")}
    if is_training:
        one |= {name: tf.zeros((0,), statistics) for name in ("mean", "variance")}
    return {"x": make(2, 3, 4, 3), **one}, {"is_training": is_training, "epsilon": 1e-3}


def slopes_of_normalization(make: Maker, *, version: int, statistics: str) -> Arguments:
    names = ["scale", "reserve_space_1", "reserve_space_2", *(["reserve_space_3"] if version == 3 else [])]
    inputs = {"y_backprop": make(2, 3, 4, 3), "x": make(2, 3, 4, 3)} | {name: make(3, kind=statistics) for name in names}
    return inputs, {"is_training": True, "epsilon": 1e-3}


def statistics_of(kind: str, version: int) -> str:
    return "float32" if version > 1 and kind in ("bfloat16", "float16") else kind


def scattered(make: Maker) -> Arguments:
    return {"tensor": make(4, 3), "indices": whole([[1], [3], [1]], kind="int64"), "updates": make(3, 3)}, {}


def put(make: Maker) -> Arguments:
    return {"indices": whole([[1], [3], [1]], kind="int64"), "updates": make(3, 3), "shape": whole(4, 3, kind="int64")}, {}


def segments(make: Maker) -> Arguments:
    return {"data": make(4, 3), "segment_ids": whole(0, 0, 1, 3), "num_segments": whole(4)}, {}


def blocks(make: Maker, *, is_spread: bool) -> Arguments:
    sides = "crops" if is_spread else "paddings"
    return {"input": make(4 if is_spread else 2, 2, 2, 3), "block_shape": whole(2, 2), sides: whole([[0, 0], [0, 0]])}, {}


def blocks_of_four(make: Maker, *, is_spread: bool) -> Arguments:
    sides = "crops" if is_spread else "paddings"
    return {"input": make(4, 2, 2, 3), sides: whole([[0, 0], [0, 0]])}, {"block_size": 2}


def diagonals(make: Maker) -> Arguments:
    inputs = {"diagonal": make(2, 2, 3), "k": whole(-1, 0), "num_rows": whole(3), "num_cols": whole(3)}
    return inputs | {"padding_value": make()}, {}


def averages(make: Maker) -> Arguments:
    return {"input": make(2, 3, 4, 4, 2)}, {"ksize": [1, 2, 2, 2, 1], "strides": [1, 1, 2, 1, 1], "padding": "SAME"}


def slopes_of_averages(make: Maker) -> Arguments:
    inputs = {"orig_input_shape": whole(2, 3, 4, 4, 2), "grad": make(2, 3, 2, 4, 2)}
    return inputs, {"ksize": [1, 2, 2, 2, 1], "strides": [1, 1, 2, 1, 1], "padding": "SAME"}


def slopes_of_square_averages(make: Maker) -> Arguments:
    inputs = {"orig_input_shape": whole(2, 3, 4, 2), "grad": make(2, 3, 2, 2)}
    return inputs, {"ksize": [1, 2, 2, 1], "strides": [1, 1, 2, 1], "padding": "SAME"}


def products_of_bands(make: Maker) -> Arguments:
    bands = {name: make(2, 1, 4) for name in ("superdiag", "maindiag", "subdiag")}
    return bands | {"rhs": make(2, 4, 3)}, {}


def slopes_of_slices(make: Maker) -> Arguments:
    places = {"shape": whole(4, 3), "begin": whole(3, 0), "end": whole(-5, 2), "strides": whole(-2, 1)}
    return places | {"dy": make(2, 2)}, {}


def spectrum(make: Maker, places: int, *, is_inverse: bool) -> Arguments:
    sizes = [2, *[4] * places]
    if is_inverse:
        half = [*sizes[:-1], 3]
        made = tf.complex(*(tf.constant(make.chance.choice(NUMBERS, half), "float32") for _ in range(2)))
        return {"input": made, "fft_length": whole([4] * places)}, {"Treal": "float32"}
    return {"input": make(*sizes), "fft_length": whole([4] * places)}, {"Tcomplex": "complex64"}


SAMPLES: dict[str, Callable[[Maker], Arguments]] = {
    "AvgPool3D": averages,
    "AvgPool3DGrad": slopes_of_averages,
    "AvgPoolGrad": slopes_of_square_averages,
    "BatchToSpace": lambda make: blocks_of_four(make, is_spread=True),
    "BatchToSpaceND": lambda make: blocks(make, is_spread=True),
    "Conv2D": lambda make: convolved(make, 2),
    "Conv2DBackpropFilter": lambda make: filters(make, 2, is_first=False),
    "Conv2DBackpropInput": lambda make: filters(make, 2, is_first=True),
    "Conv3D": lambda make: convolved(make, 3),
    "Conv3DBackpropFilterV2": lambda make: filters(make, 3, is_first=False),
    "Conv3DBackpropInputV2": lambda make: filters(make, 3, is_first=True),
    "DepthToSpace": lambda make: ({"input": make(2, 2, 3, 8)}, {"block_size": 2}),
    "DepthwiseConv2dNative": lambda make: convolved(make, 2, is_by_depth=True),
    "DepthwiseConv2dNativeBackpropFilter": lambda make: by_depth(make, is_first=False),
    "DepthwiseConv2dNativeBackpropInput": lambda make: by_depth(make, is_first=True),
    "IRFFT": lambda make: spectrum(make, 1, is_inverse=True),
    "IRFFT2D": lambda make: spectrum(make, 2, is_inverse=True),
    "IRFFT3D": lambda make: spectrum(make, 3, is_inverse=True),
    "MatrixDiagV3": diagonals,
    "RFFT": lambda make: spectrum(make, 1, is_inverse=False),
    "RFFT2D": lambda make: spectrum(make, 2, is_inverse=False),
    "RFFT3D": lambda make: spectrum(make, 3, is_inverse=False),
    "ScatterNd": put,
    "SpaceToBatch": lambda make: blocks_of_four(make, is_spread=False),
    "SpaceToBatchND": lambda make: blocks(make, is_spread=False),
    "StridedSliceGrad": slopes_of_slices,
    "TridiagonalMatMul": products_of_bands,
    **{f"TensorScatter{what}": scattered for what in ("Add", "Max", "Min", "Sub", "Update")},
    **{f"UnsortedSegment{what}": segments for what in ("Max", "Min", "Prod", "Sum")},
}
for number in (1, 2, 3):
    ending = "" if number == 1 else f"V{number}"
    SAMPLES[f"FusedBatchNorm{ending}"] = lambda make, version=number: normalization(  # type: ignore[misc]
        make, is_training=True, statistics=statistics_of(make.kind, version)
    )
    SAMPLES[f"FusedBatchNormGrad{ending}"] = lambda make, version=number: slopes_of_normalization(  # type: ignore[misc]
        make, version=version, statistics=statistics_of(make.kind, version)
    )


def samples_of(operator: str, kind: str, chance: np.random.Generator) -> list[Arguments]:
    """One, where there is one for the operator. The processor may refuse it for the type."""
    made = SAMPLES.get(operator)
    return [] if made is None else [made(Maker(kind, chance))]
