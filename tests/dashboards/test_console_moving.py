"""An operator presses *Move* on the row of a session that computes: it goes on on the other device, and its program notices nothing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fork_server
import httpx
import pytest
from browsing import mishaps, sign_in
from dashboards_installation import PYTHONPATH, Hub, Installation, eventually, install, running
from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built"),
    pytest.mark.skipif(importlib.util.find_spec("forebay._C") is None, reason="the device's extension is not built"),
]
STEPS = 400
PROGRAM = f"""
import time, torch
kept = torch.arange(4.0).to("cuda")
for step in range({STEPS}):
    kept = kept + 1
    print(int(kept.sum().item()), flush=True)
    time.sleep(0.02)
"""
MODELS = ("cpu-dev", "cpu-other")
FLAVORS = f"""
[[flavors]]
name = "dev.1gb"
memory = "1 GiB"
equivalents = [{{ model = "{MODELS[0]}", count = 1 }}, {{ model = "{MODELS[1]}", count = 1 }}]
"""


@pytest.fixture
def computing_cloud(hub: Hub, tmp_path: Path) -> Iterator[Installation]:
    """An installation with real workers on two devices of different models."""
    installation = install(hub, fork_server.services(), tmp_path)
    (tmp_path / "flavors.toml").write_text(FLAVORS)
    devices = ", ".join(f'{{kind = "cpu", model = "{model}", memory = "1 GiB"}}' for model in MODELS)
    paths = os.pathsep.join(filter(None, (PYTHONPATH, os.environ.get("PYTHONPATH"))))
    installation.pool.environment |= {
        "FOREBAY_POOL_DEVICES": f"[{devices}]",
        "FOREBAY_POOL_FLAVORS_FILE": str(tmp_path / "flavors.toml"),
        "FOREBAY_POOL_HEARTBEAT_SECONDS": "0.5",
        "FOREBAY_POOL_IDLE_RELEASE_SECONDS": "30",
        "PYTHONPATH": paths,
    }
    with running(installation, "billing", "pool", "dashboards"):
        eventually(lambda: httpx.get(installation.dashboards.health_url).json()["live"])
        yield installation


def test_a_session_that_computes_is_moved_by_the_button_of_its_row(chrome: Browser, computing_cloud: Installation, hub: Hub) -> None:
    cloud = computing_cloud

    def sessions() -> list[dict[str, str]]:
        found: list[dict[str, str]] = cloud.ask("pool", "operator", "GET", "api/sessions")
        return found

    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment |= {"FOREBAY_URL": cloud.urls["pool"], "FOREBAY_TOKEN": hub.tokens["acme-member"]}
    pipe = subprocess.PIPE
    with subprocess.Popen([fork_server.programs(), "-c", PROGRAM], env=environment, stdout=pipe, stderr=pipe, text=True) as program:
        try:
            eventually(lambda: [row["state"] for row in sessions()] == ["active"], 60)
            (before,) = sessions()
            context = chrome.new_context()
            page = sign_in(context, hub, cloud, "operator", "operator/sessions")
            page.click(f"#move-{before['session']}")
            page.wait_for_selector("dialog[open] button.main")
            assert "in the middle of its lease; nothing is lost" in page.inner_text("dialog")
            page.click("dialog[open] button.main")
            page.wait_for_selector("dialog .saved")
            (other,) = {*MODELS} - {before["device_model"]}
            eventually(lambda: [row["device_model"] for row in sessions() if row["state"] == "active"] == [other], 30)
            eventually(lambda: other in page.inner_text(f"#session-{before['session']}"))
            assert mishaps(page) == []
            context.close()
            told, errors = program.communicate(timeout=60)
        finally:
            program.kill()
    assert program.returncode == 0, errors
    assert told.split() == [str(6 + 4 * step) for step in range(1, STEPS + 1)]
    entry = cloud.ask("pool", "operator", "GET", "api/audit", params={"limit": 1})["entries"][0]
    assert (entry["who"], entry["action"], entry["subject"]) == ("operator", "session.move", before["session"])

    def closed() -> dict[str, str]:
        """How the leases on each model ended; what was off the devices in between is a record of its own."""
        records = cloud.ask("billing", "operator", "GET", "api/usage", params={"user": "acme-member", "limit": 10})["records"]
        return {row["device_model"]: row["close_reason"] for row in records if row["parked_bytes"] is None}

    eventually(lambda: closed() == {before["device_model"]: "moved", other: "drained"})
