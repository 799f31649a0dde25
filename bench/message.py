"""What a steady training step sends: bytes, and how much of it the worker expected.

Bars: a steady step sends at most 2 % of the bytes of the first; a step of four times the operators sends no more, apart from numbers that
change from step to step (AdamW's bias corrections); at least 99.9 % of the calls find their geometry known. A step ends with a
synchronisation, whose few bytes count as the step's; the batch is on the device beforehand.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from report import report
from step.models import MODELS, Step, mlp, transformer

os.environ.setdefault("FOREBAY_URL", "local")

import torch
from forebay import _C

LEARNING_STEPS = 5
"""Within these the traces are learned: a storage's word moves or stays from its second coming on."""
DEEPER = 4
FRAME_BYTES = 6
"""What a frame adds that goes out while the step is still being recorded: its header, and a FOLLOW of fewer than 128 steps."""


def cases() -> dict[str, Callable[[str], Step]]:
    """The models of ``step.py``, and two of them with four times the layers, by SGD, which binds no changing number, and by AdamW."""
    sgd = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
    return MODELS | {
        "mlp, 4 x layers": partial(mlp, hidden=DEEPER),
        "transformer, SGD": partial(transformer, optimizer=sgd),
        "transformer, SGD, 4 x layers": partial(transformer, optimizer=sgd, layers=2 * DEEPER),
        "transformer, 4 x layers": partial(transformer, layers=2 * DEEPER),
    }


def settled() -> _C.Statistics:
    torch.cuda.synchronize()
    return _C.statistics(0)


def used(step: Step) -> dict[str, int]:
    """What one step adds to the stream's statistics."""
    before = settled()
    step()
    after = settled()
    return {name: after[name] - before[name] for name in ("bytes_sent", "commands", "expected", "templates", "frames_sent")}  # type: ignore[literal-required]


def row(name: str, make: Callable[[str], Step], count: int) -> dict[str, Any]:
    _C.lose("each model has a session of its own, so that its first step's bytes are all its own")
    step = make("cuda")
    first = used(step)
    for _ in range(LEARNING_STEPS):
        used(step)
    steps = [used(step) for _ in range(count)]
    calls = sum(one["commands"] for one in steps)
    steady = statistics.median(one["bytes_sent"] for one in steps)
    return {
        "model": name,
        "calls": steps[-1]["commands"],
        "expected": steps[-1]["expected"],
        "first bytes": first["bytes_sent"],
        "steady bytes": steady,
        "frames": statistics.median(one["frames_sent"] for one in steps),
        "in one frame": statistics.median(one["bytes_sent"] - FRAME_BYTES * (one["frames_sent"] - 1) for one in steps),
        "ratio": steady / first["bytes_sent"],
        "bytes a call": steady / steps[-1]["commands"],
        "geometry hits": 1 - sum(one["templates"] for one in steps) / calls,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="steady steps the figures are taken of")
    options = parser.parse_args()
    rows = [row(name, make, options.steps) for name, make in cases().items()]
    report(
        "message",
        rows,
        largest_ratio=max(one["ratio"] for one in rows),
        bar_ratio=0.02,
        lowest_geometry_hits=min(one["geometry hits"] for one in rows),
        bar_geometry_hits=0.999,
        torch=torch.__version__,
    )


if __name__ == "__main__":
    main()
