"""How many leases a second the pool opens and closes with durable metering, and how long a client waits for each step.

Bar (DESIGN §10): at least 2,000 cycles a second on two cores, p99 at most 10 ms. A real pool process with SQLite (WAL, FULL)
on disk, and clients that acquire, put a little work and a mark into their command stream, and wait for the lease to be closed.
With workers that are *processes* (on ``null`` devices) pool, workers and clients share the machine's cores; with workers that are
*played*, the load generator speaks the worker links itself, and the pool has a core of its own: what the service can do. The
first row is the state machine alone, events a second (its bar: 20,000).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.events import ClientSaid, SessionJoined, WorkerSaid
from forebay_pool.model.instructions import Meter
from forebay_pool.model.types import Device, Equivalent, Flavor
from forebay_pool.settings import Settings
from forebay_wire import messages as wire
from forebay_wire import stream
from forebay_worker.link import Connection
from report import percentile, report
from websockets.asyncio.client import connect

READY_SECONDS_MAX = 20.0
STEP_SECONDS_MAX = 20.0
WRITTEN_SECONDS_MAX = 10.0
GIB = 2**30
MACHINE_CYCLES = 20_000
HEARTBEAT_SECONDS = 1.0
POLL_SECONDS = 0.02
WORKERS = ("processes", "played")


class Client:
    """One process: session link, and the times of its cycles in milliseconds. ``work`` makes the lease drain; it is given each grant."""

    def __init__(self, work: Callable[[Client, wire.Granted], None]) -> None:
        self.opens: list[float] = []
        self.cycles: list[float] = []
        self.stream: asyncio.StreamWriter | None = None
        self.connecting: asyncio.Task[None] | None = None
        self._work = work
        self._number = 0
        self._began = 0
        self._until = 0.0

    async def start(self, url: str, token: str) -> None:
        """Links up, and goes through one cycle, which is not counted: a worker starts for it."""
        self._link = await link_up(url, token, self._hear)
        self._opened = self._link.loop.create_future()
        self._link.say(wire.Hello(process="bench/lease.py", pid=os.getpid(), torch="none", flavor="dev.1gb"))
        await asyncio.wait_for(self._opened, STEP_SECONDS_MAX)
        await self.run(0.0)
        self.opens.clear()
        self.cycles.clear()

    async def run(self, until: float) -> None:
        """Cycle after cycle: acquire, granted, mark, closed; one at least."""
        self._until, self._ended = until, self._link.loop.create_future()
        self._acquire()
        await asyncio.wait_for(self._ended, max(0.0, until - time.perf_counter()) + STEP_SECONDS_MAX)

    async def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
        await self._link.close()

    def _acquire(self) -> None:
        self._number += 1
        self._began = time.perf_counter_ns()
        span = wire.Span(id=f"s{self._number}", kind="cell", label="bench.ipynb", cell=self._number)
        self._link.say(wire.Acquire(request=self._number, span=span))

    def _hear(self, link: Connection, text: str | bytes) -> None:
        match message := wire.to_client(text):
            case wire.SessionOpened():
                self._opened.set_result(None)
            case wire.Granted():
                self.opens.append((time.perf_counter_ns() - self._began) / 1e6)
                self._work(self, message)
            case wire.LeaseClosed():
                self.cycles.append((time.perf_counter_ns() - self._began) / 1e6)
                if time.perf_counter() < self._until:
                    self._acquire()
                else:
                    self._ended.set_result(None)
            case wire.Refused() | wire.SessionLost():
                self._ended.set_exception(SystemExit(f"the pool refused: {message.message}"))


async def link_up(url: str, token: str, hear: Callable[[Connection, str | bytes], None]) -> Connection:
    """A link of the pool, as light as the worker's own."""
    headers = {"Authorization": f"token {token}"}
    link = await connect(url, additional_headers=headers, compression=None, proxy=None, create_connection=partial(Connection, hear))
    return cast(Connection, link)


def at_a_worker(client: Client, granted: wire.Granted) -> None:
    """Something that needs the device, and a mark behind it, on the command stream of a worker process."""
    storage = granted.epoch
    work = [stream.Allocate(storage, 8), stream.Write(storage, 0, bytes(8)), stream.Free((storage,)), stream.Mark(granted.epoch)]
    if client.stream is not None:
        client.stream.write(frame_of(*work))
        return

    async def connect_first() -> None:
        client.stream = await command_stream(granted)
        client.stream.write(frame_of(*work))

    client.connecting = asyncio.create_task(connect_first())


def frame_of(*commands: stream.Command) -> bytes:
    writer = stream.CommandWriter()
    for command in commands:
        writer.add(command)
    return stream.frame(writer.take())


