"""Random eager programs give on the virtual device what the CPU gives: values, strides, dtypes, versions, gradients, errors."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import fork_server
import pytest
from standalone import standalone_worker

PROGRAMS = Path(__file__).resolve().parent / "random_eager.py"
CASES = {"one device": (1, "0", 100), "two devices": (2, "0", 50), "compiled": (1, "1", 50)}
"""Devices, FOREBAY_COMPILE, and how many programs are run."""
TIMES_MORE = 50
"""As many, in a full sweep."""


@pytest.mark.parametrize("case", CASES)
def test_random_programs_give_what_the_cpu_gives(tmp_path: Path, case: str, full_sweep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    devices, compiles, count = CASES[case]
    monkeypatch.setenv("FOREBAY_COMPILE", compiles)
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    seed = random.randrange(1 << 30) if full_sweep else 10_000
    with standalone_worker(tmp_path, "--threads", "1", *several) as reached:
        command = [fork_server.programs(), str(PROGRAMS), *reached, str(count * TIMES_MORE if full_sweep else count), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=7200, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [], f"programs from {seed} on"
