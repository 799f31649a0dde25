"""A worker far away costs a round trip where the user's code reads, and nowhere else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import fork_server

BENCH = Path(__file__).resolve().parents[2] / "bench"
PROGRAM = """
import sys
from time import perf_counter
sys.path.append("network")
from delay import distant_worker
import torch
from forebay import _C
from step.models import mlp

STEPS, ROUND_TRIP_MS = 20, 30.0

def train(step):
    before, took = _C.statistics()["syncs"], []
    for _ in range(STEPS):
        start = perf_counter()
        assert step().item() > 0
        took.append((perf_counter() - start) * 1e3)
    return sorted(took), _C.statistics()["syncs"] - before

def unread(step):
    before = _C.statistics()["syncs"]
    for _ in range(STEPS):
        step()
    return _C.statistics()["syncs"] - before

with distant_worker() as proxy:
    step, native = mlp("cuda"), mlp("cpu")
    for one in (step, native):
        train(one)
    near, _ = train(native)
    proxy.delay(ROUND_TRIP_MS)
    far, syncs = train(step)
    assert syncs == STEPS, f"{syncs} waits for {STEPS} reads"
    assert far[0] >= ROUND_TRIP_MS, f"{far[0]:.0f} ms: the wire did not delay"
    quick = STEPS // 4  # another round trip would be in every step; what else the machine does is in the slow ones
    assert far[quick] < near[quick] + ROUND_TRIP_MS * 1.5, f"{far[quick]:.0f} ms far, {near[quick]:.0f} ms native"
    assert unread(step) == 0
"""


def test_a_training_loop_waits_one_round_trip_for_each_number_that_it_reads() -> None:
    done = subprocess.run([fork_server.programs(), "-c", PROGRAM], cwd=BENCH, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
