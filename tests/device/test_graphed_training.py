"""On an accelerator segments are recorded as graphs, and compute to the bit what tier 1 computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fork_server
import pytest
from standalone import standalone_worker
from standin import build

STEPS = 24
"""Recorded, proved and carried out by turns with tier 1."""
SERVED = "perceptron:400"
"""And decided upon."""
PROGRAMS = ("failing", "waiting", "returning")
LONGER = ("transformer", "recurrent", "accumulation")
GPU_ALONE = ("layers",)
"""With the longer ones: the stand-in has no kernels for them."""
SECONDS_MAX = 300


@pytest.mark.parametrize(
    "programs",
    [
        tuple(f"{one}:{STEPS}" for one in PROGRAMS),
        pytest.param(tuple(f"{one}:{STEPS}" for one in LONGER), marks=pytest.mark.full_sweep),
        pytest.param((SERVED,), marks=pytest.mark.full_sweep),
    ],
    ids=["compared", "compared longer", "served"],
)
def test_loops_that_are_recorded_compute_to_the_bit_what_tier_1_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, programs: tuple[str, ...]
) -> None:
    device = request.config.getoption("--on-device") or "standin:0"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # of the worker, for deterministic products
    monkeypatch.setenv("FOREBAY_STANDIN_DELAY_MICROSECONDS", "0")
    if len(programs) == len(LONGER) and not device.startswith("standin"):
        programs += tuple(f"{one}:{STEPS}" for one in GPU_ALONE)
    python = fork_server.standin(build.built()) if device.startswith("standin") else Path(sys.executable)
    with standalone_worker(tmp_path, "--device", device, "--threads", "1", python=python) as (address, ticket):
        command = [fork_server.programs(), "graphed_training.py", address, ticket, *programs]
        environment = os.environ | {"FOREBAY_COMPILE": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=Path(__file__).parent, env=environment, check=False
        )
    said = (tmp_path / "worker.log").read_text()
    assert done.returncode == 0, done.stderr + said
    assert "standin:" not in said, said
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told) == len(programs)
    for program, found in told.items():
        assert found["same"], (program, told)
        assert found["tier"] == 2 or "takes" in found["why"] or (SERVED not in programs and "timed" in found["why"]), (program, told)
