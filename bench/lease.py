"""How many leases a second the pool opens and closes with durable metering, and how long a client waits for each step.

Bar (DESIGN §10): at least 2,000 cycles a second on two cores, p99 at most 10 ms. A real pool process with SQLite (WAL, FULL)
on disk, real workers on `null` devices, and clients that acquire, put a little work and a mark into their command stream, and
wait for the lease to be closed. Pool, workers and clients share the machine's cores. The first row is the state machine alone,
events a second (its bar: 20,000).
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
from pathlib import Path
from typing import Any

from forebay_pool.events import ClientSaid, SessionJoined, WorkerSaid
from forebay_pool.instructions import Meter
from forebay_pool.settings import Settings
from forebay_pool.state_machine import StateMachine
from forebay_pool.types import Device, Equivalent, Flavor
from forebay_wire import messages as wire
from forebay_wire import stream
from report import percentile, report
from websockets.asyncio.client import ClientConnection, connect

READY_SECONDS_MAX = 20.0
STEP_SECONDS_MAX = 20.0
WRITTEN_SECONDS_MAX = 10.0
GIB = 2**30
MACHINE_CYCLES = 20_000


class Client:
    """One process: session link, command stream, and the times of its cycles in milliseconds."""

    def __init__(self, link: ClientConnection) -> None:
        self.link = link
        self.opens: list[float] = []
        self.cycles: list[float] = []
        self._stream: asyncio.StreamWriter | None = None
        self._number = 0

    async def hears(self, kind: type[Any]) -> Any:
        while True:
            message = wire.to_client(await asyncio.wait_for(self.link.recv(), STEP_SECONDS_MAX))
            if isinstance(message, kind):
                return message
            if isinstance(message, wire.Refused | wire.SessionLost):
                raise SystemExit(f"the pool refused: {message.message}")

    async def start(self) -> None:
        await self.link.send(wire.Hello(process="bench/lease.py", pid=os.getpid(), torch="none", flavor="dev.1gb").encode())
        await self.hears(wire.SessionOpened)
        await self.cycle()
        self.opens.clear()
        self.cycles.clear()

    async def cycle(self) -> None:
        """Acquire, granted, mark, closed."""
        self._number += 1
        began = time.perf_counter_ns()
        span = wire.Span(id=f"s{self._number}", kind="cell", label="bench.ipynb", cell=self._number)
        await self.link.send(wire.Acquire(request=self._number, span=span).encode())
        granted = await self.hears(wire.Granted)
        self.opens.append((time.perf_counter_ns() - began) / 1e6)
        if self._stream is None:
            self._stream = await command_stream(granted)
        self._stream.write(frame_of(*self._work(), stream.Mark(self._number)))
        await self.hears(wire.LeaseClosed)
        self.cycles.append((time.perf_counter_ns() - began) / 1e6)

    def _work(self) -> list[stream.Command]:
        """Something that needs the device, so that the mark behind it waits for the lease."""
        storage = self._number
        return [stream.Allocate(storage, 8), stream.Write(storage, 0, bytes(8)), stream.Free((storage,))]

    async def run(self, until: float) -> None:
        while time.perf_counter() < until:
            await self.cycle()

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        await self.link.close()


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


def start_pool(state: Path, devices: int) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """An embedded pool with ``null`` devices that bear the development model's name."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment["FOREBAY_POOL_DEVICES"] = f'[{{kind = "null", model = "null", memory = "4 GiB", count = {devices}}}]'
    environment["FOREBAY_POOL_LOG_LEVEL"] = "warning"
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


async def measure(address: dict[str, Any], count: int, seconds: float) -> list[Client]:
    """So many clients, each with its own device, cycling as fast as they can."""
    url = address["url"].replace("http", "ws", 1) + "api/session"
    headers = {"Authorization": f"token {address['token']}"}
    clients = [Client(await connect(url, additional_headers=headers, compression=None, proxy=None)) for _ in range(count)]
    for client in clients:
        await client.start()
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client.run(until) for client in clients))
    for client in clients:
        await client.close()
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


def row_of(clients: list[Client], seconds: float) -> dict[str, Any]:
    cycles = [value for client in clients for value in client.cycles]
    opens = [value for client in clients for value in client.opens]
    return {
        "what": f"open + close, {len(clients)} clients",
        "per second": len(cycles) / seconds,
        "÷ bar": len(cycles) / seconds / 2000,
        "open p50 ms": percentile(opens, 0.5),
        "open p99 ms": percentile(opens, 0.99),
        "cycle p50 ms": percentile(cycles, 0.5),
        "cycle p99 ms": percentile(cycles, 0.99),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16], help="how many clients at a time, one measurement each")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each measurement lasts")
    options = parser.parse_args()
    if not 0 < options.seconds * len(options.clients) <= 40 or not 1 <= min(options.clients) <= max(options.clients) <= 32:
        parser.error("give 1 to 32 clients, and at most 40 seconds for all measurements together")
    events = machine_events_per_second()
    blank = dict.fromkeys(("open p50 ms", "open p99 ms", "cycle p50 ms", "cycle p99 ms"), "")
    rows: list[dict[str, Any]] = [{"what": "state machine alone, events", "per second": events, "÷ bar": events / 20_000, **blank}]
    durable = True
    for count in options.clients:
        with tempfile.TemporaryDirectory(prefix="fb-", ignore_cleanup_errors=True) as folder:
            state = Path(folder)
            process, address = start_pool(state, count)
            try:
                clients = asyncio.run(measure(address, count, options.seconds))
                total = sum(len(client.cycles) + 1 for client in clients)
                durable = durable and written(state, total) == total
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(READY_SECONDS_MAX)
            rows.append(row_of(clients, options.seconds))
    report("lease", rows, every_lease_on_disk=durable)


if __name__ == "__main__":
    main()
