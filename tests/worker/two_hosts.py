"""Doors of workers of this host as workers of another host reach them: over TCP, so that nobody shares memory with them."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from group_member import path_of

CHUNK_BYTES = 1 << 20


class Network:
    """Connections between hosts that are played, and the bytes that went over them."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for listener in self._listeners:
            listener.close()
        for thread in self._threads:
            thread.join()

    def address(self, door: str) -> str:
        """Where one member of another host reaches the door at this address."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        self._threads.append(threading.Thread(target=self._join, args=(listener, path_of(door))))
        self._threads[-1].start()
        return f"tcp:127.0.0.1:{listener.getsockname()[1]}"

    def _join(self, listener: socket.socket, path: str) -> None:
        with contextlib.suppress(OSError):
            guest, _ = listener.accept()
            with guest, socket.socket(socket.AF_UNIX) as host:
                host.connect(path)
                back = threading.Thread(target=self._carry, args=(host, guest))
                back.start()
                self._carry(guest, host)
                back.join()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                target.sendall(data)
                with self._lock:
                    self.bytes += len(data)
            target.shutdown(socket.SHUT_WR)
