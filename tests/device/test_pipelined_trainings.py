"""Several devices carry out a step in stages, a part of the batch after the other, and compute what one device computes."""

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
from likeness import differs
from pipelined_programs import PROGRAMS, STEPS
from rated_forebay_worker import FAST, SLOW
from standalone import standalone_worker

PROGRAM = Path(__file__).resolve().parent / "pipelined_programs.py"
RATED = PROGRAM.with_name("rated_forebay_worker.py")
MEMORY_BYTES = 256 << 20
GAIN = 0.85
"""Of the time that a step takes otherwise."""
Results = Callable[[int, str], dict[str, Any]]


def ran(folder: Path, devices: int, homes: str, *names: str, links: str = "", **wishes: str) -> dict[str, Any]:
    """What the programs tell that ask for nothing but ``wishes``. ``links``: bytes a second, where they are not to be measured."""
    folder.mkdir()
    program = (str(RATED), links) if links else ("-m", "forebay_worker")
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    environment = {**{name: value for name, value in os.environ.items() if name not in ("FOREBAY_URL", "FOREBAY_COMPILE")}, **wishes}
    options = ("--threads", "1", "--homes", homes, *several)
    with standalone_worker(folder, *options, memory_bytes=devices * MEMORY_BYTES, program=program) as reached:
        command = [fork_server.programs(), str(PROGRAM), *reached, *names]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def in_stages(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Programs whose steps are carried out in stages wherever they can be, whatever that costs."""
    folder = tmp_path_factory.mktemp("stages")
    return cache(lambda devices, homes: ran(folder / f"{homes}{devices}", devices, homes, *PROGRAMS))


def assert_alike(one: dict[str, Any]) -> None:
    wrong = [(ours, theirs) for ours, theirs in zip(one["ours"], one["theirs"], strict=True) if differs(ours, theirs)]
    assert not wrong, wrong[:5]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("devices", [2, *(pytest.param(more, marks=pytest.mark.full_sweep) for more in (3, 4))])
def test_a_training_in_stages_gives_what_the_cpu_gives(in_stages: Results, devices: int, name: str) -> None:
    one = in_stages(devices, "pipeline")[name]
    assert_alike(one)
    assert one["staged"] > STEPS / 2
    assert len(one["plan"]["pipeline"]["stages"]) == devices


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("devices", [4, pytest.param(6, marks=pytest.mark.full_sweep)])
def test_a_training_in_stages_of_several_devices_gives_what_the_cpu_gives(in_stages: Results, devices: int, name: str) -> None:
    """Each takes a part of the batch in turn, and they add up their gradients."""
    one = in_stages(devices, "mesh")[name]
    assert_alike(one)
    assert one["staged"] > STEPS / 2
    pipeline = one["plan"]["pipeline"]
    assert (len(pipeline["stages"]), pipeline["rows"]) == (2, devices // 2)


def taken_otherwise(plan: dict[str, Any]) -> float:
    """Nanoseconds."""
    (chosen,) = [one["step_ns"] for one in plan["considered"] if one["layout"] == plan["layout"]]
    return float(chosen)


@pytest.mark.parametrize("devices", [2, 4])
def test_stages_are_chosen_where_they_are_foretold_to_gain_much(tmp_path: Path, devices: int) -> None:
    names = ("deeper", "disturbed", "fails", "renewed", "slices", "chosen", "shuffled")
    found = ran(tmp_path / "worker", devices, "data-parallel", *names, links=SLOW)
    for one in found.values():
        assert_alike(one)
    plan = found["deeper"]["plan"]
    assert plan["pipeline"]["serves"] and plan["pipeline"]["step_ns"] < GAIN * taken_otherwise(plan)
    assert [name for name, one in found.items() if one["staged"] <= STEPS / 2] == []


def test_a_worker_that_is_to_have_no_libraries_has_no_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_COMPILE", "0")
    one = ran(tmp_path / "worker", 2, "data-parallel", "deeper", links=SLOW)["deeper"]
    assert_alike(one)
    assert one["staged"] == 0 and one["plan"]["pipeline"] is None


def test_stages_that_gain_little_are_not_used(tmp_path: Path) -> None:
    one = ran(tmp_path / "worker", 2, "data-parallel", "deep", links=FAST)["deep"]
    assert_alike(one)
    plan = one["plan"]
    assert one["staged"] == 0 and plan["layout"] == "data"
    assert plan["pipeline"] is None or (plan["pipeline"]["step_ns"] >= GAIN * taken_otherwise(plan) and not plan["pipeline"]["serves"])


@pytest.mark.parametrize(("devices", "homes"), [(2, "pipeline"), (4, "mesh")])
def test_masks_of_dropouts_are_those_of_one_device(tmp_path: Path, devices: int, homes: str) -> None:
    alone, several = (ran(tmp_path / f"{count}", count, homes, "dropouts")["dropouts"] for count in (1, devices))
    assert several["staged"] > STEPS / 2
    assert [differs(ours, theirs) for ours, theirs in zip(several["ours"], alone["ours"], strict=True)] == [False] * len(alone["ours"])


@pytest.mark.parametrize(("devices", "homes"), [(2, "pipeline"), pytest.param(4, "mesh", marks=pytest.mark.full_sweep)])
def test_a_program_that_asks_for_libraries_has_the_same_stages(tmp_path: Path, devices: int, homes: str) -> None:
    found = ran(tmp_path / "worker", devices, homes, "deep", "disturbed", "fails", "renewed", FOREBAY_COMPILE="1")
    for one in found.values():
        assert_alike(one)
    assert [name for name, one in found.items() if one["staged"] <= STEPS / 2] == []


def test_a_program_that_wants_no_libraries_or_what_is_deterministic_has_no_stages(tmp_path: Path) -> None:
    found = ran(tmp_path / "worker", 2, "pipeline", "deep", FOREBAY_COMPILE="0") | ran(tmp_path / "again", 2, "pipeline", "deterministic")
    for one in found.values():
        assert_alike(one)
    assert {name: one["staged"] for name, one in found.items()} == {"deep": 0, "deterministic": 0}


def test_a_loss_that_is_read_between_the_passes_is_right(tmp_path: Path) -> None:
    one = ran(tmp_path / "worker", 2, "pipeline", "reads_between")["reads_between"]
    assert_alike(one)


@pytest.mark.parametrize("wishes", [{}, {"FOREBAY_COMPILE": "1"}], ids=["nothing set", "libraries at once"])
def test_a_pipeline_is_held_against_the_calls_before_it_is_used(tmp_path: Path, wishes: dict[str, str]) -> None:
    """As sessions have it: what is predicted to be slower is not tried, and whatever is tried computes the same."""
    found = ran(tmp_path / "worker", 2, "data-parallel", *PROGRAMS, **wishes)
    for name, one in found.items():
        wrong = [(ours, theirs) for ours, theirs in zip(one["ours"], one["theirs"], strict=True) if differs(ours, theirs)]
        assert not wrong, (name, wrong[:5])
    assert not [why for one in found.values() for why in one["why"] if "computes something else" in why]
