"""Helm, the chart that it renders, and the notebook's pod that KubeSpawner makes of the chart's values."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2] / "deploy" / "packages")]

import hub_in_cluster
from chart import CHECKOUT, EXAMPLES, Chart, rendered


@pytest.fixture(scope="session")
def helm() -> str:
    """The one that set-up for development installs, else the machine's."""
    found = shutil.which("helm", path=CHECKOUT / ".venv" / "bin") or shutil.which("helm")
    if found is None:
        pytest.skip("no Helm is installed (python3 deploy/local/install.py --dev)")
    return found


@pytest.fixture(params=EXAMPLES)
def chart(request: pytest.FixtureRequest, helm: str) -> Chart:
    """Each of the examples."""
    return rendered(helm, request.param)


@pytest.fixture
def hub(chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """JupyterHub with the chart's configuration, loaded as in its container."""
    return hub_in_cluster.load(chart, tmp_path, monkeypatch)
