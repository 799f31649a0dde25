"""A pool that speaks the real session link over a real WebSocket, and does what the test tells it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import fork_server
import pytest
from forebay_wire import messages
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

sys.path.insert(0, str(Path(__file__).parent))  # for standalone

import rest_pool as rest

TOKEN = "a-token-of-the-test"
FLAVOR = messages.Flavor(name="dev.1gb", memory_bytes=2**30)
WAIT_SECONDS_MAX = 10.0

Answer = Callable[[messages.FromClient], list[messages.Message]]


class ScriptedPool:
    """Answers Hello with a session, and everything else by ``answer``. Records what it received.

    It tells causes as a pool of today does where ``tells_causes``, and else as one that knows of none."""

    def __init__(self) -> None:
        self.tells_causes = False
        self.answer: Answer = lambda message: []
        self.received: list[messages.FromClient] = []
        self.connections: list[ServerConnection] = []
        self._changed = threading.Condition()
        self._server = serve(self._handle, "127.0.0.1", 0, process_request=self._check, close_timeout=1)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.socket.getsockname()[1]}/services/pool/"

    def send(self, *sent: messages.Message) -> None:
        """Sends on the newest session link."""
        for message in sent:
            self._tell(self.connections[-1], message)

    def of(self, kind: type[messages.Message], count: int = 1) -> list[messages.Message]:
        """All received messages of one kind, once there are as many as ``count``."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._count(kind) >= count, WAIT_SECONDS_MAX)
            assert found, f"{count} x {kind.__name__} expected, received: {self.received}"
            return [message for message in self.received if isinstance(message, kind)]

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()

    def _tell(self, connection: ServerConnection, message: messages.Message) -> None:
        if self.tells_causes and isinstance(message, messages.Explained):
            offered = connection.request.headers[messages.CAUSES_HEADER] if connection.request is not None else "0"
            connection.send(message.encode(int(offered)))
        else:
            connection.send(message.encode())

    def _count(self, kind: type[messages.Message]) -> int:
        return sum(isinstance(message, kind) for message in self.received)

    def _check(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path != "/services/pool/api/session":
            return connection.respond(HTTPStatus.NOT_FOUND, "no such page\n")
        if request.headers.get("Authorization") != f"token {TOKEN}":
            return Response(401, "Unauthorized", Headers([("Connection", "close"), ("Content-Length", "0")]), b"")
        return None

    def _handle(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        try:
            for text in connection:
                message = messages.from_client(text)
                with self._changed:
                    self.received.append(message)
                    self._changed.notify_all()
                answers = self.answer(message)
                if isinstance(message, messages.Hello) and not answers:
                    answers = [messages.SessionOpened(session="s-1", flavor=FLAVOR, heartbeat_seconds=5.0)]
                for answer in answers:
                    self._tell(connection, answer)
        except ConnectionClosed:
            pass


@pytest.fixture
def scripted_pool() -> Iterator[ScriptedPool]:
    pool = ScriptedPool()
    yield pool
    pool.stop()


RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def rest_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[rest.RestPool]:
    """An HTTP server that answers as a pool, and is the configured one."""
    with rest.served() as server:
        monkeypatch.setenv("FOREBAY_URL", server.url)
        monkeypatch.setenv("FOREBAY_TOKEN", rest.TOKEN)
        yield server


@pytest.fixture
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pool is configured."""
    for name in ("FOREBAY_URL", "FOREBAY_TOKEN", "JUPYTERHUB_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Runs code in a fresh interpreter with its own home."""
    return runner(sys.executable, tmp_path)


@pytest.fixture
def run_forked(tmp_path: Path) -> RunPython:
    """Runs code in a fork of a process that has imported PyTorch, with its own home."""
    return runner(fork_server.programs(), tmp_path)


def runner(python: str | Path, home: Path) -> RunPython:
    """Runs code in a process of that interpreter."""

    def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTER", "JPY_"))}
        kept |= {"HOME": str(home), "IPYTHONDIR": str(home / "ipython"), **environment}
        command = [str(python), "-c", code, *arguments]
        return subprocess.run(command, env=kept, cwd=home, capture_output=True, text=True, timeout=120)

    return run
