"""``python -m forebay_pool`` as a process: embedded, as a managed service, and with settings that cannot be used."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import fork_server
import psutil
import pytest
from forebay_wire import messages as wire
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler
from websockets.asyncio.client import connect

WRITTEN_SECONDS_MAX = 20.0
"""A lease is on disk long before."""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts pools; ends those that still run."""
    yield from _starting(sys.executable)


@pytest.fixture
def fork() -> Iterator[Start]:
    """The same, with forks of a process that has imported the pool."""
    yield from _starting(fork_server.services())


def _starting(python: str | Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
        command = [str(python), "-m", "forebay_pool", *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=inherited | environment, **pipes))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def embedded(start: Start, state: Path, python: Path, *more: str, **environment: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    process = start("--embedded", "--state-dir", str(state), "--port", "0", *more, FOREBAY_POOL_WORKER_PYTHON=str(python), **environment)
    deadline = time.monotonic() + 20
    while not (state / "pool.json").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process, json.loads((state / "pool.json").read_text())


async def lease(address: dict[str, Any], mark: bool) -> list[Any]:
    """One lease of a client of the pool; what it was told."""
    heard: list[Any] = []
    url = address["url"].replace("http", "ws", 1) + "api/session"
    headers = {"Authorization": f"token {address['token']}"}
    async with connect(url, additional_headers=headers, compression=None, proxy=None) as link:
        await link.send(wire.Hello(process="x", pid=1, torch="2").encode())
        await link.send(wire.Acquire(request=1, span=wire.Span(id="s", kind="process", label="x")).encode())
        while not heard or not isinstance(heard[-1], wire.LeaseClosed):
            heard.append(wire.to_client(await asyncio.wait_for(link.recv(), 30)))
            if isinstance(heard[-1], wire.Granted):
                if mark:
                    _, writer = await asyncio.open_unix_connection(heard[-1].address.removeprefix("unix:"))
                    writer.write(b"mark\n")
                else:
                    await link.send(wire.Release(epoch=1).encode())
    if mark:
        writer.close()
    return heard


def test_an_embedded_pool_says_where_it_is_and_ends_without_a_trace(start: Start, tmp_path: Path, fake_python: Path) -> None:
    state = tmp_path / "state"
    process, address = embedded(
        start, state, fake_python, JUPYTERHUB_SERVICE_PREFIX="/user/x/", JUPYTERHUB_SERVICE_URL="http://127.0.0.1:1"
    )
    assert stat.S_IMODE((state / "pool.json").stat().st_mode) == 0o600
    assert (address["pid"], len(address["token"])) == (process.pid, 64)
    assert asyncio.run(lease(address, mark=True))[-1].reason == "drained"
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert output.strip() == f"forebay-pool serves {address['url']}"
    assert process.returncode == 0
    assert not (state / "pool.json").exists()
    assert not any(child.is_running() for child in children)


def test_an_embedded_pool_ends_with_the_process_it_is_for(start: Start, tmp_path: Path, fake_python: Path) -> None:
    sleeping = shutil.which("sleep")
    assert sleeping is not None
    parent = subprocess.Popen([sleeping, "60"])
    process, _ = embedded(start, tmp_path / "state", fake_python, "--parent-pid", str(parent.pid))
    parent.kill()
    parent.wait()
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_an_embedded_pool_that_nobody_uses_ends(start: Start, tmp_path: Path, fake_python: Path) -> None:
    process, _ = embedded(start, tmp_path / "state", fake_python, FOREBAY_POOL_EMBEDDED_IDLE_EXIT_SECONDS="0.5")
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_killed_pool_takes_its_workers_with_it(start: Start, tmp_path: Path, fake_python: Path) -> None:
    process, address = embedded(start, tmp_path / "state", fake_python)
    asyncio.run(lease(address, mark=True))
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert gone and not alive


def wait_for_row(state: Path, table: str) -> None:
    """Until the pool has written a row there."""
    deadline = time.monotonic() + WRITTEN_SECONDS_MAX
    database = sqlite3.connect(state / "pool.sqlite")
    while database.execute(f"select count(*) from {table}").fetchone() == (0,):  # noqa: S608 - of two names below
        assert time.monotonic() < deadline, f"nothing is written in {table}"
        time.sleep(0.01)
    database.close()


async def hold_and_kill(address: dict[str, Any], process: subprocess.Popen[str], state: Path) -> str:
    """Kills the pool while a lease is open; the lease."""
    url = address["url"].replace("http", "ws", 1) + "api/session"
    headers = {"Authorization": f"token {address['token']}"}
    async with connect(url, additional_headers=headers, compression=None, proxy=None) as link:
        await link.send(wire.Hello(process="x", pid=1, torch="2").encode())
        await link.send(wire.Acquire(request=1, span=wire.Span(id="s", kind="process", label="x")).encode())
        while not isinstance(granted := wire.to_client(await asyncio.wait_for(link.recv(), 30)), wire.Granted):
            continue
        await asyncio.to_thread(wait_for_row, state, "open_leases")
        process.kill()
        await asyncio.to_thread(process.communicate)
    return granted.lease


def test_a_lease_that_was_open_when_the_pool_was_killed_ends_at_its_last_confirmed_moment(
    start: Start, tmp_path: Path, fake_python: Path
) -> None:
    state = tmp_path / "state"
    process, address = embedded(start, state, fake_python)
    asyncio.run(lease(address, mark=True))
    wait_for_row(state, "lease_segments")
    asyncio.run(hold_and_kill(address, process, state))
    (state / "pool.json").unlink()
    process, address = embedded(start, state, fake_python)
    headers = {"Authorization": f"token {address['token']}"}
    with urlopen(Request(address["url"] + "api/leases", headers=headers)) as answer:  # noqa: S310 - our own address
        assert json.load(answer) == []
    asyncio.run(lease(address, mark=True))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    with sqlite3.connect(state / "pool.sqlite") as database:
        rows = database.execute("select close_reason, duration_ns from lease_segments order by started_at_unix_ns").fetchall()
        assert [reason for reason, _ in rows] == ["drained", "failed", "drained"]
        assert 0 <= rows[1][1] <= 10**9
        assert database.execute("select count(*) from open_leases").fetchone() == (0,)
    database.close()


def test_a_locked_database_at_the_start_is_one_sentence(fork: Start, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    lock = sqlite3.connect(state / "pool.sqlite", isolation_level=None)
    lock.execute("begin exclusive")
    process = fork("--embedded", "--state-dir", str(state), "--port", "0")
    _, errors = process.communicate(timeout=30)
    lock.close()
    assert process.returncode == 2
    assert "cannot be opened" in errors and "locked" in errors and "Traceback" not in errors


@pytest.mark.parametrize("kind", ["null", "cpu"])
def test_the_real_worker_opens_and_releases_leases(fork: Start, tmp_path: Path, kind: str) -> None:
    if importlib.util.find_spec("forebay_worker._executor") is None:
        pytest.skip("the worker's extension is not built")
    devices = f'[{{kind = "{kind}", model = "cpu-dev", memory = "4 GiB"}}]'
    process, address = embedded(fork, tmp_path / "state", Path(sys.executable), FOREBAY_POOL_DEVICES=devices)
    heard = asyncio.run(lease(address, mark=False))
    words = [message.type for message in heard if not isinstance(message, wire.Queued)]
    assert words == ["session", "granted", "closed"]
    assert heard[-1].reason == "released"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0


class _User(RequestHandler):
    """JupyterHub's ``GET user`` for one token."""

    def get(self) -> None:
        if self.request.headers.get("Authorization") != "token of-ada":
            self.set_status(403)
            return
        scopes = ["custom:forebay:compute!user=ada", "self"]
        self.write({"name": "ada", "kind": "user", "groups": ["tenant-acme"], "scopes": scopes})


def test_as_a_managed_service_it_serves_where_jupyterhub_says_and_asks_it_whose_token_it_is(
    fork: Start, tmp_path: Path, fake_python: Path
) -> None:
    async def scenario() -> None:
        hub = HTTPServer(Application([("/hub/api/user", _User)], log_function=lambda _: None))
        sockets = bind_sockets(0, "127.0.0.1")
        hub.add_sockets(sockets)
        with_port = bind_sockets(0, "127.0.0.1")
        port = with_port[0].getsockname()[1]
        with_port[0].close()
        config = tmp_path / "pool.toml"
        config.write_text('[[devices]]\nkind = "cpu"\nmodel = "cpu-dev"\nmemory = "2 GiB"\n')
        process = fork(
            "--config",
            str(config),
            "--state-dir",
            str(tmp_path / "state"),
            FOREBAY_POOL_WORKER_PYTHON=str(fake_python),
            JUPYTERHUB_API_TOKEN="of-the-pool",
            JUPYTERHUB_API_URL=f"http://127.0.0.1:{sockets[0].getsockname()[1]}/hub/api",
            JUPYTERHUB_SERVICE_PREFIX="/services/pool/",
            JUPYTERHUB_SERVICE_URL=f"http://127.0.0.1:{port}",
        )
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        url = f"http://127.0.0.1:{port}/services/pool/"
        assert line.strip() == f"forebay-pool serves {url}"
        heard = await lease({"url": url, "token": "of-ada"}, mark=True)
        assert heard[-1].reason == "drained"
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.communicate, timeout=20)
        assert process.returncode == 0
        hub.stop()
        await hub.close_all_connections()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("nonsense = 1", {}, "pool.toml names no setting; "),
        ("port = ", {}, "is not TOML"),
        ("heartbeat_seconds = 0", {}, "pool.toml cannot be used: Input should be greater than 0"),
        ('[[devices]]\nkind = "tpu"\nmodel = "x"\nmemory = "1 GiB"', {}, "(devices.0.kind) cannot be used: Input should be 'cpu', 'cuda'"),
        ('[[devices]]\nkind = "cpu"\nmodel = "x"\nmemory = "lots"', {}, "write for example 4 GiB"),
        ('launcher = "ray"\nray_address = "local"', {}, "pool.toml cannot be used: String should match pattern '^(auto|"),
        ("", {"FOREBAY_POOL_NONSENSE": "1"}, "FOREBAY_POOL_NONSENSE names no setting"),
        ("", {}, "hub_api_url is not set"),
        ('database_url = "sqlite:////nowhere/at/all/x.sqlite"\nhub_api_url = "http://127.0.0.1:1"', {}, "cannot be opened"),
        ('hub_api_url = "http://127.0.0.1:1"\nbilling_url = "http://127.0.0.1:1"', {}, "hub_token is not"),
    ],
)
def test_settings_that_cannot_be_used_are_one_sentence(
    fork: Start, tmp_path: Path, text: str, environment: dict[str, str], expected: str
) -> None:
    config = tmp_path / "pool.toml"
    config.write_text(text)
    process = fork("--config", str(config), "--state-dir", str(tmp_path / "state"), **environment)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert expected in errors
    assert "Traceback" not in errors


def test_a_pool_that_starts_its_workers_itself_does_not_import_ray() -> None:
    modules = "forebay_pool.__main__, forebay_pool.embedded, forebay_pool.service, forebay_pool.hosts.launcher"
    asked = [sys.executable, "-c", f"import sys, {modules}; print('ray' in sys.modules, 'forebay_pool.hosts.ray_nodes' in sys.modules)"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


def test_a_folder_for_spilled_tensors_that_cannot_be_used_is_named_with_who_must_own_it(fork: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spill = str(tmp_path / "file" / "spill")
    process = fork("--embedded", "--state-dir", str(tmp_path / "state"), "--port", "0", FOREBAY_POOL_SPILL_DIR=spill)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 2
    assert told.splitlines()[-1] == (
        f"forebay-pool: spill_dir {spill} cannot be used (Not a directory): make it, and give it to uid {os.getuid()}"
    )
