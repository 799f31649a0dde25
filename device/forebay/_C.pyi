"""The C++ half of the virtual device: kernels, guard, hooks and allocator for the CUDA key, and the command stream."""

from collections.abc import Callable
from typing import TypedDict

import torch

class Welcome(TypedDict):
    torch: str
    kind: str
    model: str
    memory_limit: int
    """Bytes."""

class Memory(TypedDict):
    """Of tensors on the virtual device."""

    allocated: int
    """Bytes, now."""
    peak: int
    """Bytes, since the start or :func:`reset_peak_memory`."""
    allocations: int
    """How many storages were ever made."""
    frees: int
    alive: int
    """Storages now."""

class Statistics(TypedDict):
    commands: int
    bytes_sent: int
    bytes_received: int
    syncs: int
    waited_ns: int
    bytes_known: int
    """Of uploads that were not sent, because the worker held the same bytes."""
    templates: int

def install() -> None:
    """Registers kernels, guard, hooks and allocator for the CUDA key. Only the first call does anything."""

def set_lease_callback(callback: Callable[[], None], /) -> None:
    """``callback`` is called from the thread that recorded device work while no lease is open.

    It is called with the GIL and outside locks; returns after :func:`lease_opened`, or raises.
    """

def connect(address: str, ticket: bytes, /) -> Welcome:
    """Connects to a worker's command stream, ``unix:/path`` or ``tcp:host:port``. Raises RuntimeError with one sentence."""

def connected() -> bool: ...
def lease_opened(epoch: int, /) -> None: ...
def lease_closed() -> None: ...
def mark() -> bool:
    """Ends the span: puts a MARK into the stream and clears the lease flag. False if no lease was open."""

def synchronize() -> None:
    """Waits until all recorded work is done. Raises its first failure, with the user's source line."""

def lose(message: str, /) -> None:
    """All tensors are gone; later uses of them raise RuntimeError(message). The connection is dropped."""

def resize_storage(storage: torch.UntypedStorage, nbytes: int, /) -> None:
    """Grows or shrinks a storage of the device; the bytes that fit are kept."""

def memory() -> Memory: ...
def reset_peak_memory() -> None: ...
def statistics() -> Statistics: ...
def default_generator() -> torch.Generator:
    """Of ``cuda:0``."""

def recorded() -> list[str]:
    """Names (``add.Tensor``) of the operators that are sent to the worker as they are."""
