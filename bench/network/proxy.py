"""A TCP proxy that holds what passes for half a round trip each way, as a long wire does: bytes travel at once behind each other.

Listens on a free port of 127.0.0.1, prints the port, and serves connections until its standard input ends. A line there is a new round
trip, in milliseconds. It is a process of its own, so that no lock of a program under measurement delays it.
"""

from __future__ import annotations

import argparse
import ctypes
import queue
import socket
import subprocess
import sys
import threading
import time
from types import TracebackType

CHUNK_BYTES = 1 << 20
PR_SET_TIMERSLACK = 29
TIMER_SLACK_NS = 1_000


class Wire:
    """The delay that all connections share."""

    def __init__(self, round_trip_ms: float) -> None:
        self.one_way_seconds = 0.0
        self.set(round_trip_ms)

    def set(self, round_trip_ms: float) -> None:
        self.one_way_seconds = round_trip_ms / 2e3

    def join(self, one: socket.socket, other: socket.socket) -> None:
        """Carries what each sends to the other, until both have ended."""
        for source, target in ((one, other), (other, one)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            threading.Thread(target=self._take, args=(source, line), daemon=True).start()
            threading.Thread(target=self._give, args=(line, target), daemon=True).start()

    def _take(self, source: socket.socket, line: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"x"
        while data:
            try:
                data = source.recv(CHUNK_BYTES)
            except OSError:
                data = b""
            line.put((time.perf_counter() + self.one_way_seconds, data))

    def _give(self, line: queue.SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0)
        try:
            while True:
                due, data = line.get()
                left = due - time.perf_counter()
                if left > 0:
                    time.sleep(left)
                if not data:
                    return target.shutdown(socket.SHUT_WR)
                target.sendall(data)
        except OSError:  # the reader has gone; what still comes for it has no use
            return


class Proxy:
    """The proxy's process, in front of the server at ``host:port``."""

    def __init__(self, target: str, round_trip_ms: float = 0.0) -> None:
        command = [sys.executable, __file__, target, "--round-trip", str(round_trip_ms)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin and self._process.stdout
        self._orders = self._process.stdin
        self._answers = self._process.stdout
        self.address = f"127.0.0.1:{int(self._answers.readline())}"

    def delay(self, round_trip_ms: float) -> None:
        """Sets the round trip of what is sent from now on."""
        self._orders.write(f"{round_trip_ms}\n")
        self._orders.flush()
        self._answers.readline()

    def close(self) -> None:
        self._orders.close()
        self._process.wait()
        self._answers.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def accept(listener: socket.socket, wire: Wire, target: tuple[str, int]) -> None:
    """Serves one connection after the other."""
    while True:
        client, _ = listener.accept()
        try:
            wire.join(client, socket.create_connection(target))
        except OSError as error:
            print(f"proxy: {target[0]}:{target[1]} cannot be reached: {error}", file=sys.stderr)
            client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", metavar="HOST:PORT", help="the server behind the wire")
    parser.add_argument("--round-trip", metavar="MS", type=float, default=0.0)
    options = parser.parse_args()
    host, _, port = options.target.rpartition(":")
    wire = Wire(options.round_trip)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, args=(listener, wire, (host, int(port))), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    for line in sys.stdin:
        wire.set(float(line))
        print(line, end="", flush=True)


if __name__ == "__main__":
    main()
