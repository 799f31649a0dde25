"""A host on which the commands of the page on installing one are typed, and whose units serve then."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
import release
import wheels
from installing import OUTSIDE, asked_for, link
from unit_runner import Runner

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "operators" / "install.md"
PREFIX, STATE = "/opt/forebay", "/var/lib/forebay"
"""As the page has them."""
EXTRAS = ("host", "notebook", "traefik", "postgresql")
HTTPS = 443
TOOLS = ("sh", "sha256sum", "systemd-sysusers", "mkdir")
PACKERS = ("tar", "gzip", "rclone")
"""What back-ups with settings and homes take, and such as go elsewhere, where it is installed."""
START_SECONDS_MAX = 60
COMMAND_SECONDS_MAX = 120


def blocks(language: str, page: Path = PAGE) -> str:
    """What the page has in its blocks of a language."""
    return "".join(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


def answers() -> str:
    """The page's, for a host without GPUs that browsers reach on this machine alone."""
    return blocks("toml").replace("gpu.example.org", "localhost").replace('"found"', '"cpu"')


def lay_release(folder: Path) -> None:
    """As people have it: the wheels, an index page, the sums."""
    made = wheels.make(folder, [], None, wheels.epoch_of(CHECKOUT))
    names = sorted(path.name for path in [*made, folder / "index.html", folder / wheels.CONSTRAINTS])
    listed = subprocess.run(["sha256sum", *names], cwd=folder, capture_output=True, text=True, check=True).stdout
    (folder / release.SUMS).write_text(listed)


class Host:
    """``root`` is ``/`` of it, and ``environment`` what the page has in ``/opt/forebay``."""

    def __init__(self, root: Path, environment: Path, port: int) -> None:
        self.root, self.environment = root, environment
        self.url = f"https://localhost:{port}"
        self.authority = root / "etc" / "forebay" / "tls" / "ca.crt"
        self.state = root / "var" / "lib" / "forebay"

    def network(self) -> AbstractContextManager[None]:
        """This thread's new connections begin there."""
        return contextlib.nullcontext()

    def log(self) -> str:
        """The end of what the units say."""
        raise NotImplementedError

    def wait(self) -> None:
        """Until all services answer at the public address."""
        deadline = time.monotonic() + START_SECONDS_MAX
        trust = ssl.create_default_context(cafile=str(self.authority))
        with self.network(), httpx.Client(verify=trust, base_url=self.url, trust_env=False) as web:
            for path in ("hub", *(f"services/{name}" for name in ("pool", "billing", "dashboards", "edge"))):
                while not _answers(web, f"/{path}/health"):
                    if time.monotonic() > deadline:
                        pytest.fail(f"no answer from {path}:\n{self.log()}")
                    time.sleep(0.2)

    def uid(self, name: str) -> int:
        """Of one of its accounts."""
        lines = (self.root / "etc" / "passwd").read_text().splitlines()
        return next(int(line.split(":")[2]) for line in lines if line.startswith(f"{name}:"))

    def processes(self, module: str) -> list[Path]:
        """Of this host, that run a module, in ``/proc``."""
        found = []
        for entry in (entry for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                if f"\0-m\0{module}\0" in words and self.runs(entry, words):
                    found.append(entry)
        return found

    def runs(self, process: Path, words: str) -> bool:
        """Whether a process of this machine, with the words of its command line, is one of this host."""
        return str(self.root) in words

    def reads(self, uid: int, path: Path) -> bool:
        """Whether a program under this uid does."""
        command = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "cat", str(path)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


class RunnerHost(Host):
    """Below a folder of this machine, with the small runner of units in place of systemd; ``init`` is told of the folder."""

    def __init__(self, folder: Path, prefix: list[str], port: int, installed: bool) -> None:
        super().__init__(folder / "root", Path(sys.prefix) if installed else folder / "opt" / "forebay", port)
        self.folder = folder
        self.runner = Runner(self.root, prefix, folder / "units.log")
        self.release = folder / "release"
        self.release.mkdir()
        if not installed:
            lay_release(self.release)
        (self.release / "answers.toml").write_text(f"{answers()}port = {port}\nfirst_port = {port + 1}\n")
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(OUTSIDE)}
        self.variables |= {"PATH": str(self._tools()), "HOME": str(folder), "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def _tools(self) -> Path:
        """All that is on ``PATH``: no compiler, for one."""
        tools = self.folder / "tools"
        tools.mkdir()
        for name in TOOLS:
            (tools / name).symlink_to(str(shutil.which(name)))
        for name in filter(shutil.which, PACKERS):
            (tools / name).symlink_to(str(shutil.which(name)))
        (tools / "python3").symlink_to(Path(sys.executable).resolve())
        return tools

    def log(self) -> str:
        return self.runner.log.read_text()[-4000:]

    def type(self, line: str) -> None:
        """One of the page's commands."""
        if line == "systemctl daemon-reload":
            return
        if line.startswith("systemctl enable --now "):
            units = line.split()[3:]
            assert set(units) <= self.runner.units().keys()
            self.runner.start(units[0])
            return
        if line == "systemctl start forebay.target":
            self.runner.start("forebay.target")
            self.wait()
            return
        if line == "systemctl stop forebay.target":
            self.runner.stop()
            return
        here = line.replace(PREFIX, str(self.environment)).replace("admin init", f"admin init --root {self.root}")
        here = here.replace("systemd-sysusers", f"systemd-sysusers --root={self.root}").replace(STATE, str(self.state))
        options = {"cwd": self.release, "env": self.variables, "timeout": COMMAND_SECONDS_MAX}
        done = subprocess.run(["sh", "-c", here], capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if " -m venv " in line:  # an index would bring what others made
            link(Path(here.split()[-1]), asked_for(self.release, EXTRAS) | {"numpy"})


def _answers(web: httpx.Client, path: str) -> bool:
    try:
        return web.get(path).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
