"""A program that asks for nothing trains in stages of several devices, and each run is the same to the bit, whatever dies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_torchrun import asked, pool, until
from test_worker_deaths import OFTEN, SHORT_JOURNAL, outcome

WORKER = Path(__file__).with_name("rated_forebay_worker.py")
LINKS = "1e7"
"""Bytes a second: so few that stages are quicker than all else."""
MEMORY_BYTES = 2**30
KILLS = 2
CALL_BY_CALL, IN_STAGES = 1, 2
"""Tiers."""
NAMES = ("FOREBAY_URL", "FOREBAY_TOKEN", "FOREBAY_TEST_POOL")


def interpreter(folder: Path, homes: str) -> Path:
    """Starts the pool's workers as if links were slow, so that stages are chosen for a deep model; by other ``homes`` for any."""
    found, python = folder / "python", sys.executable
    rated = f'case "$*" in *--pool*) shift 2; exec {python} {WORKER} {LINKS} "$@" --homes {homes};; esac'
    lines = ("#!/bin/sh", rated, f'exec {python} "$@"', "")
    found.write_text("\n".join(lines))
    found.chmod(0o755)
    return found


@contextmanager
def staged(folder: Path, count: int, homes: str) -> Iterator[dict[str, str]]:
    """A pool whose flavor has so many devices."""
    with pool(count, f'worker_python = "{interpreter(folder, homes)}"\n') as environment:
        gang = {"memory_bytes": MEMORY_BYTES, "equivalents": [{"model": "cpu-dev", "count": count}]}
        asked(environment, "api/flavors/gang", "PUT", gang)
        yield environment


def there(environment: dict[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in NAMES} | {"FOREBAY_FLAVOR": "gang"}


GANGS = [
    (2, "data-parallel", "stack", SHORT_JOURNAL),
    pytest.param(2, "data-parallel", "stack", {}, marks=pytest.mark.full_sweep),
    pytest.param(4, "data-parallel", "stack", SHORT_JOURNAL, marks=pytest.mark.full_sweep),
    pytest.param(4, "mesh", "deep", SHORT_JOURNAL, marks=pytest.mark.full_sweep),
    pytest.param(4, "mesh", "deep", {}, marks=pytest.mark.full_sweep),
    pytest.param(2, "pipeline", "wide", SHORT_JOURNAL, marks=pytest.mark.full_sweep),
    pytest.param(2, "pipeline", "large_upload", OFTEN, marks=pytest.mark.full_sweep),
]


@pytest.mark.parametrize(("count", "homes", "program", "images"), GANGS)
def test_a_training_in_stages_goes_on_whichever_process_is_killed(
    run_python: Any, tmp_path: Path, count: int, homes: str, program: str, images: dict[str, str], full_sweep: bool
) -> None:
    with staged(tmp_path, count, homes) as environment:
        for seed in range(10 if full_sweep else 1):
            killed, said = outcome(run_python, program, str(KILLS), str(seed), "0", **there(environment), **images)
            assert killed["kills"] == KILLS and (killed["images"] > 0 or not images), said
            alone, _ = outcome(run_python, program, "0", "0", str(killed["steps"]), **there(environment))
            assert killed["tiers"][-1] == alone["tiers"][-1] == IN_STAGES
            assert (killed["losses"], killed["weights"]) == (alone["losses"], alone["weights"]), seed
            until(lambda: not asked(environment, "api/sessions"))
            until(lambda: all(row["state"] == "free" for row in asked(environment, "api/devices")))


def test_two_runs_are_the_same_and_round_otherwise_than_the_calls_one_by_one(run_python: Any, tmp_path: Path) -> None:
    with staged(tmp_path, 2, "data-parallel") as environment:
        one, other = (outcome(run_python, "stack", "0", "0", "30", **there(environment))[0] for _ in range(2))
        by_calls, _ = outcome(run_python, "stack", "0", "0", "30", **there(environment), FOREBAY_COMPILE="0")
    assert [run["tiers"][-1] for run in (one, other, by_calls)] == [IN_STAGES, IN_STAGES, CALL_BY_CALL]
    assert (one["losses"], one["weights"]) == (other["losses"], other["weights"])
    assert one["weights"] != by_calls["weights"] and one["losses"] == pytest.approx(by_calls["losses"], rel=1e-3)
