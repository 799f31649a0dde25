"""An edge that splits what a worker says in each way that RFC 6455 allows, and reads what its client sends by that document."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import random
import socket
import struct
import threading

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
SIZES = (0, 1, 2, 125, 126, 127, 1000, 65535, 65536, 200_000)
BINARY, CONTINUATION, CLOSE, PING, PONG = 2, 0, 8, 9, 10
FINAL, MASKED = 0x80, 0x80


def frame(opcode: int, payload: bytes, final: bool = True) -> bytes:
    """As a server sends it."""
    size = len(payload)
    length = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size) if size < 65536 else b"\x7f" + struct.pack(">Q", size)
    return bytes([opcode | (FINAL if final else 0)]) + length + payload


class SplittingEdge:
    """Listens at ``address``, and passes on to the worker at ``worker`` (tcp:HOST:PORT). ``wrong``: bytes sent in place of what it says."""

    def __init__(self, worker: str, seed: int, status: str = "101 Switching Protocols", wrong: bytes = b"") -> None:
        self._worker, self._chance = worker.removeprefix("tcp:").rsplit(":", 1), random.Random(seed)
        self._status, self._wrong = status, wrong
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"ws://127.0.0.1:{self._listener.getsockname()[1]}/services/edge/api/workers/w/stream"
        self.keys: list[bytes] = []
        """The masking keys of its clients' frames."""
        self.pongs: list[bytes] = []
        self.pings = 0
        self.connections = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        stream = client.makefile("rb")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += stream.read(1)
        (key,) = [line.split(b": ")[1] for line in head.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key: ")]
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest())  # noqa: S324 the protocol's own
        client.sendall(f"HTTP/1.1 {self._status}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n".encode())
        client.sendall(b"sec-websocket-accept: " + accept + b"\r\n\r\n" + self._wrong)
        if self._wrong or not self._status.startswith("101"):
            client.close()
            return
        worker = socket.create_connection((self._worker[0], int(self._worker[1])))
        threading.Thread(target=self._pass_down, args=(worker, client), daemon=True).start()
        with contextlib.suppress(OSError, EOFError):
            while True:
                opcode, payload = self._frame_of(stream)
                if opcode == PONG:
                    self.pongs.append(payload)
                else:
                    assert opcode == BINARY
                    worker.sendall(payload)
        worker.close()

    def _frame_of(self, stream: object) -> tuple[int, bytes]:
        def take(count: int) -> bytes:
            data: bytes = stream.read(count)  # type: ignore[attr-defined]
            if len(data) < count:
                raise EOFError
            return data

        first, second = take(2)
        assert first & FINAL and second & MASKED, "a client masks"
        size = second & 0x7F
        size = struct.unpack(">H", take(2))[0] if size == 126 else struct.unpack(">Q", take(8))[0] if size == 127 else size
        key, payload = take(4), take(size)
        self.keys.append(key)
        whole = (key * (size // 4 + 1))[:size]
        return first & 0x0F, (int.from_bytes(payload, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")

    def _pass_down(self, worker: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := worker.recv(1 << 18):
                said = b"".join(self._split(data))
                while said:  # borders of packets are other ones yet
                    count = self._chance.choice((1, 3, 1400, len(said)))
                    client.sendall(said[:count])
                    said = said[count:] if self._chance.random() < 0.5 else client.sendall(said[count:]) or b""
            client.sendall(frame(CLOSE, struct.pack(">H", 1000)))
        client.close()

    def _split(self, data: bytes) -> list[bytes]:
        """In messages of one frame or several, with pings between them and within."""
        frames, opcode = [], BINARY
        while data:
            size = self._chance.choice(SIZES)
            piece, data = data[:size], data[size:]
            final = not data or self._chance.random() < 0.5
            frames.append(frame(opcode, piece, final))
            opcode = BINARY if final else CONTINUATION
            if self._chance.random() < 0.3:
                self.pings += 1
                frames.append(frame(PING, self._chance.randbytes(self._chance.choice((0, 4, 125)))))
        return frames
