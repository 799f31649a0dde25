"""What one device of the same total size can compute, several can: tensors find room, and so does what operators keep while they run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fork_server
import pytest
from standalone import standalone_worker

PROGRAMS = Path(__file__).resolve().parent / "full_memory.py"
DEVICES = 4


def said(folder: Path, devices: int, memory_mib: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """On so many devices of so much memory together."""
    folder.mkdir()
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    with standalone_worker(folder, "--threads", "1", *several, memory_bytes=memory_mib << 20) as reached:
        command: Sequence[str] = (fork_server.programs(), str(PROGRAMS), *arguments[:2], *reached, *arguments[2:])
        return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)


def found_by_one_and_several(folder: Path, memory_mib: int, *arguments: str) -> tuple[Any, Any]:
    """The losses and the sum of squares by one device, and by four of as much memory together."""
    found: list[Any] = []
    for devices in (1, DEVICES):
        done = said(folder / str(devices), devices, memory_mib, *arguments)
        assert done.returncode == 0, done.stderr
        (values,) = json.loads(done.stdout).values()
        found.append(values)
    one, several = found
    return one, several


LONG = [
    (memory_mib, model, optimizer)
    for memory_mib in (64, 256)
    for model in ("transformer", "resnet", "unet", "recurrent")
    for optimizer in ("fused", "foreach", "plain")
]
SHORT = {(64, "unet", "foreach"), (64, "recurrent", "foreach")}


@pytest.mark.parametrize(
    ("memory_mib", "model", "optimizer"),
    [pytest.param(*one, marks=() if one in SHORT else pytest.mark.full_sweep) for one in LONG],
)
def test_a_training_of_three_quarters_of_all_memory_fits_several_devices(
    tmp_path: Path, memory_mib: int, model: str, optimizer: str
) -> None:
    one, several = found_by_one_and_several(tmp_path, memory_mib, model, str(memory_mib * 3 // 4), optimizer)
    assert several["losses"] == pytest.approx(one["losses"], rel=2e-3, abs=1e-5)
    assert several["squares"] == pytest.approx(one["squares"], rel=1e-4)


def test_an_operator_that_keeps_more_than_is_free_gets_a_device_of_its_own(tmp_path: Path) -> None:
    """Each device has 4 MiB free of 16, and the operator is given 3.2 and keeps 9.6."""
    one, several = found_by_one_and_several(tmp_path, 64, "temporaries", "48")
    assert several["losses"] == pytest.approx(one["losses"], rel=2e-3, abs=1e-5)
    assert several["squares"] == pytest.approx(one["squares"], rel=1e-4)


def test_a_call_that_no_device_has_room_for_says_what_fits(tmp_path: Path) -> None:
    done = said(tmp_path / "four", DEVICES, 64, "temporaries", "300")
    assert done.returncode != 0
    told = done.stderr
    assert (
        "this virtual device's limit of 64.00 MiB" in told and "It consists of 4 devices of 16.00 MiB, the fullest of which holds" in told
    )
