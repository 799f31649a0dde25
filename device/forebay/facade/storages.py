"""Untyped storages on the device: PyTorch's constructor knows CUDA's only in a build with CUDA. ``torch.load`` makes them."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch
from torch.utils import dlpack

from forebay import _C
from forebay.errors import NotOnVirtualDevice

_base: Any = torch._C.StorageBase


def _new(cls: type[torch.UntypedStorage], *content: Any, device: Any = None, **other: Any) -> torch.UntypedStorage:
    if device is None or torch.device(device).type != "cuda":
        made: torch.UntypedStorage = _base.__new__(cls, *content, device=device, **other)
        return made
    first = content[0] if content else other.get("size", 0)
    if isinstance(first, int):
        return torch.empty(first, dtype=torch.uint8, device=device).untyped_storage()
    return torch.tensor(first, dtype=torch.uint8, device=device).untyped_storage()


def _write_file(self: torch.UntypedStorage, *arguments: Any) -> None:
    """What pickling a tensor calls."""
    content: Any = self
    _base._write_file(content.cpu() if self.device.type == "cuda" else self, *arguments)


def _set_from_file(self: torch.UntypedStorage, *arguments: Any) -> torch.UntypedStorage:
    """What loading a pickled tensor calls."""
    if self.device.type != "cuda":
        read: torch.UntypedStorage = _base._set_from_file(self, *arguments)
        return read
    there: Any = self
    there.copy_(_base._set_from_file(torch.empty(self.nbytes(), dtype=torch.uint8, device="cpu").untyped_storage(), *arguments))
    return self


def _resize(self: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
    if self.device.type != "cuda":
        resized: torch.UntypedStorage = _base.resize_(self, nbytes)
        return resized
    _C.resize_storage(self, nbytes)
    return self


def _getitem(self: torch.UntypedStorage, place: Any) -> Any:
    if self.device.type == "cuda" and isinstance(place, slice):
        raise NotOnVirtualDevice("A slice of a storage", "it would begin within a worker's memory; slice a tensor, or storage.cpu().")
    return _base.__getitem__(self, place)


def _byteswap(self: torch.UntypedStorage, element_size: int) -> None:
    """What loading a file from a machine of the other byte order calls."""
    if self.device.type != "cuda":
        return _base._byteswap(self, element_size)  # type: ignore[no-any-return]
    there: Any = self
    content = there.cpu()
    content._byteswap(element_size)
    self.copy_(content)
    return None


def _share(self: torch.UntypedStorage, *arguments: Any, **others: Any) -> NoReturn:
    """What sending a tensor to another process calls."""
    if self.device.type != "cuda":
        raise RuntimeError("_share_cuda_: only available on CUDA")
    raise NotOnVirtualDevice("Sending a tensor to another process", "each process has a session of its own; send tensor.cpu() instead.")


_UNREACHABLE = "a tensor's memory is a worker's, which no other library can reach; give it tensor.cpu()."
_dlpack: Any = torch.Tensor.__dlpack__
_array_interface: Any = vars(torch.Tensor)["__cuda_array_interface__"]


def _to_dlpack(self: torch.Tensor, *arguments: Any, **others: Any) -> Any:
    """What `torch.from_dlpack` and other libraries ask a tensor for."""
    if self.device.type == "cuda":
        raise NotOnVirtualDevice("DLPack", _UNREACHABLE)
    return _dlpack(self, *arguments, **others)


def _to_capsule(export: Any) -> Any:
    """What ``torch.utils.dlpack`` asks for."""

    @functools.wraps(export)
    def to_capsule(tensor: Any, *arguments: Any, **others: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda":
            raise NotOnVirtualDevice("DLPack", _UNREACHABLE)
        return export(tensor, *arguments, **others)

    return to_capsule


def _to_array_interface(self: torch.Tensor) -> Any:
    """What CuPy and Numba ask a tensor for. An AttributeError, so that they take it for no CUDA array."""
    if self.device.type == "cuda":
        raise AttributeError("a tensor of the virtual device has no address in a GPU of this machine; give tensor.cpu() to other libraries")
    return _array_interface.__get__(self)


def install() -> None:
    """Teaches the constructor the device, and what else reaches for an address."""
    setattr(torch.UntypedStorage, "__new__", staticmethod(_new))  # noqa: B010 mypy forbids the assignment
    methods = {"_write_file": _write_file, "_set_from_file": _set_from_file, "resize_": _resize, "_share_cuda_": _share}
    methods |= {"__getitem__": _getitem, "_byteswap": _byteswap}
    for name, function in methods.items():
        setattr(torch.UntypedStorage, name, function)
    tensors: Any = torch.Tensor
    tensors.__dlpack__ = _to_dlpack
    for owner, name in ((torch._C, "_to_dlpack"), (torch._C, "_to_dlpack_versioned"), (torch, "to_dlpack"), (dlpack, "to_dlpack")):
        if hasattr(owner, name):
            setattr(owner, name, _to_capsule(getattr(owner, name)))
    tensors.__cuda_array_interface__ = property(_to_array_interface)
