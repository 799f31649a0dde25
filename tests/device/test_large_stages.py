"""Models that neither one device holds, nor several with copies of weights or with weights in rows, train in stages, with nothing set."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import fork_server
import pytest
from large_stages import PROGRAMS, STEPS
from likeness import differs
from standalone import standalone_worker

PROGRAM = Path(__file__).resolve().parent / "large_stages.py"
DEVICES = 4
DEVICE_BYTES = 40 << 20
QUICK = ("momenta", "disturbed")
ALL = [name if name in QUICK else pytest.param(name, marks=pytest.mark.full_sweep) for name in PROGRAMS]


def ran(folder: Path, devices: int, name: str, on: str = "cuda") -> Any:
    """What the program tells, trained on the virtual device or ``on`` another; what it says where it fails."""
    folder.mkdir()
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")}
    with standalone_worker(folder, "--threads", "1", *several, memory_bytes=devices * DEVICE_BYTES) as reached:
        command = [fork_server.programs(), str(PROGRAM), *reached, on, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("name", ALL)
def test_what_fits_in_stages_alone_trains_in_them_as_on_the_cpu(tmp_path: Path, name: str) -> None:
    ours, theirs = (ran(tmp_path / on, DEVICES, name, on) for on in ("cuda", "cpu"))
    assert "numbers" in ours, ours
    for part, expected in theirs["numbers"].items():
        numbers = ours["numbers"][part]
        assert len(numbers) == len(expected) and not [pair for pair in zip(numbers, expected, strict=True) if differs(*pair)], part
    plan = ours["plan"]
    assert all(one["bytes"] > plan["room_bytes"] for one in plan["considered"]), "no other way fits"
    assert plan["pipeline"]["serves"] and ours["staged"] >= STEPS / 2
    assert max(plan["bytes"]) <= DEVICE_BYTES and ours["most_bytes"] > 2.5 * DEVICE_BYTES


def test_one_device_does_not_hold_it(tmp_path: Path) -> None:
    assert "OutOfMemoryError" in ran(tmp_path / "one", 1, "momenta")
