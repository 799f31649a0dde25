"""Uploads and downloads against what moves the same bytes on this machine without us.

Bar: at least 70 % of a memory copy (``target.copy_(source)``) over shared memory, and of a plain stream through a loopback socket over TCP.
All figures of a row are taken by turns, so that they share the machine's state, and are medians of GB/s (10^9 bytes). "new" makes its
target anew, so its pages are new as well, in our transfers as in the plain copy; "again" writes into the same target. An upload ends when
the worker has done it.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from report import report

os.environ.setdefault("FOREBAY_URL", "local")
os.environ.setdefault("FOREBAY_FLAVOR", "dev.4gb")  # two storages of the largest size

import torch
from forebay import _C

MIB = 1 << 20
SIZES_MIB = (1, 16, 256, 1024)
PASSES_BYTES = 2048 * MIB
"""A row moves about so much each way; small sizes are therefore repeated more often."""
STREAM_CHUNK_BYTES = 4 * MIB
MEMORY_BYTES = 4 << 30


def timed(step: Callable[[], Any]) -> float:
    start = perf_counter()
    step()
    return perf_counter() - start


def fresh(count: int, salt: int) -> torch.Tensor:
    """Bytes that no earlier call gave, so that nobody holds them."""
    tensor = torch.empty(count, dtype=torch.uint8)
    tensor.view(torch.int64).copy_(torch.arange(salt, salt + count // 8))
    return tensor


class Stream:
    """A plain stream between two processes, as ``iperf`` would make: the peer receives, or sends, as much as it is asked for."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self._peer = subprocess.Popen([sys.executable, __file__, "--peer", str(listener.getsockname()[1])])
        self._socket, _ = listener.accept()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.close()

    def up(self, data: memoryview) -> None:
        self._socket.sendall(b"u" + len(data).to_bytes(8, "little"))
        self._socket.sendall(data)
        self._socket.recv(1)

    def down(self, data: memoryview) -> None:
        self._socket.sendall(b"d" + len(data).to_bytes(8, "little"))
        fill(self._socket, data)

    def close(self) -> None:
        self._socket.close()
        self._peer.wait()


def fill(peer: socket.socket, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += peer.recv_into(data[done : done + STREAM_CHUNK_BYTES])


def serve(port: int) -> None:
    """The stream's other end; its buffer is touched once, and stays."""
    peer = socket.create_connection(("127.0.0.1", port))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(max(SIZES_MIB) * MIB))
    while order := peer.recv(9, socket.MSG_WAITALL):
        data = buffer[: int.from_bytes(order[1:], "little")]
        if order[:1] == b"d":
            peer.sendall(data)
        else:
            fill(peer, data)
            peer.sendall(b"x")


def upload(source: torch.Tensor) -> torch.Tensor:
    target = source.to("cuda")
    torch.cuda.synchronize()
    return target


def upload_again(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)
    torch.cuda.synchronize()


def copied(source: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(source).copy_(source)


def row(size_mib: int, stream: Stream | None) -> dict[str, Any]:
    count = size_mib * MIB
    again_host, again_device = fresh(count, 0), upload(fresh(count, 0))
    taken: dict[str, list[float]] = {}

    def take(name: str, step: Callable[[], Any]) -> None:
        taken.setdefault(name, []).append(timed(step))

    for turn in range(max(3, min(40, PASSES_BYTES // count))):
        source = fresh(count, (turn + 1) << 40)
        take("copy new", partial(copied, source))
        take("up new", partial(upload, source))
        source.add_(1)
        take("copy again", partial(again_host.copy_, source))
        take("up again", partial(upload_again, again_device, source))
        take("down new", again_device.cpu)
        take("down again", partial(again_host.copy_, again_device))
        if stream:
            take("stream up", partial(stream.up, memoryview(source.numpy())))
            take("stream down", partial(stream.down, memoryview(again_host.numpy())))
        take("known", partial(upload, source))
    rates = {name: count / statistics.median(seconds) / 1e9 for name, seconds in taken.items()}
    return {"MiB": size_mib} | rates


def ratios(rates: dict[str, Any], stream: bool) -> dict[str, Any]:
    """The figures with what they are held against."""
    made = dict(rates)
    for way in ("up", "down"):
        made[f"{way} new ratio"] = rates[f"{way} new"] / rates["copy new"]
        made[f"{way} again ratio"] = rates[f"{way} again"] / (rates[f"stream {way}"] if stream else rates["copy again"])
    return made


def start_worker(address: str, device: str, path: str | None) -> subprocess.Popen[str]:
    """Connects this process's virtual device to a worker of its own."""
    ticket = secrets.token_bytes(32)
    command = [sys.executable, "-m", "forebay_worker", "--standalone", address, "--device", device]
    command += ["--ticket", ticket.hex(), "--memory", str(MEMORY_BYTES)]
    environment = os.environ | ({"PYTHONPATH": path} if path else {})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout
    address = json.loads(process.stdout.readline())["address"]
    _C.connect(address, ticket)
    _C.lease_opened(1, 1 << 40)
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, help="in MiB; 1 16 256 1024 by default")
    parser.add_argument("--tcp", action="store_true", help="over TCP, against a plain stream; both are measured by default")
    parser.add_argument("--device", default="cpu:0", help="the worker's")
    parser.add_argument("--worker-path", metavar="FOLDER", help="the worker's PYTHONPATH, where its device's back end lies")
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return serve(options.peer)
    measure(options)
    if not options.tcp:
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, "--tcp", *sys.argv[1:]], check=True)


def measure(options: argparse.Namespace) -> None:
    """One of the two ways: over shared memory, or over TCP beside a plain stream."""
    folder = tempfile.TemporaryDirectory(prefix="fb-")
    address = "tcp:127.0.0.1:0" if options.tcp else f"unix:{folder.name}/worker.sock"
    worker = start_worker(address, options.device, options.worker_path)
    stream = Stream() if options.tcp else None
    before = _C.statistics()["bytes_known"]
    rows = [ratios(row(size, stream), bool(stream)) for size in options.sizes or SIZES_MIB]
    known = _C.statistics()["bytes_known"] - before
    name = "transfer_tcp" if options.tcp else "transfer"
    report(name, rows, bar=0.7, device=options.device, bytes_not_sent_again=known, torch=torch.__version__, threads=torch.get_num_threads())
    if stream:
        stream.close()
    worker.terminate()
    worker.wait()
    folder.cleanup()


if __name__ == "__main__":
    main()
