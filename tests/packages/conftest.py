"""Wheels as a release has them, and environments that they are installed into."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT / "deploy" / "packages"), str(Path(__file__).parent)]

import wheels as making  # noqa: E402 - lies in a folder that was just added
from installing import Environment, asked_for  # noqa: E402 - as above


@pytest.fixture(scope="session")
def wheels() -> ModuleType:
    """``deploy/packages/wheels.py``."""
    return making


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``make wheels`` makes, after set-up has built the extensions."""
    folder = tmp_path_factory.mktemp("dist")
    making.make(folder, [], None, making.epoch_of(CHECKOUT))
    return folder


@pytest.fixture
def environment(tmp_path: Path, dist: Path) -> Callable[..., Environment]:
    """Makes an environment with what our wheels need of others, for these extras too."""
    return lambda *extras: Environment(tmp_path / "environment", asked_for(dist, extras))
