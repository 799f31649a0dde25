"""A training step over a long wire: at most one round trip more for each synchronisation in the user's code.

Client and worker talk TCP through the proxy of ``proxy.py``, which holds every byte for half a round trip each way (0, 0.5 and 30 ms,
by turns, on the same connection). "reads" is how often the user's code reads a number in a step, "syncs" how often the stream waited
for the worker in a step, the wait at a block's end left out: more than the reads would be hidden ones. "round trips" is what a step
takes longer than over no distance, divided by the round trip that an echo takes through the same proxy; the bar is one for each read,
and one for the block's end.
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
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from proxy import Proxy
from report import report
from step.models import MODELS, Step

os.environ.setdefault("FOREBAY_URL", "local")

import torch
from forebay import _C

ROUND_TRIPS_MS = (0.0, 0.5, 30.0)
READS = (0, 1, 3)
MEMORY_BYTES = 4 << 30
WARM_UP_STEPS = 5
ECHOES = 50


@contextmanager
def distant_worker() -> Iterator[Proxy]:
    """Connects this process's virtual device to a worker of its own, through a proxy."""
    ticket = secrets.token_bytes(32)
    command = [sys.executable, "-m", "forebay_worker", "--standalone", "tcp:127.0.0.1:0", "--device", "cpu:0"]
    command += ["--ticket", ticket.hex(), "--memory", str(MEMORY_BYTES), "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout
        address = json.loads(worker.stdout.readline())["address"]
        with Proxy(address.removeprefix("tcp:")) as proxy:
            _C.connect(f"tcp:{proxy.address}", ticket)
            _C.lease_opened(1, 1 << 40)
            yield proxy
            torch.cuda.synchronize()
            worker.terminate()


def echo_ms(round_trip_ms: float) -> float:
    """What a proxy of this round trip takes for one, with what the sockets and the threads of both ends need."""

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            while data := peer.recv(1):
                peer.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener, Proxy(f"127.0.0.1:{listener.getsockname()[1]}", round_trip_ms) as proxy:
        thread = threading.Thread(target=serve)
        thread.start()
        host, _, port = proxy.address.rpartition(":")
        taken = []
        with socket.create_connection((host, int(port))) as peer:
            for _ in range(ECHOES):
                start = perf_counter()
                peer.sendall(b"x")
                peer.recv(1)
                taken.append((perf_counter() - start) * 1e3)
        thread.join()
    return statistics.median(taken)


def block(step: Step, reads: int, count: int) -> tuple[float, int]:
    """Mean time of a step in ms in a block that ends when its work is done, and how often the stream waited within the block."""
    torch.cuda.synchronize()
    waited = _C.statistics()["syncs"]
    start = perf_counter()
    for _ in range(count):
        loss = step()
        for _ in range(reads):
            loss.item()
    syncs = _C.statistics()["syncs"] - waited
    torch.cuda.synchronize()
    return (perf_counter() - start) / count * 1e3, syncs


def rows_of(name: str, proxy: Proxy, echoes: dict[float, float], count: int, blocks: int) -> list[dict[str, Any]]:
    """One model's rows: of each number of reads, and each round trip."""
    step = MODELS[name]("cuda")
    rows = []
    for reads in READS:
        block(step, reads, WARM_UP_STEPS)
        taken: dict[float, list[tuple[float, int]]] = {trip: [] for trip in echoes}
        for _ in range(blocks):
            for trip in echoes:
                proxy.delay(trip)
                taken[trip].append(block(step, reads, count))
        near = taken[0.0]
        for trip in echoes:
            excess = statistics.median(far - base for (far, _), (base, _) in zip(taken[trip], near, strict=True))
            rows.append(
                {
                    "model": name,
                    "round trip ms": trip,
                    "reads": reads,
                    "syncs": max(syncs for _, syncs in taken[trip]) / count,
                    "step ms": statistics.median(far for far, _ in taken[trip]),
                    "round trips": excess / (echoes[trip] - echoes[0.0]) if trip else 0.0,
                }
            )
        proxy.delay(0.0)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="steps in a block")
    parser.add_argument("--blocks", type=int, default=3, help="blocks a figure is the median of")
    parser.add_argument("models", nargs="*", help="of mlp transformer convnet gpt2; all by default")
    options = parser.parse_args()
    echoes = {trip: echo_ms(trip) for trip in ROUND_TRIPS_MS}
    with distant_worker() as proxy:
        rows = [row for name in options.models or MODELS for row in rows_of(name, proxy, echoes, options.steps, options.blocks)]
    far = [row for row in rows if row["round trip ms"] == max(ROUND_TRIPS_MS)]  # there the machine's own noise is small beside it
    report(
        "delay",
        rows,
        hidden_syncs=max(row["syncs"] - row["reads"] for row in rows),
        bar_hidden_syncs=0,
        round_trips_a_sync=max(row["round trips"] / (row["reads"] + 1 / options.steps) for row in far if row["reads"]),
        bar_round_trips_a_sync=1.0,
        echoes_ms=[round(taken, 3) for taken in echoes.values()],
        steps_in_a_block=options.steps,
        torch=torch.__version__,
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
