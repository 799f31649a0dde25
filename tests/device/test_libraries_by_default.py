"""Libraries that are there serve a program that asks for nothing, and two runs of it are the same to the bit, whatever dies."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fork_server
import pytest

PROGRAM = Path(__file__).with_name("served_training.py")
STEPS = 1200
SECONDS_MAX = 600
"""A compiler waits for a busy host."""
SERVED = [1, 2]
"""By tiers: of the two segments that the steps are, with a loss that is read and without, one has a library."""
OFTEN = {"FOREBAY_IMAGE_SECONDS": "0.05"}
SHORT_JOURNAL = {**OFTEN, "FOREBAY_JOURNAL_BYTES": "1500000"}
"""Of a part of the program: without an image it could not be done again."""
pytestmark = pytest.mark.timeout(2 * SECONDS_MAX)


def environment(cache: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "FOREBAY_URL": "local", "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", **more}


def outcome(cache: Path, *arguments: str, **more: str) -> dict[str, Any]:
    command, variables = [fork_server.programs(), str(PROGRAM), *arguments], environment(cache, **more)
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert run.returncode == 0, run.stderr
    told: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return told | {"said": run.stderr}


def notes(cache: Path) -> dict[Path, dict[str, Any]]:
    """Of libraries."""
    found = {path: json.loads(path.read_text()) for path in (cache / "forebay" / "libraries").rglob("*.json")}
    return {path: noted for path, noted in found.items() if "hash" in noted}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a library of the training's step, which is noted as quicker: whether it is depends on this host."""
    cache = tmp_path_factory.mktemp("cache")
    asks = environment(cache, FOREBAY_COMPILE="1", FOREBAY_COMPILE_AFTER="0")
    with subprocess.Popen(
        [fork_server.programs(), str(PROGRAM), "0", "0", "40", "resting"], env=asks, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as program:
        deadline = time.monotonic() + SECONDS_MAX
        while not notes(cache):
            assert program.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
    for path, noted in notes(cache).items():
        path.write_text(json.dumps(noted | {"takes": 0.5}))
    yield cache


@pytest.mark.full_sweep
def test_a_library_that_is_there_serves_and_each_run_is_the_same(warm: Path) -> None:
    served, again = outcome(warm, "0", "0", str(STEPS)), outcome(warm, "0", "0", str(STEPS))
    assert served["tiers"] == again["tiers"] == SERVED
    assert (served["losses"], served["weights"]) == (again["losses"], again["weights"])
    alone = outcome(warm, "0", "0", str(STEPS), FOREBAY_COMPILE="0")
    assert alone["tiers"] == [1] and served["losses"] != alone["losses"], "a library rounds otherwise"
    assert served["losses"] == pytest.approx(alone["losses"], rel=1e-3)


@pytest.mark.full_sweep
@pytest.mark.parametrize("journal", [{}, SHORT_JOURNAL], ids=["from the beginning", "from images"])
@pytest.mark.parametrize("seed", range(5))
def test_a_training_that_a_library_serves_goes_on_over_workers_that_are_killed(warm: Path, seed: int, journal: dict[str, str]) -> None:
    killed = outcome(warm, "2", str(seed), "0", **journal)
    assert killed["kills"] == 2 and (killed["images"] > 0 or not journal), killed["said"]
    alone = outcome(warm, "0", "0", str(killed["steps"]), **journal)
    assert killed["tiers"] == alone["tiers"] == SERVED
    assert (killed["losses"], killed["weights"]) == (alone["losses"], alone["weights"])


@pytest.mark.full_sweep
def test_a_program_that_asks_for_what_is_deterministic_has_no_library(warm: Path) -> None:
    steady, alone = (outcome(warm, "0", "0", "50", *more) for more in (("deterministic",), ()))
    assert steady["tiers"] == [1] and alone["tiers"] == SERVED
    assert steady["losses"] == outcome(warm, "0", "0", "50", FOREBAY_COMPILE="0")["losses"]


def test_without_a_library_a_run_is_carried_out_call_by_call_and_nothing_is_compiled_beside_it(tmp_path: Path) -> None:
    cold = outcome(tmp_path, "0", "0", str(STEPS), FOREBAY_COMPILE_AFTER="0.01")
    off = outcome(tmp_path, "0", "0", str(STEPS), FOREBAY_COMPILE="0")
    assert cold["tiers"] == off["tiers"] == [1]
    assert (cold["losses"], cold["weights"]) == (off["losses"], off["weights"]), "the same to the bit"
