"""``forebay run torchrun`` from end to end: a real pool, which lends each rank a device of its own."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import fork_server
import pytest

START_SECONDS_MAX = 60.0
DEVICES = '[[devices]]\nkind = "cpu"\nmodel = "cpu-dev"\nmemory = "2GiB"\ncount = {}\n'
TRAINING = """
import os, sys
import torch
import torch.distributed as dist

def steps():
    # what is wanted, or what a file says by now
    try:
        return int(open(f"{__file__}.steps").read())
    except (OSError, ValueError):
        return int(sys.argv[1])

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
step = 0
while step < steps():
    optimizer.zero_grad()
    model(torch.full((2, 8), float(dist.get_rank() + step % 7), device="cuda")).square().mean().backward()
    optimizer.step()
    step += 1
    if step % 20 == 0:
        torch.cuda.synchronize()
        open(f"{__file__}.{local_rank}", "w").write(str(step))
weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
sys.stdout.write(f"{torch.cuda.device_count()} {weights.device} {weights.double().sum().item():.4f}\\n")
dist.destroy_process_group()
"""
SPAWNED = """
import os, sys
import torch
import torch.distributed as dist

def main(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=size)
    value = torch.full((3,), float(rank + 1), device="cuda")
    dist.all_reduce(value)
    sys.stdout.write(f"2 {value.device} {value.sum().item()}\\n")
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(main, args=(2, sys.argv[1]), nprocs=2)
"""
ACCELERATED = """
import sys
import accelerate, torch

