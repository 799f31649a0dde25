"""Every operator that TensorFlow places on the device has the processor's values and errors in calls of chance, but for those named."""

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
OUT_OF_RANGE = ("Gather", "ResourceGather", "ResourceScatter", "ScatterNd", "TensorScatter", "UnsortedSegment", "SparseSoftmaxCross")
"""An index that is out of range is an error on the processor, and none on a GPU of TensorFlow's."""
OTHERWISE = {
    "BatchMatMul": "sums of infinity and no number",
    "MatMul": "sums of infinity and no number",
    "MaxPool": "what is no number, and minus infinity; and slopes where the result was no maximum",
    "MatrixBandPart": "bounds beyond the matrix are taken for all of it",
    "ResourceApply": "rates that are infinite, no number or below zero",
    "SigmoidGrad": "sizes that do not fit each other",
}
"""Beginnings of operators' names, and what differs."""
ENDS = ("AvgPool3D", "DepthToSpace", "FusedBatchNorm", "IRFFT", "RFFT", "Resource", "ScatterNd", "TensorScatter", "UnsortedSegment")
"""Beginnings of those where wrong arguments end the process, by a check of TensorFlow's or XLA's, on the processor or compiled for it."""


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
        yield {"operator": lines[-1]["begins"], "ended": True, "calls": 0, "differences": []}
        left = [name for name in left if name > lines[-1]["begins"]]


@pytest.mark.full_sweep
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_have_the_processors_values_and_errors(part: int) -> None:
    names = [definition.name for definition, _ in served()][part::PARTS]
    found = list(told(names))
    differences = [(one["operator"], *each) for one in found for each in one["differences"]]
    assert [each for each in differences if not each[0].startswith((*OUT_OF_RANGE, *OTHERWISE))] == []
    assert [one["operator"] for one in found if "ended" in one and not one["operator"].startswith(ENDS)] == []
    assert [one["operator"] for one in found] == names
    assert sum(one["calls"] for one in found) > 100
