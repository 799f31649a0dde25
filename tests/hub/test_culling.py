"""Notebook servers that nobody uses are stopped, and those of people who compute are not; with a real hub and the real culler."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from forebay_hub.culling import NEVER, Culling, culling_of
from forebay_pool.jobs.activity import Activity
from forebay_pool.jobs.hub import HubServers
from forebay_service.errors import SettingsError
from hub_process import STOP_TIMEOUT_SECONDS, free_ports, wait_ready

POOL_TOKEN = "b" * 32
IDLE_SECONDS = 6

CONFIGURATION = """
from forebay_hub.configuration import Settings, configure
from forebay_hub.culling import Culling
from forebay_hub.services import ExternalService
from forebay_hub.tenants import directory_of

people = {{"owners": ["ann"], "members": ["bob", "cyd"]}}
directory = directory_of({{"operators": ["operator"], "tenants": {{"acme": people}}}})
pool = ExternalService("pool", "http://127.0.0.1:{pool}", "{token}")
configure(c, Settings(directory, (pool,), "sqlite:///hub.sqlite", culling=Culling(timeout_seconds={idle}, every_seconds=1)))
c.JupyterHub.bind_url = "http://127.0.0.1:{public}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub}"
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.proxy_class = "traefik_file"
c.TraefikProxy.traefik_api_url = "http://127.0.0.1:{proxy}"
c.TraefikProxy.traefik_api_username = "hub"
c.TraefikProxy.traefik_api_password = "tests"
c.JupyterHub.spawner_class = "simple"
c.Spawner.cmd = ["{python}", "{server}"]
c.Spawner.args = []
c.Spawner.poll_interval = 1
"""
SERVER = """
import http.server, os, urllib.parse

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

parts = urllib.parse.urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
http.server.HTTPServer(("127.0.0.1", parts.port), Handler).serve_forever()
"""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[str]:
    """Of a hub whose pool has POOL_TOKEN."""
    public, hub, proxy, pool = free_ports(4)
    (tmp_path / "server.py").write_text(SERVER)
    own = {"public": public, "hub": hub, "proxy": proxy, "pool": pool, "token": POOL_TOKEN, "idle": IDLE_SECONDS}
    written = CONFIGURATION.format(**own, python=sys.executable, server=tmp_path / "server.py")
    (tmp_path / "jupyterhub_config.py").write_text(written)
    log = tmp_path / "hub.log"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "jupyterhub"], cwd=tmp_path, env=environment, stdout=output, stderr=output)
    try:
        wait_ready(process, f"http://127.0.0.1:{public}/hub/health", log)
        yield f"http://127.0.0.1:{hub}/hub/api"
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_SECONDS)


def servers(api: str, user: str) -> dict[str, Any]:
    headers = {"Authorization": f"token {POOL_TOKEN}"}
    found: dict[str, Any] = httpx.get(f"{api}/users/{user}", headers=headers, timeout=30).raise_for_status().json()["servers"]
    return found


@pytest.mark.full_sweep
def test_who_computes_keeps_the_server_and_who_does_nothing_does_not(api: str) -> None:
    async def played() -> None:
        hub = HubServers(api, POOL_TOKEN)
        for user, name in (("ann", ""), ("bob", ""), ("cyd", "job-7")):
            await hub.start(user, name)
        compute = Activity(lambda: {"bob", "operator"}, hub, time.time)  # the operator has no server, and is left out
        async with asyncio.timeout(60):
            while servers(api, "ann"):
                await compute.tell()
                await asyncio.sleep(0.3)
            began = time.monotonic()
            while time.monotonic() - began < IDLE_SECONDS:
                await compute.tell()
                await asyncio.sleep(0.3)
        assert set(servers(api, "bob")) == {""}, "longer without a browser than ann, and still there"
        assert set(servers(api, "cyd")) == {"job-7"}, "the pool's own to stop"

    asyncio.run(played())


def test_nothing_is_culled_where_that_is_off() -> None:
    assert culling_of({"culling": {"enabled": False}}) == NEVER
    assert culling_of({}) == Culling()


@pytest.mark.parametrize(
    ("culling", "sentence"),
    [
        ({"timeout": 3600}, "unknown setting 'timeout'; known are enabled, every_seconds, max_age_seconds, timeout_seconds"),
        ({"timeout_seconds": 599}, "must be 600 or more"),
        ({"timeout_seconds": "3600"}, "cannot be '3600'"),
        ({"timeout_seconds": True}, "cannot be True"),
        ({"enabled": 1}, "cannot be 1"),
        ({"every_seconds": 0}, "every_seconds 1 or more"),
        ({"max_age_seconds": -1}, "cannot be -1"),
        ([], "must be a table"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(culling: Any, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        culling_of({"culling": culling})
