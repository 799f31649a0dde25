"""Ordinary loops in float64 give on several devices behind one `cuda:0` what the CPU gives: losses, statistics and weights."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import fork_server
import pytest
from standalone import standalone_worker

HERE = Path(__file__).resolve().parent
MEMORY_BYTES = 256 << 20
ORDINARY = """
cross entropy with padding; evaluation of batches that are all padding; cross entropy in all its ways; negative log likelihoods;
regression losses; losses of probabilities; divergences; losses of pixels; connectionist temporal classification; pairs of a batch;
triplets and distances; running minima and maxima; quantisation to bytes; advantages that are normalised; norms whose power changes;
metrics of an evaluation; graph networks; experts by routes; tables of embeddings; mixtures of rows; batch norms;
batch norms of huge numbers; weights that come anew; norms of each row; dropouts; recurrent layers; images down and up;
attention with padding; tokens of one sequence; gradients that are gathered and clipped; averages of weights;
slices of images; slices in any order; blocks of text; slices of words
"""
MORE = """
cross entropy with probabilities; order of a batch; whitening and correlations; clusters of batches;
statistics of rewards and observations; values of actions; sequences that are packed; sequences with time in front; pooled graphs;
gradients of each row; gradients of gradients; autoencoders with codes; waves and spectra; language model of a trainer;
classifier of lightning
"""
LOOPS = [name.strip() for name in ORDINARY.split(";")]
SWEEP = [name.strip() for name in MORE.split(";")]
RESULTS_MAX, WEIGHTS_MAX = 1e-12, 1e-9
"""How far a loop's losses and its weights may be from the CPU's."""
IN_SINGLE_PRECISION = {"language model of a trainer": 1e-6}  # the library computes the loss so, whatever the model's dtype
DIVIDED_MIN = 30
"""Calls that are divided in each loop."""
Results = Callable[[int], dict[str, Any]]


def cases() -> Iterator[Any]:
    """Thirty loops on two devices, and a third of them on three and on four; all by ``--full-sweep``."""
    for devices in (2, 3, 4):
        for index, name in enumerate((*LOOPS, *SWEEP)):
            often = index < len(LOOPS) and (devices == 2 or index % 3 == 1)
            yield pytest.param(devices, name, id=f"{name}, {devices}", marks=[] if often else [pytest.mark.full_sweep])


def carried_out(folder: Path, devices: int, names: list[str], homes: str = "data-parallel") -> dict[str, Any]:
    """Of the loops by name, in one process on one worker; those after one that fails are missing."""
    folder.mkdir()
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    with standalone_worker(folder, "--threads", "1", "--homes", homes, *several, memory_bytes=devices * MEMORY_BYTES) as reached:
        command = [fork_server.programs(), str(HERE / "divided_loops.py"), *reached, *names]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    results: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        results |= json.loads(line)
    for name in names[len(results) :]:
        results[name] = {"failure": done.stderr}
    return results


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Of all loops that are tested, by the number of devices."""
    chosen = [item.callspec.params for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]

    @cache
    def of(devices: int) -> dict[str, Any]:
        names = [params["name"] for params in chosen if "name" in params and params["devices"] == devices] if devices > 1 else ["dropouts"]
        return carried_out(tmp_path_factory.mktemp("loops") / "worker", devices, names)

    return of


@pytest.mark.parametrize(("devices", "name"), list(cases()))
def test_a_loop_gives_what_the_cpu_gives(results: Results, devices: int, name: str) -> None:
    found = results(devices)[name]
    assert "failure" not in found, found["failure"]
    assert found["divided"] >= DIVIDED_MIN and found["numbers"] > 20
    assert not [operator for operator in found["whole"] if "attention" in operator]
    if name == "dropouts":  # the CPU draws other masks
        assert found["values"] == pytest.approx(results(1)[name]["values"], rel=1e-11, abs=1e-14)
        return
    assert found["results"] <= IN_SINGLE_PRECISION.get(name, RESULTS_MAX)
    assert found["weights"] <= WEIGHTS_MAX


STAGED = [(2, "pipeline"), pytest.param(3, "pipeline", marks=pytest.mark.full_sweep), pytest.param(4, "mesh", marks=pytest.mark.full_sweep)]


@pytest.mark.parametrize(("devices", "homes"), STAGED)
def test_loops_whose_steps_are_in_stages_wherever_they_can_be_give_what_the_cpu_gives(
    tmp_path: Path, devices: int, homes: str, full_sweep: bool
) -> None:
    names = [name for index, name in enumerate(LOOPS) if name != "dropouts" and (full_sweep or index % 3 == 0 or "slices" in name)]
    found = carried_out(tmp_path / "worker", devices, names, homes)
    assert {name: one["failure"] for name, one in found.items() if "failure" in one} == {}
    assert {name: one["results"] for name, one in found.items() if not one["results"] <= RESULTS_MAX} == {}
    assert {name: one["weights"] for name, one in found.items() if not one["weights"] <= WEIGHTS_MAX} == {}
