"""The commands of the page on installing one host, typed in an empty folder: its units serve a notebook with ``cuda:0``, and stop.

With ``--full-sweep`` all of them are, from a release on; else those that follow the installation, for which set-up's stands. They are also
typed on a host that systemd itself boots, which is started anew then.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(CHECKOUT / "tests" / "packages"), str(CHECKOUT / "deploy" / "packages")]

from installing import OUTSIDE  # noqa: E402 - lies in a folder that was just added
from service_host import Host, RunnerHost, blocks  # noqa: E402 - lies in a folder that was just added
from systemd_host import BootedHost, why_not  # noqa: E402 - as above

NOTEBOOK = {"cells": [], "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}, "nbformat": 4, "nbformat_minor": 5}
PRODUCT = "import os, torch\nx = torch.arange(4., device='cuda')\nprint((x @ x).item(), os.getuid(), torch.__file__)"
RESTORE = "FOREBAY_STATE=/var/lib/forebay /opt/forebay/bin/forebay admin restore /var/lib/forebay/backups --newest --replace"
"""What the page says of it, in one line."""
AT_ONCE = "[Timer]\nRandomizedDelaySec=0\n"
TWO_DAYS_SECONDS = 172_800
DIED = re.compile(r"forebay-pool\.service: (Main process exited, code=killed|Failed with result 'signal'|Found left-over process )")
"""What systemd says of a pool that a test has killed, and of the workers that live on."""
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(os.getuid() != 0, reason="the units' users need root"),
    pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="Debian's systemd is not installed"),
]


@pytest.fixture(params=["installed", pytest.param("empty", marks=pytest.mark.full_sweep)])
def host(request: pytest.FixtureRequest, passable: Any, free_port: Callable[[], int]) -> Iterator[RunnerHost]:
    """A host on which every command of the page has been typed, or is as if those of its first block had been."""
    installed = request.param == "installed"
    folder = passable.folder / request.param
    folder.mkdir()
    made = RunnerHost(folder, passable.prefix, free_port(), installed)
    for line in blocks("sh").splitlines():
        if not installed or not re.search(r"sha256sum| -m venv |/pip ", line):
            made.type(line)
    made.wait()
    yield made
    made.runner.stop()


@pytest.fixture
def booted(passable: Any) -> Iterator[BootedHost]:
    """One that systemd keeps, on which every command has been typed."""
    if reason := why_not():
        pytest.skip(reason)
    made = BootedHost(passable.folder / "booted")
    try:
        for line in blocks("sh").splitlines():
            made.type(line)
        made.wait()
        yield made
    finally:
        made.machine.turn_off()


Notebook = Callable[[Host], AbstractContextManager[tuple[Any, Any]]]
"""On a host: who has opened it, and its kernel."""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch, kernel_type: Any, person_type: Any) -> Notebook:
    """Signs the owner of the first tenant in, starts a server and opens an empty notebook."""

    @contextlib.contextmanager
    def go(host: Host) -> Iterator[tuple[Any, Any]]:
        monkeypatch.setenv("SSL_CERT_FILE", str(host.authority))
        logins = json.loads((host.state / "hub" / "logins.json").read_text())
        with host.network(), httpx.Client(base_url=host.url, follow_redirects=True, timeout=60) as web:
            owner = person_type("acme-owner", web)
            assert owner.sign_in(logins["acme-owner"]).status_code == httpx.codes.OK
            owner.spawn("dev.4gb")
            owner.open_lab()
            headers = {"X-XSRFToken": owner.xsrf("/user/acme-owner/")}
            body = {"type": "notebook", "content": NOTEBOOK}
            web.put("/user/acme-owner/api/contents/try.ipynb", json=body, headers=headers).raise_for_status()
            yield owner, kernel_type(owner, "try.ipynb")

    return go


@pytest.fixture
def tried(notebook: Notebook, eventually: Callable[..., Any], tmp_path: Path) -> Callable[[RunnerHost | BootedHost], None]:
    """Tries all that the page says of a host, and stops it."""

    def go(host: RunnerHost | BootedHost) -> None:
        with notebook(host) as (owner, kernel):
            compute_while_the_pool_dies(host, kernel)
            compute_on_a_laptop(host, owner, tmp_path)
            assert eventually(lambda: usage_of(owner))
        for unit in ("forebay-backup.service", "forebay-rehearsal.service"):
            assert host.runner.run(unit) == 0, host.log()
        owners = {folder.name: folder.stat().st_uid for folder in host.state.iterdir()}
        assert len({owners[name] for name in ("pool", "billing", "routes", "hub")}) == 4 and owners["hub"] == 0
        statuses = host.runner.stop()
        assert set(statuses.values()) <= {0, 143}, statuses
        assert host.runner.left() == []
        kept = [host.state / name for name in ("pool/pool.sqlite", "billing/billing.sqlite3", "hub/hub.sqlite", "hub/uids.json")]
        whose = [path.stat().st_uid for path in kept]
        host.type(RESTORE)
        assert [path.stat().st_uid for path in kept] == whose, "services find their own"

    return go


def compute_while_the_pool_dies(host: RunnerHost | BootedHost, kernel: Any) -> None:
    product, uid, torch_file = kernel.run(PRODUCT).split()
    assert product == "14.0" and int(uid) > 1000 and torch_file.startswith(f"{host.environment}/notebook/")
    workers, (pool,) = host.processes("forebay_worker"), host.processes("forebay_pool")
    uids = [int(re.findall(r"^Uid:\t(\d+)", (entry / "status").read_text(), re.MULTILINE)[0]) for entry in workers]
    assert uids and len(set(uids)) == len(uids) and set(uids) <= set(range(1879048192, 1879113728)), "each worker has one of its own"
    assert pool.stat().st_uid == host.uid("forebay-pool")
    secrets = [pool / "environ", host.state / "pool" / "pool.sqlite", host.root / "etc" / "forebay" / "secrets" / "pool.env"]
    assert not [path for path in (*secrets, *(entry / "environ" for entry in workers)) if host.reads(uids[0], path)]
    assert host.reads(host.uid("forebay-pool"), secrets[1])
    host.runner.fail("forebay-pool.service")
    assert kernel.run("print((x + 1).sum().item())").split()[-1] == "10.0", "the session waited for the pool"
    assert {entry.name for entry in host.processes("forebay_worker")} >= {entry.name for entry in workers}
    kernel.close()


def compute_on_a_laptop(host: Host, owner: Any, home: Path) -> None:
    """Of an account that knows nothing but the host's public address: by ``forebay login`` and the edge."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OUTSIDE)}
    variables = {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "SSL_CERT_FILE": str(host.authority)}
    command = [sys.executable, "-m", "forebay", "login", "--no-browser", host.url]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as login:
        assert login.stdout is not None
        code = next(found[0] for line in login.stdout if (found := re.search("[B-Z]{4}-[B-Z]{4}", line)))
        page = owner.web.get("/hub/client", params={"code": code})
        xsrf = re.search(r'name="_xsrf" value="([^"]+)"', page.text)
        assert page.status_code == httpx.codes.OK and xsrf is not None, page.text
        headers = {"Referer": str(page.url), "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
        form = {"_xsrf": xsrf[1], "code": code, "decision": "confirm"}
        owner.web.post("/hub/client", data=form, headers=headers).raise_for_status()
        login.stdout.read()
    assert login.returncode == 0
    done = subprocess.run([sys.executable, "-c", PRODUCT], env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout.startswith("14.0 "), done.stderr
    (edge,) = host.processes("forebay_edge")
    assert edge.stat().st_uid == host.uid("forebay-edge")


def usage_of(owner: Any) -> list[Any]:
    """The records of the first tenant's usage."""
    asking = {"headers": {"Authorization": f"token {owner.new_token()}"}, "params": {"tenant": "acme"}}
    return list(owner.web.get("/services/billing/api/usage", **asking).raise_for_status().json()["records"])


def test_the_page_s_commands_make_a_host_that_serves_a_notebook_is_backed_up_and_stops(
    host: RunnerHost, tried: Callable[[RunnerHost], None]
) -> None:
    tried(host)
    assert host.processes("forebay_pool") == []


@pytest.mark.full_sweep
@pytest.mark.timeout(1200)
def test_systemd_keeps_such_a_host_starts_it_with_its_timers_and_has_no_complaint(
    booted: BootedHost, tried: Callable[[BootedHost], None], notebook: Notebook
) -> None:
    tried(booted)
    systemctl, timer = booted.runner, "forebay-backup.timer"
    stamp = booted.root / "var" / "lib" / "systemd" / "timers" / f"stamp-{timer}"
    before = time.time() - TWO_DAYS_SECONDS
    os.utime(stamp, (before, before))  # as where the host was off when a back-up was due
    drop_in = booted.root / "etc" / "systemd" / "system" / f"{timer}.d" / "at-once.conf"
    drop_in.parent.mkdir()
    drop_in.write_text(AT_ONCE)
    copies = set((booted.state / "backups").iterdir())
    booted.machine.reboot()
    booted.wait()
    with notebook(booted) as (owner, kernel):
        assert kernel.run(PRODUCT).startswith("14.0 ")
        assert usage_of(owner), "its books are those of before"
        kernel.close()
    systemctl.until_ended("forebay-backup.service")
    assert systemctl.show("forebay-backup.service", "Result") == "success"
    assert len(set((booted.state / "backups").iterdir()) - copies) == 1
    assert systemctl.show("forebay-rehearsal.timer", "ActiveState") == "active"
    assert set(systemctl.stop().values()) == {0}
    assert systemctl.left() == []
    assert [line for line in systemctl.complaints() if not DIED.match(line)] == []
