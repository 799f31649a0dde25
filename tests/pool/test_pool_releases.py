"""An upgrade while a loop trains: the pool becomes the next release, and goes back, and what runs goes on, or ends with a sentence."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fork_server
import pytest
from forebay_wire import messages
from test_pool_restart import HOLDER, PATIENCE_SECONDS, STEPS, Pools, answers, free_port, hub, pools, undisturbed

__all__ = ["hub", "pools", "undisturbed"]

HERE = Path(__file__).parent
NEXT = messages.PROTOCOL + 1
SHORT = "import torch; print((torch.ones(3, device='cuda') * 2).sum().item())"
pytestmark = [
    pytest.mark.databases("sqlite"),
    pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built"),
    pytest.mark.skipif(importlib.util.find_spec("forebay._C") is None, reason="the device's extension is not built"),
]


def start_next(mine: Pools, port: int, oldest: int) -> subprocess.Popen[bytes]:
    """The next release's pool, on the database of the one before."""
    return mine.start(port, command=[sys.executable, str(HERE / "next_release.py"), str(oldest)])


def replace(mine: Pools, start: Callable[[], object], port: int) -> None:
    """Kills the pool that runs, and starts another."""
    mine.processes[-1].kill()
    mine.processes[-1].wait()
    start()
    mine.until(lambda: answers(port))


def run_through(training: subprocess.Popen[str], events: dict[int, Callable[[], Any]]) -> list[str]:
    """What the loop printed; each event happens once its step is printed."""
    assert training.stdout is not None
    lines = []
    for line in training.stdout:
        lines.append(line.strip())
        events.get(int(line.split()[0]), lambda: None)()
    return lines


def test_a_loop_trains_on_while_the_pool_becomes_the_next_release_and_this_one_again(
    pools: Callable[..., Pools], undisturbed: list[str]
) -> None:
    mine, port = pools(FOREBAY_POOL_DEVICES='[{kind = "cpu", model = "cpu-dev", memory = "2 GiB", count = 2}]'), free_port()
    mine.start(port)
    mine.until(lambda: answers(port))
    url = f"http://127.0.0.1:{port}/"
    training = mine.train(url)
    newcomers: list[str] = []

    def upgrade() -> None:
        mine.until(lambda: mine.rows("select id from open_leases"))
        replace(mine, lambda: start_next(mine, port, messages.PROTOCOL), port)

    def a_newcomer() -> None:
        """A program of today's release, which begins at the next release's pool, with a worker of its own."""
        newcomer = mine.train(url, SHORT)
        printed, errors = newcomer.communicate(timeout=PATIENCE_SECONDS)
        newcomers.append(printed + errors)

    steps = {STEPS // 5: upgrade, STEPS // 2: a_newcomer, 3 * STEPS // 4: lambda: replace(mine, lambda: mine.start(port), port)}
    losses = run_through(training, steps)
    _, errors = training.communicate(timeout=PATIENCE_SECONDS)
    assert training.returncode == 0, errors + mine.logs()
    assert losses == undisturbed
    assert newcomers == ["6.0\n"]
    mine.until(lambda: not mine.rows("select id from open_leases"))
    leases = {lease for (lease,) in mine.rows("select lease from lease_segments")}
    assert len(leases) == 2, "the loop's one lease went through both, and the newcomer had one"
    mine.stop()


@pytest.mark.full_sweep
def test_a_program_that_a_pool_does_not_speak_with_any_more_ends_with_one_sentence_and_frees_its_device(
    pools: Callable[..., Pools],
) -> None:
    mine, port = pools(), free_port()
    mine.start(port)
    mine.until(lambda: answers(port))
    url = f"http://127.0.0.1:{port}/"
    holder = mine.train(url, HOLDER)
    assert holder.stdout is not None
    began = time.monotonic()
    for number, _ in enumerate(holder.stdout):  # until it ends
        if number == 5:
            replace(mine, lambda: start_next(mine, port, NEXT), port)
    _, errors = holder.communicate(timeout=PATIENCE_SECONDS)
    assert holder.returncode == 1
    last = errors.strip().splitlines()[-1]
    assert_one_sentence(errors) if "protocol" in last else None  # its worker may be refused first
    assert "protocol" in last or "the tensors on this device are lost" in last, errors
    newcomer = mine.train(url, SHORT)
    _, errors = newcomer.communicate(timeout=PATIENCE_SECONDS)
    assert newcomer.returncode == 1
    assert_one_sentence(errors)
    mine.until(lambda: not mine.rows("select id from open_leases"))
    (held,) = [duration_ns for (duration_ns,) in mine.rows("select duration_ns from lease_segments")]
    assert 0 <= held < (time.monotonic() - began) * 10**9
    mine.stop()


def assert_one_sentence(errors: str) -> None:
    """Names both versions and what to do, at the end of a traceback."""
    last = errors.strip().splitlines()[-1]
    assert f"protocol {messages.PROTOCOL}" in last and str(NEXT) in last, errors
    assert last.count(". ") == 0, last


@pytest.mark.full_sweep
def test_a_worker_that_the_pool_does_not_speak_with_is_told_of_and_serves_nobody(pools: Callable[..., Pools], tmp_path: Path) -> None:
    older = messages.PROTOCOL_OLDEST - 1
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nshift 2\nexec "{fork_server.services()}" "{HERE / "older_worker.py"}" {older} "$@"\n')
    script.chmod(0o755)
    mine, port = pools(FOREBAY_POOL_WORKER_PYTHON=str(script)), free_port()
    mine.start(port)
    mine.until(lambda: f"it speaks protocol {older}, the pool {messages.PROTOCOL}" in mine.logs())
    assert mine.rows("select id from lease_segments") == mine.rows("select id from open_leases") == []
    mine.stop()
