"""Kernels in Triton (``@triton.jit``): lowered in the program, launched by the worker, or refused in one sentence."""

from __future__ import annotations

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fork_server
import pytest
from standalone import standalone_worker
from standin import build

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: pip install triton (190 MB)")
SECONDS_MAX = 300


def run(folder: Path, device: str, *more: str, kernels: bool = True) -> Any:
    """What ``triton_programs.py`` prints, on a worker of this device."""
    python = fork_server.standin(build.built()) if device.startswith("standin") else fork_server.services()
    options = ("--device", device, *(("--kernels",) if kernels else ()))
    with standalone_worker(folder, *options, memory_bytes=4 << 30, python=python) as (address, ticket):
        command = [fork_server.programs(), "triton_programs.py", address, ticket, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=Path(__file__).parent, check=False)
    said = (folder / "worker.log").read_text()
    assert done.returncode == 0, done.stderr + said
    assert "standin:" not in said, said
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(SECONDS_MAX + 60)
def test_kernels_are_launched_in_their_order_by_a_worker_that_takes_them(tmp_path: Path) -> None:
    """On the stand-in, which interprets what the worker compiled; a GPU runs the same kernels in ``bench/gpu/parts/kernels.py``."""
    told = run(tmp_path, "standin:0")
    assert told["in_order"] == [1.0, 2.0, 31.0, 34.0, 298.0, 198.0]
    assert told["autotuned"] == [398.0, 21.0]
    assert told["softmax"] < 1e-6
    assert told["graphed"] == [0.0, 3.0, 6.0]
    assert told["operator_of_ones_own"] == [9.0, 3.0, 9.0, 3.0]
    assert told["called_from_a_compiled_function"] == [4.0, 6.0]
    assert told["bit_types"] == [pytest.approx(0.7, rel=1e-3)]
    refused = told["refused"]
    assert refused["host"].startswith("ValueError: Pointer argument cannot be accessed from Triton")
    assert (
        "NotOnVirtualDevice: The Triton kernel scaled_sum" in refused["address"] and "has no address in this process" in refused["address"]
    )
    assert "num_ctas" in refused["clusters"]
    assert refused["after"] == 2.0


@pytest.mark.parametrize(
    ("device", "kernels", "why"),
    [
        ("cpu:0", True, "the host's processor, which runs no GPU kernels"),
        ("standin:0", False, "its operator can allow kernels of programs"),
    ],
)
def test_a_launch_is_refused_in_one_sentence_and_nothing_is_lost(tmp_path: Path, device: str, kernels: bool, why: str) -> None:
    told = run(tmp_path, device, "refused", kernels=kernels)
    assert len(told["told"]) == 2, "each launch says so"
    for sentence in told["told"]:
        assert sentence.startswith("The Triton kernel scaled_sum is not available on a Forebay virtual device: ")
        assert why in sentence and len(sentence.splitlines()) == 1
    assert told["x"] == [1.0] * 8
