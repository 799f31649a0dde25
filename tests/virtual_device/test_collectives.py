"""torch.distributed between processes, each with a virtual device of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import fork_server
import pytest
import torch

PROGRAM = """
import json, sys
import torch
import torch.distributed as dist

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
total = torch.full((3,), float(rank + 1), device="cuda")
dist.all_reduce(total)
parts = [torch.zeros(2, device="cuda") for _ in range(2)]
dist.all_gather(parts, torch.full((2,), float(rank), device="cuda"))
message = torch.arange(3.0, device="cuda") if rank == 0 else torch.zeros(3, device="cuda")
dist.send(message, 1) if rank == 0 else dist.recv(message, 0)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((2, 4), float(rank + step), device="cuda")).square().mean().backward()
    optimizer.step()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
assert weights.is_cuda
print(json.dumps([total.tolist(), [part.tolist() for part in parts], message.tolist(), weights.tolist()]))
dist.destroy_process_group()
"""


def trained_on_both_batches() -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.tensor([[float(rank + step)] * 4 for rank in (0, 0, 1, 1)])).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def test_two_processes_reduce_gather_send_and_train_in_parallel(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    commands = [[fork_server.programs(), str(script), str(rank), str(tmp_path / "meeting")] for rank in range(2)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        results = [json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for total, parts, message, weights in results:
        assert total == [3.0] * 3
        assert parts == [[0.0] * 2, [1.0] * 2]
        assert message == [0.0, 1.0, 2.0]
        assert weights == pytest.approx(trained_on_both_batches(), rel=1e-5)
