"""Functions of this process that programs on the virtual device call: ``pure_callback``, ``io_callback``, ``debug.print``.

A lowered program names one by a custom call ``forebay_callback`` with a number. The thread that waits for the program calls it with the
elements of arrays, and returns those of its results.
"""

from __future__ import annotations

import dataclasses
import itertools
import traceback
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

TARGET = "forebay_callback"


class Callback:
    """A function, and the arrays that it takes and returns."""

    numbers: ClassVar = itertools.count(1)
    known: ClassVar[WeakValueDictionary[int, Callback]] = WeakValueDictionary()
    """By number; a lowered program keeps its own."""

    def __init__(self, function: Callable[..., Any], takes: Sequence[Any], returns: Sequence[Any]) -> None:
        self.number = next(self.numbers)
        self._function, self._takes, self._returns = function, list(takes), list(returns)
        self.known[self.number] = self

    def __call__(self, given: Sequence[bytes]) -> list[bytes]:
        """Raises what the function raises, and RuntimeError where it returns other arrays than it said."""
        arrays = [np.frombuffer(one, aval.dtype).reshape(aval.shape) for one, aval in zip(given, self._takes, strict=True)]
        returned = self._function(*arrays)
        if len(returned) != len(self._returns):
            raise RuntimeError(f"the callback returned {len(returned)} arrays, and {len(self._returns)} were expected")
        return [_bytes_of(value, aval) for value, aval in zip(returned, self._returns, strict=True)]


def _bytes_of(value: Any, aval: Any) -> bytes:
    from jax._src import dtypes

    array = dtypes.canonicalize_value(np.asarray(value))
    if (array.shape, array.dtype) != (aval.shape, aval.dtype):
        raise RuntimeError(f"the callback returned {array.dtype}{list(array.shape)}, and {aval.dtype}{list(aval.shape)} was expected")
    return bytes(np.asarray(array).tobytes())


def answer(number: int, given: Sequence[bytes]) -> list[bytes] | str:
    """As ``forebay._C.answer_callbacks`` says."""
    callback = Callback.known.get(number)
    if callback is None:
        return "the program's function is gone"
    try:
        return callback(given)
    except Exception:
        return "error calling callback: " + traceback.format_exc()


def follow_device(platform: str) -> None:
    """Has what is lowered for the platform call this process."""
    from jax._src import callback as callbacks

    lowered_otherwise = callbacks.emit_python_callback

    def emit(context: Any, function: Any, token: Any, operands: Any, takes: Any, returns: Any, **settings: Any) -> Any:
        if tuple(context.module_context.platforms) != (platform,):
            return lowered_otherwise(context, function, token, operands, takes, returns, **settings)
        return _emit(context, Callback(function, takes, returns), token, operands, settings["has_side_effect"])

    callbacks.emit_python_callback = emit


def _emit(context: Any, callback: Callback, token: Any, operands: Sequence[Any], has_side_effect: bool) -> tuple[Any, Any, Any]:
    from jax._src import core, ffi

    if token:
        operands = [token, *operands]
        tokens = {"avals_in": [core.abstract_token, *context.avals_in], "avals_out": [core.abstract_token, *context.avals_out]}
        context = dataclasses.replace(context, **tokens)
    context.module_context.add_keepalive(callback)
    lower = ffi.build_ffi_lowering_function(TARGET, has_side_effect=has_side_effect)
    results = list(lower(context, *operands, number=np.uint64(callback.number)).results)
    if token:
        token, *results = results
    return results, token, callback
