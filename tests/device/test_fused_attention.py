"""Which attention kernel is recorded for what a worker's PyTorch would take. A null device stands for a GPU: it says nothing of values."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import fork_server
import pytest
from standalone import standalone_worker
from torch.nn.attention import SDPBackend

PROGRAM = Path(__file__).resolve().parent / "fused_attention.py"
FLASH, EFFICIENT, CUDNN, MATH = (
    int(one) for one in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH)
)


def told(folder: Path, device: str, *choice: int) -> Any:
    """What the program prints with a worker on this device."""
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    with standalone_worker(folder, "--device", device) as (address, ticket):
        run = [fork_server.programs(), str(PROGRAM), address, ticket, *map(str, choice)]
        done = subprocess.run(run, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


MATH_ALWAYS = {"double": "math", "a learned mask": "math", "wide heads": "math", "math alone": "math"}
"""No fused kernel takes doubles; a gradient of a mask or of wide heads is not to be had on every GPU; and who wants math gets it."""
EXPECTED = {
    FLASH: MATH_ALWAYS | dict.fromkeys(["half", "causal", "float", "masked", "dropout"], "Flash"),
    EFFICIENT: MATH_ALWAYS | dict.fromkeys(["half", "causal", "float", "masked"], "Efficient") | {"dropout": "math"},
    CUDNN: MATH_ALWAYS | dict.fromkeys(["half", "causal", "dropout"], "Flash") | dict.fromkeys(["float", "masked"], "Efficient"),
    MATH: MATH_ALWAYS | dict.fromkeys(["half", "causal", "float", "masked", "dropout"], "math"),
}
"""What the worker's PyTorch takes → what is recorded in each case. PyTorch never takes flash for a mask, nor it or cuDNN's for float."""


@pytest.mark.parametrize("choice", EXPECTED)
def test_attention_takes_the_kernel_that_the_worker_s_pytorch_takes(choice: int, tmp_path: Path) -> None:
    found = told(tmp_path, "null:0", choice)
    assert {name: case["kernel"] for name, case in found["cases"].items()} == EXPECTED[choice]
    for name, case in found["cases"].items():
        width = 208 if name == "wide heads" else 16
        assert case["sizes"] == [[2, 4, 40, width], [2, 4, 40, width], [2, 4, 24, width]], name
        assert case["dtype"] == {"float": "float32", "double": "float64"}.get(name, "bfloat16")
    assert found["lengths"] == [[2, 4, 40, 16], [2, 4, 40], True, True, 40, 24]
    assert found["looked_on"] == {"fake": [2, 4, 24, 16], "vmap": [3, 2, 4, 24, 16], "grad": [2, 4, 24, 16]}


def test_the_worker_is_asked_which_kernel_it_takes_and_no_chance_is_used_up(tmp_path: Path) -> None:
    found = told(tmp_path, "cpu:0")
    assert found["taken"] == found["natively"]
    assert found["draws"][0] == found["draws"][1]
