"""Environments that wheels are installed into without a package index: what ours ask for of others lies there before, as links."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SITE = Path(sysconfig.get_path("purelib"))
PREFIX = Path(sys.prefix)
LINES = (Path(__file__).resolve().parents[2] / "requirements" / "excluded.txt").read_text(encoding="utf-8").splitlines()
EXCLUDED = [line for line in LINES if line and not line.startswith("#")]
EXCLUDED_VERSION = "999"
OUTSIDE = ("FOREBAY_", "JUPYTER", "PIP_", "PYTHON", "UV_", "VIRTUAL_ENV")


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


def link(folder: Path, names: Iterable[str]) -> None:
    """Lays packages of this environment into another one: their modules as links, their programs with the other's interpreter."""
    site = next(folder.glob("lib/python*/site-packages"))
    for name in names:
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            if name in EXCLUDED:
                pretend(name, site)
            continue
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists() and (SITE / top).exists():
                (site / top).symlink_to(SITE / top)
        for file in files:
            if file.parts[:3] == ("..", "..", ".."):
                _lay(Path(*file.parts[3:]), folder)


def pretend(name: str, site: Path) -> None:
    """Has pip take a package for installed: set-up installs those that are excluded nowhere, and nothing of ours misses them."""
    info = site / f"{name.replace('-', '_')}-{EXCLUDED_VERSION}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {EXCLUDED_VERSION}\n")


def _lay(path: Path, folder: Path) -> None:
    """One file that lies beside the modules: a program, or data."""
    source, target = PREFIX / path, folder / path
    if target.exists() or not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    first, _, rest = source.read_bytes().partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        target.write_bytes(f"#!{folder}/bin/python\n".encode() + rest)
        target.chmod(0o755)
    else:
        target.symlink_to(source)


class Environment:
    """A new virtual environment that has PyTorch and the packages of others that ours ask for, and nothing else."""

    def __init__(self, folder: Path, others: Iterable[str]) -> None:
        venv.create(folder, symlinks=True)
        self.folder = folder
        link(folder, others)
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(OUTSIDE)}
        self.variables["PATH"] = str(folder / "bin")

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
