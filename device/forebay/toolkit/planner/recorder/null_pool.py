"""The null pool: a session link at whose other end a program finds the null device, at once and free of charge."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import Any

from forebay_wire import messages
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from forebay.toolkit.planner.recorder.null_device import KIND, MEMORY_BYTES, MODEL

HEARTBEAT_SECONDS = 10.0
ONE_PROGRAM = "`forebay plan` records one process with one virtual device; this is another one of the script's."
FLAVOR = messages.Flavor(name="null", memory_bytes=MEMORY_BYTES)


class NullPool:
    """Listens on the loopback interface while the context lasts. Its one session has leases whenever it asks for one."""

    def __init__(self, stream_path: Path, ticket: bytes) -> None:
        self.token = secrets.token_hex(16)
        self._address, self._ticket = f"unix:{stream_path}", ticket.hex()
        self._link: ServerConnection | None = None
        self._lock = threading.Lock()
        self._epoch = 0

    def __enter__(self) -> NullPool:
        self._server: Server = serve(self._attend, "127.0.0.1", 0, process_request=self._check, compression=None)
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}/"
        threading.Thread(target=self._server.serve_forever, name="forebay-null-pool", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()

    def drained(self, epoch: int) -> None:
        """The null device has read all that was recorded under the lease."""
        link = self._link
        if link is not None:
            self._say(link, messages.LeaseClosed(lease=f"null-{epoch}", epoch=epoch, reason="drained", duration_ns=0))

    def _check(self, connection: ServerConnection, request: Any) -> Any:
        if request.headers.get("Authorization") != f"token {self.token}":
            return connection.respond(401, "unknown token\n")
        return None

    def _attend(self, link: ServerConnection) -> None:
        with self._lock:
            first, self._link = self._link is None, self._link or link
        if not first:
            return self._say(link, messages.Refused(code="limit", message=ONE_PROGRAM))
        try:
            for text in link:
                self._answer(link, messages.from_client(text))
        except (ConnectionClosed, messages.MessageError):
            link.close()

    def _answer(self, link: ServerConnection, message: object) -> None:
        match message:
            case messages.Hello() | messages.ChooseFlavor() | messages.ChoosePriority():
                self._say(link, messages.SessionOpened(session="null", flavor=FLAVOR, heartbeat_seconds=HEARTBEAT_SECONDS))
            case messages.Acquire():
                self._epoch += 1
                self._say(link, self._granted(message.request))

    def _granted(self, request: int) -> messages.Granted:
        return messages.Granted(
            request=request,
            lease=f"null-{self._epoch}",
            epoch=self._epoch,
            worker="null",
            address=self._address,
            ticket=self._ticket,
            device=messages.DeviceModel(kind=KIND, model=MODEL),
            flavor=FLAVOR,
        )

    def _say(self, link: ServerConnection, message: messages.Message) -> None:
        try:
            link.send(message.encode())
        except ConnectionClosed:
            return
