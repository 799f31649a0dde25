"""Programs that hold more than their device's memory compute, bit for bit, what they compute where there is room for all of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fork_server
import pytest
from recomputed_programs import PROGRAMS
from standalone import standalone_worker

ROOM = 4 << 30
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a program within a memory limit; what it printed, or ``error`` and what it raised."""

    def run(name: str, memory_bytes: int, recomputes: bool) -> dict[str, Any]:
        monkeypatch.setenv("FOREBAY_RECOMPUTE", str(int(recomputes)))
        folder = tmp_path / f"{memory_bytes}-{recomputes}"
        folder.mkdir()
        with standalone_worker(folder, "--device", "cpu:0", "--threads", "1", memory_bytes=memory_bytes) as (address, ticket):
            program = [fork_server.programs(), "recomputed_programs.py", address, ticket, name]
            done = subprocess.run(program, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parent)
        if done.returncode:
            return {"error": done.stderr}
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    return run


@pytest.mark.parametrize("name", PROGRAMS)
def test_training_beyond_the_memory_gives_the_same_bits(run: Run, name: str) -> None:
    roomy = run(name, ROOM, recomputes=False)
    limit = int(roomy["most_bytes"] * 0.6)
    assert "OutOfMemoryError" in run(name, limit, recomputes=False)["error"]
    assert run(name, limit, recomputes=True)["numbers"] == roomy["numbers"]


@pytest.mark.parametrize("seed", [1, 3, *(pytest.param(seed, marks=pytest.mark.full_sweep) for seed in range(10, 200))])
def test_a_random_program_beyond_the_memory_gives_the_same_bits(run: Run, seed: int) -> None:
    """Or fails for want of memory, where too much of it was written to in place."""
    roomy = run(str(seed), ROOM, recomputes=False)
    told = run(str(seed), int(roomy["most_bytes"] * 0.8), recomputes=True)
    if seed < 10 or "error" not in told:
        assert told["numbers"] == roomy["numbers"]
    else:
        assert "OutOfMemoryError" in told["error"]
