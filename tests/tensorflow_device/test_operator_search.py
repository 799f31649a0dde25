"""Operators that TensorFlow places on the device have the processor's values, slopes and errors in calls of chance, but for those named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for operator_search

from operator_search import served

SCRIPT = Path(__file__).with_name("operator_search.py")
SEED, TRIES = "3", "1"
PARTS = 10
"""Of the operators, each in a process of its own: a session has so many programs."""
INFINITE = "sums of infinity and no number, also with zeros that are put around"
OTHERWISE = {
    "BatchMatMul": INFINITE,
    "Conv2D": INFINITE,
    "Conv3D": INFINITE,
    "DepthwiseConv2dNative": INFINITE,
    "MatMul": INFINITE,
    "ResourceApply": "rates that are infinite, no number or below zero",
}
"""Beginnings of operators' names, and what differs with hard values."""
COARSE = {(f"Conv3D{what}", "bfloat16") for what in ("", "BackpropFilterV2", "BackpropInputV2")}
"""The processor adds up slopes of filters that it has rounded."""
ALSO_ELSEWHERE = {"Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While"}
"""They take functions: test_operators.py has branches and loops."""
NEVER_TAKEN = {
    "AssignVariableXlaConcatND": "it is meant for programs of XLA",
    "EmptyTensorList": "lists are on the host",
    "ReadVariableXlaSplitND": "it is meant for programs of XLA",
    "RngReadAndSkip": "it changes the state of a generator, which test_operators.py has",
    "RngSkip": "it changes the state of a generator, which test_operators.py has",
    "SegmentMaxV2": "the processor has no kernel",
    "SegmentMinV2": "the processor has no kernel",
    "SegmentProdV2": "the processor has no kernel",
    "SegmentSumV2": "the processor has no kernel",
}
"""Operators of which the processor takes no call that is drawn."""
ENDS = ("IRFFT", "RFFT", "ResourceGather")
"""Beginnings of those where wrong arguments end the process on a processor, by a check of TensorFlow's."""


def told(names: list[str]) -> Iterator[dict[str, Any]]:
    """Of each operator; those that end the process have ``ended``."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    left = names
    while left:
        command = [sys.executable, str(SCRIPT), SEED, TRIES, "", *left]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        yield from (line for line in lines if "operator" in line)
        if done.returncode == 0:
            return
        assert "begins" in lines[-1], "the search itself failed"
        yield {"operator": lines[-1]["begins"], "ended": True, "calls": 0, "slopes": 0, "differences": []}
        left = [name for name in left if name > lines[-1]["begins"]]


def is_expected(operator: str, values: str, kind: str) -> bool:
    return (operator, kind) in COARSE or (values == "hard" and operator.startswith(tuple(OTHERWISE)))


@pytest.mark.full_sweep
@pytest.mark.timeout(1200)  # 90 s alone on two processors
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_have_the_processors_values_and_errors(part: int) -> None:
    names = [definition.name for definition, _ in served()][part::PARTS]
    found = list(told(names))
    differences = [(one["operator"], *each) for one in found for each in one["differences"]]
    assert [each for each in differences if not is_expected(*each[:3])] == []
    assert [one["operator"] for one in found if "ended" in one and not one["operator"].startswith(ENDS)] == []
    assert [one["operator"] for one in found] == names
    assert sum(one["calls"] for one in found) > 100
    untried = {one["operator"] for one in found if one["calls"] == 0 and "ended" not in one}
    assert untried <= ALSO_ELSEWHERE | NEVER_TAKEN.keys()
    assert sum(one["slopes"] for one in found) > 30
