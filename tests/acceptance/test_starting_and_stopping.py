"""Ctrl-C stops every process, a second start finds the state of the first, and the home folder stays untouched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import alive, family

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

UP = Path(__file__).resolve().parents[2] / "deploy" / "local" / "up.py"
STOP_TIMEOUT_SECONDS = 60
CELL = "import torch\nprint(torch.ones(3, device='cuda').sum().item())"


@pytest.mark.full_sweep
def test_ctrl_c_stops_everything_and_the_second_start_finds_the_state_of_the_first(
    tmp_path: Path, starter: Callable[[Path], Any], kernel_type: Any, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    """Hub, proxy, services, a notebook with a kernel and the worker that serves it, all of one user."""
    first = starter(tmp_path / "state")
    logins = first.logins
    member = first.person("acme-member")
    member.spawn("dev.1gb")
    member.open_lab()
    kernel = kernel_type(member, "digits.ipynb")
    assert kernel.run(CELL) == "3.0\n"
    owner = first.person("acme-owner").new_token()

    def billed(cloud: Any) -> Any:
        return cloud.service("billing/api/usage", owner, tenant="acme").raise_for_status().json()["records"]

    assert eventually(lambda: billed(first))
    records = billed(first)
    processes = family(first.process.pid)
    names = " ".join(" ".join(process.cmdline()) for process in processes)
    assert all(part in names for part in ("jupyterhub", "traefik", "forebay_pool", "forebay_billing", "ipykernel", "forebay_worker"))
    kernel.disconnect()
    assert first.stop() == 0
    assert alive(processes) == []
    assert not list((tmp_path / "home").iterdir()), "something was written into the home folder"

    second = starter(tmp_path / "state")
    assert second.logins == logins
    assert billed(second) == records
    page = second.person("acme-member").web.get("/hub/spawn").text
    assert re.search('value="dev.1gb" [^>]* checked>', page), "the last choice is forgotten"
    assert second.stop() == 0


def test_a_second_start_on_the_same_state_says_who_holds_it(cloud: Any) -> None:
    environment = {**os.environ, "FOREBAY_STATE": str(cloud.state), "FOREBAY_PORT": "64000"}
    finished = subprocess.run([sys.executable, str(UP)], env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert f"Forebay already runs on {cloud.state} (process {cloud.process.pid})" in finished.stderr
    assert httpx.get(f"{cloud.url}/hub/health").status_code == httpx.codes.OK
