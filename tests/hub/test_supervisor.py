"""What a keeper keeps is started again, however it ends; it ends with the keeper, and the keeper with its parent."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from forebay_service.processes.supervisor import PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX, STEADY_SECONDS, Pauses

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "forebay_service.processes.supervisor", "the thing", "sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def kept_by(keeper: psutil.Process, not_pid: int = 0) -> psutil.Process:
    """The command, once it runs."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for child in keeper.children():
            if child.pid != not_pid and child.name() == "sleep":
                return child
        time.sleep(0.02)
    raise AssertionError("the keeper keeps nothing")


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "forebay_service.processes.supervisor", "the thing", "sleep", "60"]
    with (
        open(tmp_path / "log", "w+", encoding="utf-8") as log,
        subprocess.Popen(command, stderr=log, text=True) as process,
    ):
        yield process
        process.kill()


def test_what_is_killed_is_buried_started_again_and_told(keeper: subprocess.Popen[str], tmp_path: Path) -> None:
    itself = psutil.Process(keeper.pid)
    first = kept_by(itself)
    first.kill()
    second = kept_by(itself, first.pid)
    second.terminate()
    kept_by(itself, second.pid)
    assert not [child for child in itself.children() if child.status() == psutil.STATUS_ZOMBIE]
    told = (tmp_path / "log").read_text()
    assert "forebay: the thing was killed by SIGKILL; it is started again in 0.5 s" in told
    assert "forebay: the thing was killed by SIGTERM; it is started again in 1 s" in told


def test_one_that_is_asked_to_stop_stops_what_it_keeps(keeper: subprocess.Popen[str]) -> None:
    kept = kept_by(psutil.Process(keeper.pid))
    keeper.terminate()
    keeper.wait(10)
    assert not kept.is_running()


def test_a_keeper_that_is_killed_takes_its_command_along(keeper: subprocess.Popen[str]) -> None:
    kept = kept_by(psutil.Process(keeper.pid))
    keeper.kill()
    assert psutil.wait_procs([kept], timeout=10)[1] == [] or kept.status() == psutil.STATUS_ZOMBIE


def test_a_keeper_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        keeper = psutil.Process(int(parent.stdout.readline()))
        both = [keeper, kept_by(keeper)]
        parent.kill()
        _, alive = psutil.wait_procs(both, timeout=10)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_pauses_grow_to_a_bound_and_begin_anew_after_a_steady_run() -> None:
    pauses = Pauses()
    found = [pauses.after(0.0) for _ in range(12)]
    assert found[:4] == [PAUSE_SECONDS_FIRST * 2**n for n in range(4)] and found[-1] == PAUSE_SECONDS_MAX
    assert pauses.after(STEADY_SECONDS) == PAUSE_SECONDS_FIRST


def test_a_command_that_does_not_exist_is_named() -> None:
    command = ["timeout", "1", sys.executable, "-m", "forebay_service.processes.supervisor", "it", "no-such-command"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "no-such-command cannot be started: No such file or directory" in run.stderr
