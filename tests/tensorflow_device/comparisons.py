"""Values of operators on the device against those on the processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

TOLERANCES = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "complex64": 2e-5, "float64": 1e-12, "complex128": 1e-12}
"""Of values, relative, and absolute below 1: sums are added in another order. All other types are equal."""


def arrays_of(made: Any) -> list[np.ndarray]:
    return [np.asarray(tensor) for tensor in tf.nest.flatten(made, expand_composites=True)]


def check_same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        tolerance = TOLERANCES.get(one.dtype.name)
        if tolerance is None:
            np.testing.assert_array_equal(one, other)
        else:
            wide = np.complex128 if one.dtype.kind == "c" else np.float64
            if one.dtype.kind == "c":  # which part of infinity is no number is nobody's promise
                one, other = (np.where(np.isfinite(other), array, 0) for array in (one, other))
            np.testing.assert_allclose(one.astype(wide), other.astype(wide), rtol=tolerance, atol=tolerance)
