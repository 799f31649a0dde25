"""Several devices let go of what takes the least time to compute again, and train on batches whose activations they cannot hold."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fork_server
import pytest
from recomputed_gang_programs import PROGRAMS
from standalone import standalone_worker

PROGRAM = Path(__file__).resolve().parent / "recomputed_gang_programs.py"
ROOM = 2 << 30
STEPS = 9
"""The third batch is the first that is divided."""
SHARE = 0.6
"""Of the memory that a step takes, which the devices have together."""
Told = dict[str, Any]
Roomy = Callable[[str, int], Told]


def ran(folder: Path, name: str, devices: int, memory_bytes: int, recomputes: bool) -> Told:
    """What a program tells on so many devices with so much memory together; ``error``: what it raised."""
    folder.mkdir(parents=True)
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")}
    environment |= {"FOREBAY_RECOMPUTE": str(int(recomputes))}
    with standalone_worker(folder, "--threads", "1", *several, memory_bytes=memory_bytes) as reached:
        command = [fork_server.programs(), str(PROGRAM), *reached, name, str(STEPS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    if done.returncode:
        return {"error": done.stderr}
    told: Told = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Roomy:
    """Programs with as much memory as they like, without recomputation."""
    folder = tmp_path_factory.mktemp("roomy")
    return cache(lambda name, devices: ran(folder / f"{name}{devices}", name, devices, devices * ROOM, recomputes=False))


def assert_alike(ours: Told, theirs: Told) -> None:
    for part in ("losses", "held", "weights"):
        numbers, expected = ([float.fromhex(number) for number in told[part]] for told in (ours, theirs))
        assert numbers == pytest.approx(expected, rel=1e-10, abs=1e-10), part


MANY = [pytest.param(4, marks=pytest.mark.full_sweep)]


LARGE_CALLS = ("convolutions",)
"""Programs of which one call, whole, is more than a device of four holds: it is carried out by rows, also when it is again."""
BEYOND = [(2, name) for name in PROGRAMS]
BEYOND += [pytest.param(4, name, marks=() if name in LARGE_CALLS else pytest.mark.full_sweep) for name in PROGRAMS]


@pytest.mark.parametrize(("devices", "name"), BEYOND)
def test_training_beyond_the_memory_of_all_devices_gives_what_one_gives(tmp_path: Path, roomy: Roomy, devices: int, name: str) -> None:
    alone = roomy(name, 1)
    limit = int(alone["most_bytes"] * SHARE)
    assert "OutOfMemoryError" in ran(tmp_path / "kept", name, devices, limit, recomputes=False)["error"]
    ours = ran(tmp_path / "again", name, devices, limit, recomputes=True)
    assert "error" not in ours, ours["error"]
    assert_alike(ours, alone)
    assert ours["divided"] > ours["alone"], "each device computes on its rows"


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("devices", [2, *MANY])
def test_where_memory_suffices_bits_are_as_without_recomputation(tmp_path: Path, roomy: Roomy, devices: int, name: str) -> None:
    kept, ours = roomy(name, devices), ran(tmp_path / "again", name, devices, devices * ROOM, recomputes=True)
    assert {part: ours[part] for part in ("losses", "held", "weights")} == {part: kept[part] for part in ("losses", "held", "weights")}
    assert ours["divided"] == kept["divided"] > 0


def test_two_runs_let_go_of_the_same(tmp_path: Path, roomy: Roomy) -> None:
    """What is computed again is among the calls that devices divided."""
    limit = int(roomy("program", 1)["most_bytes"] * SHARE)
    one, other = (ran(tmp_path / run, "program", 2, limit, recomputes=True) for run in ("one", "other"))
    assert one == other
    assert one["divided"] > roomy("program", 2)["divided"]


JOLTED_MAX = 8


def test_a_device_that_lacks_memory_where_no_other_does_ends_no_training(tmp_path: Path) -> None:
    """The program hears of it, and takes the step again; also where tensors were being computed again."""
    found, again = [], 0
    for seed in range(JOLTED_MAX):
        jolted = (str(PROGRAM.with_name("jolted_forebay_worker.py")), str(seed)) if seed else ("-m", "forebay_worker")
        folder = tmp_path / str(seed)
        folder.mkdir()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")} | {"FOREBAY_RECOMPUTE": "1"}
        options = ("--threads", "1", "--device", "cpu:0", "--device", "cpu:0")
        with standalone_worker(folder, *options, memory_bytes=17_000_000, program=jolted) as reached:
            command = [fork_server.programs(), str(PROGRAM.with_name("retried_gang_programs.py")), *reached, "residuals", str(STEPS)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
        again += found[-1]["again"]
        if again > 1:
            break
    assert again > 0 and found[0]["again"] == 0
    for one in found[1:]:
        assert_alike(one | {"held": []}, found[0] | {"held": []})
