"""``torch.cuda.FloatTensor`` and its siblings: constructors from before there were devices, still found in old code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

DTYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class _LegacyType(type):
    """A type whose instances are the tensors of one dtype on the device; calling it makes one."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype

    def __call__(cls, *content: Any) -> torch.Tensor:
        """``T(2, 3)`` and ``T(size)`` are uninitialised, ``T([1, 2])`` holds the data."""
        if len(content) == 1 and isinstance(content[0], torch.Tensor):
            return content[0].to(device="cuda", dtype=cls.dtype)
        if len(content) == 1 and not isinstance(content[0], (int, torch.Size)):
            return torch.tensor(content[0], dtype=cls.dtype, device="cuda")
        size = content[0] if len(content) == 1 and isinstance(content[0], torch.Size) else content
        return torch.empty(tuple(size), dtype=cls.dtype, device="cuda")


def _takes_default(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """``torch.set_default_tensor_type``, which knows CUDA's types only in a build with CUDA: a default dtype and a default device."""
    of_device = False

    @functools.wraps(original)
    def set_default_tensor_type(t: Any) -> None:
        nonlocal of_device
        module, _, name = (t if isinstance(t, str) else str(getattr(t, "__name__", ""))).rpartition(".")
        if module == "torch.cuda" and name.endswith("Tensor"):
            if name not in DTYPES or not DTYPES[name].is_floating_point:
                raise TypeError("only floating-point types are supported as the default type")
            torch.set_default_dtype(DTYPES[name])
            torch.set_default_device("cuda")
            of_device = True
            return
        if of_device:
            torch.set_default_device(None)
            of_device = False
        original(t)

    return set_default_tensor_type


def install() -> None:
    """Replaces the types, which refuse to make anything in a build without CUDA."""
    torch.set_default_tensor_type = _takes_default(torch.set_default_tensor_type)
    for name, dtype in DTYPES.items():
        # The dotted name is what Tensor.type(T) looks at.
        setattr(torch.cuda, name, _LegacyType(f"torch.cuda.{name}", (), {"dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"}))
