"""What a loop is, by the code that decides it, over programs whose loops are known; and that each of its rules is needed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import forebay_wire
import pytest

SOURCES = Path(__file__).parents[2] / "device" / "csrc"
STEPS = {
    "few-layers": 3 * 2 + 1 + 3 * 2 + 3,
    "layers": 800 * 2 + 1 + 800 * 2 + 800,
    "micro-batches": 20 * (60 * 2 + 1 + 60 * 2) + 19 * 60 + 60,
    "short-micro-batches": 20 * (10 * 2 + 1 + 10 * 2) + 19 * 10 + 10,
    "time-steps": 900 * 2 + 1 + 900 * 3 - 1 + 1,
    "few-time-steps": 60 * 2 + 1 + 60 * 3 - 1 + 1,
    "batches": 20 * 2 + 1 + 20 * 2 + 20,
    "losses": 20 * 2 + 1 + 20 * 2 + 20 + 1,
    "inference": 1 + 1200 * 2 + 1,
}
"""Calls of a step of each program of ``check_repetition.cpp``."""


def compiled(*arguments: str | Path) -> None:
    compiler = shutil.which("g++")
    assert compiler, "g++ builds the extensions, so it must be here"
    flags = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-D_GLIBCXX_ASSERTIONS", f"-I{forebay_wire.include_dir()}", f"-I{SOURCES}"]
    subprocess.run([compiler, *flags, *map(str, arguments)], check=True, timeout=120)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``check_repetition.cpp``, compiled but for what decides."""
    compiled("-c", Path(__file__).with_name("check_repetition.cpp"), "-o", made := tmp_path_factory.mktemp("repetition") / "check.o")
    return made


def found(programs: Path, folder: Path, source: str, *for_libraries: str) -> dict[str, tuple[int, int]]:
    """Of each program the period, and where in a step it begins, with this text of ``repetition.cpp``."""
    changed, program = folder / "repetition.cpp", folder / "check"
    changed.write_text(source)
    compiled(programs, changed, "-o", program)
    printed = subprocess.run([program, *for_libraries], check=True, capture_output=True, text=True, timeout=60).stdout
    return {name: (int(period), int(offset)) for name, period, offset in (line.split() for line in printed.splitlines())}


@pytest.mark.parametrize("options", [(), ("for libraries",)], ids=str)
def test_a_round_of_the_loop_is_the_step_from_where_it_begins(programs: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    source = (SOURCES / "stream" / "repetition.cpp").read_text()
    assert found(programs, tmp_path, source, *options) == {name: (calls, 0) for name, calls in STEPS.items()}


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_steps_between_two_waits_are_rounds_and_what_one_repeats_within_is_none(programs: Path, tmp_path: Path, steps: int) -> None:
    long_enough = {name: calls for name, calls in STEPS.items() if (steps - 1) * calls >= 64}
    told = found(programs, tmp_path, (SOURCES / "stream" / "repetition.cpp").read_text(), str(steps))
    assert told == {name: (long_enough.get(name, 0), 0) for name in STEPS}


@pytest.mark.parametrize(
    ("rule", "without", "mistaken"),
    [
        (" || !keeps_storages(period, repeated)", "", {"inference"}),
        ("if (!settled || leaves_nothing(found))", "", {"micro-batches", "time-steps"}),
        ("if (exceeds(moments_[found.first].alive, now)) return false;", "", {"time-steps"}),
        ("return 2 * same >= old;", "return same == old;", {"batches"}),
    ],
)
def test_without_one_of_its_rules_what_a_step_repeats_within_is_taken_for_the_loop(
    programs: Path, tmp_path: Path, rule: str, without: str, mistaken: set[str]
) -> None:
    source = (SOURCES / "stream" / "repetition.cpp").read_text()
    assert rule in source
    told = found(programs, tmp_path, source.replace(rule, without))
    assert {name for name, (period, _) in told.items() if period != STEPS[name]} >= mistaken
