"""What the pool's tests share: a state machine in virtual time, and a real pool with its clients over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fork_server
import pytest
from forebay_pool.machine.invariants import validate
from forebay_pool.service import Service
from forebay_pool.settings import Settings
from forebay_pool.store.database import Store
from forebay_service.identity import COMPUTE, OPERATE, SERVICE, TENANT, Authenticator, Identity, TokenAuthenticator
from forebay_wire import messages as wire
from pool_world import World
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from websockets.asyncio.client import ClientConnection, connect

sys.path.insert(0, str(Path(__file__).parent))  # for tests that take a class from here


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database with the schema alone, to be copied: it is made in a third of a second."""
    path = tmp_path_factory.mktemp("migrated") / "pool.sqlite"
    opened = Store(f"sqlite:///{path}")
    opened.migrate()
    opened.close()
    return path


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A store whose pool leads."""
    opened = Store(database_url)
    opened.migrate()
    opened.lead("http://here/")
    yield opened
    opened.close()


@pytest.fixture
def world() -> Callable[..., World]:
    """Makes a world."""
    return World


# A real pool

PEOPLE = {
    "ada": Identity("ada", "user", "acme", frozenset({COMPUTE})),
    "ben": Identity("ben", "user", "acme", frozenset({COMPUTE})),
    "other-ada": Identity("ada", "user", "globex", frozenset({COMPUTE})),
    "loner": Identity("loner", "user", None, frozenset({COMPUTE})),
    "olga": Identity("olga", "user", "acme", frozenset({COMPUTE, TENANT})),
    "guest": Identity("guest", "user", "acme", frozenset()),
    "operator": Identity("operator", "user", None, frozenset({OPERATE})),
    "dashboards": Identity("dashboards", "service", None, frozenset({SERVICE})),
}
PATIENCE_SECONDS = 40


class Client:
    """A process with a session link; its token is its name."""

    def __init__(self, link: ClientConnection) -> None:
        self.link = link
        self.session = ""
        self.worker = ""
        self.stream: asyncio.StreamWriter | None = None

    async def say(self, message: wire.Message | str) -> None:
        await self.link.send(message if isinstance(message, str) else message.encode())

    async def hears(self, kind: type[Any]) -> Any:
        """The next message of this kind; those before it are let pass."""
        while True:
            message = wire.to_client(await asyncio.wait_for(self.link.recv(), PATIENCE_SECONDS))
            if isinstance(message, kind):
                return message

    async def hello(self, flavor: str | None = None) -> wire.SessionOpened:
        await self.say(wire.Hello(process="python train.py", pid=1, torch="2.13.0", flavor=flavor))
        opened: wire.SessionOpened = await self.hears(wire.SessionOpened)
        self.session = opened.session
        return opened

    async def acquire(self, number: int = 1) -> wire.Granted:
        await self.ask(number)
        granted: wire.Granted = await self.hears(wire.Granted)
        if self.worker != granted.worker:
            self.leave_worker()
            self.worker = granted.worker
            _, self.stream = await asyncio.open_unix_connection(granted.address.removeprefix("unix:"))
        return granted

    async def ask(self, number: int = 1) -> None:
        await self.say(wire.Acquire(request=number, span=wire.Span(id=f"span-{number}", kind="cell", label="n.ipynb", cell=number)))

    def work(self, line: str) -> None:
        """A line of the fake worker's command stream."""
        assert self.stream is not None
        self.stream.write(line.encode() + b"\n")

    def leave_worker(self) -> None:
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    async def close(self) -> None:
        self.leave_worker()
        await self.link.close()


