"""Checkpoints of a device that is several: each tensor comes back bit for bit, however the devices hold it."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import fork_server
import pytest
from standalone import standalone_worker
from test_torchrun import asked, pool

PROGRAM, CHANCE = (Path(__file__).with_name(name) for name in ("divided_checkpoints.py", "checkpointed_programs.py"))
HOMES = {"data parallel": [], "scatter": ["--homes", "scatter"], "pipeline": ["--homes", "pipeline"], "fill": ["--homes", "fill"]}
IN_LONG = [pytest.mark.full_sweep]


@pytest.mark.parametrize(
    ("devices", "homes"),
    [
        (2, "data parallel"),
        (3, "scatter"),
        pytest.param(4, "data parallel", marks=IN_LONG),
        pytest.param(2, "pipeline", marks=IN_LONG),
        pytest.param(2, "fill", marks=IN_LONG),
    ],
)
def test_every_tensor_is_what_it_was(tmp_path: Path, devices: int, homes: str, full_sweep: bool) -> None:
    several = [option for _ in range(devices) for option in ("--device", "cpu:0")]
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    for seed in range(10 if full_sweep else 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with standalone_worker(folder, "--threads", "1", *HOMES[homes], *several, memory_bytes=devices << 28) as reached:
            command = [fork_server.programs(), str(PROGRAM), *reached, str(seed)]
            run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert run.returncode == 0, (seed, run.stderr)
        done = json.loads(run.stdout.splitlines()[-1])
        assert min(done["restore"], done["undo"], done["checkpoint"]) > 0 and done.get("not there", 0) == 0, done
        assert done["divided"] > 0 or homes != "data parallel", done
        assert done["in stages"] > 0 or homes != "pipeline", done


@pytest.mark.parametrize("image_seconds", ["0.02", pytest.param("0", marks=IN_LONG)])
def test_they_are_there_at_the_workers_that_follow_those_that_die(run_python: Any, image_seconds: str, full_sweep: bool) -> None:
    with pool(2) as environment:
        asked(environment, "api/flavors/gang", "PUT", {"memory_bytes": 2**30, "equivalents": [{"model": "cpu-dev", "count": 2}]})
        there = {name: environment[name] for name in ("FOREBAY_URL", "FOREBAY_TOKEN", "FOREBAY_TEST_POOL")}
        there |= {"FOREBAY_FLAVOR": "gang", "FOREBAY_IMAGE_SECONDS": image_seconds}
        done: Counter[str] = Counter()
        for seed in range(20 if full_sweep else 1):
            arguments = [str(CHANCE), str(seed), "150", "k"]
            run = run_python(f"import runpy, sys; sys.argv = {arguments!r}; runpy.run_path({str(CHANCE)!r}, run_name='__main__')", **there)
            assert run.returncode == 0, (seed, run.stderr)
            done += Counter(json.loads(run.stdout.splitlines()[-1]))
        assert min(done["restore"], done["undo"], done["checkpoint"], done["kill"]) > 0 and done["lost"] == done["not there"] == 0, done
