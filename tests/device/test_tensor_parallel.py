"""Several devices keep rows of weights where sums of gradients take longer, and compute what one device computes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import fork_server
import pytest
from likeness import differs
from sharded_programs import PROGRAMS
from standalone import standalone_worker

PROGRAM = Path(__file__).resolve().parent / "sharded_programs.py"
MEMORY_BYTES = 256 << 20


def ran(folder: Path, devices: int, *names: str, device_bytes: int = MEMORY_BYTES) -> Any:
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    with standalone_worker(folder, "--threads", "1", *several, memory_bytes=devices * device_bytes) as reached:
        command = [fork_server.programs(), str(PROGRAM), *reached, *names]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_alike(name: str, one: dict[str, Any]) -> None:
    wrong = [(ours, theirs) for ours, theirs in zip(one["ours"], one["theirs"], strict=True) if differs(ours, theirs)]
    assert not wrong, (name, wrong[:5])


@pytest.mark.parametrize("devices", [2, *(pytest.param(more, marks=pytest.mark.full_sweep) for more in (3, 4))])
def test_trainings_whose_weights_are_in_rows_give_what_the_cpu_gives(tmp_path: Path, devices: int) -> None:
    found = ran(tmp_path, devices, *PROGRAMS)
    for name, one in found.items():
        assert_alike(name, one)
    divided = {name: one["divided"] for name, one in found.items()}
    assert devices == 3 or sum(divided.values()) > 50 * len(divided), divided


@pytest.mark.full_sweep
def test_a_layer_that_is_larger_than_each_of_four_devices_trains_on_them(tmp_path: Path) -> None:
    """Weights, gradients and momentum take 126 MiB of 160; the wide layer's weight takes 42, and a device has 40."""
    found = ran(tmp_path, 4, "wide", device_bytes=40 << 20)
    assert_alike("wide", found["wide"])
    assert found["wide"]["divided"] > 50
    plan = found["wide"]["plan"]
    predicted = next(one["bytes"] for one in plan["considered"] if one["layout"] == plan["layout"])
    assert max(plan["bytes"]) == pytest.approx(predicted, rel=0.05)