async def command_stream(granted: wire.Granted) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_unix_connection(granted.address.removeprefix("unix:"))
    writer.write(frame_of(stream.Hello(bytes.fromhex(granted.ticket), importlib.metadata.version("torch"))))
    await asyncio.wait_for(reader.read(1 << 16), STEP_SECONDS_MAX)
    return writer


class PlayedWorker:
    """A worker that speaks the worker link from within the load generator, and computes nothing."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open = self._marked = 0

    async def live(self, url: str, token: str) -> None:
        """Until cancelled."""
        self._link = await link_up(url, token, self._hear)
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._link.say(wire.Heartbeat(epoch=self._open or None, memory_bytes=0, busy_ns=0, commands=0))

    def mark(self, epoch: int) -> None:
        """What the client's command stream would say."""
        self._marked = epoch
        self._drain()

    def _hear(self, link: Connection, text: str | bytes) -> None:
        match message := wire.to_worker(text):
            case wire.Lead():
                model = wire.DeviceModel(kind="null", model="null")
                link.say(wire.Ready(worker=self._name, address="unix:/played", torch="none", device=model, pid=os.getpid()))
            case wire.Assign():
                link.say(wire.Assigned(session=message.session))
            case wire.Open():
                self._open = message.epoch
                self._drain()

    def _drain(self) -> None:
        if self._open and self._open == self._marked:
            self._link.say(wire.Drained(epoch=self._open, memory_bytes=0))
            self._open = 0


class Stage:
    """Where workers are played: the pool starts a process for each, which leaves its token in the folder and sleeps."""

    def __init__(self, folder: Path) -> None:
        self.interpreter = folder / "played-worker"
        self._tokens = folder / "tokens"
        self._tokens.mkdir()
        script = f'#!/bin/sh\nprintf "%s" "$FOREBAY_WORKER_TOKEN" > {self._tokens}/.$6 && mv {self._tokens}/.$6 {self._tokens}/$6\n'
        self.interpreter.write_text(script + "exec sleep 600\n")
        self.interpreter.chmod(0o700)
        self._workers: dict[str, PlayedWorker] = {}

    def work(self, client: Client, granted: wire.Granted) -> None:
        self._workers[granted.worker].mark(granted.epoch)

    async def play(self, url: str) -> None:
        """Plays whoever the pool starts, until cancelled."""
        async with asyncio.TaskGroup() as lives:
            while True:
                for path in self._tokens.glob("[!.]*"):
                    self._workers[path.name] = worker = PlayedWorker(path.name)
                    lives.create_task(worker.live(url, path.read_text()))
                    path.unlink()
                await asyncio.sleep(POLL_SECONDS)


def machine_events_per_second() -> float:
    """Acquire, Heartbeat and Drained events of 64 sessions on 64 devices, handled by the state machine alone."""
    count = 64
    devices = [Device(f"n/null:{index}", "n", "null", index, "null", 4 * GIB) for index in range(count)]
    flavor = Flavor("dev.1gb", GIB, (Equivalent("null", 1),))
    machine = StateMachine(devices, {flavor.name: flavor}, Settings(workers_max=count).limits, "b", 0)
    model = wire.DeviceModel(kind="null", model="null")
    for index in range(count):
        machine.handle(SessionJoined(f"s{index}", bytes(32), "acme", "ada", "x", flavor.name), 1)
        span = wire.Span(id="first", kind="cell", label="x")
        machine.handle(ClientSaid(f"s{index}", wire.Acquire(request=0, span=span)), 1)
        name = f"b-w{index + 1}"
        machine.handle(WorkerSaid(name, wire.Ready(worker=name, address="unix:/x", torch="2", device=model, pid=1)), 1)
        machine.handle(WorkerSaid(name, wire.Assigned(session=f"s{index}")), 1)
        machine.handle(WorkerSaid(name, wire.Drained(epoch=1)), 1)
    events = []
    for number in range(MACHINE_CYCLES):
        index, epoch = number % count, number // count + 2
        worker = f"b-w{index + 1}"
        events.append(ClientSaid(f"s{index}", wire.Acquire(request=number, span=wire.Span(id=f"{number}", kind="cell", label="x"))))
        events.append(WorkerSaid(worker, wire.Heartbeat(epoch=epoch, memory_bytes=1, busy_ns=0, commands=0)))
        events.append(WorkerSaid(worker, wire.Drained(epoch=epoch)))
    began = time.perf_counter()
    out = [machine.handle(event, now) for now, event in enumerate(events, 2)]
    seconds = time.perf_counter() - began
    metered = sum(isinstance(instruction, Meter) for instructions in out for instruction in instructions)
    if metered != MACHINE_CYCLES:
        raise SystemExit(f"{metered} leases were metered, {MACHINE_CYCLES} were opened")
    return len(events) / seconds


