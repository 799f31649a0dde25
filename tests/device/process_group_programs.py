"""Scripts for several processes as they run on a machine with GPUs: ``process_group_programs.py NAME`` under torchrun's variables.

``FOREBAY_TEST_WORKERS`` has address and ticket of each rank's worker. What a program returns is printed as JSON.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from typing import Any


def attach(address: str, ticket: str) -> None:
    """Gives this process as many virtual devices as torchrun started processes; the worker serves the one that is used."""
    import torch  # noqa: F401 its libraries come first
    from forebay import _C, devices, facade
    from forebay.virtual_device import VirtualDevices

    def connect(device: int) -> None:
        if not _C.connected(device):
            _C.connect(address, bytes.fromhex(ticket), device)
        _C.lease_opened(1, 1 << 40, device)

    virtual = VirtualDevices(devices.wanted())
    virtual.start()
    facade.install(virtual)
    _C.set_lease_callback(connect)


if __name__ == "__main__" and "FOREBAY_TEST_WORKERS" in os.environ:
    attach(*json.loads(os.environ["FOREBAY_TEST_WORKERS"])[int(os.environ["RANK"])])

import torch  # noqa: E402 the device comes first
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

RANK, LOCAL_RANK = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.complex64, torch.bool)


def group(**options: Any) -> int:
    """As scripts begin."""
    torch.cuda.set_device(LOCAL_RANK)
    dist.init_process_group("nccl", **options)
    return dist.get_world_size()


def ranked(size: int, *shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """What each rank has, on the host: the same on all."""
    torch.manual_seed(7)
    values = [torch.randint(0, 3, shape) for _ in range(size)]
    return [value.to(dtype) for value in values]


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), wanted)


def collectives() -> Any:
    """Each collective, of several types and sizes, against what it is by definition."""
    size = group()
    assert torch.cuda.device_count() == size and torch.cuda.current_device() == LOCAL_RANK
    assert dist.is_nccl_available() and dist.get_backend() == "nccl"
    for dtype in TYPES:
        for shape in ((), (5,), (3, 4097), (1 << 20,) if dtype == torch.float32 else (70_001,)):
            check_reductions(size, dtype, shape)
            check_moves(size, dtype, shape)
    check_factors(size)
    check_refusals()
    check_splits(size)
    check_objects(size)
    check_messages(size)
    check_groups(size)
    check_functional(size)
    dist.barrier()
    dist.destroy_process_group()
    return "right"


def check_reductions(size: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    ours = ranked(size, *shape, dtype=dtype)
    ways: dict[Any, Any] = {dist.ReduceOp.SUM: lambda all_: all_.any(0) if dtype == torch.bool else all_.sum(0, dtype=dtype)}
    if not dtype.is_complex and dtype != torch.bool:
        ways |= {dist.ReduceOp.PRODUCT: lambda all_: all_.prod(0, dtype=dtype), dist.ReduceOp.MIN: lambda all_: all_.amin(0)}
        ways[dist.ReduceOp.MAX] = lambda all_: all_.amax(0)
    if dtype.is_floating_point:
        ways[dist.ReduceOp.AVG] = lambda all_: all_.double().mean(0).to(dtype)
    for op, reduce in ways.items():
        wanted = reduce(torch.stack(ours))
        value = ours[RANK].cuda()
        work = dist.all_reduce(value, op, async_op=True)
        assert work.wait()
        same(value, wanted)
        value = ours[RANK].cuda()
        dist.reduce(value, size - 1, op)
        same(value, wanted if RANK == size - 1 else ours[RANK])
        if not shape:
            continue
        parts = [torch.cat([ours[(rank + part) % size].flatten() for part in range(size)]) for rank in range(size)]
        result = torch.empty(ours[0].numel(), dtype=dtype, device="cuda")
        dist.reduce_scatter_tensor(result, parts[RANK].cuda(), op)
        same(result, reduce(torch.stack([part.chunk(size)[RANK] for part in parts])))
        dist.reduce_scatter(result, list(parts[RANK].cuda().chunk(size)), op)
        same(result, reduce(torch.stack([part.chunk(size)[RANK] for part in parts])))


def check_factors(size: int) -> None:
    """Sums of what each rank multiplied by a factor of its own, which are told as a number or a tensor."""
    ours = ranked(size, 4 * size)
    wanted = sum(value * (0.5 + rank) for rank, value in enumerate(ours))
    for factor in (0.5 + RANK, torch.tensor([0.5 + RANK], device="cuda")):
        op = dist._make_nccl_premul_sum(factor)
        value = ours[RANK].cuda()
        dist.all_reduce(value, op)
        same(value, wanted)
        value = ours[RANK].cuda()
        dist.reduce(value, 0, op)
        same(value, wanted if RANK == 0 else ours[RANK])
        result = torch.empty(4, device="cuda")
        dist.reduce_scatter_tensor(result, ours[RANK].cuda(), op)
        same(result, wanted.chunk(size)[RANK])


def check_refusals() -> None:
    """What NCCL has not, by names that a script's author knows."""
    number = torch.ones(3, dtype=torch.int64, device="cuda")
    for name in ("BAND", "BOR", "BXOR"):
        op = getattr(dist.ReduceOp, name)
        assert told(lambda op=op: dist.all_reduce(number, op)).startswith(f"Cannot use ReduceOp.{name} with NCCL")
    assert "Data type must be half" in told(lambda: dist.all_reduce(number, dist._make_nccl_premul_sum(2.0)))
    assert "NCCL does not receive from any source" in told(lambda: dist.recv(number))


