"""One `cuda:0` that is several devices: each computes on its rows of a batch, and what comes of it is what one device gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fork_server
import psutil
import pytest
from data_parallel_programs import MODELS
from standalone import standalone_worker

PROGRAMS = Path(__file__).resolve().parent / "data_parallel_programs.py"
MEMORY_BYTES = 256 << 20
SEEDS = 40


@contextmanager
def running(folder: Path, devices: int, python: str | None = None, memory_bytes: int = MEMORY_BYTES) -> Iterator[tuple[str, str]]:
    """A worker of so many devices, each of so much memory."""
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    with standalone_worker(folder, "--threads", "1", *several, memory_bytes=devices * memory_bytes, python=python) as reached:
        yield reached


def said(*arguments: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    done = subprocess.run([fork_server.programs(), str(PROGRAMS), *arguments], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def trained(folder: Path, devices: int) -> Any:
    with running(folder, devices) as reached:
        return said("train", "16", *reached, *MODELS)


@pytest.fixture(scope="module")
def on_one(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Losses and squares of the parameters' norms of each model, trained on one device."""
    return trained(tmp_path_factory.mktemp("one"), 1)


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.full_sweep)])
def test_a_training_on_several_devices_gives_what_one_gives(tmp_path: Path, on_one: Any, devices: int) -> None:
    ours = trained(tmp_path, devices)
    for model in MODELS:
        (our_losses, our_squares), (losses, squares) = ours[model], on_one[model]
        assert our_losses == pytest.approx(losses, rel=1e-4), model
        assert our_squares == pytest.approx(squares, rel=1e-3, abs=1e-6), model
        assert len(losses) == 11, model


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.full_sweep), 4])
def test_random_programs_give_what_one_device_gives(tmp_path: Path, devices: int, full_sweep: bool) -> None:
    with running(tmp_path, devices) as reached:
        assert said("random", str(400 if full_sweep else 20), *reached) == []


@pytest.mark.parametrize(
    ("devices", "memory_mib"),
    [pytest.param(2, 256, marks=pytest.mark.full_sweep), (2, 26), pytest.param(4, 14, marks=pytest.mark.full_sweep)],
)
def test_random_updates_of_lists_give_what_one_device_gives(tmp_path: Path, devices: int, memory_mib: int, full_sweep: bool) -> None:
    """In little memory most of what is there is on one device at a time."""
    with running(tmp_path, devices, memory_bytes=memory_mib << 20) as reached:
        assert said("updates", str(200 if full_sweep else 10), *reached) == []


def seconds(process: psutil.Process) -> float:
    """Of the processors that the process has taken."""
    times = process.cpu_times()
    return float(times.user + times.system)


def test_each_device_computes_on_its_part_of_a_batch(tmp_path: Path) -> None:
    """By the processors' time of the workers' processes: the first one computes alone until a batch was found."""
    with running(tmp_path, 2, sys.executable) as reached:
        said("train", "4096", *reached, "perceptron")
        ours = (process for process in psutil.Process().children() if process.status() != psutil.STATUS_ZOMBIE)
        first = next(process for process in ours if reached[0] in process.cmdline())
        (other,) = first.children()
        assert seconds(other) > 0.2 * seconds(first)


def test_a_profile_tells_what_was_divided_and_what_ran_on_one_device(tmp_path: Path) -> None:
    with running(tmp_path, 2) as reached:
        found = said("profile", "256", *reached, "batch norm", "convolutions")
    (gang,) = found["batch norm"]["profile"]["gangs"]
    assert (gang["device"], gang["devices"]) == (0, 2)
    assert gang["divided"]["ns"] > 0 and gang["copies"]["ns"] > 0
    assert gang["divided"]["ns"] + gang["copies"]["ns"] + gang["alone_ns"] < found["batch norm"]["profile"]["wall_ns"]
    alone = {(one["operator"], one["reason"]) for one in gang["alone"]}
    assert ("aten::convolution", "no_batch") in alone and {reason for _, reason in alone} == {"no_batch"}
    assert [one["ns"] for one in gang["alone"]] == sorted((one["ns"] for one in gang["alone"]), reverse=True)
    assert "| The 2 devices of cuda:0" in found["batch norm"]["text"]
    told = [line for line in found["batch norm"]["text"].splitlines() if line.startswith("| aten::convolution_backward ")]
    assert any("no batch of rows had come again" in line for line in told)
    (other,) = found["convolutions"]["profile"]["gangs"]
    assert not any("native_batch_norm" in one["operator"] for one in other["alone"]), "of this profile's stretch alone"


