"""A TCP proxy in front of a worker that breaks connections, in each way in which a network does."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
import time
from collections import Counter

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: what closes sends no FIN, but a reset, and drops what is on its way."""
PIECE_BYTES = 64 << 10
LOOK_SECONDS = 0.02
KINDS = ("reset", "close", "truncate", "stall", "away", "deaf up", "deaf down")
"""``truncate``: in the middle of what is being forwarded. ``stall``: nothing is forwarded for a while, then a reset. ``away``: nobody is
let in for a while after it. ``deaf``: one direction is swallowed from then on; nobody is told."""


class _Passage:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, worker: socket.socket) -> None:
        self.ends = {client: worker, worker: client}
        self.client, self.worker = client, worker
        self.deaf: socket.socket | None = None
        """What comes from it is swallowed."""
        self.stalled = False
        self.truncate: int | None = None
        """Of the next piece so many bytes are forwarded, and then both ends are reset."""
        self.over = False

    def run(self) -> None:
        """Forwards until one end is closed."""
        with contextlib.suppress(OSError, ValueError):
            while not self.over:
                if self.stalled:
                    time.sleep(LOOK_SECONDS)
                    continue
                for source in select.select(list(self.ends), [], [], LOOK_SECONDS)[0]:
                    data = source.recv(PIECE_BYTES)
                    if not data:
                        return self.close(reset=False)
                    self._forward(source, data)
        self.close(reset=True)

    def _forward(self, source: socket.socket, data: bytes) -> None:
        if source is self.deaf or self.over:
            return
        if self.truncate is not None:
            self._send(source, data[: self.truncate % len(data)])
            return self.close(reset=False)
        self._send(source, data)

    def _send(self, source: socket.socket, data: bytes) -> None:
        """Both directions go on where one is full."""
        target, left = self.ends[source], memoryview(data)
        target.setblocking(False)
        while left and not self.over and not self.stalled:
            with contextlib.suppress(BlockingIOError):
                left = left[target.send(left) :]
                continue
            readable = select.select([target], [target], [], LOOK_SECONDS)[0]
            if readable and target is not self.deaf:
                back = target.recv(PIECE_BYTES, socket.MSG_PEEK)
                with contextlib.suppress(BlockingIOError):
                    sent = source.send(back)
                    target.recv(sent)

    def close(self, reset: bool) -> None:
        self.over = True
        for end in self.ends:
            with contextlib.suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                else:
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


class CuttingProxy:
    """Lets clients through to a worker at ``target`` ("tcp:HOST:PORT"), and cuts them off."""

    def __init__(self, target: str, seed: int) -> None:
        host, _, port = target.removeprefix("tcp:").rpartition(":")
        self._target = (host, int(port))
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        self._away = False
        self._ended = False
        self._passage: _Passage | None = None
        self.passages = 0
        self.cuts: Counter[str] = Counter()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while not self._ended:
                client, _ = self._listener.accept()
                if self._away or self._ended:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    client.close()
                    continue
                worker = socket.create_connection(self._target)
                for one in (client, worker):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._passage = _Passage(client, worker)
                self.passages += 1
                threading.Thread(target=self._passage.run, daemon=True).start()

    def cut_often(self, cuts: int, pause_seconds: tuple[float, float]) -> None:
        """Cuts so many times, each kind in turn, in a thread of its own."""
        threading.Thread(target=self._cut_often, args=(cuts, pause_seconds), daemon=True).start()

    def _cut_often(self, cuts: int, pause_seconds: tuple[float, float]) -> None:
        kinds = [KINDS[number % len(KINDS)] for number in range(cuts)]
        self._random.shuffle(kinds)
        for kind in kinds:
            time.sleep(self._random.uniform(*pause_seconds))
            before = self.passages
            self.cut(kind)
            until = time.monotonic() + 20
            while self.passages == before and time.monotonic() < until:
                time.sleep(0.005)

    def cut(self, kind: str, seconds: float | None = None) -> None:
        """Breaks the present connection; ``seconds``: how long a stall or an absence lasts."""
        passage = self._passage
        if passage is None:
            return
        self.cuts[kind] += 1
        seconds = self._random.uniform(0.05, 0.2) if seconds is None else seconds
        match kind:
            case "reset" | "close":
                passage.close(reset=kind == "reset")
            case "truncate":
                passage.truncate = self._random.randrange(PIECE_BYTES)
            case "stall":
                passage.stalled = True
                time.sleep(seconds)
                passage.close(reset=True)
            case "away":
                self._away = True
                passage.close(reset=True)
                time.sleep(seconds)
                self._away = False
            case "deaf up" | "deaf down":
                passage.deaf = passage.client if kind == "deaf up" else passage.worker

    def close(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._listener.shutdown(socket.SHUT_RDWR)  # else who waits in it lets one more in
        self._listener.close()
        if self._passage is not None:
            self._passage.close(reset=False)
