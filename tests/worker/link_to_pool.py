"""The pool's end of a worker link, for tests that are the pool."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import secrets
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from forebay_wire import messages, stream
from forebay_wire.messages import FromWorker
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

WAIT_SECONDS_MAX = 30
LIMIT_BYTES = 256 << 20
QUIET_SECONDS = 0.3

M = TypeVar("M", bound=messages.Message)


class Pool:
    """The pool's end of one worker link."""

    def __init__(self) -> None:
        self.heard: queue.Queue[FromWorker] = queue.Queue()
        self.connected: queue.Queue[ServerConnection] = queue.Queue()
        self.server: Server = serve(self._hear, "127.0.0.1", 0)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.tokens: list[str] = []
        self.epoch = 1
        self._connection: ServerConnection | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.server.socket.getsockname()[1]}/api/worker"

    def _hear(self, connection: ServerConnection) -> None:
        assert connection.request
        self.tokens.append(connection.request.headers["Authorization"])
        connection.send(messages.Lead(epoch=self.epoch).encode())
        self.connected.put(connection)
        with contextlib.suppress(ConnectionClosed):
            for text in connection:
                self.heard.put(messages.from_worker(text))

    def connection(self) -> ServerConnection:
        if self._connection is None:
            self._connection = self.connected.get(timeout=WAIT_SECONDS_MAX)
        return self._connection

    def send(self, message: messages.Message) -> None:
        self.connection().send(message.encode())

    def expect(self, kind: type[M]) -> M:
        """The next message that is no heartbeat."""
        while isinstance(message := self.heard.get(timeout=WAIT_SECONDS_MAX), messages.Heartbeat):
            if kind is messages.Heartbeat:
                break
        assert isinstance(message, kind), message
        return message

    def drop(self) -> None:
        """Breaks the link, as a pool does that is killed."""
        self.connection().socket.shutdown(socket.SHUT_RDWR)
        self._connection = None

    def expect_silence(self) -> None:
        end = time.monotonic() + QUIET_SECONDS
        while (left := end - time.monotonic()) > 0:
            try:
                message = self.heard.get(timeout=left)
            except queue.Empty:
                return
            assert isinstance(message, messages.Heartbeat), message

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()


def encrypted(peer: socket.socket, certificate: str) -> ssl.SSLSocket:
    """By TLS with who shows that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    found = context.wrap_socket(peer)
    assert hashlib.sha256(found.getpeercert(binary_form=True) or b"").hexdigest() == certificate
    return found


class Linked:
    """A worker process, the pool's end of its link, and its client."""

    def __init__(self, pool: Pool, process: subprocess.Popen[str], make_client: Callable[..., Any], spill: Path) -> None:
        self.pool, self.process, self.spill = pool, process, spill
        self.ticket = secrets.token_bytes(32)
        ready = pool.expect(messages.Ready)
        self.address, self.pid, self.certificate = ready.address, ready.pid, ready.certificate
        self._make_client = make_client
        self.epoch = 0
        self.clients: list[Any] = []

    def assign(self, source: messages.Source | None = None, limit_bytes: int = LIMIT_BYTES, **more: Any) -> None:
        self.pool.send(
            messages.Assign(
                session="s-1",
                ticket=self.ticket.hex(),
                memory_limit_bytes=limit_bytes,
                idle_release_seconds=600,
                heartbeat_seconds=0.2,
                source=source,
                **more,
            )
        )

    def open(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.epoch += 1
        self.pool.send(messages.Open(epoch=self.epoch, memory_limit_bytes=limit_bytes))
        while self.pool.expect(messages.Heartbeat).epoch != self.epoch:
            pass

    def client(self) -> Any:
        """By TLS if the worker told of a certificate."""
        client = self._make_client(self.address, self.ticket)
        if self.certificate is not None:
            client.socket = encrypted(client.socket, self.certificate)
        self.clients.append(client)
        welcome = client.hello()
        assert isinstance(welcome, stream.Welcome)
        self.welcome = welcome
        return client

    def serve(self, **more: Any) -> Any:
        """Assigned and opened; its client."""
        self.assign(**more)
        self.pool.expect(messages.Assigned)
        self.open()
        return self.client()

    def kill(self) -> None:
        """The worker. What was started may be a process that asks for a fork of another one: it ends by itself then."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(WAIT_SECONDS_MAX)

    def drain(self, client: Any) -> None:
        client.send(stream.Mark(self.epoch))
        self.pool.expect(messages.Drained)

    def memory_kib(self) -> int:
        """Of the worker and of the processes of its session's other devices."""
        others = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        lines = [line for pid in (self.pid, *others) for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    def spill_files(self) -> list[os.stat_result]:
        """Files without a name in the spill directory that the process has open."""
        return [entry.stat() for entry in self.spill_entries()]

    def spill_entries(self) -> list[Path]:
        entries = Path(f"/proc/{self.pid}/fd").iterdir()
        return [entry for entry in entries if os.readlink(entry).startswith(f"{self.spill}/") and os.readlink(entry).endswith(" (deleted)")]
