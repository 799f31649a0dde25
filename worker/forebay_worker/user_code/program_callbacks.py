"""Functions of the client that a program of JAX calls while it is carried out.

A program names one by a custom call ``forebay_callback`` with ``mhlo.backend_config = {number = N : ui64}``. XLA calls a function here in
its place, which has the client called, and waits for what that returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

XLA_TARGET = "xla_ffi_python_cpu_callback"
CONFIGURATION = "mhlo.backend_config"
BYTES_MAX = 15 << 20
"""Of all arrays that a callback takes, or returns: ``kCallbackBytesMax`` of the wire."""
TYPES: dict[str, Any] = {
    **{"i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64},
    **{"ui8": np.uint8, "ui16": np.uint16, "ui32": np.uint32, "ui64": np.uint64},
    **{"f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16},
    **{"complex<f32>": np.complex64, "complex<f64>": np.complex128},
    **{"f8E5M2": ml_dtypes.float8_e5m2, "f8E4M3FN": ml_dtypes.float8_e4m3fn},
}

CallBack = Callable[[int, Sequence[bytes]], Sequence[bytes] | str]
"""Has the client call the function of this number. What it returned, or the sentence why nothing."""
Template = tuple[np.dtype[Any], tuple[int, ...]] | None
"""An array's type and sizes; None of a token, which orders callbacks and has no elements."""


class CallbackFailed(RuntimeError):
    """The client's function raised; with what it said."""


class Callbacks:
    """Those of one program."""

    def __init__(self, call_back: CallBack) -> None:
        self.functions: list[Callable[..., Any]] = []
        self._call_back = call_back
        self._failure: str | None = None

    def take(self, operation: Any) -> None:
        """Has XLA call a function here in the operation's place. Raises NotImplementedError for arrays that are not served, ValueError for
        what is no callback."""
        from jaxlib.mlir import ir

        try:
            number = ir.IntegerAttr(ir.DictAttr(operation.attributes[CONFIGURATION])["number"]).value
        except (KeyError, ValueError, TypeError):
            raise ValueError("a callback without a number") from None
        for arrays in (operation.operands, operation.results):
            _check_size([template(value.type) for value in arrays])
        results = [template(value.type) for value in operation.results]
        index = ir.IntegerAttr.get(ir.IntegerType.get_unsigned(64), len(self.functions))
        operation.attributes["call_target_name"] = ir.StringAttr.get(XLA_TARGET)
        operation.attributes["backend_config"] = ir.StringAttr.get("")
        operation.attributes[CONFIGURATION] = ir.DictAttr.get({"index": index})
        self.functions.append(lambda *arrays: self._call(number, arrays, results))

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raises CallbackFailed in place of the error that XLA makes of it."""
        self._failure = None
        try:
            yield
        except Exception:
            if self._failure is not None:
                raise CallbackFailed(self._failure) from None
            raise

    def _call(self, number: int, arrays: Sequence[Any], results: Sequence[Template]) -> tuple[Any, ...]:
        returned = self._call_back(number, [np.asarray(array).tobytes() for array in arrays if array is not None])
        if isinstance(returned, str):
            self._failure = returned
            raise CallbackFailed(returned)
        made = iter(returned)
        taken = tuple(None if result is None else np.frombuffer(next(made), result[0]).reshape(result[1]) for result in results)
        if any(True for _ in made):
            raise ValueError("a callback returned more arrays than the program takes")
        return taken


def template(kind: Any) -> Template:
    """Raises NotImplementedError for what is not served."""
    from jaxlib.mlir import ir

    if str(kind) == "!stablehlo.token":
        return None
    if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape or str(kind.element_type) not in TYPES:
        raise NotImplementedError(f"a callback that takes or returns a {kind} is not served on the virtual device")
    return np.dtype(TYPES[str(kind.element_type)]), tuple(kind.shape)


def _check_size(arrays: Sequence[Template]) -> None:
    size = sum(math.prod(array[1]) * array[0].itemsize for array in arrays if array is not None)
    if size > BYTES_MAX:
        raise NotImplementedError(f"a callback that takes or returns {size} bytes is not served on the virtual device; at most {BYTES_MAX}")
