"""Trainings on several devices that recompute, or go in stages, go on whatever is done to their sessions meanwhile.

A process of theirs is killed, or their lease is taken back and they are parked: the bits are the same. Or they are moved to other
devices: they round otherwise from there.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from test_pipelines_by_default import IN_STAGES, interpreter
from test_torchrun import asked, pool, until
from test_worker_deaths import SHORT_JOURNAL, outcome

KILLS, DISTURBANCES = 2, 6
STEPS = 150
STEPS_ALIKE = 75
"""For so many, a change of the last bit stays below 1e-5 in the losses. By the 120th step it grows to 1e-2, on a CPU too."""
PAUSE_SECONDS = (0.2, 0.8)
"""Between two disturbances."""
GANGS: dict[str, tuple[int, str, int, dict[str, str]]] = {
    "recomputed": (2, "deep", 8_000_000, {"FOREBAY_RECOMPUTE": "1"}),
    "recomputed on four": (4, "deep", 10_000_000, {"FOREBAY_RECOMPUTE": "1"}),
    "in stages": (2, "stack", 2**30, {}),
    "in stages for want of memory": (4, "large_stack", 80 << 20, {}),
}
"""By name: devices, program, bytes that the devices have together, what is set."""
IMAGES = [SHORT_JOURNAL, pytest.param({}, marks=pytest.mark.full_sweep)]


def names(quick: str, among: str = "") -> list[Any]:
    """All whose name has ``among``; with ``--full-sweep`` alone but for one. Stages that are killed: ``test_pipelines_by_default.py``."""
    found = [name for name in GANGS if among in name]
    return [name if name == quick else pytest.param(name, marks=pytest.mark.full_sweep) for name in found]


@contextmanager
def gang(folder: Path, name: str, devices: int) -> Iterator[dict[str, str]]:
    """What the program needs to know of a pool that has so many devices, and a flavor of the gang's."""
    count, _, memory_bytes, wishes = GANGS[name]
    rated = f'worker_python = "{interpreter(folder, "data-parallel")}"\n' if name == "in stages" else ""
    with pool(devices, rated) as environment:
        flavor = {"memory_bytes": memory_bytes, "equivalents": [{"model": "cpu-dev", "count": count}]}
        asked(environment, "api/flavors/gang", "PUT", flavor)
        there = {variable: environment[variable] for variable in ("FOREBAY_URL", "FOREBAY_TOKEN", "FOREBAY_TEST_POOL")}
        yield {**there, **wishes, "FOREBAY_FLAVOR": "gang"}


class Disturber:
    """Takes the session's lease back (``revoke``), or moves it (``move``), at moments of chance."""

    def __init__(self, there: dict[str, str], way: str, seed: int) -> None:
        self.done, self._way = 0, way
        self._there, self._chance = there, random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while self.done < DISTURBANCES and not self._over.wait(self._chance.uniform(*PAUSE_SECONDS)):
            active = [row for row in asked(self._there, "api/sessions") if row["state"] == "active"]
            try:
                for row in active:
                    asked(self._there, f"api/sessions/{row['session']}/{self._way}", "POST")
                    self.done += 1
            except HTTPError:  # the lease has just ended
                continue


def assert_same(found: Any, alone: Any, name: str) -> None:
    assert (found["losses"], found["weights"]) == (alone["losses"], alone["weights"])
    if "stages" in name:
        assert found["tiers"][-1] == alone["tiers"][-1] == IN_STAGES


@pytest.mark.parametrize("images", IMAGES, ids=["images", "no images"])
@pytest.mark.parametrize("name", names("recomputed"))
def test_it_goes_on_whichever_process_is_killed(
    run_python: Any, tmp_path: Path, name: str, images: dict[str, str], full_sweep: bool
) -> None:
    count, program, *_ = GANGS[name]
    with gang(tmp_path, name, count) as there:
        for seed in range(6 if full_sweep else 1):
            killed, said = outcome(run_python, program, str(KILLS), str(seed), "0", **there, **images)
            assert killed["kills"] == KILLS and (killed["images"] > 0 or not images), said
            alone, _ = outcome(run_python, program, "0", "0", str(killed["steps"]), **there)
            assert_same(killed, alone, name)
            until(lambda: not asked(there, "api/sessions"))


def disturbed(run_python: Any, folder: Path, name: str, way: str, seeds: int, steps: int = STEPS) -> Iterator[tuple[Any, Any]]:
    """What the program says that was disturbed, and what it says that was not. There are other devices only for one that is moved."""
    count, program, *_ = GANGS[name]
    with gang(folder, name, 2 * count if way == "move" else count) as there:
        alone, _ = outcome(run_python, program, "0", "0", str(steps), **there)
        for seed in range(seeds):
            until(lambda: not asked(there, "api/sessions"))
            disturber = Disturber(there, way, seed)
            try:
                found, _ = outcome(run_python, program, "0", "0", str(steps), **there)
            finally:
                disturber.stop()
            assert disturber.done > 1
            yield found, alone


@pytest.mark.parametrize("name", names("recomputed"))
def test_it_computes_the_same_when_it_is_parked_again_and_again(run_python: Any, tmp_path: Path, name: str, full_sweep: bool) -> None:
    for found, alone in disturbed(run_python, tmp_path, name, "revoke", 6 if full_sweep else 1):
        assert_same(found, alone, name)


@pytest.mark.parametrize("name", names("in stages", "stages"))
def test_it_goes_on_where_it_was_when_it_is_moved(run_python: Any, tmp_path: Path, name: str, full_sweep: bool) -> None:
    for found, alone in disturbed(run_python, tmp_path, name, "move", 6 if full_sweep else 1, STEPS_ALIKE):
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-4)
