"""A training loop gets a library, which computes what tier 1 computes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import fork_server
import pytest
from standalone import standalone_worker

SECONDS_MAX = 1500
"""A compiler that is niced waits for a busy host."""


@pytest.mark.full_sweep
@pytest.mark.timeout(SECONDS_MAX + 200)
@pytest.mark.parametrize("model", ["perceptron", "convolutions", "compiled perceptron"])
def test_a_training_loop_is_served_by_a_library_that_computes_as_tier_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("FOREBAY_COMPILE", "1")
    options = ("--device", "cpu:0", "--threads", "1", "--compile-after", "0", "--libraries", str(tmp_path / "libraries"))
    with standalone_worker(tmp_path, *options) as (address, ticket):
        program = [fork_server.programs(), "compiled_training.py", address, ticket, str(SECONDS_MAX), model]
        done = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS_MAX + 100, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert "wrong" not in told["why"] and (told["tier"] == 2 or "takes" in told["why"]), told
    if told["tier"] == 2:
        assert told["served"] == 1
    assert told["farthest"] < told["moved"] / 20, "both steps moved the weights alike"
