"""What TLS costs between a program and a worker on another host: bytes per second each way, and a read's time, against the same in clear.

Bar: at least 0.7 of the bytes per second in clear. Both are measured by turns, each turn by a program and a worker of its own on this
machine, at its own address; medians. Two processes on the same cores encrypt and decrypt here, while hosts have cores of
their own: over a network TLS costs less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
from time import perf_counter
from typing import Any

from report import SKIPPED, report

MIB = 1 << 20
UPLOAD_MIB = 128
UPLOADS = 5
READS = 2_000
TURNS = 3
RECONNECT_SECONDS = 120
BAR = 0.7


def measured(address: str, ticket: str, certificate: str) -> dict[str, float]:
    """Of one program: GB/s (10^9 bytes) up and down, and µs of a read. The first upload is not counted."""
    import torch
    from forebay import _C, facade
    from forebay.virtual_device import VirtualDevices

    devices = VirtualDevices()
    devices.start()
    facade.install(devices)
    _C.connect(address, bytes.fromhex(ticket), certificate=certificate)
    _C.lease_opened(1, 1 << 40)
    ups, downs = [], []
    for salt in range(UPLOADS + 1):
        source = torch.arange(salt << 40, (salt << 40) + UPLOAD_MIB * MIB // 8)  # bytes that were not sent before
        began = perf_counter()
        there = source.cuda()
        torch.cuda.synchronize()
        ups.append(perf_counter() - began)
        began = perf_counter()
        back = there.cpu()
        downs.append(perf_counter() - began)
        assert torch.equal(back, source)
    number, reads = torch.zeros((), device="cuda"), []
    for _ in range(READS):
        began = perf_counter()
        number.item()
        reads.append(perf_counter() - began)
    rate = UPLOAD_MIB * MIB / 1e9
    return {"up": rate / statistics.median(ups[1:]), "down": rate / statistics.median(downs[1:]), "read": statistics.median(reads) * 1e6}


def own_address() -> str | None:
    """By which this machine would send, if it sent anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):
        asked.connect(("192.0.2.1", 9))  # of RFC 5737
        return str(asked.getsockname()[0])
    return None


def turn(host: str, encrypted: bool) -> dict[str, float]:
    """A worker, and a program that measures at it."""
    ticket, environment = secrets.token_hex(32), {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
    command = [sys.executable, "-m", "forebay_worker", "--standalone", f"tcp:{host}:0", "--ticket", ticket, "--plaintext"]
    command += ["--memory", str(2 << 30), "--reconnect-seconds", str(RECONNECT_SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as worker:
        assert worker.stdout
        ready = json.loads(worker.stdout.readline())
        told = [ready["address"], ticket, ready["certificate"] if encrypted else ""]
        try:
            printed = subprocess.check_output([sys.executable, __file__, "--program", *told], text=True, env=environment)
        finally:
            worker.terminate()
    found: dict[str, float] = json.loads(printed)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", help="an address of this machine that is not the loopback interface's; default: one that it has")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--program", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        print(json.dumps(measured(*options.program)))
        return
    host = options.host or own_address()
    if host is None:
        print("this machine has the loopback interface alone")
        sys.exit(SKIPPED)
    turns = [(turn(host, encrypted=False), turn(host, encrypted=True)) for _ in range(options.turns)]
    rows: list[dict[str, Any]] = []
    for name in ("up", "down", "read"):
        clear, tls = (statistics.median(one[name] for one in side) for side in zip(*turns, strict=True))
        rows.append({"what": name, "clear": clear, "tls": tls, "ratio": tls / clear})
    report("encryption", rows, bar=BAR)


if __name__ == "__main__":
    main()
