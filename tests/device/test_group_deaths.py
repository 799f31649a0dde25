"""A torchrun of two ranks goes on over workers that are killed, bit for bit: all ranks do their work and their collectives again."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from killed_training import workers
from test_torchrun import asked, billed, pool, started, until

STEPS = 60
LONG_STEPS = 90
JOURNAL_BYTES = 500_000
TRAINING = """
import os, sys, time
import torch
import torch.distributed as dist

steps, rank = int(sys.argv[1]), int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(rank)
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4)).cuda()
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
said = open(f"{__file__}.{rank}", "w")
for step in range(steps):
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    if step % 3 == rank:
        print(step, loss.item().hex(), file=said, flush=True)
    if step == steps // 2:
        half = dist.new_group([0, 1])
        total = torch.full((2,), float(rank), device="cuda")
        dist.all_reduce(total, group=half)
        print(step, total.tolist(), file=said, flush=True)
print("weights", [weight.double().sum().item().hex() for weight in net.parameters()], file=said, flush=True)
dist.destroy_process_group()
import forebay._C
print("images", forebay._C.statistics(torch.cuda.current_device())["images"], file=sys.stderr, flush=True)
"""
PIPELINE = """
import os, sys, time
import torch
import torch.distributed as dist

steps, rank = int(sys.argv[1]), int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
pair = dist.new_group([0, 1])
torch.manual_seed(rank)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 32)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
said = open(f"{__file__}.{rank}", "w")
passed = torch.zeros(16, 32, device="cuda")
for step in range(steps):
    y = net(torch.randn(16, 32).cuda() + passed)
    loss = (y - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if rank == 0:
        dist.send(y.detach(), 1)
        dist.recv(passed, 1)
    else:
        dist.recv(passed, 0)
        dist.send(y.detach(), 0)
    passed = passed / 8
    for weight in net.parameters():
        dist.all_reduce(weight.grad, group=pair)
    optimizer.step()
    time.sleep(0.02)
    if step % 3 == rank:
        print(step, loss.item().hex(), file=said, flush=True)
print("weights", [weight.double().sum().item().hex() for weight in net.parameters()], file=said, flush=True)
dist.destroy_process_group()
import forebay._C
print("images", forebay._C.statistics(torch.cuda.current_device())["images"], file=sys.stderr, flush=True)
"""
"""Messages between two, and collectives of a second group."""


def trained(
    environment: dict[str, str],
    script: Path,
    kills: int,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    program: str = TRAINING,
    steps: int = STEPS,
) -> tuple[list[str], str]:
    """What both ranks say, and what they wrote beside it, while one rank's worker at a time is killed at moments of chance."""
    script.write_text(program)
    monkeypatch.setenv("FOREBAY_TEST_POOL", environment["FOREBAY_TEST_POOL"])
    chance = random.Random(seed)
    said = [Path(f"{script}.{rank}") for rank in range(2)]
    process = started(script, str(steps), environment=environment)
    try:
        for kill in range(kills):
            least = (kill + 1) * steps // (3 * (kills + 1))
            until(lambda least=least: process.poll() is not None or all(one.exists() and len(lines(one)) >= least for one in said))
            time.sleep(chance.uniform(0, 0.3))
            assert process.poll() is None, process.communicate()[1]
            os.kill(chance.choice(until(workers)), signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return [one.read_text() for one in said], errors


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_all_ranks_go_on_bit_for_bit_when_a_worker_of_one_is_killed(
    tmp_path: Path, full_sweep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool(2) as environment:
        alone, _ = trained(environment, tmp_path / "alone.py", 0, 0, monkeypatch)
        for seed in range(20 if full_sweep else 1):
            kills = 2 if full_sweep else 1
            killed, errors = trained(environment, tmp_path / f"killed{seed}.py", kills, seed, monkeypatch)
            assert killed == alone, (seed, errors)
            assert errors.count("The worker is gone") >= 2 * kills, errors
            leases: Any = until(lambda: not asked(environment, "api/sessions") and billed(Path(environment["XDG_CONFIG_HOME"])))
            assert [reason for *_, reason in leases].count("failed") >= 2


@pytest.mark.full_sweep
@pytest.mark.parametrize("program", [TRAINING, PIPELINE], ids=["collectives", "messages"])
def test_all_ranks_go_on_from_images_between_the_same_collectives(
    tmp_path: Path, full_sweep: bool, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """Their journals are too short for what they send in all."""
    with pool(2) as environment:
        often = environment | {"FOREBAY_IMAGE_SECONDS": "0.3", "FOREBAY_JOURNAL_BYTES": str(JOURNAL_BYTES)}
        alone, _ = trained(environment, tmp_path / "alone.py", 0, 0, monkeypatch, program, LONG_STEPS)
        for seed in range(20 if full_sweep else 1):
            kills = 3 if full_sweep else 1
            killed, errors = trained(often, tmp_path / f"killed{seed}.py", kills, seed, monkeypatch, program, LONG_STEPS)
            assert killed == alone, (seed, errors)
            assert errors.count("The worker is gone") >= 2 * kills, errors
            assert min(map(int, re.findall(r"images (\d+)", errors))) > 0, errors
            until(lambda: not asked(environment, "api/sessions"))
