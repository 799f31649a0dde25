"""A training loop gets a library, which computes what tier 1 computes; and a day of loops leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fork_server
import psutil
import pytest
from standalone import standalone_worker

STANDIN, HURRIED = (Path(__file__).parents[1] / "worker" / f"{kind}_compilers_worker.py" for kind in ("standin", "hurried"))
LOOPS, LOOPS_FULL = 20, 1440
"""Of a notebook: a day of one a minute."""
STALLS_EVERY_MIN = 200
"""Loops for one step of 50 ms: as when all that was known of the loops is forgotten, with their libraries. The first loop begins all."""
REAL_EVERY = 288
CANDIDATES_MAX = 64
"""Of a session, with a library each."""

SECONDS_MAX = 1500
"""A compiler that is niced waits for a busy host."""


@pytest.mark.full_sweep
@pytest.mark.timeout(SECONDS_MAX + 200)
@pytest.mark.parametrize("model", ["perceptron", "convolutions", "sequences", "doubles", "compiled perceptron"])
def test_a_training_loop_is_served_by_a_library_that_computes_as_tier_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("FOREBAY_COMPILE", "1")
    options = ("--device", "cpu:0", "--threads", "1", "--compile-after", "0", "--libraries", str(tmp_path / "libraries"))
    with standalone_worker(tmp_path, *options) as (address, ticket):
        program = [fork_server.programs(), "compiled_training.py", address, ticket, str(SECONDS_MAX), model]
        done = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS_MAX + 100, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert "wrong" not in told["why"] and (told["tier"] == 2 or "takes" in told["why"]), told
    if told["tier"] == 2:
        assert told["served"] == 1
    assert told["farthest"] < told["moved"] / 20, "both steps moved the weights alike"


@pytest.mark.full_sweep
@pytest.mark.timeout(2 * SECONDS_MAX + 200)
def test_both_sizes_of_a_loop_whose_last_batch_is_shorter_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of a third size, as tier 1 computes them, which is not compiled, though Adam's first correction has come to be 1."""
    monkeypatch.setenv("FOREBAY_COMPILE", "1")
    options = ("--device", "cpu:0", "--threads", "1", "--compile-after", "0", "--libraries", str(tmp_path / "libraries"))
    with standalone_worker(tmp_path, *options, program=(str(HURRIED),)) as (address, ticket):
        program = [fork_server.programs(), "several_lengths.py", address, ticket, str(SECONDS_MAX)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=2 * SECONDS_MAX + 100, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == 3
    for one in told:
        assert "wrong" not in one["why"] and (one["tier"] == 2 or "takes" in one["why"]), told
        assert one["farthest"] < one["moved"] / 20, "both steps moved the weights alike"
    assert (tmp_path / "worker.log").read_text().count("is for its size, too") == 1


def grown(told: list[dict[str, Any]], who: str, what: str) -> int:
    """By how much the most of the second half is more than that of the first."""
    half = len(told) // 2
    return int(max(one[who][what] for one in told[half:]) - max(one[who][what] for one in told[:half]))


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("loops", [LOOPS, pytest.param(LOOPS_FULL, marks=pytest.mark.full_sweep)])
def test_a_notebook_that_changes_its_loop_each_minute_neither_grows_nor_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loops: int
) -> None:
    """A day of it gets libraries from a stand-in for the compiler, which has the real one make each 288th; a part of it gets none."""
    monkeypatch.setenv("FOREBAY_COMPILE", "1")
    libraries = tmp_path / "libraries"
    if loops == LOOPS_FULL:
        (tmp_path / "every").write_text(f"{REAL_EVERY}")
    options = ("--device", "cpu:0", "--threads", "1", "--compile-after", "0", "--libraries", str(libraries))
    with standalone_worker(tmp_path, *options, python=sys.executable, program=(str(STANDIN),)) as (address, ticket):
        (worker,) = (one for one in psutil.Process().children() if address in one.cmdline())
        program = [fork_server.programs(), "changing_loops.py", address, ticket, str(worker.pid), str(libraries), str(loops)]
        with (tmp_path / "told").open("w+") as file:
            subprocess.run(program, stdout=file, check=True, timeout=4 * 3600, cwd=Path(__file__).parent)
            file.seek(0)
            told = [json.loads(line) for line in file]
    assert len(told) == loops
    assert sum(one["tier"] == 2 for one in told) >= (loops / 2 if loops == LOOPS_FULL else 0), [one["why"] for one in told]
    assert max(one["error"] for one in told) < 1e-5
    for who in ("client", "worker"):
        assert grown(told, who, "descriptors") <= 1 and grown(told, who, "threads") <= 1
        assert grown(told, who, "libraries") <= 8 and grown(told, who, "maps") <= 64
        assert grown(told, who, "bytes") <= 24 << 20
    assert max(one["worker"]["libraries"] for one in told) <= CANDIDATES_MAX
    assert max(one["alive"] for one in told) == min(one["alive"] for one in told)
    assert sum(path.stat().st_size for path in libraries.glob("*.so")) <= 2 << 30
    assert not list(libraries.glob(".*")), "what was written on the way is gone"
    stalls = [{"loop": number} | stall for number, one in enumerate(told) for stall in one["stalls"] if number > 0]
    print(*stalls, sep="\n")
    worked, waited = ([stall for stall in stalls if stall["kind"] == kind] for kind in ("worked", "waited"))
    assert len(worked) <= loops // STALLS_EVERY_MIN, f"steps were work for long: {worked}"
    assert len(waited) <= loops // 2, f"the user's thread waited for what is not there in each loop: {waited}"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one thread is all there is")
@pytest.mark.parametrize(("threads", "compiled", "different"), [(0, "1", 2), (0, "0", 1), (-1, "1", 1)])
def test_a_worker_with_all_processors_tries_one_thread_less_where_it_may_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, compiled: str, different: int
) -> None:
    """Which shows in how it adds up: other threads take other parts of a sum. Without FOREBAY_COMPILE=1 each sum is the same."""
    monkeypatch.setenv("FOREBAY_COMPILE", compiled)
    options = ("--device", "cpu:0", "--threads", str(len(os.sched_getaffinity(0)) + threads), "--libraries", str(tmp_path / "libraries"))
    with standalone_worker(tmp_path, *options) as (address, ticket):
        program = [fork_server.programs(), "repeated_sums.py", address, ticket]
        done = subprocess.run(program, capture_output=True, text=True, timeout=100, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["different"] == different
    assert told["farthest"] < 1e-5
