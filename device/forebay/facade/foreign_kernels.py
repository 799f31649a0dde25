"""Packages that bring CUDA kernels of their own, which no virtual device can run: what they fall back on, or a sentence. Triton, attention
over jagged tensors, and what transformers does for a GPU's allocator.

Each of them looks for the CUDA runtime and tells people to install it. Here they are met as they are imported.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import MappingProxyType, ModuleType
from typing import Any

from forebay.errors import NotOnVirtualDevice
from forebay.facade import compiling

_ATTENTION = (
    "its kernels are CUDA code, and the make of the device behind cuda:0 is open; use torch.nn.functional.scaled_dot_product_attention, "
    'or attn_implementation="sdpa" in transformers.'
)
_JAGGED = "pad them with to_padded_tensor(), and leave the padding out by attn_mask."
_QUANTISED = (
    "it is CUDA code, and the make of the device behind cuda:0 is open; of bitsandbytes what it makes of PyTorch's operators runs here, "
    "its 4-bit and 8-bit layers among it."
)

COMPILED: Mapping[str, str] = MappingProxyType(
    {
        "flash_attn_2_cuda": "flash_attn",
        "flash_attn_3._C": "flash_attn_3",
        "flash_attn_3_cuda": "flash_attn_interface",
        "flash_attn_interface": "flash_attn_interface",
    }
)
"""Module that is nothing but CUDA kernels → the module whose presence says that the package is installed."""


class NoKernels(ImportError):
    """A package's CUDA kernels cannot be loaded here. An ImportError, so that programs take what they have for machines without it."""


def _without_cuda_runtime(specs: ModuleType) -> None:
    """bitsandbytes then loads its library for the CPU, and asks no driver for anything."""
    found: Any = specs
    found.get_cuda_specs = lambda: None


class _Library:
    """bitsandbytes' functions for the CPU; those for GPUs say what they are."""

    compiled_with_cuda = False

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def __getattr__(self, name: str) -> Any:
        loaded = getattr(self._theirs, "_lib", None)
        if loaded is not None and hasattr(loaded, name):
            return getattr(self._theirs, name)

        def refuse(*arguments: Any, **others: Any) -> Any:
            raise NotOnVirtualDevice(f"bitsandbytes' {name}", _QUANTISED)

        return refuse

    __getitem__ = __getattr__


def _with_sentence(extension: ModuleType) -> None:
    loaded: Any = extension
    loaded.lib = _Library(loaded.lib)


def _for_virtual_devices(backends: ModuleType) -> None:
    from forebay.facade import triton  # it takes its classes from the one that is being loaded

    triton.take_over(backends)


def _without_warm_up(models: ModuleType) -> None:
    """transformers takes memory before it loads a model, all but 1.2 GiB of the device's at most, so that PyTorch's allocator has it.
    A virtual device's memory is its worker's, and a small flavor has less."""
    found: Any = models
    if hasattr(found, "caching_allocator_warmup"):
        found.caching_allocator_warmup = lambda *model, **how: None


def _without_jagged_attention(attention: ModuleType) -> None:
    """It is made of kernels for GPUs, or of strided nested tensors: PyTorch would ask for contiguous inputs, which would not help."""
    found: Any = attention
    theirs = found.jagged_scaled_dot_product_attention

    @functools.wraps(theirs)
    def attend(query: Any, *others: Any, **options: Any) -> Any:
        if query.is_cuda and query._ragged_idx != 1:
            raise NotOnVirtualDevice("Attention over jagged tensors", _JAGGED)
        return theirs(query, *others, **options)

    found.jagged_scaled_dot_product_attention = attend


MENDED: Mapping[str, Callable[[ModuleType], None]] = MappingProxyType(
    {
        "bitsandbytes.cuda_specs": _without_cuda_runtime,
        "bitsandbytes.cextension": _with_sentence,
        "transformers.modeling_utils": _without_warm_up,
        "triton.backends": _for_virtual_devices,
        "torch._dynamo": compiling.keep_out_of_traces,
        "torch._dynamo.variables.builder": compiling.trace_kernels,
        "torch.nested._internal.sdpa": _without_jagged_attention,
    }
)
"""Module → what is done to it once it is loaded."""
EMPTIED = frozenset({"bitsandbytes.backends.cuda.ops"})
"""Modules that only register CUDA kernels: without them the package's own, made of PyTorch's operators, serve."""


class _Empty(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Left empty: its kernels are for a CUDA device of this machine."


class _Refusing(Loader):
    """A program that only looks whether the module is there is told the truth; one that imports it, why that cannot be."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise NoKernels(f"{COMPILED[module.__name__]} is not available on a Forebay virtual device: {_ATTENTION}", name=module.__name__)


class _Mending(Loader):
    def __init__(self, theirs: Loader, mend: Callable[[ModuleType], None]) -> None:
        self._theirs, self._mend = theirs, mend

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._theirs.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._theirs.exec_module(module)
        self._mend(module)


class ForeignKernels(MetaPathFinder):
    """Meets the modules that the tables name, and no other."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in COMPILED:
            return ModuleSpec(name, _Refusing()) if PathFinder.find_spec(COMPILED[name]) else None
        if name in EMPTIED:
            return ModuleSpec(name, _Empty())
        if name not in MENDED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Mending(spec.loader, MENDED[name])
        return spec


def install() -> None:
    """Looks at what is imported from here on. Triton may have come before PyTorch."""
    sys.meta_path.insert(0, ForeignKernels())
    if hasattr(sys.modules.get("triton.backends"), "backends"):
        _for_virtual_devices(sys.modules["triton.backends"])
