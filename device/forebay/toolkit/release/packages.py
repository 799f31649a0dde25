"""A virtual environment whose packages are exchanged for those of another release, and put back.

What an installation will replace is kept before it begins, as hard links where that is possible: so it is put back as it was, others'
packages too, without an index. ``forebay update`` does this for a user, ``forebay admin upgrade`` for a host.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import Distribution, distributions
from pathlib import Path

from forebay_wire.torch_builds import FOLDER, release

from forebay.errors import ForebayError

KEPT = ".forebay-before"
"""In the environment's folder: what was there before the last exchange."""
STATE = "state.json"
NAME = re.compile(r"[A-Za-z0-9._-]+")
EXTRA = re.compile(r"\bextra\s*==\s*[\"']([^\"']+)[\"']")
PIP_SECONDS_MAX = 1800
MISLEADING = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
"""Variables that would have pip look at, or install into, another place."""


class ExchangeError(ForebayError):
    """Packages that are not exchanged, or not put back; the message says how the environment stands."""


@dataclass(frozen=True)
class Before:
    """What an exchange found: ours at ``version``, each package that it replaced at its version, and the names of those it added."""

    version: str
    replaced: Mapping[str, str]
    added: Sequence[str]


@dataclass(frozen=True)
class Wheel:
    """A wheel of a release."""

    path: Path

    @property
    def name(self) -> str:
        return canonical(self.path.name.split("-")[0])

    @property
    def version(self) -> str:
        return self.path.name.split("-")[1]

    def torch_releases(self) -> set[str]:
        """The releases of PyTorch that it has builds for; empty: it has no extension."""
        with zipfile.ZipFile(self.path) as archive:
            found = {FOLDER.fullmatch(part) for name in archive.namelist() for part in name.split("/")[1:2]}
        return {f"{match[1]}.{match[2]}" for match in found if match}


