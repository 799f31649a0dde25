"""``torch.nn.DataParallel`` and ``torch.cuda.comm``: what goes from device to device goes through this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from forebay import _C


def _place(index: int) -> torch.device:
    """Raises RuntimeError where there is no such device; -1 is the host."""
    if not -1 <= index < _C.device_count():
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: cuda:{index} does not exist; there are {_C.device_count()} virtual devices"
        )
    return torch.device("cpu") if index == -1 else torch.device("cuda", index)


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(_place(index)) for index in devices]


def _broadcast_coalesced(tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int) -> list[list[torch.Tensor]]:
    return [[tensor.to(_place(index)) for tensor in tensors] for index in devices]


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None = None, dim: int = 0, streams: Any = None
) -> list[torch.Tensor]:
    pieces = torch.split(tensor, list(chunk_sizes), dim) if chunk_sizes is not None else torch.chunk(tensor, len(devices), dim)
    return [piece.to(_place(index)) for piece, index in zip(pieces, devices, strict=False)]


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    place = _place(_C.current_device() if destination is None else destination)
    return torch.cat([tensor.to(place) for tensor in tensors], dim)


def _scatter_out(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int = 0, streams: Any = None) -> Sequence[torch.Tensor]:
    for piece, target in zip(torch.split(tensor, [target.size(dim) for target in out], dim), out, strict=True):
        target.copy_(piece)
    return out


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    for target in out:
        target.copy_(tensor)
    return out


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    for piece, target in zip(tensors, torch.split(out, [tensor.size(dim) for tensor in tensors], dim), strict=True):
        target.copy_(piece)
    return out


def _reduce_add(tensors: Sequence[torch.Tensor], destination: int | None = None) -> torch.Tensor:
    """As ``torch.cuda.comm.reduce_add``, which asks for NCCL where there are several devices."""
    place = _place(_C.current_device() if destination is None else torch.device("cuda", destination).index)
    total = tensors[0].to(place, copy=True)
    for tensor in tensors[1:]:
        if tensor.shape != total.shape:
            raise ValueError(f"Got a tensor of shape {tuple(tensor.shape)}, but expected {tuple(total.shape)}")
        total += tensor.to(place)
    return total


def install() -> None:
    """Puts the functions where ``torch.cuda.comm`` looks for them."""
    core: Any = torch._C
    core._broadcast, core._broadcast_coalesced = _broadcast, _broadcast_coalesced
    core._scatter, core._gather = _scatter, _gather
    core._broadcast_out, core._scatter_out, core._gather_out = _broadcast_out, _scatter_out, _gather_out
    comm: Any = torch.nn.parallel.comm
    comm.reduce_add = _reduce_add
