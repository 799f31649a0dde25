"""``make test-gpu`` as far as it can be tried without a GPU: each part rehearsed on the host, its reports, and what gets it to a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fork_server
import pytest
from forebay_pool.model.health import Reading
from gpu import smi, table, wheels
from gpu.checks import OutOfTime, Report
from gpu.figures import FIGURES, PARTS
from gpu.operators import compare
from gpu.parts import faults
from gpu.trial import NOT_REHEARSED

CHECKOUT = Path(__file__).resolve().parents[1]
REHEARSAL_SECONDS_MAX = 280
LONG = ("fidelity", "speed")
"""Parts that take as long as all others."""
SAID = {
    "uuid": "GPU-5b1c9e0e-0f0a-7a1f-8f7c-3d2a4d7e6b51",
    "celsius": "34",
    "used_mib": "4",
    "errors": "0",
    "mig": "Disabled",
    "compute_mode": "Default",
    "reasons": "0x0000000000000001",
}
"""As nvidia-smi answers for an idle device of a data centre."""


def report_of(part: str, folder: Path, seconds: float = 60.0, judged: bool = True) -> Report:
    return Report(part, folder, seconds, {"model": "H100", "torch": "2.11.0", "rehearsal": not judged}, judged)


def written(folder: Path, part: str) -> dict[str, Any]:
    """The checks of a part's file, by their names without the part."""
    content = json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
    return {check["name"].partition("/")[2]: check for check in content["checks"]}


