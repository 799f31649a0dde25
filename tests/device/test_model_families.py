"""What people train, on one `cuda:0` that is several devices: the losses are those of one device."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import fork_server
import pytest
from model_families import FAMILIES
from standalone import standalone_worker

PROGRAM = Path(__file__).resolve().parent / "model_families.py"
MEMORY_BYTES = 256 << 20
FEW = ("t5", "llama with lora", "u-net", "lstm", "gan", "graph network")
"""Of these few steps are tried in each run of the tests, and all steps of all families in a full sweep."""


def losses(folder: Path, devices: int, steps: int, families: tuple[str, ...]) -> Any:
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    with standalone_worker(folder, "--threads", "1", *several, memory_bytes=devices * MEMORY_BYTES) as reached:
        command = [fork_server.programs(), str(PROGRAM), str(steps), *reached, *families]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_family_is_trained_on_several_devices_as_on_one(tmp_path_factory: pytest.TempPathFactory, full_sweep: bool) -> None:
    steps, families, numbers = (50, tuple(FAMILIES), (2, 4)) if full_sweep else (10, FEW, (2,))
    on_one = losses(tmp_path_factory.mktemp("worker"), 1, steps, families)
    assert all(expected[-1] != expected[0] for expected in on_one.values())
    for devices in numbers:
        ours = losses(tmp_path_factory.mktemp("worker"), devices, steps, families)
        for family, expected in on_one.items():
            assert len(expected) == steps, family
            assert ours[family] == pytest.approx(expected, rel=1e-3), (family, devices)
