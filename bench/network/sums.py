"""An all-reduce of 64 MiB between two workers of one host, against a copy and gloo: ``PYTHONPATH=bench python -m network.sums``.

By turns: two workers of development devices with one thread each, two processes with gloo, and one that copies. Bars: bytes of
a rank ÷ time at least 0.5 of a copy's bandwidth, and at most 0.7 of gloo's time.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter

from forebay_wire import stream, vocabulary
from many import free_port
from report import report

MIB = 1 << 20
FLOAT = 6
STORAGE, GROUP = 1, 1
PATIENCE_MS = 60_000


class Member:
    """A worker of one development device, and the connection of its client."""

    def __init__(self, address: str, ticket: bytes) -> None:
        import torch

        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address.removeprefix("unix:"))
        self._writer = stream.CommandWriter()
        self.send(stream.Hello(ticket, torch.__version__))
        self.reply()

    def send(self, *commands: stream.Command) -> None:
        for command in commands:
            self._writer.add(command)
        self._socket.sendall(stream.frame(self._writer.take()))

    def reply(self) -> stream.Reply:
        body = stream.read_frame(self._socket)
        assert body is not None
        reply = stream.decode_reply(body)
        assert not isinstance(reply, stream.Failure | stream.Refused), reply
        return reply


@contextmanager
def member(folder: Path) -> Iterator[Member]:
    folder.mkdir()
    address, ticket = f"unix:{folder}/worker.sock", secrets.token_hex(32)
    command = [sys.executable, "-m", "forebay_worker", "--standalone", address, "--ticket", ticket]
    process = subprocess.Popen([*command, "--memory", str(2048 * MIB), "--threads", "1"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        yield Member(address, bytes.fromhex(ticket))
    finally:
        process.kill()
        process.communicate()


def meet(members: list[Member], size: int) -> None:
    doors = []
    for rank, one in enumerate(members):
        one.send(stream.Allocate(STORAGE, size), vocabulary.OpenDoor(1, GROUP, rank, len(members), PATIENCE_MS))
        doors.append(one.reply())
    for rank, one in enumerate(members):
        for other, door in enumerate(doors):
            if other != rank:
                assert isinstance(door, vocabulary.Door)
                one.send(vocabulary.Member(GROUP, other, door.address, door.ticket))


def workers_ms(members: list[Member], size: int, times: int) -> float:
    """The median of an all-reduce of float32, until all members have it."""
    span = vocabulary.Span(STORAGE, 0, size)
    command = vocabulary.Reduce(GROUP, vocabulary.Collective.ALL_REDUCE, FLOAT, vocabulary.Reduction.SUM, span, span)
    taken = []
    for _ in range(times):
        begin = perf_counter()
        for one in members:
            one.send(command, stream.Sync(2))
        for one in members:
            one.reply()
        taken.append(1e3 * (perf_counter() - begin))
    return statistics.median(taken)


def gloo_ms(size: int, times: int, ranks: int) -> float:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, __file__, "--program", "--bytes", str(size), "--times", str(times)]
    environments = [{**os.environ, **meeting, "RANK": str(rank)} for rank in range(ranks)]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for environment in environments]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    return max(float(json.loads(output)) for output in outputs)


def rank_of_gloo(size: int, times: int) -> float:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    values = torch.zeros(size // 4)
    dist.all_reduce(values)
    taken = []
    for _ in range(times):
        dist.barrier()
        begin = perf_counter()
        dist.all_reduce(values)
        taken.append(1e3 * (perf_counter() - begin))
    dist.destroy_process_group()
    return statistics.median(taken)


def copy_ms(size: int, times: int) -> float:
    source, target = memoryview(bytearray(os.urandom(MIB) * (size // MIB))), memoryview(bytearray(size))
    taken = []
    for _ in range(times):
        begin = perf_counter()
        target[:] = source
        taken.append(1e3 * (perf_counter() - begin))
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns a figure is the median of")
    parser.add_argument("--times", type=int, default=10, help="sums in a turn")
    parser.add_argument("--bytes", type=int, default=64 * MIB)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--program", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        print(json.dumps(rank_of_gloo(options.bytes, options.times)))
        return
    turns = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        members = [stack.enter_context(member(Path(folder) / str(rank))) for rank in range(options.ranks)]
        meet(members, options.bytes)
        workers_ms(members, options.bytes, 2)
        for _ in range(options.rounds):
            ours = workers_ms(members, options.bytes, options.times)
            turns.append((ours, copy_ms(options.bytes, options.times), gloo_ms(options.bytes, options.times, options.ranks)))
    ours, copy, gloo = (statistics.median(column) for column in zip(*turns, strict=True))
    of_copy, of_gloo = (statistics.median(ratio) for ratio in zip(*((turn[1] / turn[0], turn[0] / turn[2]) for turn in turns), strict=True))
    row = {"MiB": options.bytes / MIB, "ranks": options.ranks, "workers ms": ours, "copy ms": copy, "gloo ms": gloo}
    report("sums", [row | {"of a copy's bandwidth": of_copy, "of gloo's time": of_gloo}])


if __name__ == "__main__":
    main()
