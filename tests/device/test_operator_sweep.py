"""PyTorch's operator database on the virtual device, against the CPU: float32, forward, up to four samples an entry."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PASSING_MIN = 650
MEMORY_BYTES = 8 << 30


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address and ticket of a worker on a CPU development device."""
    address, ticket = f"unix:{tmp_path}/worker.sock", secrets.token_hex(32)
    command = [sys.executable, "-m", "forebay_worker", "--standalone", address, "--ticket", ticket, "--memory", str(MEMORY_BYTES)]
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        yield address, ticket
    finally:
        process.kill()
        process.communicate()


def test_the_device_allows_every_operator_that_the_client_sends() -> None:
    script = (
        "import torch; from forebay import _C; from forebay_worker import _executor as e; _C.install(); "
        "allowed = {name.removeprefix('aten::') for name, _ in e.allowed_operators()}; print(sorted(set(_C.recorded()) - allowed))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "FOREBAY_URL"}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


@pytest.mark.slow
def test_all_but_the_listed_operators_give_the_cpu_s_results(worker: tuple[str, str], tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    environment = {key: value for key, value in os.environ.items() if key != "FOREBAY_URL"}
    command = [sys.executable, str(HERE / "operator_sweep.py"), *worker, str(output)]
    subprocess.run(command, env=environment, check=True, timeout=280)
    results: dict[str, str | None] = json.loads(output.read_text())
    failed = {name: error for name, error in results.items() if error is not None}
    listed = tomllib.loads((HERE / "operator_exceptions.toml").read_text())
    assert {name: error for name, error in failed.items() if name not in listed} == {}
    assert set(listed) - set(failed) == set(), "these pass now: take them off the list"
    assert len(results) - len(failed) >= PASSING_MIN
