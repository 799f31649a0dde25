"""The commands of the page on installing one host, typed in an empty folder: its units serve a notebook with ``cuda:0``, and stop.

With ``--full-sweep`` all of them are, from a release on; else those that follow the installation, for which set-up's stands.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(CHECKOUT / "tests" / "packages"), str(CHECKOUT / "deploy" / "packages")]

import release  # noqa: E402 - lies in a folder that was just added
import wheels  # noqa: E402 - as above
from installing import OUTSIDE, asked_for, link  # noqa: E402 - as above
from unit_runner import Runner  # noqa: E402 - as above

PAGE = CHECKOUT / "docs" / "operators" / "install.md"
TOOLS = ("sh", "sha256sum", "systemd-sysusers", "mkdir")
NOTEBOOK = {"cells": [], "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}, "nbformat": 4, "nbformat_minor": 5}
START_SECONDS_MAX = 60
COMMAND_SECONDS_MAX = 120
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(os.getuid() != 0, reason="the units' users need root"),
    pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="Debian's systemd is not installed"),
]


def blocks(language: str) -> str:
    """What the page has in its blocks of a language."""
    return "".join(re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


class Host:
    """An empty host, on which the page's commands are typed. ``/opt`` is below ``folder``, and so is the root that ``init`` is told."""

    def __init__(self, folder: Path, prefix: list[str], port: int, installed: bool) -> None:
        self.folder = folder
        self.environment = Path(sys.prefix) if installed else folder / "opt" / "forebay"
        self.root = folder / "root"
        self.runner = Runner(self.root, prefix, folder / "units.log")
        self.url = f"https://localhost:{port}"
        self.authority = self.root / "etc" / "forebay" / "tls" / "ca.crt"
        self.state = self.root / "var" / "lib" / "forebay"
        self.release = folder / "release"
        self.release.mkdir()
        if not installed:
            self._lay_release()
        answers = blocks("toml").replace("gpu.example.org", "localhost").replace('"found"', '"cpu"')
        (self.release / "answers.toml").write_text(f"{answers}port = {port}\nfirst_port = {port + 1}\n")
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(OUTSIDE)}
        self.variables |= {"PATH": str(self._tools()), "HOME": str(folder), "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def _lay_release(self) -> None:
        """As people have it: the wheels, an index page, the sums."""
        made = wheels.make(self.release, [], None, wheels.epoch_of(CHECKOUT))
        names = sorted(path.name for path in [*made, self.release / "index.html"])
        listed = subprocess.run(["sha256sum", *names], cwd=self.release, capture_output=True, text=True, check=True).stdout
        (self.release / release.SUMS).write_text(listed)

    def _tools(self) -> Path:
        """All that is on ``PATH``: no compiler, for one."""
        tools = self.folder / "tools"
        tools.mkdir()
        for name in TOOLS:
            (tools / name).symlink_to(str(shutil.which(name)))
        (tools / "python3").symlink_to(Path(sys.executable).resolve())
        return tools

    def type(self, line: str) -> None:
        """One of the page's commands."""
        if line == "systemctl daemon-reload":
            return
        if line.startswith("systemctl enable --now "):
            units = line.split()[3:]
            assert set(units) <= self.runner.units().keys()
            self.runner.start(units[0])
            return
        here = line.replace("/opt/forebay", str(self.environment)).replace("admin init", f"admin init --root {self.root}")
        here = here.replace("systemd-sysusers", f"systemd-sysusers --root={self.root}")
        options = {"cwd": self.release, "env": self.variables, "timeout": COMMAND_SECONDS_MAX}
        done = subprocess.run(["sh", "-c", here], capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if " -m venv " in line:  # an index would bring what others made
            link(Path(here.split()[-1]), asked_for(self.release, ["host", "notebook", "traefik", "postgresql"]) | {"numpy"})

    def wait(self) -> None:
        """Until all services answer at the public address."""
        deadline = time.monotonic() + START_SECONDS_MAX
        with httpx.Client(verify=ssl.create_default_context(cafile=str(self.authority)), base_url=self.url) as web:
            for path in ("hub", "services/pool", "services/billing", "services/dashboards"):
                while not _answers(web, f"/{path}/health"):
                    if time.monotonic() > deadline:
                        pytest.fail(f"no answer from {path}:\n{self.runner.log.read_text()[-4000:]}")
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
                if f"\0-m\0{module}\0" in words and str(self.root) in words:
                    found.append(entry)
        return found

    def reads(self, uid: int, path: Path) -> bool:
        """Whether a program under this uid does."""
        command = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "cat", str(path)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _answers(web: httpx.Client, path: str) -> bool:
    try:
        return web.get(path).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


@pytest.fixture(params=["installed", pytest.param("empty", marks=pytest.mark.full_sweep)])
def host(request: pytest.FixtureRequest, passable: Any, free_port: Callable[[], int]) -> Iterator[Host]:
    """A host on which every command of the page has been typed, or is as if those of its first block had been."""
    installed = request.param == "installed"
    folder = passable.folder / request.param
    folder.mkdir()
    made = Host(folder, passable.prefix, free_port(), installed)
    for line in blocks("sh").splitlines():
        if not installed or not re.search(r"sha256sum| -m venv |/pip ", line):
            made.type(line)
    made.wait()
    yield made
    made.runner.stop()


def test_the_page_s_commands_make_a_host_that_serves_a_notebook_is_backed_up_and_stops(
    host: Host, monkeypatch: pytest.MonkeyPatch, kernel_type: Any, person_type: Any, eventually: Callable[..., Any]
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(host.authority))
    logins = json.loads((host.state / "hub" / "logins.json").read_text())
    with httpx.Client(base_url=host.url, follow_redirects=True, timeout=60) as web:
        owner = person_type("acme-owner", web)
        assert owner.sign_in(logins["acme-owner"]).status_code == httpx.codes.OK
        owner.spawn("dev.4gb")
        owner.open_lab()
        headers = {"X-XSRFToken": owner.xsrf("/user/acme-owner/")}
        body = {"type": "notebook", "content": NOTEBOOK}
        web.put("/user/acme-owner/api/contents/try.ipynb", json=body, headers=headers).raise_for_status()
        kernel = kernel_type(owner, "try.ipynb")
        printed = kernel.run("import os, torch\nx = torch.arange(4., device='cuda')\nprint((x @ x).item(), os.getuid(), torch.__file__)")
        product, uid, torch_file = printed.split()
        assert product == "14.0" and int(uid) > 1000 and torch_file.startswith(f"{host.environment}/notebook/")
        workers, (pool,) = host.processes("forebay_worker"), host.processes("forebay_pool")
        uids = [int(re.findall(r"^Uid:\t(\d+)", (entry / "status").read_text(), re.MULTILINE)[0]) for entry in workers]
        assert len(set(uids)) == len(uids) and set(uids) <= set(range(1879048192, 1879113728)), "each worker has one of its own"
        assert pool.stat().st_uid == host.uid("forebay-pool")
        secrets = [pool / "environ", host.state / "pool" / "pool.sqlite", host.root / "etc" / "forebay" / "secrets" / "pool.env"]
        assert not [path for path in (*secrets, *(entry / "environ" for entry in workers)) if host.reads(uids[0], path)]
        assert host.reads(host.uid("forebay-pool"), secrets[1])
        host.runner.fail("forebay-pool.service")
        assert kernel.run("print((x + 1).sum().item())").split()[-1] == "10.0", "the session waited for the pool"
        assert {entry.name for entry in host.processes("forebay_worker")} >= {entry.name for entry in workers}
        kernel.close()
        asking = {"headers": {"Authorization": f"token {owner.new_token()}"}, "params": {"tenant": "acme"}}
        assert eventually(lambda: web.get("/services/billing/api/usage", **asking).raise_for_status().json()["records"])
    for unit in ("forebay-backup.service", "forebay-rehearsal.service"):
        assert host.runner.run(unit) == 0, host.runner.log.read_text()[-2000:]
    owners = {folder.name: folder.stat().st_uid for folder in host.state.iterdir()}
    assert len({owners[name] for name in ("pool", "billing", "routes", "hub")}) == 4 and owners["hub"] == 0
    statuses = host.runner.stop()
    assert set(statuses.values()) <= {0, 143}, statuses
    assert host.runner.left() == []
    kept = [host.state / name for name in ("pool/pool.sqlite", "billing/billing.sqlite3", "hub/hub.sqlite", "hub/uids.json")]
    whose = [path.stat().st_uid for path in kept]
    restore = [f"{host.environment}/bin/forebay", "admin", "restore", str(host.state / "backups"), "--newest", "--replace"]
    subprocess.run(restore, env={**os.environ, "FOREBAY_STATE": str(host.state)}, check=True)
    assert [path.stat().st_uid for path in kept] == whose, "services find their own"
