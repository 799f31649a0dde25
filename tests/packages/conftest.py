"""Wheels as a release has them, and environments that they are installed into."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).resolve().parents[2]
SITE = Path(sysconfig.get_path("purelib"))
sys.path.insert(0, str(CHECKOUT / "deploy" / "packages"))

import wheels as making  # noqa: E402 - lies in the folder that was just added

OUTSIDE = ("FOREBAY_", "JUPYTER", "PIP_", "PYTHON", "UV_", "VIRTUAL_ENV")


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


def asked_for(dist: Path, extras: Iterable[str]) -> set[str]:
    """The packages of others that the wheels need with these extras, and what those need in turn, as their metadata has it."""
    left = [need for wheel in dist.glob("*.whl") for need in _wanted(requires(wheel), extras)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        if name.startswith("forebay") or (name, frozenset(one.extras)) in seen:
            continue
        seen.add((name, frozenset(one.extras)))
        try:
            left += _wanted(distribution(name).requires or [], one.extras)
        except PackageNotFoundError:
            continue  # of an extra that is not installed here; pip says so if it is missed
    return {name for name, _ in seen}


def _wanted(lines: Iterable[str], extras: Iterable[str]) -> list[Requirement]:
    """Those that count here with these extras."""
    needs = map(Requirement, lines)
    return [need for need in needs if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))]


def requires(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    return [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]


class Environment:
    """A new virtual environment that has PyTorch and the packages of others that ours ask for, and nothing else."""

    def __init__(self, folder: Path, others: Iterable[str]) -> None:
        venv.create(folder, symlinks=True)
        self.folder = folder
        self.site = next(folder.glob("lib/python*/site-packages"))
        for name in others:
            self._link(name)
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(OUTSIDE)}
        self.variables["PATH"] = str(folder / "bin")

    def _link(self, name: str) -> None:
        """Lays what a package has put into this environment's site packages into the other's, as links."""
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            return
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            link = self.site / top
            if not link.exists() and (SITE / top).exists():
                link.symlink_to(SITE / top)

    def install(self, dist: Path, *packages: str) -> None:
        """As ``pip install --no-index --find-links``, without a compiler on ``PATH``."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.folder / "bin" / "python"), "--disable-pip-version-check", "--isolated"]
        command = [*pip, "install", "--quiet", "--no-index", "--no-cache-dir", "--find-links", str(dist / "index.html"), *packages]
        done = subprocess.run(command, env=self.variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        words = [str(self.folder / "bin" / command[0]), *command[1:]]
        environment = {**self.variables, **variables}
        return subprocess.run(words, env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def environment(tmp_path: Path, dist: Path) -> Callable[..., Environment]:
    """Makes an environment with what our wheels need of others, for these extras too."""
    return lambda *extras: Environment(tmp_path / "environment", asked_for(dist, extras))
