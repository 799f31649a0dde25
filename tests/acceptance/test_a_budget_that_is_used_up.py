"""A tenant's budget runs out in the middle of somebody's training: it pauses, and goes on once the budget is raised."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.pool.test_pool_moving import program

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(300)]

PAUSE_SECONDS = 0.2
HEARTBEAT_SECONDS = 5
GRACE_SECONDS = 1
LATE_SECONDS = 10
"""What a busy machine may add until a lease that is taken back is closed."""
PATIENCE_SECONDS = 120
STILL_SECONDS = 2.0


@contextmanager
def training(cloud: Any, token: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The program, and the lines that it has printed so far."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment |= {"FOREBAY_URL": f"{cloud.url}/services/pool/", "FOREBAY_TOKEN": token, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program("cuda", PAUSE_SECONDS)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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


@pytest.mark.full_sweep
def test_work_pauses_within_the_stated_overspend_and_ends_as_if_nothing_had_been(cloud: Any) -> None:
    token, operator = cloud.person("globex-owner").new_token(), cloud.person("operator").new_token()

    def waits() -> list[str]:
        rows = cloud.service("pool/api/sessions", operator).raise_for_status().json()
        return [row["code"] for row in rows if row["tenant"] == "globex" and row["state"] == "queued"]

    def budgets() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = cloud.service("billing/api/budgets", operator, tenant="globex").raise_for_status().json()
        return found

    def limit(limit_nano: int) -> None:
        body = {"tenant": "globex", "limit_nano": limit_nano, "on_limit": "drain", "grace_seconds": GRACE_SECONDS, "new": True}
        answer = httpx.put(f"{cloud.url}/services/billing/api/budgets", json=body, headers={"Authorization": f"token {operator}"})
        assert answer.status_code == httpx.codes.OK, answer.text

    with training(cloud, token) as (process, undisturbed):
        until(lambda: process.poll() is not None, "the undisturbed run does not end")
        assert process.returncode == 0
    limit(10**15)
    rows = cloud.service("billing/api/prices", operator).json()
    price = next(row["price_nano_per_hour"] // 3600 for row in rows if row["flavor"] == "dev.4gb")
    until(lambda: budgets()[0]["spent_nano"] > 0, "the undisturbed run was not billed")
    before = budgets()[0]["spent_nano"]
    allowed = before + 4 * price
    limit(allowed)
    with training(cloud, token) as (process, lines):
        until(lambda: waits() == ["budget"], "nothing stops at the limit")
        told = len(lines)
        time.sleep(STILL_SECONDS)
        assert 0 < len(lines) == told < len(undisturbed) and process.poll() is None
        most = allowed + (HEARTBEAT_SECONDS + GRACE_SECONDS + LATE_SECONDS) * price
        until(lambda: before < budgets()[0]["spent_nano"], "what ran was not billed")
        assert budgets()[0]["spent_nano"] <= most
        limit(10**15)
        until(lambda: process.poll() is not None, "it does not go on once the budget is raised")
        assert process.returncode == 0
    assert lines == undisturbed
