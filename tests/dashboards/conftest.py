"""A running installation for the tests of the dashboards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import fork_server
import httpx
import pytest
from playwright.sync_api import Browser

sys.path.insert(0, str(Path(__file__).parent))

from browsing import chromium
from dashboards_installation import Hub, Installation, eventually, install, running


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture(scope="session")
def worker_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that runs the stand-in whatever worker module it is asked for."""
    script = tmp_path_factory.mktemp("worker") / "python"
    script.write_text(f'#!/bin/sh\nshift 2\nexec "{fork_server.services()}" "{Path(__file__).parent / "stand_in_worker.py"}" "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture(scope="session")
def cloud(hub: Hub, worker_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Pool, billing and dashboards, running."""
    installation = install(hub, worker_python, tmp_path_factory.mktemp("cloud"))
    with running(installation, "billing", "pool", "dashboards"):
        eventually(lambda: httpx.get(installation.dashboards.health_url).json()["live"])
        yield installation


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    """A browser without a window; it ends with its module, since an event loop runs in this thread as long as it lives."""
    with chromium() as browser:
        yield browser
