"""A device for tests, in the place of a GPU: PyTorch's out-of-tree back end ``standin``.

Its memory is closed to the host, its kernels and copies run later, on a thread for each stream. What a program forgets (to wait, to order
streams, to keep memory) is found every time, and said on standard error in a line that begins with ``standin:``.

Read from the environment at the first use:

- ``FOREBAY_STANDIN_DEVICES``: how many devices there are, 2 by default and at most.
- ``FOREBAY_STANDIN_MEMORY_BYTES``: of each, 4 GiB by default.
- ``FOREBAY_STANDIN_DELAY_MICROSECONDS``: how long a job waits at least, 100 by default.
- ``FOREBAY_STANDIN_HOLDINGS``: a folder. Each process writes what its allocator may hold, holds and keeps of each device into a file of its
  number, whenever it is limited or has given back what it kept.
- ``FOREBAY_STANDIN_NO_KERNELS``: why it takes no kernels of programs.
- ``FOREBAY_STANDIN_FAULT``: ``no-wait`` (no synchronisation waits) or ``stray-copies`` (copies run on another stream), to see that tests
  notice.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

NAME = "standin"


def activate() -> None:
    """Called by ``import torch``."""
    torch.utils.rename_privateuse1_backend(NAME)
    _library()
    torch._register_device_module(NAME, sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend()
    atexit.register(_drain)


def _drain() -> None:
    """Lets jobs end before the interpreter does, which they may need to free what Python made."""
    for device in [*range(device_count())] * 2:  # a mistake that was found is told once, in place of waiting for all streams
        with contextlib.suppress(RuntimeError):
            synchronize(device)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.PyDLL(str(Path(__file__).with_name("libstandin.so")))
    for name in ("memory_bytes", "allocated_bytes", "cached_bytes", "findings"):
        getattr(library, f"standin_{name}").restype = ctypes.c_size_t
    library.standin_seed.argtypes = [ctypes.c_int, ctypes.c_uint64]
    library.standin_set_limit.argtypes = [ctypes.c_int, ctypes.c_size_t]
    library.standin_graph_new.restype = ctypes.c_void_p
    for name in ("begin", "end", "replay"):
        getattr(library, f"standin_graph_{name}").restype = ctypes.c_void_p
    library.standin_graph_register.argtypes = [ctypes.c_void_p, ctypes.py_object]
    library.standin_default_generator.restype = ctypes.py_object
    for name in ("launch", "allocation", "shadow"):
        getattr(library, f"standin_{name}").restype = ctypes.c_void_p
    return library


class CUDAGraph:
    """As ``torch.cuda.CUDAGraph``, as far as it is used here. Only generators that are registered may be drawn from, once each."""

    def __init__(self) -> None:
        self._graph = ctypes.c_void_p(_library().standin_graph_new())

    def __del__(self) -> None:
        _library().standin_graph_delete(self._graph)

    def register_generator_state(self, generator: torch.Generator) -> None:
        _library().standin_graph_register(self._graph, generator)

    def capture_begin(self, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        _raise(_library().standin_graph_begin(self._graph))

    def capture_end(self) -> None:
        _raise(_library().standin_graph_end())

    def replay(self) -> None:
        _raise(_library().standin_graph_replay(self._graph))


def _raise(said: int | None) -> None:
    if said is not None:
        words = ctypes.string_at(said).decode()
        ctypes.CDLL(None).free(ctypes.c_void_p(said))
        raise RuntimeError(words)


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return tuple(_library().standin_default_generator(index) for index in range(device_count()))
    raise AttributeError(name)


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return int(_library().standin_device_count())


def current_device() -> int:
    return int(_library().standin_current_device())


def set_device(device: int) -> None:
    torch.accelerator.set_device_index(device)


def synchronize(device: int | None = None) -> None:
    torch.accelerator.synchronize(current_device() if device is None else device)


def get_device_properties(device: int) -> Any:
    return SimpleNamespace(name="stand-in", total_memory=int(_library().standin_memory_bytes()))


def set_per_process_memory_fraction(fraction: float, device: int) -> None:
    """The allocator refuses more than that fraction of the device's memory."""
    _library().standin_set_limit(device, int(fraction * _library().standin_memory_bytes()))


def memory_allocated(device: int) -> int:
    """Bytes of tensors."""
    return int(_library().standin_allocated_bytes(device))


def memory_cached(device: int) -> int:
    """Bytes of freed tensors that the allocator keeps."""
    return int(_library().standin_cached_bytes(device))


def finding_count() -> int:
    """How many mistakes were found so far."""
    return int(_library().standin_findings())


def triton_kernels(device: int) -> Any:
    """What launches kernels that programs bring of their own."""
    from forebay_standin.triton import Kernels

    return Kernels(_library(), os.environ.get("FOREBAY_STANDIN_NO_KERNELS", ""))


def manual_seed_all(seed: int) -> None:
    for device in range(device_count()):
        _library().standin_seed(device, seed)


def manual_seed(seed: int) -> None:
    _library().standin_seed(current_device(), seed)


def _is_in_bad_fork() -> bool:
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]
