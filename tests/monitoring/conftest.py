"""Real services that are watched, and Debian's Prometheus with its tool."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "dashboards")]

from dashboards_installation import Hub  # noqa: E402 - lies beside the dashboards' tests
from monitored_cloud import Cloud, watched  # noqa: E402 - lies beside this file

STAND_IN = Path(__file__).parents[1] / "dashboards" / "stand_in_worker.py"


@pytest.fixture(scope="session")
def promtool() -> str:
    """Prometheus's own tool for configurations, rules and metrics."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool is installed (Debian: apt-get install prometheus)")
    return found


@pytest.fixture(scope="session")
def monitored_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Pool, billing and pages with something to tell of."""
    python = tmp_path_factory.mktemp("worker") / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
    python.chmod(0o755)
    hub = Hub()
    try:
        with watched(hub, python, tmp_path_factory.mktemp("cloud")) as cloud:
            yield cloud
    finally:
        hub.close()
