"""``forebay run torchrun`` from end to end: a real pool, which lends each rank a device of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_SECONDS_MAX = 60.0
DEVICES = '[[devices]]\nkind = "cpu"\nmodel = "cpu-dev"\nmemory = "2GiB"\ncount = {}\n'
TRAINING = """
import os, sys
import torch
import torch.distributed as dist

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.full((2, 8), float(dist.get_rank() + step), device="cuda")).square().mean().backward()
    optimizer.step()
weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
sys.stdout.write(f"{torch.cuda.device_count()} {weights.device} {weights.double().sum().item():.4f}\\n")
dist.destroy_process_group()
"""


@contextmanager
def pool(count: int) -> Iterator[dict[str, str]]:
    """What a program needs to know of a pool with so many development devices."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        state, settings = Path(folder) / "state", Path(folder) / "pool.toml"
        settings.write_text(DEVICES.format(count))
        command = [sys.executable, "-m", "forebay_pool", "--embedded", "--state-dir", str(state), "--port", "0", "--config", str(settings)]
        process = subprocess.Popen(command, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while not (state / "pool.json").exists():
                assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
                time.sleep(0.05)
            at = json.loads((state / "pool.json").read_text())
            yield kept | {"FOREBAY_URL": at["url"], "FOREBAY_TOKEN": at["token"], "XDG_CONFIG_HOME": folder, "OMP_NUM_THREADS": "1"}
        finally:
            process.terminate()
            process.communicate(timeout=60)


def trained(steps: int) -> float:
    """The sum of the weights that one process on the host finds."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.tensor([[float(rank + step)] * 8 for rank in (0, 0, 1, 1)])).square().mean().backward()
        optimizer.step()
    return sum(float(weight.detach().double().sum()) for weight in model.parameters())


@pytest.mark.parametrize(("devices", "steps"), [(2, 5), (1, 1)])
def test_each_rank_computes_on_its_own_device_and_ranks_that_share_one_take_turns(tmp_path: Path, devices: int, steps: int) -> None:
    """A rank that waits for one without a lease gives its own back, so that two ranks on one device are slow, and not stuck."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    command = [sys.executable, "-m", "forebay", "run", "torchrun", "--nproc-per-node", "2", str(script), str(steps)]
    with pool(devices) as environment:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = sorted(line.split() for line in done.stdout.splitlines() if line.startswith("2 cuda"))
    assert [(count, device) for count, device, _ in found] == [("2", "cuda:0"), ("2", "cuda:1")]
    for *_, total in found:
        assert float(total) == pytest.approx(trained(steps), abs=1e-3)
    assert ("is held by another lease" in done.stderr) == (devices == 1)
