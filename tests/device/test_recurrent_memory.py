"""Recurrent layers keep for their derivatives what there is room for; the rest is computed again, or in a way that takes less."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import fork_server
import pytest
from standalone import standalone_worker

PROGRAM = Path(__file__).resolve().parent / "recurrent_memory.py"
ROOM = 1 << 30


def trained(folder: Path, name: str, memory_bytes: int) -> dict[str, Any]:
    """What the program tells; ``error``: what it raised."""
    folder.mkdir()
    with standalone_worker(folder, "--device", "cpu:0", "--threads", "1", memory_bytes=memory_bytes) as reached:
        command = [fork_server.programs(), str(PROGRAM), *reached, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode:
        return {"error": done.stderr}
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def numbers_of(told: dict[str, Any]) -> list[float]:
    assert "error" not in told, told["error"]
    return [float.fromhex(number) for numbers in (told["losses"], *told["weights"]) for number in numbers]


@pytest.mark.parametrize(("name", "times"), [("long", 6), pytest.param("gated", 4, marks=pytest.mark.full_sweep)])
def test_what_layers_keep_goes_where_memory_is_short_and_gives_the_same_bits(tmp_path: Path, name: str, times: int) -> None:
    roomy = trained(tmp_path / "roomy", name, ROOM)
    tight = trained(tmp_path / "tight", name, times * roomy["most_bytes"])
    assert numbers_of(tight) == numbers_of(roomy)


def test_a_derivative_that_onednn_has_no_memory_for_is_computed_step_by_step(tmp_path: Path) -> None:
    roomy = trained(tmp_path / "roomy", "wide", ROOM)
    tight = trained(tmp_path / "tight", "wide", int(1.3 * roomy["most_bytes"]))
    assert numbers_of(tight) == pytest.approx(numbers_of(roomy), rel=1e-5)
    least = trained(tmp_path / "least", "wide", int(0.9 * roomy["most_bytes"]))
    assert "OutOfMemoryError" in least["error"]
