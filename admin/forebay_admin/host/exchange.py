"""What an upgrade of a host changes and a rollback puts back: packages, files of settings and units, databases; and which units run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from forebay.errors import ForebayError
from forebay.toolkit.release.packages import MISLEADING, Packages

from forebay_admin import backup, systemd
from forebay_admin.backup import Database
from forebay_admin.host import answers as questions
from forebay_admin.host.answers import Answers
from forebay_admin.host.layout import LISTENERS, Layout
from forebay_admin.host.records import RecordCount
from forebay_admin.host.units import TARGET

STARTED = ("proxy", "hub", "billing", "pool", "dashboards", "edge")
"""In this order: billing's database is brought up to date before the pool tells it of usage."""
OPERATORS = ("hub.toml", "pool.toml", "billing.toml", "dashboards.toml", "edge.toml", "jupyterhub_config.py")
"""What ``init`` makes once: operators edit it, and it stays as it is."""
HEALTHY_SECONDS_MAX = 120
ASK_SECONDS_MAX = 5
INIT_SECONDS_MAX = 300


class UpgradeError(ForebayError):
    """An upgrade or a rollback that is not done; the message says how the host stands."""


@dataclass(frozen=True)
class UpgradeState:
    """What an upgrade wrote down for a rollback. ``made``: files that it made new."""

    before: str
    after: str
    counts: Mapping[str, RecordCount]
    made: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> UpgradeState:
        content = json.loads(file.read_text(encoding="utf-8"))
        counts = {name: RecordCount(**count) for name, count in content.pop("counts").items()}
        return cls(counts=counts, **content)

    def write(self, file: Path) -> None:
        draft = file.with_name(f"{file.name}.new")
        draft.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
        draft.replace(file)


@dataclass(frozen=True)
class Host:
    """An installation that ``forebay admin init`` made."""

    layout: Layout
    answers: Answers
    variables: Mapping[str, str]
    """Of its databases."""

    @classmethod
    def read(cls, layout: Layout) -> Host:
        """Raises UpgradeError, InitError."""
        given, secrets = layout.settings / "answers.toml", layout.settings / "secrets" / "backup.env"
        if os.geteuid() != 0:
            raise UpgradeError("Units and their files are root's: run this as root.")
        if not given.exists() or not secrets.exists():
            raise UpgradeError(f"{layout.settings} has no answers.toml: `forebay admin init` has made no installation here.")
        pairs = (line.partition("=") for line in secrets.read_text(encoding="utf-8").splitlines() if "=" in line)
        return cls(layout, questions.read(given), {name: value.strip("'") for name, _, value in pairs})

    @property
    def folder(self) -> Path:
        """Of what is kept for a rollback."""
        return self.layout.state / "upgrade"

    @property
    def state(self) -> Path:
        return self.folder / "state.json"

    @property
    def copies(self) -> Path:
        """Of the databases, as they were before."""
        return self.folder / "databases"

    @property
    def environments(self) -> list[Packages]:
        """The services', and what notebooks get."""
        notebook = Path(self.answers.notebook or self.layout.prefix / "notebook")
        return [Packages(prefix) for prefix in (self.layout.prefix, notebook) if (prefix / "bin" / "python").exists()]

    @property
    def databases(self) -> list[Database]:
        return [backup.database_of(name, None, self.variables) for name in backup.ORDER]

    def files(self) -> dict[Path, Path]:
        """What ``init`` wrote, beside what operators edit, by where a copy of it goes."""
        units = [path for path in (*self.layout.units.glob("forebay*"), self.layout.pool_drop_in) if path.is_file()]
        settings = [path for path in self.layout.settings.rglob("*") if path.is_file() and path.name not in OPERATORS]
        paths = [path for path in (*units, *settings, self.layout.accounts) if path.exists()]
        return {self.folder / "files" / path.relative_to(self.layout.root): path for path in paths}

    def keep_files(self) -> None:
        for copy, path in self.files().items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)

    def put_files_back(self, made: Iterable[str]) -> None:
        for path in map(Path, made):
            path.unlink(missing_ok=True)
        folder = self.folder / "files"
        for copy in (path for path in folder.rglob("*") if path.is_file()):
            shutil.copy2(copy, self.layout.root / copy.relative_to(folder))

    def init(self) -> None:
        """Runs the installed release's own ``init``: units and settings may be new. Raises UpgradeError."""
        command = [str(self.layout.prefix / "bin" / "forebay"), "admin", "init", "--force", "--root", str(self.layout.root)]
        variables = {name: value for name, value in os.environ.items() if name not in MISLEADING}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=INIT_SECONDS_MAX)
        if done.returncode != 0:
            raise UpgradeError(f"`forebay admin init --force` failed: {' '.join(done.stderr.split())[-600:]}")

    def stop(self) -> None:
        """Raises SystemdError."""
        units = [f"forebay-{name}" for name in self._started()]
        systemd.call("systemctl", "stop", TARGET, *units)  # units of before end after their target

    def start(self) -> None:
        """Each unit once the one before it answers, then what else belongs to it. Raises SystemdError, UpgradeError."""
        systemd.call("systemd-sysusers", *([] if self.layout.root == Path("/") else [f"--root={self.layout.root}"]))
        systemd.call("systemctl", "daemon-reload")
        for name in self._started():
            systemd.call("systemctl", "start", f"forebay-{name}")
            if name != "proxy":
                self._wait(name)
        systemd.call("systemctl", "start", TARGET)

    def _started(self) -> list[str]:
        """The units that the release whose files are there has."""
        return [name for name in STARTED if (self.layout.units / f"forebay-{name}.service").exists()]

    def _wait(self, name: str) -> None:
        """Until a service says that it is well, its database included."""
        path = "hub/health" if name == "hub" else f"services/{name}/health"
        url = f"http://127.0.0.1:{self.answers.first_port + LISTENERS.index(name)}/{path}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + HEALTHY_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                with opener.open(url, timeout=ASK_SECONDS_MAX):
                    return
            except OSError:
                time.sleep(0.5)
        raise UpgradeError(f"forebay-{name} is not well at {url} after {HEALTHY_SECONDS_MAX} s; `journalctl -u forebay-{name}` says why.")
