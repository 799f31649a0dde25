"""One `cuda:0` that is several devices: each computes on its rows of a batch, and what comes of it is what one device gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from data_parallel_programs import MODELS
from standalone import standalone_worker

PROGRAMS = Path(__file__).resolve().parent / "data_parallel_programs.py"
MEMORY_BYTES = 256 << 20
SEEDS = 40


@contextmanager
def worker(folder: Path, devices: int) -> Iterator[tuple[str, str]]:
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    with standalone_worker(folder, "--threads", "1", *several, memory_bytes=devices * MEMORY_BYTES) as reached:
        yield reached


def said(*arguments: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    done = subprocess.run([sys.executable, str(PROGRAMS), *arguments], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def seconds_of_others() -> list[float]:
    """Of the processors, of each process of a device but the first one's."""
    found = [process for process in psutil.Process().children(recursive=True) if "--standalone" in process.cmdline()]
    times = [process.cpu_times() for process in found if process.parent() in found]
    return [time.user + time.system for time in times]


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_a_training_on_several_devices_gives_what_one_gives(tmp_path: Path, model: str, devices: int) -> None:
    with worker(tmp_path, 1) as reached:
        losses, squares = said("train", model, *reached)
    with worker(tmp_path, devices) as reached:
        our_losses, our_squares = said("train", model, *reached)
    assert our_losses == pytest.approx(losses, rel=1e-4)
    assert our_squares == pytest.approx(squares, rel=1e-3, abs=1e-6)
    assert losses[-2] < losses[0]


@pytest.mark.parametrize("devices", [2, 4])
def test_random_programs_give_what_one_device_gives(tmp_path: Path, devices: int, full_sweep: bool) -> None:
    with worker(tmp_path, devices) as reached:
        assert said("random", "0", str(SEEDS * (10 if full_sweep else 1)), *reached) == []
