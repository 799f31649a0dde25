"""A real worker with its pool's end of the link in this process, and a client of the virtual device that it serves."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from forebay_wire import messages
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from gpu.peer import Peer, client

START_SECONDS_MAX = 120.0
ANSWER_SECONDS_MAX = 120.0
RESTING = {"idle_release_seconds": 600.0, "heartbeat_seconds": 5.0}
HOST, DISK = (1 << 40, 0), (0, 1 << 40)
"""Where parked bytes may lie: of the host's memory, and of its disk."""

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})

M = TypeVar("M", bound=messages.Message)


class WorkerSilent(Exception):
    """The worker did not say in time what it was to say."""


class Worker:
    """A worker process, told what to do as its pool tells it."""

    def __init__(self, devices: Sequence[str], root: Path, kernels: bool = False, variables: Mapping[str, str] = NO_VARIABLES) -> None:
        self._heard: queue.Queue[messages.FromWorker] = queue.Queue()
        self._server = serve(self._hear, "127.0.0.1", 0)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.folder = Path(tempfile.mkdtemp(prefix="w-", dir=root))
        self.log = self.folder / "log"
        url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}/api/worker"
        command = [sys.executable, "-m", "forebay_worker", "--pool", url, "--worker", self.folder.name]
        command += [option for device in devices for option in ("--device", device)]
        command += ["--socket-dir", str(self.folder), "--spill-dir", str(self.folder), "--log-level", "info"]
        command += ["--kernels"] if kernels else []
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        began = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env={**kept, **variables, "FOREBAY_WORKER_TOKEN": "t"}, stdout=log, stderr=log)
        self._connection: ServerConnection
        self.ticket = secrets.token_bytes(32)
        self.epoch = 0
        self.limit_bytes = 0
        try:
            self.address = self.expect(messages.Ready, START_SECONDS_MAX).address
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.monotonic() - began

    def _hear(self, connection: ServerConnection) -> None:
        self._connection = connection
        connection.send(messages.Lead(epoch=1).encode())
        with contextlib.suppress(ConnectionClosed):
            for text in connection:
                self._heard.put(messages.from_worker(text))

    def send(self, message: messages.Message) -> None:
        self._connection.send(message.encode())

    def expect(self, kind: type[M], seconds_max: float = ANSWER_SECONDS_MAX) -> M:
        """The next message of that kind; others before it are passed over. Raises WorkerSilent."""
        deadline = time.monotonic() + seconds_max
        while True:
            try:
                message = self._heard.get(timeout=min(0.5, max(0.01, deadline - time.monotonic())))
            except queue.Empty:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise WorkerSilent(f"no {kind.__name__} from the worker: {self.last_words()}") from None
                continue
            if isinstance(message, kind):
                return message

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        status = self.process.poll()
        return " | ".join([*([] if status is None else [f"it ended with status {status}"]), *lines[-3:]])

    def assign(self, limit_bytes: int, source: messages.Source | None = None) -> None:
        """Returns when the worker has the session, with all that it fetched."""
        self.limit_bytes = limit_bytes
        ticket = self.ticket.hex()
        self.send(messages.Assign(session="s", ticket=ticket, memory_limit_bytes=limit_bytes, source=source, **RESTING))  # type: ignore[arg-type]
        self.expect(messages.Assigned)

    def open(self) -> None:
        """A lease begins."""
        self.epoch += 1
        self.send(messages.Open(epoch=self.epoch, memory_limit_bytes=self.limit_bytes))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._server.shutdown()
        self._thread.join()


class Session:
    """A worker and the client it serves."""

    def __init__(self, worker: Worker, peer: Peer) -> None:
        self.worker = worker
        self.peer = peer

    def open(self) -> None:
        """A lease begins, and both know."""
        self.worker.open()
        self.peer.call("programs.lease", epoch=self.worker.epoch, limit_bytes=self.worker.limit_bytes)

    def rest(self) -> None:
        """The lease ends once all work is done; the session stays resident."""
        self.peer.call("programs.mark")
        self.worker.expect(messages.Drained)

    def connect(self) -> None:
        """The client goes to the worker, and its lease begins."""
        self.peer.call("programs.connect", address=self.worker.address, ticket=self.worker.ticket.hex())
        self.open()


@contextlib.contextmanager
def worker_on(
    devices: Sequence[str], root: Path, kernels: bool = False, variables: Mapping[str, str] = NO_VARIABLES
) -> Iterator[Worker]:
    """A started worker without a session."""
    worker = Worker(devices, root, kernels, variables)
    try:
        yield worker
    finally:
        worker.close()


@contextlib.contextmanager
def session_on(
    devices: Sequence[str], root: Path, limit_bytes: int, compiles: bool, kernels: bool = False, variables: Mapping[str, str] = NO_VARIABLES
) -> Iterator[Session]:
    """A session with an open lease on a worker of its own, whose environment has these variables, too."""
    with worker_on(devices, root, kernels, variables) as worker, client(worker.folder / "client.log", compiles=compiles) as peer:
        worker.assign(limit_bytes)
        session = Session(worker, peer)
        session.connect()
        yield session
