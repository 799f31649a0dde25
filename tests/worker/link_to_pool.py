"""The pool's end of a worker link, for tests that are the pool."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from typing import TypeVar

from forebay_wire import messages
from forebay_wire.messages import FromWorker
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

WAIT_SECONDS_MAX = 30
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