@pytest.mark.slow
@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.full_sweep) if part in LONG else part for part in PARTS])
def test_each_part_runs_on_the_host_and_gives_all_its_figures(part: str, tmp_path: Path) -> None:
    """What fails here would cost minutes on a GPU. Only what needs one is skipped, and says so."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")} | {"PYTHONPATH": "bench"}
    command = [fork_server.programs(), "-m", "gpu", part, "--device", "cpu:0", "--results", str(tmp_path), "--seconds", "600"]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=REHEARSAL_SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checks = written(tmp_path, part)
    assert set(checks) == {figure.words for figure in FIGURES.values() if figure.part == part}
    reasons = {check["note"].partition(" (")[0] for check in checks.values() if check["status"] == "skipped"}
    assert reasons <= {
        NOT_REHEARSED, "a host has no device memory", "no NVML or nvidia-smi here", "built before", "each draws its own chance",
    }  # fmt: skip
    assert part in ("kernels", "faults") or [check for check in checks.values() if check["value"] is not None]


def test_a_bar_is_judged_and_every_check_is_in_the_file_at_once(tmp_path: Path) -> None:
    report = report_of("speed", tmp_path)
    report.take("step ÷ native eager, mlp", 1.2)
    report.take("step ÷ native eager, gpt2", 0.9, "a note")
    report.take("upload 256 MiB", 21.0)
    assert {name: check["status"] for name, check in written(tmp_path, "speed").items()} == {
        "step ÷ native eager, mlp": "failed",
        "step ÷ native eager, gpt2": "passed",
        "upload 256 MiB": "measured",
    }
    assert report.failures == 1


def test_a_rehearsal_judges_results_and_no_times(tmp_path: Path) -> None:
    speed, memory = report_of("speed", tmp_path, judged=False), report_of("memory", tmp_path, judged=False)
    speed.take("step ÷ native eager, mlp", 7.0)
    memory.take("the flavor's limit is kept", False)
    assert (speed.failures, memory.failures) == (0, 1)


def test_a_part_goes_on_after_an_error_and_after_its_time(tmp_path: Path) -> None:
    report = report_of("park", tmp_path, seconds=0.0)
    names = ["park 1 GB", "restore 1 GB", "park 10 GB", "park 40 GB"]
    with report.figures(*names[:2]):
        report.take(names[0], 0.1)
        raise RuntimeError("CUDA error")
    with report.figures(names[2]):
        report.need(5, "10 GB")
    with report.figures(names[3]):
        pass
    checks = written(tmp_path, "park")
    assert [checks[name]["status"] for name in names] == ["measured", "failed", "skipped", "failed"]
    assert checks["restore 1 GB"]["note"] == "RuntimeError: CUDA error"
    assert checks["park 10 GB"]["note"] == "10 GB would take about 5 s, and 0 s are left"
    assert checks["park 40 GB"]["note"] == "it did not come out"


def test_time_is_refused_only_where_it_lacks(tmp_path: Path) -> None:
    report = report_of("park", tmp_path, seconds=60.0)
    report.need(30, "1 GB")
    with pytest.raises(OutOfTime):
        report.need(90, "40 GB")


def test_a_figure_that_is_not_in_the_list_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        report_of("park", tmp_path).take("park 7 GB", 1.0)


def test_nvidia_smi_is_understood_and_what_it_does_not_know_is_none() -> None:
    assert smi.understood(SAID) == smi.Word(SAID["uuid"], 34, 4, 0, False, "Default", 1)
    hot = smi.understood(SAID | {"reasons": "0x0000000000000068", "errors": "[N/A]", "mig": "Enabled", "used_mib": "[Not Supported]"})
    assert hot.harmful == ["hardware slowdown", "software thermal slowdown", "hardware thermal slowdown"]
    assert (hot.errors, hot.mig, hot.used_mib) == (None, True, None)


def test_the_multi_process_service_is_found_by_its_processes(tmp_path: Path) -> None:
    for number, name in ((1, "init"), (20, "python3")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
    assert not smi.mps_runs(tmp_path)
    (tmp_path / "20" / "comm").write_text("nvidia-cuda-mps-control\n"[:15])
    assert smi.mps_runs(tmp_path)


def test_a_healthy_device_passes_and_each_difference_to_nvidia_smi_fails(tmp_path: Path) -> None:
    healthy = Reading("cuda:0", 35, 0, memory_used_bytes=5 * 2**20, uuid=SAID["uuid"])
    faults.hold(report_of("faults", tmp_path), healthy, smi.understood(SAID), mps=False)
    checks = written(tmp_path, "faults")
    assert {check["status"] for check in checks.values()} == {"passed", "measured"}
    assert len(checks) == len(faults.NAMES) - 2  # all but those for which kernels must run: the Xid, and energy
    sick = Reading("cuda:0", 99, 2, memory_used_bytes=900 * 2**20, uuid="GPU-other")
    worse = SAID | {"compute_mode": "Exclusive_Process", "reasons": "0x8", "mig": "Enabled"}
    faults.hold(report_of("faults", tmp_path), sick, smi.understood(worse), mps=True)
    checks = written(tmp_path, "faults")
    assert {name for name, check in checks.items() if check["status"] == "failed"} == {
        name for name in faults.NAMES if name not in ("MIG is on", "MPS is on", faults.XID, faults.ENERGY)
    }
    assert checks["the pool would lend the device"]["note"] == "2 memory errors were not corrected (ECC)"
    assert (checks["MIG is on"]["value"], checks["MPS is on"]["value"]) == (1, 1)


def test_results_that_chance_makes_are_not_compared_and_others_must_be_alike(tmp_path: Path) -> None:
    import torch

    one, close, other = torch.ones(3), torch.ones(3) * 1.0001, torch.zeros(3)
    files = {side: str(tmp_path / side) for side in ("virtual", "native", "again")}
    torch.save({"add": [[close]], "mul": [[other]], "rand": [[other]], "refused": ["error: RuntimeError"]}, files["virtual"])
    torch.save({"add": [[one]], "mul": [[one]], "rand": [[one]], "refused": ["error: RuntimeError"]}, files["native"])
    torch.save({"add": [[one]], "mul": [[one]], "rand": [[other]], "refused": ["error: RuntimeError"]}, files["again"])
    assert compare("cpu", "float32", **files) == {"compared": 2, "alike": 1, "different": {"mul": "other values"}}


def test_what_a_server_needs_is_what_our_packages_ask_for() -> None:
    names = {wheels.name_of(line) for line in wheels.requirements()}
    assert {
        "websockets",
        "pydantic",
        "pydantic-settings",
        "babel",
        "sqlalchemy",
        "tornado",
        "ninja",
        "pybind11",
        "setuptools",
        "nvidia-ml-py",
        "numpy",
        "expecttest",
    } <= names
    assert not [name for name in names if name == "torch" or name.startswith("forebay")]


def test_a_machine_without_a_gpu_is_told_so_in_one_sentence_and_nothing_is_built(tmp_path: Path) -> None:
    command = [sys.executable, "bench/gpu/host.py", "park", "--environment", str(tmp_path / "venv")]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no GPU: ") and done.stdout.count("\n") == 1
    assert not (tmp_path / "venv").exists()


def test_a_device_that_is_not_there_is_one_sentence_with_those_that_are(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpu", "park", "--device", "cuda:7", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT / "bench", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "there is no cuda:7 for PyTorch" in done.stderr and "it sees cpu:0, null:0" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_table_of_the_page_has_a_row_for_each_figure_and_takes_the_files(tmp_path: Path) -> None:
    page = table.PAGE.read_text(encoding="utf-8")
    rows = [line.split(" | ")[:2] for line in page.partition(table.BEGIN)[2].partition(table.END)[0].splitlines() if line.startswith("| ")][
        1:
    ]
    assert [f"{part.removeprefix('| ')}/{words}" for part, words in rows] == list(FIGURES)
    report = report_of("park", tmp_path)
    report.take("restore 1 GB ÷ plain pinned copy", 0.6)
    report.skip("park 40 GB", "the device has 20.0 GB free")
    made = table.filled(page, table.table(table.read(tmp_path)))
    assert "Measured on: H100, PyTorch 2.11.0." in made
    assert "| park | restore 1 GB ÷ plain pinned copy | 0.6 of its bandwidth | ≥ 0.7 of its bandwidth | missed |" in made
    assert "| park | park 40 GB | - s |  | skipped: the device has 20.0 GB free |" in made
    assert table.filled(made, table.table({})).count(table.UNMEASURED) == len(FIGURES)


def test_a_rehearsal_fills_no_table(tmp_path: Path) -> None:
    report_of("park", tmp_path, judged=False)
    with pytest.raises(table.TableError, match="rehearsal"):
        table.read(tmp_path)
