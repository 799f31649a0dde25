"""A stock program on one `cuda:0` that is four devices: what none of them could hold trains as on a local device."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import fork_server
from standalone import standalone_worker

PROGRAM = Path(__file__).resolve().parent / "large_training.py"
DEVICE_MIB = 24


def losses(*arguments: str) -> list[float]:
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    done = subprocess.run([fork_server.programs(), str(PROGRAM), *arguments], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.splitlines()]


def test_a_training_that_takes_three_times_a_devices_memory_runs_on_four(tmp_path: Path) -> None:
    """Losses as on the CPU within rounding."""
    several = [option for _ in range(4) for option in ("--device", "cpu:0")]
    with standalone_worker(tmp_path, "--threads", "1", *several, memory_bytes=4 * DEVICE_MIB << 20) as (address, ticket):
        ours = losses("cuda", address, ticket)
    theirs = losses("cpu")
    assert len(ours) == len(theirs) == 6
    assert max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) < 1e-5
    assert theirs[-1] < theirs[0]
