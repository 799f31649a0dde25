"""An agent's client, by the SDK, before `forebay mcp` on standard input and output; behind that real kernels, pool, worker and billing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))
sys.path.insert(0, str(Path(__file__).parents[1] / "dashboards"))

from agent import TICK_SECONDS, Agent, serving
from lab_installation import Cloud, Hub, environment, install, running


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Pool and billing, running."""
    hub = Hub()
    try:
        found = install(hub, tmp_path_factory.mktemp("agents-cloud"), billing_heartbeat_seconds=str(TICK_SECONDS), idle_release_seconds="2")
        with running(found, "billing", "pool"):  # type: ignore[arg-type]  # it has the two that are named
            yield found
    finally:
        hub.close()


@pytest.fixture(scope="session")
def variables(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an agent's server is started with."""
    return environment(cloud, tmp_path_factory.mktemp("agents-home"))


@pytest.fixture(scope="session")
def agent(variables: dict[str, str]) -> Iterator[Agent]:
    """With a server for all tests, which give their kernels and experiments names of their own."""
    with serving(variables) as found:
        yield found
