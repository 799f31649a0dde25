"""``torch.nn.DataParallel`` and ``torch.cuda.comm`` over the one device there is: everything goes to it whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from forebay.facade.driver import select


def _check(devices: Sequence[int]) -> torch.device:
    for index in devices:
        select(index)
    return torch.device("cuda", 0)


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(_check(devices)) for _ in devices]


def _broadcast_coalesced(tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int) -> list[list[torch.Tensor]]:
    place = _check(devices)
    return [[tensor.to(place) for tensor in tensors] for _ in devices]


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None = None, dim: int = 0, streams: Any = None
) -> list[torch.Tensor]:
    place = _check(devices)
    pieces = torch.split(tensor, list(chunk_sizes), dim) if chunk_sizes is not None else torch.chunk(tensor, len(devices), dim)
    return [piece.to(place) for piece in pieces]


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    place = torch.device("cpu") if destination == -1 else _check([destination or 0])
    return torch.cat([tensor.to(place) for tensor in tensors], dim)


def install() -> None:
    """Puts the functions where ``torch.cuda.comm`` looks for them."""
    core: Any = torch._C
    core._broadcast, core._broadcast_coalesced = _broadcast, _broadcast_coalesced
    core._scatter, core._gather = _scatter, _gather
