"""Processes that libraries fork from a program that has used its device: each has its tensors, a session and a bill of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forking_programs
import pytest
from conftest import PEOPLE
from forking_programs import REAL
from outside import cloud, outcome
from programs import PATIENCE_SECONDS, output_of

pytestmark = pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built")
Make = Callable[..., Any]


async def lines_of(running: Any, text: str) -> list[str]:
    """What a program of ada's prints whose processes may start others."""
    variables = {"FOREBAY_URL": running.service.url, "FOREBAY_TOKEN": "ada", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    command = (sys.executable, "-c", text)
    process = await asyncio.create_subprocess_exec(*command, env=forking_programs.environment(variables), **pipes)  # type: ignore[arg-type]
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


def sessions_of(running: Any) -> set[str]:
    """Those that were billed."""
    return {record["session"] for record in running.records()}


@pytest.mark.parametrize(
    ("program", "printed", "sessions"),
    [
        (forking_programs.POOL, ["pool True True"], 3),
        pytest.param(forking_programs.PROCESSES, ["processes [0, 0] True True"], 3, marks=pytest.mark.full_sweep),
        (forking_programs.EXECUTOR, ["executor True True"], 3),
        pytest.param(forking_programs.JOBLIB, ["multiprocessing True True", "loky True"], 5, marks=pytest.mark.full_sweep),
    ],
    ids=["pool", "processes", "executor", "joblib"],
)
def test_what_libraries_fork_goes_on_from_what_is_there(pool: Make, program: str, printed: list[str], sessions: int) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            assert await lines_of(running, program) == printed
            await running.until(lambda: not running.machine.sessions)
            assert 1 < len(sessions_of(running)) <= sessions, "each process that computed has a bill of its own, and no other"
            assert not running.parked_records(), "what they begin with is free"

    asyncio.run(scenario())


def test_a_loader_whose_workers_live_through_the_training_takes_no_lease_for_them(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            assert await lines_of(running, forking_programs.LOADER) == ["361.0 0"]
            await running.until(lambda: not running.machine.sessions)
            assert len(sessions_of(running)) == 1

    asyncio.run(scenario())


ENDS = """
import multiprocessing, torch
x = torch.ones(1000, device="cuda:0")
x.sum().item()

def child():
    for _ in range(3):
        x.add_(1)  # nobody asks for it
    return None

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
print(process.exitcode, flush=True)
input()
"""


def test_the_session_of_a_forked_process_ends_with_it(pool: Make) -> None:
    async def scenario() -> None:
        waits = {"resume_seconds": 60.0, "idle_release_seconds": 30.0}
        async with pool(**REAL | waits) as running:
            variables = {"FOREBAY_URL": running.service.url, "FOREBAY_TOKEN": "ada", "OMP_NUM_THREADS": "1"}
            pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
            command = (sys.executable, "-c", ENDS)
            process = await asyncio.create_subprocess_exec(*command, env=forking_programs.environment(variables), **pipes)  # type: ignore[arg-type]
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS) == b"0\n"
            await running.until(lambda: len(running.machine.sessions) == 1 and len(sessions_of(running)) == 1)
            await process.communicate(b"\n")
            assert process.returncode == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(("forks", "users"), [("40", "3"), pytest.param("1000", "10", marks=pytest.mark.full_sweep)], ids=["few", "many"])
def test_a_fork_amid_the_calls_of_other_threads_leaves_no_lock_held(pool: Make, forks: str, users: str) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            out, _ = await output_of(running, forking_programs.THREADS, forks, users)
            assert out == ["0 []"]

    asyncio.run(scenario())


OUTSIDE = """
import multiprocessing, torch
x = torch.arange(6.0, device="cuda:0")
x.sum().item()
context = multiprocessing.get_context("fork")

def child(number):
    own = x.add_(number).clone()
    x.sub_(number)
    own[number] = float("-inf")
    return own.tolist()

with context.Pool(2) as pool:
    for answer in pool.map(child, range(2), chunksize=1):
        print(answer)
print(x.tolist())
"""


def test_a_program_outside_forks_as_one_inside_does(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(pool, tmp_path, PEOPLE) as found:
            inside = await found.program(OUTSIDE, FOREBAY_URL=found.pool.service.url, FOREBAY_OUTSIDE="0")
            expected = await outcome(inside, PATIENCE_SECONDS)
            assert len(expected) == 3 and expected[-1] == str([float(i) for i in range(6)])
            outside = await outcome(await found.program(OUTSIDE), PATIENCE_SECONDS)
            assert sorted(outside) == sorted(expected)

    asyncio.run(scenario())
