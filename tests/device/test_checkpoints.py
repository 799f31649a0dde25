"""Programs of chance go back and forth between checkpoints, over parkings and workers that are killed: each bit is that of deep copies."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("checkpointed_programs.py")
STEPS, SEEDS = 150, 2
LONG_STEPS, LONG_SEEDS = 600, 50
EVENTS = [
    ("", {}),
    ("k", {"FOREBAY_IMAGE_SECONDS": "0"}),
    ("k", {"FOREBAY_IMAGE_SECONDS": "0.02"}),
    ("p", {"FOREBAY_DEVICES": "2"}),
]
"""What happens beside, and in which environment. A worker that follows has all checkpoints, by an image or by doing all again."""


@pytest.mark.parametrize(("events", "environment"), EVENTS)
def test_every_tensor_is_what_it_was(run_forked: Any, events: str, environment: dict[str, str], full_sweep: bool) -> None:
    done: Counter[str] = Counter()
    for seed in range(LONG_SEEDS if full_sweep else SEEDS):
        arguments = [str(PROGRAM), str(seed), str(LONG_STEPS if full_sweep else STEPS), events]
        code = f"import runpy, sys; sys.argv = {arguments!r}; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
        run = run_forked(code, **{"FOREBAY_URL": "local"} | environment)
        assert run.returncode == 0, (seed, run.stderr)
        done += Counter(json.loads(run.stdout.splitlines()[-1]))
    assert min(done["restore"], done["undo"], done["checkpoint"]) > 5
    assert done["lost"] == done["not there"] == 0, done
    assert (done["kill"] > 0) == (events == "k")


RECOMPUTES = """
import forebay, torch
x = torch.zeros(1000, device="cuda:0")
forebay.checkpoint("zero")
x.add_(1)
try:
    forebay.restore("zero")
except forebay.errors.ForebayError as error:
    print(error)
print(x.sum().item())
"""


def test_a_program_that_has_calls_computed_again_has_none(run_forked: Any) -> None:
    run = run_forked(RECOMPUTES, FOREBAY_URL="local", FOREBAY_RECOMPUTE="1")
    why = "the program has what it computes made again where memory is short."
    assert run.stdout.splitlines() == [f"Checkpoint zero is not there any more, and nothing has changed: {why}", "1000.0"], run.stderr
