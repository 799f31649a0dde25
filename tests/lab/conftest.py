"""A browser before JupyterLab and Notebook with the built extension, whose kernels use a real pool."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "dashboards"))

from lab_installation import BUILT, Cloud, Hub, Jupyter, install, jupyter, running

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


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


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is on PATH (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        window = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield window
        window.close()