accelerator = accelerate.Accelerator()
model = accelerator.prepare(torch.nn.Linear(3, 1, bias=False))
model(torch.full((1, 3), 1.0 + accelerator.process_index, device=accelerator.device)).sum().backward()
gradient = next(model.parameters()).grad
sys.stdout.write(f"2 {gradient.device} {2 * gradient.sum().item()}\\n")
accelerator.end_training()
"""


@contextmanager
def pool(count: int, more: str = "") -> Iterator[dict[str, str]]:
    """What a program needs to know of a pool with so many development devices. ``more``: of its settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        state, settings = Path(folder) / "state", Path(folder) / "pool.toml"
        settings.write_text(more + DEVICES.format(count))
        options = ("--embedded", "--state-dir", str(state), "--port", "0", "--config", str(settings))
        command = [fork_server.services(), "-m", "forebay_pool", *options]
        process = subprocess.Popen(command, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while not (state / "pool.json").exists():
                assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
                time.sleep(0.05)
            at = json.loads((state / "pool.json").read_text())
            named = {"FOREBAY_URL": at["url"], "FOREBAY_TOKEN": at["token"], "FOREBAY_TEST_POOL": str(at["pid"])}
            yield kept | named | {"XDG_CONFIG_HOME": folder, "OMP_NUM_THREADS": "1"}
        finally:
            process.terminate()
            process.communicate(timeout=60)


def trained(steps: int) -> float:
    """The sum of the weights that one process on the host finds."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.tensor([[float(rank + step % 7)] * 8 for rank in (0, 0, 1, 1)])).square().mean().backward()
        optimizer.step()
    return sum(float(weight.detach().double().sum()) for weight in model.parameters())


def started(script: Path, *arguments: str, environment: dict[str, str], ranks: int = 2) -> subprocess.Popen[str]:
    """torchrun itself starts as it does for people, and the ranks are forks."""
    command = [sys.executable, "-m", "forebay", "run", "torchrun", "--nproc-per-node", str(ranks), str(script), *arguments]
    forked = environment | {"PYTHON_EXEC": str(fork_server.programs())}
    return subprocess.Popen(command, env=forked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def asked(environment: dict[str, str], path: str, method: str = "GET", body: Any = None) -> Any:
    headers = {"Authorization": f"token {environment['FOREBAY_TOKEN']}", "Content-Type": "application/json"}
    data = None if method in ("GET", "DELETE") else json.dumps(body or {}).encode()
    request = urllib.request.Request(environment["FOREBAY_URL"] + path, data, headers, method=method)  # noqa: S310 our own pool's
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return json.loads(answer.read() or "null")


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def states(environment: dict[str, str]) -> list[str]:
    return [row["state"] for row in asked(environment, "api/sessions")]


def billed(folder: Path, parked: bool = False) -> list[tuple[str, int, int, str]]:
    """Session, beginning and end in nanoseconds of Unix time, and why it ended, of each segment of a lease, or of parked time."""
    with closing(sqlite3.connect(f"file:{folder / 'state' / 'pool.sqlite'}?mode=ro", uri=True)) as books:
        rows = books.execute(
            "select session, started_at_unix_ns, duration_ns, close_reason from lease_segments where (parked_bytes is not null) = ?",
            [parked],
        )
        return [(session, begin, begin + length, reason) for session, begin, length, reason in rows]


def test_each_rank_computes_on_its_own_device_and_is_billed_from_one_moment_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    with pool(2) as environment:
        process = started(script, "5", environment=environment)
        out, errors = process.communicate(timeout=240)
        ended_ns = time.time_ns()
        leases = until(lambda: billed(Path(environment["XDG_CONFIG_HOME"])))
    assert process.returncode == 0, errors
    found = sorted(line.split() for line in out.splitlines() if line.startswith("2 cuda"))
    assert [(count, device) for count, device, _ in found] == [("2", "cuda:0"), ("2", "cuda:1")]
    for *_, total in found:
        assert float(total) == pytest.approx(trained(5), abs=1e-3)
    first = {session: min(begin for who, begin, *_ in leases if who == session) for session, *_ in leases}
    assert len(first) == 2 and len(set(first.values())) == 1, leases
    assert all(begin <= end <= ended_ns for _, begin, end, _ in leases)


@pytest.mark.full_sweep
def test_ranks_that_compute_on_another_device_than_their_number_are_granted_together_too(tmp_path: Path) -> None:
    """A script that chooses no device has cuda:0 in each process: a device of its own."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING.replace("torch.cuda.set_device(local_rank)", ""))
    with pool(2) as environment:
        process = started(script, "5", environment=environment)
        out, errors = process.communicate(timeout=240)
        leases = until(lambda: billed(Path(environment["XDG_CONFIG_HOME"])))
    assert process.returncode == 0, errors
    found = sorted(line.split() for line in out.splitlines() if line.startswith("2 cuda"))
    assert [(count, device) for count, device, _ in found] == [("2", "cuda:0")] * 2
    first = {session: min(begin for who, begin, *_ in leases if who == session) for session, *_ in leases}
    assert len(first) == 2 and len(set(first.values())) == 1, leases


@pytest.mark.full_sweep
def test_a_training_goes_on_where_it_was_after_its_host_was_emptied_in_the_middle_of_its_collectives(tmp_path: Path) -> None:
    """All tensors are parked meanwhile. Nothing is billed for that time, and no step is lost."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)

    def at() -> int:
        """How many steps both ranks have done."""
        return min(int(Path(f"{script}.{rank}").read_text() or "0") for rank in range(2))

    with pool(2) as environment:
        folder = Path(environment["XDG_CONFIG_HOME"])
        process = started(script, "1000000", environment=environment)
        try:
            until(lambda: all(Path(f"{script}.{rank}").exists() for rank in range(2)))
            (node,) = [row["node"] for row in asked(environment, "api/nodes")]
            empty = []
            for _ in range(20):
                asked(environment, f"api/nodes/{node}", "PUT", {"drain": True, "grace_seconds": 0.1})
                until(lambda: states(environment) == ["queued"] * 2 and asked(environment, "api/nodes")[0]["residents"] == 0)
                begin_ns, before = time.time_ns(), at()
                time.sleep(0.3)
                assert at() == before and process.poll() is None
                empty.append((begin_ns, time.time_ns()))
                asked(environment, f"api/nodes/{node}", "PUT", {"drain": False})
                until(lambda before=before: at() >= before + 40)
            last = at() + 400
            Path(f"{script}.steps").write_text(str(last))
            out, errors = process.communicate(timeout=120)
        finally:
            process.terminate()  # and its ranks
        ended_ns = time.time_ns()
        leases, parked = until(lambda: asked(environment, "api/sessions") == [] and (billed(folder), billed(folder, parked=True)))
    assert process.returncode == 0, errors
    totals = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("2 cuda")]
    assert totals == pytest.approx([trained(last)] * 2, abs=1e-3)
    assert [reason for *_, reason in leases].count("revoked") == 2 * len(empty) == len(parked)
    for _, begin, end, _ in leases:
        assert begin <= end <= ended_ns
        assert not any(begin < until_ns and end > since_ns for since_ns, until_ns in empty), (leases, empty)


@pytest.mark.full_sweep
@pytest.mark.parametrize("launcher", ["spawn", "accelerate"])
def test_other_launchers_than_torchrun_start_ranks_that_are_granted_together(tmp_path: Path, launcher: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPAWNED if launcher == "spawn" else ACCELERATED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    accelerate = ["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", port]
    with pool(2) as environment:
        command = [*(accelerate if launcher == "accelerate" else []), str(script), port]
        every = environment | {"FOREBAY_DEVICES": "2"}
        done = subprocess.run([sys.executable, "-m", "forebay", "run", *command], env=every, capture_output=True, text=True, timeout=240)
        leases = until(lambda: asked(environment, "api/sessions") == [] and billed(Path(environment["XDG_CONFIG_HOME"])))
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("2 cuda")) == ["2 cuda:0 9.0", "2 cuda:1 9.0"]
    first = {session: min(begin for who, begin, *_ in leases if who == session) for session, *_ in leases}
    assert len(first) == 2 and len(set(first.values())) == 1, leases


@pytest.mark.full_sweep
def test_more_ranks_than_devices_are_refused_at_once_with_the_number_that_would_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    with pool(1) as environment:
        process = started(script, "1", environment=environment)
        _, errors = process.communicate(timeout=120)
        assert not billed(Path(environment["XDG_CONFIG_HOME"]))
    assert process.returncode != 0
    assert "2 processes compute together, and the devices here serve dev.1gb to 1 at a time: start 1" in errors


@pytest.mark.full_sweep
def test_ranks_have_halves_of_one_device_where_their_flavor_is_a_half(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    with pool(1) as environment:
        half = {"memory_bytes": 2**29, "equivalents": [{"model": "cpu-dev", "count": 1, "share_milli": 500}]}
        asked(environment, "api/flavors/dev.half", "PUT", half)
        process = started(script, "5", environment=environment | {"FOREBAY_FLAVOR": "dev.half"})
        out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    totals = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("2 cuda")]
    assert totals == pytest.approx([trained(5)] * 2, abs=1e-3)


@pytest.mark.full_sweep
@pytest.mark.parametrize("way", ["revoked", "ended", "moved"])
def test_a_rank_whose_lease_is_taken_in_the_middle_goes_on_or_ends_the_group_with_one_sentence(tmp_path: Path, way: str) -> None:
    """Nothing hangs, and nothing is billed after the end."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    with pool(3) as environment:
        folder = Path(environment["XDG_CONFIG_HOME"])
        process = started(script, "1000000", environment=environment)
        try:
            until(lambda: all(Path(f"{script}.{rank}").exists() for rank in range(2)))
            victim = asked(environment, "api/sessions")[0]["session"]
            suffix, method = {"revoked": ("/revoke", "POST"), "ended": ("", "DELETE"), "moved": ("/move", "POST")}[way]
            asked(environment, f"api/sessions/{victim}{suffix}", method)
            if way == "revoked":
                until(lambda: any(reason == "revoked" for *_, reason in billed(folder)))
                until(lambda: states(environment) == ["active"] * 2)
                assert process.poll() is None
                process.terminate()
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        until(lambda: not asked(environment, "api/sessions"))
        ended_ns = time.time_ns()
        time.sleep(1)
        leases = billed(folder)
    if way == "ended":
        assert "of the process group" in errors or "ended the process group" in errors
        assert "ended this session" in errors or "the connection to the worker broke" in errors, "which the program hears of first"
    elif way == "moved":
        assert "the process group ended when this session moved to another device" in errors
    assert {session for session, *_ in leases} >= {victim} and all(begin <= end <= ended_ns for _, begin, end, _ in leases), leases
