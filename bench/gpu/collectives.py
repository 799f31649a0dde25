"""Functions that peers run, of collectives between sessions, and of a library alone. Each gets the name of PyTorch's device first."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

ELEMENTS = 300_001
"""Of values that are compared; enough to go by a library."""


def alone(device: str, library: str) -> bool:
    """Whether a library opens for one device, as workers open it, and leaves a sum of one rank as it is."""
    from forebay_worker import pytorch
    from forebay_worker.groups import device_library

    kind = "cpu:0" if device == "cpu" else device if torch.version.hip is None else device.replace("cuda", "hip")
    device_library.set_up_nccl(None)
    opened = device_library.DeviceLibrary(library, pytorch.find_device(kind), 1)
    opened.begin("alone", 0, 1)
    opened.open("alone")
    group = torch._C._distributed_c10d._resolve_process_group("alone")
    value = torch.randn(ELEMENTS, device=device)
    before = value.clone()
    group.allreduce([value]).wait()
    backend = group._get_backend(value.device)
    if hasattr(backend, "abort"):
        backend.abort()
    opened.end("alone")
    return bool(torch.equal(value, before))


def join(device: str, rank: int, size: int, store: str) -> None:
    """A member of the group of all sessions."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=size)


def leave(device: str) -> None:
    """The group ends."""
    dist.destroy_process_group()


def _values(size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(size * ELEMENTS, generator=generator, dtype=torch.float64).mul(8).to(dtype) for _ in range(size)]


def wrong(device: str) -> list[str]:
    """The collectives that did not give what they are by definition, within rounding; each between all ranks."""
    rank, size, found = dist.get_rank(), dist.get_world_size(), []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32):
        ours = _values(size, dtype)
        checks = {f"{name} of {dtype}": check for name, check in _checked(ours, rank, size).items()}
        found += [name for name, (ours_, wanted) in checks.items() if not _alike(ours_, wanted)]
    return found


def _alike(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    tolerance = 0.05 if found.dtype in (torch.float16, torch.bfloat16) else 1e-4
    return torch.allclose(found.cpu().double(), wanted.double(), rtol=tolerance, atol=tolerance)


def _checked(ours: list[torch.Tensor], rank: int, size: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """What each collective made, and what it is by definition."""
    whole = torch.stack(ours)
    total, least = whole.double().sum(0).to(whole.dtype), whole.amin(0)
    summed, smallest, root, last = (ours[rank].cuda() for _ in range(4))
    dist.all_reduce(summed)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    dist.broadcast(root, size - 1)
    gathered = torch.empty(size * last.numel(), dtype=whole.dtype, device="cuda")
    part, turned = last[:ELEMENTS].clone(), torch.empty_like(last)
    dist.all_gather_into_tensor(gathered, last)
    dist.reduce_scatter_tensor(part, ours[rank].cuda())
    dist.all_to_all_single(turned, last)
    passed = torch.empty_like(last)
    after, before = (rank + 1) % size, (rank - 1) % size
    for sends in (rank % 2 == 0, rank % 2 != 0):  # one after the other: so each is all that two ranks exchange at once
        dist.send(last, after) if sends else dist.recv(passed, before)
    return {
        "all_reduce": (summed, total),
        "a minimum": (smallest, least),
        "broadcast": (root, ours[-1]),
        "all_gather": (gathered, whole.flatten()),
        "reduce_scatter": (part, total.chunk(size)[rank]),
        "all_to_all": (turned, torch.cat([one.chunk(size)[rank] for one in ours])),
        "send and recv": (passed, ours[before]),
    }


def all_reduce_ms(device: str, count_bytes: int, turns: int) -> float:
    """What one sum among all ranks takes, of so many bytes of each; the mean of several behind one that does not count."""
    value = torch.ones(count_bytes // 4, device="cuda")
    dist.all_reduce(value)
    torch.cuda.synchronize()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(turns):
        dist.all_reduce(value)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3 / turns


def bits(device: str) -> Any:
    """A sum of all ranks' values, to be compared between them bit for bit."""
    value = _values(dist.get_world_size(), torch.float32)[dist.get_rank()].cuda()
    dist.all_reduce(value)
    return int(value.cpu().view(torch.int32).long().mul(torch.arange(1, value.numel() + 1)).sum())