class Pool:
    """A pool that runs in this process, with fake workers as child processes."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.machine = service.shell.machine
        self._clients: list[Client] = []

    async def client(self, who: str = "ada", **more: str) -> Client:
        """``more`` are headers."""
        url = self.service.url.replace("http", "ws", 1) + "api/session"
        headers = {"Authorization": f"token {who}", **more}
        link = await connect(url, additional_headers=headers, compression=None, proxy=None, ping_interval=None)
        self._clients.append(Client(link))
        return self._clients[-1]

    async def call(self, method: str, path: str, who: str | None = "operator", body: Any = None, **more: str) -> HTTPResponse:
        """``more`` are headers, with ``_`` for ``-``."""
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        headers |= {} if who is None else {"Authorization": f"token {who}"}
        text = None if body is None else body if isinstance(body, str) else json.dumps(body)
        return await AsyncHTTPClient().fetch(
            self.service.url + path, method=method, headers=headers, body=text, raise_error=False, allow_nonstandard_methods=True
        )

    async def get(self, path: str, who: str | None = "operator") -> Any:
        response = await self.call("GET", path, who)
        assert response.code == 200, response.body
        return json.loads(response.body)

    async def until(self, holds: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
        """Waits for something that other processes bring about."""
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(0.005)
        validate(self.machine)

    @property
    def leases(self) -> list[str]:
        return [session.lease.id for session in self.machine.sessions.values() if session.lease is not None]

    def records(self) -> list[dict[str, Any]]:
        """The lease segments on disk."""
        with self.service.store.engine.connect() as connection:
            rows = connection.exec_driver_sql("select * from lease_segments where parked_bytes is null order by started_at_unix_ns")
            return [dict(row._mapping) for row in rows]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """What a table of the pool's database holds."""
        with self.service.store.engine.connect() as connection:
            return [dict(row._mapping) for row in connection.exec_driver_sql(f"select * from {table}")]  # noqa: S608 - our own names

    def parked_records(self) -> list[dict[str, Any]]:
        """The segments of parked time on disk."""
        with self.service.store.engine.connect() as connection:
            rows = connection.exec_driver_sql("select * from lease_segments where parked_bytes is not null order by started_at_unix_ns")
            return [dict(row._mapping) for row in rows]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@pytest.fixture
def fake_python(tmp_path: Path) -> Path:
    """An interpreter that runs the fake worker, whatever module it is told to run."""
    return fake_worker_of(sys.executable, tmp_path / "python")


@pytest.fixture
def forked_fake_python(tmp_path: Path) -> Path:
    """The same for forks of a process that has imported what the fake worker needs."""
    return fake_worker_of(fork_server.services(), tmp_path / "forked-python")


def fake_worker_of(python: str | Path, path: Path) -> Path:
    """Writes the interpreter there, which runs the fake worker by that other one."""
    path.write_text(f'#!/bin/sh\nexec {python} {Path(__file__).with_name("fake_worker.py")} "$@"\n')
    path.chmod(0o700)
    return path


@pytest.fixture
def pool(tmp_path: Path, forked_fake_python: Path, migrated_file: Path) -> Callable[..., Any]:
    """``async with pool(setting=value) as running: …``; its workers are fakes, or with ``real_workers=True`` forks of the real one."""

    @asynccontextmanager
    async def run(*, real_workers: bool = False, authenticator: Authenticator | None = None, **changes: Any) -> AsyncIterator[Pool]:
        values: dict[str, Any] = {
            "port": 0,
            "state_dir": tmp_path / "state",
            "worker_python": fork_server.services() if real_workers else forked_fake_python,
            "devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB"}],
            "end_grace_seconds": 2.0,
            "warm_programs": False,  # to import JAX takes each worker half a second
        }
        settings = Settings.load(None, {}, values | changes, managed=False)
        if settings.database_url is None and not settings.state_dir.exists():
            settings.state_dir.mkdir(parents=True)
            shutil.copy(migrated_file, settings.state_dir)
        service = Service(settings, authenticator or TokenAuthenticator(PEOPLE), os.environ)
        await service.start()
        running = Pool(service)
        try:
            yield running
        finally:
            await running.close()
            await service.stop()
        assert not running.leases
        assert not running.machine.fleet.workers

    return run
