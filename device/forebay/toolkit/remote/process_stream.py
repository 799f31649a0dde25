"""The client's end of the stream to the worker that runs its process."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator

from forebay_wire.message_parts import Message
from forebay_wire.remote import frames
from forebay_wire.remote.frames import HEAD, INPUT_BYTES_MAX, FrameKind, StreamError

from forebay.errors import SessionEnded
from forebay.toolkit.remote.secure_socket import SecureSocket

CONNECT_SECONDS_MAX = 15.0


class ProcessStream:
    """What a session does to it (:class:`forebay.session.Stream`), and the frames that go over it.

    Frames are sent by a thread of its own, so that a signal's handler may give it one at any time.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | SecureSocket | None = None
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lost: str | None = None
        self._room = INPUT_BYTES_MAX
        self._changed = threading.Condition()

    # What a session does

    def connect(self, address: str, ticket: bytes, meeting: int | None, certificate: str, authorization: str = "", /) -> None:
        """Raises RuntimeError."""
        try:
            self._socket = _connected(address, certificate)
            self._socket.sendall(frames.said(frames.Enter(ticket=ticket.hex())))
            answer = self.message()
        except (OSError, StreamError, SessionEnded) as error:
            self.close()
            raise RuntimeError(str(error)) from None
        if not isinstance(answer, frames.Entered):
            raise RuntimeError(answer.why if isinstance(answer, frames.Denied) else f"it answered {answer.type}")
        threading.Thread(target=self._send, args=(self._socket,), name="forebay-process", daemon=True).start()

    def connected(self) -> bool:
        return self._socket is not None and self._lost is None

    def lease_opened(self, epoch: int, memory_bytes: int, /) -> None:
        """The worker knows it."""

    def lease_closed(self) -> None:
        """The worker knows it."""

    def leave(self) -> bool:
        """A process stays where it is."""
        return False

    def is_torn(self) -> bool:
        return False

    def break_off(self) -> bool:
        """Nobody else can go on with it."""
        return False

    def broken(self) -> bool:
        return False

    def replay_differences(self) -> tuple[int, int]:
        return 0, 0

    def lose(self, message: str, /) -> None:
        """The session is over: so is whoever reads here."""
        with self._changed:
            self._lost = self._lost or message
            self._changed.notify_all()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    # Frames

    def say(self, message: Message) -> None:
        """Sends a message, soon. Raises StreamError where it is too long."""
        self._outgoing.put(frames.said(message))

    def give(self, piece: bytes) -> None:
        """Sends a piece of what the process reads, once there is room for it; an empty one is the end. Raises SessionEnded."""
        with self._changed:
            self._changed.wait_for(lambda: self._room >= len(piece) or self._lost is not None)
            if self._lost is not None:
                raise SessionEnded(self._lost)
            self._room -= len(piece)
        self._outgoing.put(frames.frame(FrameKind.INPUT, piece))

    def contents(self, pieces: Iterator[bytes]) -> None:
        """Sends a file's contents, as fast as the worker takes them; before the process runs. Raises OSError, SessionEnded."""
        for piece in pieces:
            if self._socket is None:
                raise SessionEnded(self._lost or "The connection to the worker ended.")
            try:
                self._socket.sendall(frames.frame(FrameKind.CONTENTS, piece))
            except OSError:
                raise self._end() from None

    def next(self) -> tuple[FrameKind, bytes]:
        """The next frame. Raises SessionEnded, StreamError."""
        kind, length = frames.head_of(self._read(HEAD.size))
        return kind, self._read(length)

    def message(self) -> frames.FromWorker:
        """The next frame, which must be a message. Raises SessionEnded, StreamError."""
        kind, contents = self.next()
        if kind != FrameKind.MESSAGE:
            raise StreamError(f"{kind.name} where a message was awaited")
        return frames.from_worker(contents)

    def took(self, count: int) -> None:
        """The process has read so much."""
        with self._changed:
            self._room += count
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the connection, and with it the process."""
        self._outgoing.put(None)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _end(self) -> SessionEnded:
        """Why there is no more: what the pool says comes a moment after the connection's end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, 2.0)
            return SessionEnded(self._lost or "The connection to the worker ended, and the process with it.")

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                piece = b"" if self._socket is None else self._socket.recv(count - len(data))
            except OSError:
                piece = b""
            if not piece:
                raise self._end()
            data += piece
        return bytes(data)

    def _send(self, connection: socket.socket | SecureSocket) -> None:
        with contextlib.suppress(OSError):  # whoever reads finds it out
            while (frame := self._outgoing.get()) is not None:
                connection.sendall(frame)


def _connected(address: str, certificate: str) -> socket.socket | SecureSocket:
    """Raises OSError."""
    kind, _, where = address.partition(":")
    made = socket.socket(socket.AF_UNIX) if kind == "unix" else _connected_by_tcp(where)
    try:
        made.settimeout(CONNECT_SECONDS_MAX)
        if kind == "unix":
            made.connect(where)
        secured = SecureSocket(made, certificate) if certificate else made
        secured.settimeout(None)
        return secured
    except OSError:
        made.close()
        raise


def _connected_by_tcp(where: str) -> socket.socket:
    host, _, port = where.rpartition(":")
    made = socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS_MAX)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
