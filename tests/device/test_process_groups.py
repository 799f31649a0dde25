"""``torchrun`` with ``backend="nccl"``: scripts for several processes as they are, with collectives between the workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import fork_server
import psutil
import pytest
from standalone import standalone_worker

PROGRAMS = Path(__file__).resolve().parent / "process_group_programs.py"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def workers(folder: Path, count: int, python: str | None = None) -> Iterator[list[tuple[str, str]]]:
    with ExitStack() as stack:
        reached = []
        for rank in range(count):
            (folder / str(rank)).mkdir()
            reached.append(stack.enter_context(standalone_worker(folder / str(rank), "--threads", "1", python=python)))
        yield reached


def environment(reached: list[tuple[str, str]]) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    return found | {"FOREBAY_TEST_WORKERS": json.dumps(reached), "OMP_NUM_THREADS": "1"}


@contextmanager
def started(reached: list[tuple[str, str]], name: str) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each worker, with the variables that torchrun sets."""
    common = environment(reached) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(reached))}
    common["LOCAL_WORLD_SIZE"] = common["WORLD_SIZE"]
    processes = []
    try:
        for rank in range(len(reached)):
            command = [fork_server.programs(), str(PROGRAMS), name]
            mine = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=mine, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def answers(processes: list[subprocess.Popen[str]]) -> list[Any]:
    ended = [(*process.communicate(timeout=240), process.returncode) for process in processes]
    assert [code for _, _, code in ended] == [0] * len(ended), "\n".join(errors for _, errors, _ in ended)
    return [json.loads(output.splitlines()[-1]) for output, _, _ in ended]


def said(folder: Path, count: int, name: str) -> list[Any]:
    with workers(folder, count) as reached, started(reached, name) as processes:
        return answers(processes)


@pytest.fixture(scope="module")
def undivided() -> Any:
    """The losses of the same training in one process on the host."""
    alone = environment([]) | {"RANK": "0", "LOCAL_RANK": "0"}
    del alone["FOREBAY_TEST_WORKERS"]
    done = subprocess.run([fork_server.programs(), str(PROGRAMS), "alone"], env=alone, capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full_sweep)])
def test_each_collective_gives_what_it_is_by_definition(tmp_path: Path, ranks: int) -> None:
    assert said(tmp_path, ranks, "collectives") == ["right"] * ranks


@pytest.mark.parametrize("way", ["data_parallel", "sharded"])
def test_a_training_in_two_processes_gives_the_losses_of_one(tmp_path: Path, undivided: Any, way: str) -> None:
    for losses in said(tmp_path, 2, way):
        assert losses == pytest.approx(undivided, rel=1e-4)


def test_layers_cut_into_parts_give_what_they_give_whole(tmp_path: Path) -> None:
    assert said(tmp_path, 2, "tensor_parallel") == ["right"] * 2


def test_a_group_without_a_backend_serves_the_device_and_one_with_two_the_host_too(tmp_path: Path) -> None:
    assert said(tmp_path, 2, "any_backend") == [[[[3.0] * 3], [[3.0] * 3] * 2]] * 2


@pytest.mark.full_sweep
def test_torchrun_runs_a_script_as_it_is(tmp_path: Path, undivided: Any) -> None:
    with workers(tmp_path, 2) as reached:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAMS), "data_parallel"]
        forked = environment(reached) | {"PYTHON_EXEC": str(fork_server.programs())}  # what torchrun starts the script with
        done = subprocess.run(command, env=forked, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == 2
    for losses in lines:
        assert losses == pytest.approx(undivided, rel=1e-4)


def test_a_rank_that_does_not_come_ends_the_group_within_its_time(tmp_path: Path) -> None:
    *waiting, last = said(tmp_path, 3, "absent")
    assert last == "absent"
    for sentence, waited, again, after in waiting:
        assert "rank 2 of the process group did not take part in all_reduce within 2 s" in sentence
        assert "c10d::all_reduce" in sentence
        assert "process_group_programs.py" in sentence
        assert 1.5 < waited < 5
        assert "rank 2 of the process group did not take part in all_reduce" in again
        assert after == [2.0, 2.0]


def test_ranks_that_call_different_collectives_hear_of_both(tmp_path: Path) -> None:
    for sentence in said(tmp_path, 2, "different"):
        assert "all_reduce" in sentence
        assert "broadcast" in sentence


def test_a_rank_that_failed_before_tells_the_others(tmp_path: Path) -> None:
    first, second = said(tmp_path, 2, "failing")
    assert "out of range" in second or "out of bounds" in second
    assert "rank 1 ended the process group: it stopped at aten::index_select" in first


@pytest.mark.parametrize("victim", ["worker", "program"])
def test_a_rank_that_is_killed_ends_the_collective_of_the_others(tmp_path: Path, victim: str) -> None:
    with workers(tmp_path, 2, python=sys.executable) as reached, started(reached, "killed") as processes:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        if victim == "program":
            processes[1].kill()
        else:
            os.kill(listening_at(reached[1][0]), signal.SIGKILL)
        sentence = answers(processes[:1])[0]
    assert (
        "rank 1 of the process group is gone" if victim == "worker" else "rank 1 ended the process group: its program ended"
    ) in sentence


def listening_at(address: str) -> int:
    """The process id of the worker."""
    (found,) = [process.pid for process in psutil.process_iter(["cmdline"]) if address in (process.info["cmdline"] or [])]
    return int(found)
