"""Each process of an installation stands still for a while, as where its machine is moved: whoever computes goes on, and pays once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from processes import command_line, family, suspend

STILL_SECONDS = 20
PATIENCE_SECONDS = 120
PARTS = ("the service pool", "jupyterhub --config", "the service billing", "the service dashboards")
TRAINING = """
import itertools, time, torch
torch.manual_seed(5)
model = torch.nn.Linear(16, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
data = torch.randn(64, 16).to("cuda")
for step in itertools.count():
    loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
    time.sleep(0.2)
"""
pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.full_sweep, pytest.mark.timeout(600)]


@pytest.fixture
def training(cloud: Any) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A program that computes on, and the lines that it has printed so far."""
    token = cloud.person("globex-owner").new_token()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment |= {"FOREBAY_URL": f"{cloud.url}/services/pool/", "FOREBAY_TOKEN": token, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")) if process.stdout else None)
    reader.start()
    try:
        yield process, lines
    finally:
        process.kill()
        process.communicate()
        reader.join()


def until(holds: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def those_of(cloud: Any, part: str) -> list[psutil.Process]:
    """The processes of a part: of a service what its keeper has started, and the keeper."""
    outer = next(one for one in family(cloud.process.pid) if part in command_line(one))
    return [outer] if "jupyterhub" in part else [outer, *outer.children()]


def test_a_loop_goes_on_whichever_process_of_the_installation_stands_still(
    cloud: Any, training: tuple[subprocess.Popen[str], list[str]]
) -> None:
    process, lines = training
    operator = cloud.person("operator").new_token()
    until(lambda: len(lines) > 5 or process.poll() is not None, "the loop does not begin")
    for part in PARTS:
        stopped = those_of(cloud, part)
        for one in stopped:
            suspend(one.pid)
        time.sleep(STILL_SECONDS)
        for one in stopped:
            os.kill(one.pid, signal.SIGCONT)
        before = len(lines)
        until(lambda count=before: len(lines) > count + 10 or process.poll() is not None, f"the loop stands still after {part} did")
        assert process.poll() is None, process.communicate()[1]
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines))), "a step is missing"
    process.terminate()
    process.wait(PATIENCE_SECONDS)

    def sessions() -> Any:
        return [row for row in cloud.service("pool/api/sessions", operator).raise_for_status().json() if row["tenant"] == "globex"]

    until(lambda: not sessions(), "the session does not end")

    def records() -> Any:
        found = cloud.service("billing/api/usage", operator, tenant="globex")
        return found.json()["records"] if found.status_code == 200 else []

    until(records, "no usage arrives")
    assert not [one for one in records() if one["close_reason"] == "failed"]
    assert len({one["id"] for one in records()}) == len(records())