def start_pool(state: Path, devices: int, worker_python: Path | None = None) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """An embedded pool with ``null`` devices that bear the development model's name."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment["FOREBAY_POOL_DEVICES"] = f'[{{kind = "null", model = "null", memory = "4 GiB", count = {devices}}}]'
    environment["FOREBAY_POOL_LOG_LEVEL"] = "warning"
    if worker_python is not None:
        environment["FOREBAY_POOL_WORKER_PYTHON"] = str(worker_python)
    command = [sys.executable, "-m", "forebay_pool", "--embedded", "--state-dir", str(state)]
    command += ["--port", "0", "--parent-pid", str(os.getpid())]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + READY_SECONDS_MAX
    while not (state / "pool.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise SystemExit(f"the pool did not start (status {process.poll()})")
        time.sleep(0.01)
    return process, json.loads((state / "pool.json").read_text())


async def measure(address: dict[str, Any], count: int, seconds: float, stage: Stage | None) -> list[Client]:
    """So many clients, each with its own device, cycling as fast as they can."""
    url = address["url"].replace("http", "ws", 1) + "api/"
    play = None if stage is None else asyncio.create_task(stage.play(url + "worker"))
    clients = [Client(at_a_worker if stage is None else stage.work) for _ in range(count)]
    for client in clients:
        await client.start(url + "session", address["token"])
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client.run(until) for client in clients))
    for client in clients:
        await client.close()
    if play is not None:
        play.cancel()
        await asyncio.gather(play, return_exceptions=True)
    return clients


def written(state: Path, wanted: int) -> int:
    """Lease segments on disk, once all are there or the wait is over."""
    deadline = time.monotonic() + WRITTEN_SECONDS_MAX
    connection = sqlite3.connect(state / "pool.sqlite")
    try:
        while True:
            (found,) = connection.execute("select count(*) from lease_segments").fetchone()
            if found >= wanted or time.monotonic() > deadline:
                return int(found)
            time.sleep(0.05)
    finally:
        connection.close()


def row_of(clients: list[Client], seconds: float, workers: str) -> dict[str, Any]:
    cycles = [value for client in clients for value in client.cycles]
    opens = [value for client in clients for value in client.opens]
    return {
        "what": f"open + close, {len(clients)} clients, workers {workers}",
        "per second": len(cycles) / seconds,
        "÷ bar": len(cycles) / seconds / 2000,
        "open p50 ms": percentile(opens, 0.5),
        "open p99 ms": percentile(opens, 0.99),
        "cycle p50 ms": percentile(cycles, 0.5),
        "cycle p99 ms": percentile(cycles, 0.99),
    }


def row(count: int, seconds: float, workers: str) -> tuple[list[Client], int]:
    """The clients of one measurement, and the lease segments that it left on disk."""
    with tempfile.TemporaryDirectory(prefix="fb-", ignore_cleanup_errors=True) as folder:
        state = Path(folder)
        stage = Stage(state) if workers == "played" else None
        process, address = start_pool(state, count, None if stage is None else stage.interpreter)
        try:
            clients = asyncio.run(measure(address, count, seconds, stage))
            return clients, written(state, sum(len(client.cycles) + 1 for client in clients))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(READY_SECONDS_MAX)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16], help="how many clients at a time, one measurement each")
    parser.add_argument("--workers", nargs="+", choices=WORKERS, default=WORKERS, help="processes of their own, or played; both by default")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each measurement lasts")
    options = parser.parse_args()
    seconds = options.seconds * len(options.clients) * len(options.workers)
    if not 0 < seconds <= 60 or not 1 <= min(options.clients) <= max(options.clients) <= 32:
        parser.error("give 1 to 32 clients, and at most 60 seconds for all measurements together")
    events = machine_events_per_second()
    blank = dict.fromkeys(("open p50 ms", "open p99 ms", "cycle p50 ms", "cycle p99 ms"), "")
    rows: list[dict[str, Any]] = [{"what": "state machine alone, events", "per second": events, "÷ bar": events / 20_000, **blank}]
    durable = True
    for workers in options.workers:
        for count in options.clients:
            clients, found = row(count, options.seconds, workers)
            durable = durable and found == sum(len(client.cycles) + 1 for client in clients)
            rows.append(row_of(clients, options.seconds, workers))
    report("lease", rows, every_lease_on_disk=durable)


if __name__ == "__main__":
    main()