def test_batch_norms_and_dropouts_are_divided(tmp_path: Path) -> None:
    """They run on one device alone before a batch was found."""
    with running(tmp_path, 2) as reached:
        found = said("profile", "16", *reached, "batch norm", "attention with dropout")
    norms, dropouts = {"aten::native_batch_norm", "aten::native_batch_norm_backward"}, {"aten::native_dropout"}
    for model, operators in (("batch norm", norms), ("attention with dropout", dropouts)):
        (gang,) = found[model]["profile"]["gangs"]
        for operator in operators:
            reasons = {one["reason"] for one in gang["alone"] if one["operator"] == operator}
            assert reasons <= {"no_batch"}, operator


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.full_sweep)])
def test_what_is_composed_of_several_calls_is_what_one_device_gives(tmp_path: Path, devices: int) -> None:
    """Masks and draws bit for bit; batch norms of all kinds, with their running statistics, within rounding."""
    one, several = tmp_path / "one", tmp_path / "several"
    one.mkdir()
    several.mkdir()
    with running(one, 1) as reached:
        expected = said("states", "16", *reached)
    with running(several, devices) as reached:
        found = said("states", "16", *reached)
    assert found["masks"] == expected["masks"]
    assert found["norms"].keys() == expected["norms"].keys()
    for name, values in expected["norms"].items():
        tolerance = 5e-2 if "autocast" in name else 1e-4
        assert found["norms"][name] == pytest.approx(values, rel=tolerance, abs=tolerance), name


def test_a_profile_of_one_device_tells_of_no_gang(tmp_path: Path) -> None:
    with running(tmp_path, 1) as reached:
        found = said("profile", "16", *reached, "perceptron")["perceptron"]
    assert found["profile"]["gangs"] == [] and "devices of cuda" not in found["text"]


@pytest.mark.parametrize(
    ("devices", "optimizer", "layers", "memory_mib"),
    [
        pytest.param(2, "adam", "8 layers", 256, id="with room for copies", marks=pytest.mark.full_sweep),
        pytest.param(2, "adam", "8 layers", 124, id="with room for one copy and a part of the states", marks=pytest.mark.full_sweep),
        pytest.param(2, "fused", "8 layers", 84, id="with room for a half of all and two layers", marks=pytest.mark.full_sweep),
        pytest.param(4, "momentum", "15 layers", 64, id="of three times a device's memory"),
        pytest.param(4, "fused", "8 layers", 64, id="of more than half of all memory, fused", marks=pytest.mark.full_sweep),
        pytest.param(4, "adam", "8 layers", 64, id="of more than half of all memory", marks=pytest.mark.full_sweep),
    ],
)
def test_devices_share_states_and_more_where_memory_is_short(
    tmp_path: Path, devices: int, optimizer: str, layers: str, memory_mib: int
) -> None:
    """The parameters are 36 MiB of 8 layers and 64 of 15, gradients and each state as much; each device updates its part."""
    with running(tmp_path, 1, memory_bytes=1 << 30) as reached:
        one = said(optimizer, "64", *reached, layers)[layers]
    with running(tmp_path, devices, memory_bytes=memory_mib << 20) as reached:
        several = said(optimizer, "64", *reached, layers)[layers]
    assert several["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert several["squares"] == pytest.approx(one["squares"], rel=1e-3, abs=1e-6)
    (gang,) = several["profile"]["gangs"]
    assert {cause["reason"] for cause in gang["alone"]} <= {"no_batch", "kept"}, "no device lacked room"
    updates = {cause["operator"] for cause in gang["alone"] if cause["reason"] != "no_batch"}
    assert not [operator for operator in updates if operator.startswith(("aten::_foreach", "aten::_fused"))]


@pytest.mark.parametrize(
    ("model", "rows", "devices"),
    [
        pytest.param("images", 32, 2, marks=pytest.mark.full_sweep),
        ("images", 32, 4),  # a batch norm's gradient alone takes more than one of them has
        pytest.param("autoencoder", 256, 2, marks=pytest.mark.full_sweep),
        ("autoencoder", 256, 4),  # its two large layers are in rows, the others with owners
        pytest.param("tables", 64, 2, marks=pytest.mark.full_sweep),
        ("tables", 64, 4),  # one of them with its states is more than a device has
        pytest.param("one large layer", 32, 2, marks=pytest.mark.full_sweep),
        ("one large layer", 32, 4),  # as is the layer
    ],
)
def test_what_takes_three_quarters_of_all_memory_trains(tmp_path: Path, model: str, rows: int, devices: int) -> None:
    with running(tmp_path, 1, memory_bytes=1 << 30) as reached:
        losses, peak = said("tight", str(rows), *reached, model)[model]
    with running(tmp_path, devices, memory_bytes=int(peak / 0.75 / devices)) as reached:
        assert said("tight", str(rows), *reached, model)[model][0] == pytest.approx(losses, rel=1e-4)
