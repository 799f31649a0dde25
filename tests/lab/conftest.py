"""A browser before JupyterLab and Notebook with the built extension, whose kernels use a real pool."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "dashboards"))

from browsing import chromium
from lab_installation import BUILT, Cloud, Hub, Jupyter, install, jupyter, running


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Pool and billing, running."""
    hub = Hub()
    try:
        found = install(hub, tmp_path_factory.mktemp("lab-cloud"))
        with running(found, "billing", "pool"):  # type: ignore[arg-type]  # it has the two that are named
            yield found
    finally:
        hub.close()


@pytest.fixture(scope="session")
def server(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    """JupyterLab and Notebook, running."""
    if not (BUILT / "package.json").exists():
        pytest.fail("the extension is not built: run make setup, or npm run all in lab/")
    with jupyter(cloud, tmp_path_factory.mktemp("lab-home")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser without a window; it ends with its module, since an event loop runs in this thread as long as it lives."""
    with chromium() as found:
        yield found