def check_moves(size: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    ours = ranked(size, *shape, dtype=dtype)
    mine = ours[RANK].cuda()
    for root in range(size):
        value = mine.clone()
        dist.broadcast(value, root)
        same(value, ours[root])
        gathered = [torch.empty_like(mine) for _ in range(size)] if root == RANK else None
        dist.gather(mine, gathered, dst=root)
        for one, wanted in zip(gathered or [], ours, strict=False):
            same(one, wanted)
        value = torch.empty_like(mine)
        dist.scatter(value, [one.cuda() for one in ours] if root == RANK else None, src=root)
        same(value, ours[RANK])
    together = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(together, mine)
    for one, wanted in zip(together, ours, strict=True):
        same(one, wanted)
    if shape:
        whole = torch.empty(size * shape[0], *shape[1:], dtype=dtype, device="cuda")
        dist.all_gather_into_tensor(whole, mine)
        same(whole, torch.cat(ours))
        part = whole.chunk(size)[RANK]  # the input lies in the output, as FSDP's does
        dist.all_gather_into_tensor(whole, part)
        same(whole, torch.cat(ours))


def check_splits(size: int) -> None:
    rows = [torch.arange(6.0 * size).reshape(2 * size, 3) + 100 * rank for rank in range(size)]
    result = torch.empty(2 * size, 3, device="cuda")
    dist.all_to_all_single(result, rows[RANK].cuda())
    same(result, torch.cat([one.chunk(size)[RANK] for one in rows]))
    sizes = [[(row + column) % 3 for column in range(size)] for row in range(size)]  # from row to column, one of them none
    mine = torch.full((sum(sizes[RANK]), 2), float(RANK), device="cuda")
    taken = [sizes[row][RANK] for row in range(size)]
    result = torch.empty(sum(taken), 2, device="cuda")
    dist.all_to_all_single(result, mine, taken, sizes[RANK])
    same(result, torch.cat([torch.full((count, 2), float(row)) for row, count in enumerate(taken)]))
    outputs = [torch.empty(rank + 1, device="cuda") for rank in range(size)]
    dist.all_to_all(outputs, [torch.full((RANK + 1,), float(rank), device="cuda") for rank in range(size)])
    for rank, output in enumerate(outputs):
        same(output, torch.full((rank + 1,), float(RANK)))
    with dist._coalescing_manager(device=torch.device("cuda", LOCAL_RANK)):
        values = [torch.full((3,), float(RANK + index), device="cuda") for index in range(3)]
        for value in values:
            dist.all_reduce(value)
    for index, value in enumerate(values):
        same(value, torch.full((3,), float(sum(range(size)) + size * index)))


def check_objects(size: int) -> None:
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": RANK, "text": "x" * RANK})
    assert found == [{"rank": rank, "text": "x" * rank} for rank in range(size)]
    told = [("from", 0)] if RANK == 0 else [None]
    dist.broadcast_object_list(told, 0)
    assert told == [("from", 0)]
    given: list[Any] = [None]
    dist.scatter_object_list(given, list(range(size)) if RANK == 0 else None, src=0)
    assert given == [RANK]


def check_messages(size: int) -> None:
    after, before = (RANK + 1) % size, (RANK - 1) % size
    large = torch.full((1 << 20,), float(RANK), device="cuda")
    came = torch.empty_like(large)
    both = [dist.P2POp(dist.isend, large, after), dist.P2POp(dist.irecv, came, before)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    same(came, torch.full((1 << 20,), float(before)))
    if RANK == 0:
        dist.send(torch.arange(5, device="cuda"), 1)
        dist.isend(torch.arange(7, device="cuda"), 1, tag=3).wait()
    elif RANK == 1:
        short, long = torch.empty(5, dtype=torch.int64, device="cuda"), torch.empty(7, dtype=torch.int64, device="cuda")
        assert dist.recv(short, 0) == 0
        dist.irecv(long, 0, tag=3).wait()
        same(short, torch.arange(5))
        same(long, torch.arange(7))


def check_groups(size: int) -> None:
    halves = [dist.new_group([rank for rank in range(size) if rank % 2 == half]) for half in range(2)]
    value = torch.full((4,), float(RANK + 1), device="cuda")
    dist.all_reduce(value, group=halves[RANK % 2])
    same(value, torch.full((4,), float(sum(rank + 1 for rank in range(size) if rank % 2 == RANK % 2))))
    if size == 4:
        mesh = dist.init_device_mesh("cuda", (2, 2), mesh_dim_names=("outer", "inner"))
        value = torch.full((4,), float(RANK), device="cuda")
        dist.all_reduce(value, group=mesh["inner"].get_group())
        same(value, torch.full((4,), float(RANK // 2 * 4 + 1)))


def check_functional(size: int) -> None:
    from torch.distributed import _functional_collectives as functional

    mine = torch.full((2 * size,), float(RANK + 1), device="cuda")
    total = float(sum(range(1, size + 1)))
    same(functional.all_reduce(mine, "sum", dist.group.WORLD) + 0, torch.full((2 * size,), total))
    parts = functional.reduce_scatter_tensor(mine, "avg", 0, dist.group.WORLD)
    same(parts + 0, torch.full((2,), total / size))
    whole = functional.all_gather_tensor(parts + RANK, 0, dist.group.WORLD)
    same(whole + 0, torch.cat([torch.full((2,), total / size + rank) for rank in range(size)]))
    swapped = functional.all_to_all_single(mine, None, None, dist.group.WORLD)
    same(swapped + 0, torch.cat([torch.full((2,), float(rank + 1)) for rank in range(size)]))


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(5)
    return [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(steps)]


def train(trained: nn.Module, size: int, rank: int, device: str, steps: int = 20) -> list[float]:
    """Losses over the whole batch, of which each rank has its rows."""
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    losses = []
    for data, target in batches(steps):
        rows, labels = data.chunk(size)[rank].to(device), target.chunk(size)[rank].to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(trained(rows), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        total = loss.detach().clone()
        if size > 1:
            dist.all_reduce(total, dist.ReduceOp.AVG)
        losses.append(float(total))
    return losses


def alone() -> list[float]:
    """What one process trains on the host."""
    return train(model(), 1, 0, "cpu")


def data_parallel() -> Any:
    """DistributedDataParallel."""
    size = group()
    parallel = nn.parallel.DistributedDataParallel(model().cuda(), device_ids=[LOCAL_RANK], bucket_cap_mb=1)
    losses = train(parallel, size, RANK, "cuda")
    dist.destroy_process_group()
    return losses


def sharded() -> Any:
    """FSDP2, with a mesh, and what a checkpoint of it is made of."""
    from torch.distributed.fsdp import fully_shard

    size = group()
    mesh = dist.init_device_mesh("cuda", (size,))
    parallel = model().cuda()
    for layer in parallel:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(parallel, mesh=mesh)
    losses = train(parallel, size, RANK, "cuda")
    weight = next(parallel.parameters())
    assert weight.to_local().shape[0] == 64 // size
    assert weight.full_tensor().shape == (64, 16)
    dist.destroy_process_group()
    return losses


def tensor_parallel() -> Any:
    """DTensor: a pair of layers cut by columns and rows gives what they give whole."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    size = group()
    mesh = dist.init_device_mesh("cuda", (size,))
    whole = model()
    data = batches(1)[0][0]
    parallel = parallelize_module(model().cuda(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(parallel(data.cuda()).cpu(), whole(data))
    cut = distribute_tensor(data.cuda(), mesh, [Shard(0)])
    torch.testing.assert_close((cut @ cut.T).redistribute(mesh, [Replicate()]).to_local().cpu(), data @ data.T)
    dist.destroy_process_group()
    return "right"


def any_backend() -> Any:
    """Without a backend, which serves the device alone, and with one for each kind of device."""
    answers = []
    for backend in (None, "cpu:gloo,cuda:nccl"):
        torch.cuda.set_device(LOCAL_RANK)
        dist.init_process_group(backend)
        values = [torch.full((3,), RANK + 1.0, device=device) for device in (("cuda",) if backend is None else ("cpu", "cuda"))]
        for value in values:
            dist.all_reduce(value)
        answers.append([value.tolist() for value in values])
        dist.destroy_process_group()
    return answers


def told(call: Any) -> str:
    """What a failing call says."""
    try:
        call()
    except (RuntimeError, ValueError, IndexError) as error:
        return str(error)
    return "it did not fail"


def absent() -> Any:
    """The last rank never comes to the second collective."""
    size = group(timeout=datetime.timedelta(seconds=2))
    value = torch.ones(3, device="cuda")
    dist.all_reduce(value)
    torch.cuda.synchronize()
    if RANK == size - 1:
        time.sleep(6)
        return "absent"
    began = time.monotonic()
    dist.all_reduce(value)
    said = told(torch.cuda.synchronize)
    waited = time.monotonic() - began
    again = told(lambda: (dist.all_reduce(value), torch.cuda.synchronize()))
    after = (torch.ones(2, device="cuda") + 1).tolist()  # the session goes on
    return [said, waited, again, after]


def different() -> Any:
    """Two ranks that do not call the same."""
    group()
    value = torch.ones(3, device="cuda")
    dist.all_reduce(value)
    torch.cuda.synchronize()
    if RANK == 0:
        return told(lambda: (dist.all_reduce(value), torch.cuda.synchronize()))
    # Rank 0 has sent its part of the first all_reduce before it sees what came.
    return told(lambda: (dist.broadcast(value, 1), dist.all_reduce(value), dist.all_reduce(value), torch.cuda.synchronize()))


def failing() -> Any:
    """A rank whose stream has stopped takes part in nothing; the others hear why."""
    group()
    value = torch.ones(3, device="cuda")
    dist.all_reduce(value)
    torch.cuda.synchronize()
    if RANK == 1:
        value.index_select(0, torch.tensor([0], device="cuda"))  # the first call of a kind is waited for
        indices, busy = torch.tensor([7], device="cuda"), torch.ones(1024, 1024, device="cuda")
        torch.cuda.synchronize()
        for _ in range(4):  # so that the collective is recorded before the failure is heard of
            busy = busy @ busy
        return told(lambda: (value.index_select(0, indices), dist.all_reduce(value), torch.cuda.synchronize()))
    return told(lambda: (dist.all_reduce(value), torch.cuda.synchronize()))


def killed() -> Any:
    """Rank 1's worker is killed by the test while rank 0 waits for it."""
    group()
    value = torch.ones(3, device="cuda")
    dist.all_reduce(value)
    torch.cuda.synchronize()
    print("ready", flush=True)
    if RANK == 1:
        time.sleep(60)
    return told(lambda: (dist.all_reduce(value), torch.cuda.synchronize()))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]]()) + "\n")
