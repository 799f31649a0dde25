"""Training goes on over workers that are killed, bit for bit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from killed_training import PROGRAMS
from test_torchrun import asked, pool, until

PROGRAM = Path(__file__).with_name("killed_training.py")
KILLS = 4
OFTEN = {"FOREBAY_IMAGE_SECONDS": "0.05"}
SHORT_JOURNAL = {**OFTEN, "FOREBAY_JOURNAL_BYTES": "1500000"}
"""Of some seconds of a program: without an image it could not be done again."""
TIGHT_BYTES = 8_000_000
"""Two thirds of what the deep perceptron's step takes."""
FEW_KILLS = 2
"""Where several processes start anew after each, and in ``make test``."""


def outcome(run_python: Any, *arguments: str, **environment: str) -> Any:
    code = f"import runpy, sys; sys.argv = sys.argv[0:1] + {list(arguments)!r}; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    run = run_python(code, **{"FOREBAY_URL": "local"} | environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1]), run.stderr


def some(*quick: str) -> list[Any]:
    """All programs, of which the quick test plays some."""
    return [pytest.param(program, marks=[] if program in quick else pytest.mark.full_sweep) for program in PROGRAMS]


@pytest.mark.full_sweep
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_training_whose_workers_are_killed_computes_what_one_computes_that_is_left_alone(
    run_python: Any, program: str, full_sweep: bool
) -> None:
    kills = KILLS if full_sweep else FEW_KILLS
    for seed in range(20 if full_sweep else 1):
        killed, said = outcome(run_python, program, str(kills), str(seed), "0")
        assert killed["kills"] == kills, said
        alone, _ = outcome(run_python, program, "0", "0", str(killed["steps"]))
        assert (killed["losses"], killed["weights"]) == (alone["losses"], alone["weights"]), seed


@pytest.mark.parametrize("program", some("convolutions"))
def test_a_training_goes_on_from_images_however_long_it_has_run(run_python: Any, program: str, full_sweep: bool) -> None:
    journal = OFTEN if program == "large_upload" else SHORT_JOURNAL
    kills = KILLS if full_sweep else FEW_KILLS
    for seed in range(20 if full_sweep else 1):
        killed, said = outcome(run_python, program, str(kills), str(seed), "0", **journal)
        assert killed["kills"] == kills and killed["images"] > 0, said
        alone, _ = outcome(run_python, program, "0", "0", str(killed["steps"]))
        assert (killed["losses"], killed["weights"]) == (alone["losses"], alone["weights"]), seed


@pytest.mark.full_sweep
def test_a_worker_that_dies_in_the_middle_of_an_image_leaves_the_one_before(run_python: Any) -> None:
    killed, said = outcome(run_python, "large_upload", "3", "1", "0", "writing", **OFTEN)
    assert killed["kills"] == 3 and killed["images"] > 0, said
    alone, _ = outcome(run_python, "large_upload", "0", "0", str(killed["steps"]))
    assert (killed["losses"], killed["weights"]) == (alone["losses"], alone["weights"])


@pytest.mark.full_sweep
@pytest.mark.parametrize("images", [OFTEN, SHORT_JOURNAL, {}])
def test_a_training_beyond_its_memory_goes_on_over_workers_that_are_killed(run_python: Any, images: dict[str, str]) -> None:
    with pool(1) as environment:
        for name, memory_bytes in (("roomy", 2**30), ("tight", TIGHT_BYTES)):
            flavor = {"memory_bytes": memory_bytes, "equivalents": [{"model": "cpu-dev", "count": 1}]}
            asked(environment, f"api/flavors/{name}", "PUT", flavor)
        there = {name: environment[name] for name in ("FOREBAY_URL", "FOREBAY_TOKEN", "FOREBAY_TEST_POOL")}
        for seed in range(3):
            tight = there | {"FOREBAY_FLAVOR": "tight", "FOREBAY_RECOMPUTE": "1"}
            killed, said = outcome(run_python, "deep", str(KILLS), str(seed), "0", **tight, **images)
            assert killed["kills"] == KILLS and (killed["images"] > 0 or not images), said
            alone, _ = outcome(run_python, "deep", "0", "0", str(killed["steps"]), **there, FOREBAY_FLAVOR="roomy")
            assert (killed["losses"], killed["weights"]) == (alone["losses"], alone["weights"]), seed
            until(lambda: not asked(environment, "api/sessions"))


GANGS = [
    (2, "wide", SHORT_JOURNAL),
    pytest.param(2, "perceptron", SHORT_JOURNAL, marks=pytest.mark.full_sweep),
    pytest.param(4, "wide", SHORT_JOURNAL, marks=pytest.mark.full_sweep),
    pytest.param(2, "perceptron", {}, marks=pytest.mark.full_sweep),
    pytest.param(4, "perceptron", {}, marks=pytest.mark.full_sweep),
]


@pytest.mark.parametrize(("count", "program", "images"), GANGS)
def test_a_session_with_several_devices_goes_on_whichever_of_their_processes_is_killed(
    run_python: Any, count: int, program: str, images: dict[str, str], full_sweep: bool
) -> None:
    with pool(count) as environment:
        gang = {"memory_bytes": 2**30, "equivalents": [{"model": "cpu-dev", "count": count}]}
        asked(environment, "api/flavors/gang", "PUT", gang)
        there = {name: environment[name] for name in ("FOREBAY_URL", "FOREBAY_TOKEN", "FOREBAY_TEST_POOL")} | {"FOREBAY_FLAVOR": "gang"}
        for seed in range(20 if full_sweep else 1):
            killed, said = outcome(run_python, program, str(FEW_KILLS), str(seed), "0", **there, **images)
            assert killed["kills"] == FEW_KILLS and (killed["images"] > 0 or not images), said
            alone, _ = outcome(run_python, program, "0", "0", str(killed["steps"]), **there)
            assert (killed["losses"], killed["weights"]) == (alone["losses"], alone["weights"]), seed
            until(lambda: not asked(environment, "api/sessions"))
            until(lambda: all(row["state"] == "free" for row in asked(environment, "api/devices")))


def test_a_process_that_keeps_nothing_hears_that_its_tensors_are_lost(run_python: Any) -> None:
    code = f"""
import runpy, sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
import os, signal, torch, killed_training
x = torch.ones(1000, device="cuda:0")
print(x.sum().item())
for pid in killed_training.workers():
    os.kill(pid, signal.SIGKILL)
try:
    print(x.sum().item())
except RuntimeError as error:
    print("lost", error)
"""
    run = run_python(code, FOREBAY_URL="local", FOREBAY_JOURNAL_BYTES="1")
    assert run.stdout.splitlines()[0] == "1000.0" and run.stdout.splitlines()[1].startswith("lost"), (run.stdout, run.stderr, sys.path)
