"""A session that was parked comes back: how fast its bytes move, against what moves them on this machine without us.

A real worker is told to park a session, and to restore it, as the pool tells it. The paths: ``memory``, off the device to the host's
memory and back (a CPU device moves nothing there, so this row only appears with an accelerator, ``--device cuda:0``, against PyTorch's copy
between pinned memory and the device); ``disk``, to a file and back, against plain writes and reads of a file in the same folder, in pieces
of the same size, into new memory; ``worker``, from one worker to another, against a plain stream between two processes. Medians of
GB/s (10^9 bytes), by turns. "start" is what a cell waits for: from the order to restore until its first command was executed.

Bar (DESIGN §10): restoring reaches 70 % of the path's rate.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu.worker
import torch
from forebay_wire import messages, stream
from replay import Bench
from report import report

MIB = 1 << 20
PIECE_BYTES = 16 * MIB
STORAGES = 8
"""A session's bytes lie in so many storages."""
LIMIT_BYTES = 8 << 30


class Worker(gpu.worker.Worker):
    """A worker process, the pool's end of its link, and clients that speak the command stream themselves."""

    def client(self) -> Bench:
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(self.address.removeprefix("unix:"))
        return Bench(peer, self.ticket)

    def rest(self, client: Bench) -> None:
        """The cell ends."""
        client.send([stream.Mark(self.epoch)])
        self.expect(messages.Drained)


@contextlib.contextmanager
def worker_at(root: str, device: str) -> Iterator[Worker]:
    worker = Worker(device, Path(root))
    try:
        yield worker
    finally:
        worker.close()


def timed(step: Callable[[], Any]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def executed(client: Bench) -> None:
    """Returns when all that was sent is done."""
    client.send([stream.Sync(1)])
    client.reply()


def fill(client: Bench, count_bytes: int) -> None:
    """Storages with chance in them."""
    each = count_bytes // STORAGES
    for storage in range(1, STORAGES + 1):
        client.send([stream.Allocate(storage, each)])
        for start in range(0, each, stream.CHUNK_BYTES_MAX):
            client.send([stream.Write(storage, start, secrets.token_bytes(min(stream.CHUNK_BYTES_MAX, each - start)))])
    executed(client)


class Taken(dict[str, list[float]]):
    """Seconds by what was done."""

    def take(self, name: str, step: Callable[[], Any]) -> None:
        self.setdefault(name, []).append(timed(step))

    def row(self, path: str, count_bytes: int) -> dict[str, Any]:
        median = {name: statistics.median(values) for name, values in self.items()}
        restored, plain = count_bytes / median["restore"] / 1e9, count_bytes / median["plain"] / 1e9
        ratio = statistics.median(plain / own for plain, own in zip(self["plain"], self["restore"], strict=True))
        return {
            "path": path,
            "MiB": count_bytes // MIB,
            "park GB/s": count_bytes / median["park"] / 1e9,
            "restore GB/s": restored,
            "plain GB/s": plain,
            "restore ÷ plain": ratio,
            "start p50 ms": 1e3 * median["start"],
        }


def parked(root: str, device: str, path: str, count_bytes: int, turns: int) -> dict[str, Any]:
    """Parks and restores on one worker."""
    taken = Taken()
    with worker_at(root, device) as worker:
        worker.assign(LIMIT_BYTES)
        worker.open()
        client = worker.client()
        fill(client, count_bytes)
        worker.rest(client)
        host_bytes_max, spill_bytes_max = gpu.worker.HOST if path == "memory" else gpu.worker.DISK
        for _ in range(turns):
            taken.take("plain", plain_of(path, device, root, count_bytes))
            worker.send(messages.Park(host_bytes_max=host_bytes_max, spill_bytes_max=spill_bytes_max))
            taken.take("park", lambda: worker.expect(messages.Parked))
            began = time.perf_counter()
            worker.send(messages.Restore())
            taken.take("restore", lambda: worker.expect(messages.Restored))
            worker.open()
            client.send([stream.Allocate(100, 4), stream.Write(100, 0, bytes(4)), stream.Free((100,))])
            executed(client)
            taken.setdefault("start", []).append(time.perf_counter() - began)
            worker.rest(client)
    return taken.row(path, count_bytes)


def plain_of(path: str, device: str, root: str, count_bytes: int) -> Callable[[], object]:
    """The path without us, ready to be taken."""
    if path == "memory":
        host = torch.empty(count_bytes, dtype=torch.uint8, pin_memory=True)

        def to_device() -> None:
            host.to(device, non_blocking=True)
            torch.accelerator.synchronize()

        return to_device
    file = Path(root) / "plain"
    with file.open("wb", buffering=0) as out:
        piece = secrets.token_bytes(PIECE_BYTES)
        for _ in range(count_bytes // PIECE_BYTES):
            out.write(piece)

    def read() -> None:
        memory = memoryview(bytearray(count_bytes))
        with file.open("rb", buffering=0) as source:
            done = 0
            while done < count_bytes:
                done += source.readinto(memory[done : done + PIECE_BYTES]) or 0

    return read


def moved(root: str, device: str, count_bytes: int, turns: int) -> dict[str, Any]:
    """Leaves one worker and is fetched by another; "park" is the leaving."""
    taken = Taken()
    for _ in range(turns):
        with worker_at(root, device) as old, worker_at(root, device) as new:
            old.assign(LIMIT_BYTES)
            old.open()
            client = old.client()
            fill(client, count_bytes)
            taken.take("plain", lambda: plain_stream(count_bytes))
            client.send([stream.Leave(2)])
            taken.take("park", client.reply)
            left = old.expect(messages.Left)
            began = time.perf_counter()
            source = messages.Source(address=left.address, ticket=left.ticket)
            taken.take("restore", lambda new=new, source=source: new.assign(LIMIT_BYTES, source))  # type: ignore[misc]
            new.open()
            executed(new.client())
            taken.setdefault("start", []).append(time.perf_counter() - began)
    return taken.row("worker", count_bytes)


def plain_stream(count_bytes: int) -> None:
    """As many bytes from another process through a socket, into new memory."""
    here, there = socket.socketpair()
    child = os.fork()
    if not child:
        piece = bytes(PIECE_BYTES)
        for _ in range(count_bytes // PIECE_BYTES):
            there.sendall(piece)
        os._exit(0)
    memory, done = memoryview(bytearray(count_bytes)), 0
    while done < count_bytes:
        done += here.recv_into(memory[done : done + PIECE_BYTES])
    os.waitpid(child, 0)
    here.close()
    there.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu:0", help="the worker's")
    parser.add_argument("--mib", type=int, nargs="+", default=[16, 256], help="sizes of sessions")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", help="where the files lie (default: the system's for temporary files)")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="fb-", dir=options.folder) as root:
        for size_mib in options.mib:
            count_bytes = size_mib * MIB
            if not options.device.startswith("cpu"):
                rows.append(parked(root, options.device, "memory", count_bytes, options.turns))
            rows.append(parked(root, options.device, "disk", count_bytes, options.turns))
            rows.append(moved(root, options.device, count_bytes, options.turns))
    report("restore", rows, device=options.device, torch=torch.__version__)


if __name__ == "__main__":
    main()