def canonical(name: str) -> str:
    """As package indices call it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def order(version: str) -> tuple[int, ...]:
    """What our versions are ordered by; they are MAJOR.MINOR.PATCH."""
    return tuple(map(int, re.findall(r"\d+", version)))


@dataclass(frozen=True)
class Packages:
    """What is installed in the virtual environment in the folder ``prefix``."""

    prefix: Path

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    @cached_property
    def site(self) -> Path:
        """Where its packages lie. Raises ExchangeError."""
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return Path(self._call("-I", "-c", ask).strip())

    def installed(self) -> dict[str, Distribution]:
        """All packages by name."""
        return {canonical(found.metadata["Name"]): found for found in distributions(path=[str(self.site)])}

    def ours(self) -> dict[str, Distribution]:
        """Those of this repository. Raises ExchangeError where there are none, or of several versions, or a checkout's."""
        found = {name: one for name, one in self.installed().items() if name == "forebay" or name.startswith("forebay-")}
        versions = {one.version for one in found.values()}
        if len(versions) != 1:
            raise ExchangeError(f"{self.prefix} has no one release of forebay ({', '.join(sorted(versions)) or 'none is there'}).")
        if any('"editable"' in (one.read_text("direct_url.json") or "") for one in found.values()):
            raise ExchangeError(f"{self.prefix} has the packages of a checkout; bring that up to date, and run `make setup`.")
        return found

    def version(self) -> str:
        """Of ours."""
        return next(iter(self.ours().values())).version

    def wanted(self, wheels: Mapping[str, Wheel]) -> list[str]:
        """What pip is to install for what is installed of ours: paths of wheels, and their names with the extras whose packages are there.
        With extras a path would be another package to pip than what other packages of ours ask for with other extras.

        Raises ExchangeError."""
        here, found = self.installed(), []
        for name, distribution in sorted(self.ours().items()):
            if name not in wheels:
                raise ExchangeError(f"{self.prefix} has {name}, of which the other release has no wheel.")
            extras = ",".join(_extras(distribution, here))
            found += [str(wheels[name].path), *([f"{name}[{extras}]=={wheels[name].version}"] if extras else [])]
        return found

    def check_writable(self) -> None:
        """Raises ExchangeError."""
        for folder in (self.prefix, self.site):
            if not os.access(folder, os.W_OK):
                raise ExchangeError(f"{folder} cannot be written to; ask whoever installed it, or make an environment of your own.")

    def check(self, wheels: Mapping[str, Wheel]) -> None:
        """Raises ExchangeError where it cannot be written to, or its PyTorch is one that the wheels have no build for."""
        self.check_writable()
        torch = self.installed().get("torch")
        for wheel in (wheels[name] for name in self.ours() if name in wheels):
            builds = wheel.torch_releases()
            if builds and torch is not None and release(torch.version) not in builds:
                have = ", ".join(sorted(builds, key=order))
                raise ExchangeError(
                    f"{wheel.name} {wheel.version} is built for torch {have}, and {self.prefix} has torch {torch.version}; "
                    f"install one of those first."
                )

    def resolve(self, wanted: Iterable[str], options: Sequence[str]) -> dict[str, str]:
        """What pip would install, by name, each with its version; nothing is changed. Raises ExchangeError."""
        report = json.loads(self.pip("install", "--dry-run", "--quiet", "--report", "-", *options, *wanted))
        return {canonical(item["metadata"]["name"]): str(item["metadata"]["version"]) for item in report["install"]}

    def exchange(self, wanted: Sequence[str], options: Sequence[str], coming: Mapping[str, str]) -> Before:
        """Installs what ``resolve`` told of, and keeps what was there; where that fails, all is as before. Raises ExchangeError."""
        before = self._keep(coming)
        try:
            self.pip("install", "--quiet", *options, *wanted)
        except ExchangeError as error:
            self.put_back()
            raise ExchangeError(f"{self.prefix} is as before: {error}") from None
        return before

    def before(self) -> Before | None:
        """What the last exchange found, as long as it can be put back."""
        file = self.prefix / KEPT / STATE
        return Before(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None

    def put_back(self) -> Before:
        """Undoes the last exchange; may be repeated where it was interrupted. Raises ExchangeError."""
        before, kept = self.before(), self.prefix / KEPT
        if before is None:
            raise ExchangeError(f"There is nothing to go back to in {self.prefix}.")
        names = {*before.replaced, *before.added}
        self.pip("uninstall", "--quiet", "--yes", *sorted(names))
        for half in (info for info in self.site.glob("*.dist-info") if canonical(info.name.split("-")[0]) in names):
            shutil.rmtree(half)  # of an installation that failed; pip does not know it
        for source in (path for path in kept.rglob("*") if path.is_symlink() or path.is_file()):
            relative = source.relative_to(kept)
            if relative != Path(STATE):
                _link(source, self.prefix / relative)
        shutil.rmtree(kept)
        return before

    def _keep(self, coming: Mapping[str, str]) -> Before:
        """The state is written last: without it nothing is kept."""
        here, version, kept = self.installed(), self.version(), self.prefix / KEPT
        replaced = {name: here[name].version for name in coming if name in here}
        before = Before(version, replaced, [name for name in coming if name not in here])
        shutil.rmtree(kept, ignore_errors=True)
        for name in replaced:
            for file in here[name].files or []:
                source = Path(os.path.normpath(self.site / file))
                if source.is_relative_to(self.prefix) and os.path.lexists(source):
                    _link(source, kept / source.relative_to(self.prefix))
        kept.mkdir(exist_ok=True)
        (kept / STATE).write_text(json.dumps(asdict(before), indent=2), encoding="utf-8")
        return before

    def pip(self, *words: str) -> str:
        """What pip prints. Raises ExchangeError with the end of what it says."""
        return self._call("-m", "pip", "--disable-pip-version-check", "--no-input", *words)

    def _call(self, *words: str) -> str:
        variables = {name: value for name, value in os.environ.items() if name not in MISLEADING}
        command = [str(self.python), *words]
        try:
            done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=PIP_SECONDS_MAX)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ExchangeError(f"{self.python} does not run ({error}).") from None
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")] or done.stderr.splitlines()
            raise ExchangeError(f"{'pip' if 'pip' in words else self.python} failed: {' '.join(said)[-600:].removeprefix('ERROR: ')}")
        return done.stdout


def _extras(distribution: Distribution, here: Mapping[str, object]) -> list[str]:
    """Those of a package for which all is installed."""
    asked: dict[str, set[str]] = {}
    for line in distribution.requires or []:
        name, extra = NAME.match(line), EXTRA.search(line)
        if name and extra:
            asked.setdefault(extra[1], set()).add(canonical(name[0]))
    return sorted(extra for extra, names in asked.items() if names <= here.keys())


def _link(source: Path, target: Path) -> None:
    """The same file at another place, in place of what is there; a copy, where file systems end or do not link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
