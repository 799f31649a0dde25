"""Untyped storages on the device: PyTorch's constructor knows CUDA's only in a build with CUDA. ``torch.load`` makes them."""

from __future__ import annotations

from typing import Any

import torch


def _new(cls: type[torch.UntypedStorage], *content: Any, device: Any = None, **other: Any) -> torch.UntypedStorage:
    if device is None or torch.device(device).type != "cuda":
        base: Any = torch._C.StorageBase
        made: torch.UntypedStorage = base.__new__(cls, *content, device=device, **other)
        return made
    first = content[0] if content else other.get("size", 0)
    if isinstance(first, int):
        return torch.empty(first, dtype=torch.uint8, device=device).untyped_storage()
    return torch.tensor(first, dtype=torch.uint8, device=device).untyped_storage()


def install() -> None:
    """Teaches the constructor the device."""
    setattr(torch.UntypedStorage, "__new__", staticmethod(_new))  # noqa: B010 mypy forbids the assignment
