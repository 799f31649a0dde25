"""What bad input and death do to a pool with real workers: the one session ends with one sentence, and nobody else notices."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import signal
import struct
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import psutil
import pytest
import torch
from forebay_wire import messages as wire
from forebay_wire import stream
from processes import suspend

pytestmark = pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built")
Make = Callable[..., Any]
PATIENCE_SECONDS = 20.0
NOTICED_SECONDS = 1.0
"""An offence ends its lease within so long."""
REAL = {
    "real_workers": True,
    "devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "2 GiB", "count": 2}],
    "warm_workers": 2,
    "heartbeat_seconds": 0.2,
    "idle_release_seconds": 60.0,
}


def body_of(*commands: stream.Command) -> bytes:
    writer = stream.CommandWriter()
    for command in commands:
        writer.add(command)
    return writer.take()


WORK = stream.frame(body_of(stream.Allocate(7, 8), stream.Write(7, 0, bytes(8))))
DONE = stream.frame(body_of(stream.Mark(1)))
FROM_FILE = torch.ops.aten.from_file.default
OPENS_FILES = stream.Operator("aten::from_file", "", stream.schema_hash(str(FROM_FILE._schema)))
OFFENCES = {
    "garbled": (stream.frame(b"\x63\x63\x63"), "an unknown command 99"),
    "cut short": (stream.frame(b"\x06\x01"), "a frame ends in the middle of a command"),
    "oversized": (struct.pack("<I", stream.FRAME_BYTES_MAX + 1) + b"x" * 100, "a frame of"),
    "beyond its storage": (stream.frame(body_of(stream.Write(7, 5, b"abcd"))), "a WRITE of 4 bytes at 5 of a storage of 8 bytes"),
    "outside the allow-list": (stream.frame(body_of(OPENS_FILES)), "operator aten::from_file is not allowed: it opens files"),
}


class Computing:
    """A session that holds a lease on a real worker, in the middle of a cell."""

    def __init__(self, client: Any, granted: wire.Granted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.client = client
        self.lease = granted.lease
        self.reader = reader
        self.writer = writer
        self._began_ns = time.monotonic_ns()

    @property
    def age_ns(self) -> int:
        """Time since the grant was heard."""
        return time.monotonic_ns() - self._began_ns

    @classmethod
    async def begin(cls, running: Any, who: str, flavor: str | None = None) -> Computing:
        client = await running.client(who)
        return await cls.again(client, flavor)

    @classmethod
    async def again(cls, client: Any, flavor: str | None = None) -> Computing:
        """A new session on the same link."""
        await client.hello(flavor)
        await client.ask()
        granted = await client.hears(wire.Granted)
        reader, writer = await asyncio.open_unix_connection(granted.address.removeprefix("unix:"))
        client.leave_worker()
        client.stream = writer
        hello = stream.Hello(bytes.fromhex(granted.ticket), importlib.metadata.version("torch"))
        writer.write(stream.frame(body_of(hello)))
        computing = cls(client, granted, reader, writer)
        await computing.replies(stream.Welcome)
        writer.write(WORK)
        return computing

    async def replies(self, kind: type[Any]) -> Any:
        """The next reply of the worker of this kind."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                size = struct.unpack("<I", await self.reader.readexactly(4))[0]
                reply = stream.decode_reply(await self.reader.readexactly(size))
                if isinstance(reply, kind):
                    return reply

    async def ends_well(self) -> None:
        self.writer.write(DONE)
        closed = await self.client.hears(wire.LeaseClosed)
        assert (closed.lease, closed.reason) == (self.lease, "drained")


def test_an_offence_in_the_command_stream_ends_that_session_alone_and_bills_no_longer(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            other, offender = await Computing.begin(running, "ben"), await Computing.begin(running, "ada")
            for count, (offence, (data, sentence)) in enumerate(OFFENCES.items(), 1):
                began = time.monotonic_ns()
                offender.writer.write(data)
                assert sentence in (await offender.replies(stream.Refused)).message, offence
                offender.client.leave_worker()
                closed = await offender.client.hears(wire.LeaseClosed)
                assert (await offender.client.hears(wire.SessionLost)).message, offence
                assert running.leases == [other.lease], offence
                await running.until(lambda wanted=count: len(running.records()) == wanted)
                record = running.records()[-1]
                assert (record["lease"], record["duration_ns"]) == (offender.lease, closed.duration_ns), offence
                assert closed.duration_ns <= offender.age_ns - (time.monotonic_ns() - began) + NOTICED_SECONDS * 10**9, offence
                offender = await Computing.again(offender.client)
            await offender.ends_well()
            await other.ends_well()

    asyncio.run(scenario())


def test_a_cell_whose_worker_is_killed_is_free_and_the_next_cell_works(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            victim, other = await Computing.begin(running, "ada"), await Computing.begin(running, "ben")
            session = running.machine.sessions[victim.client.session]
            lease, worker = session.lease, session.worker
            await running.until(lambda: lease.confirmed_ns > lease.opened_ns)
            pid = running.service.shell.launcher._pids[worker.id]
            os.kill(pid, signal.SIGKILL)
            closed = await victim.client.hears(wire.LeaseClosed)
            lost = await victim.client.hears(wire.SessionLost)
            assert (closed.reason, closed.duration_ns) == ("failed", 0)
            assert lost.message.startswith("The worker that held this session's tensors is gone (")
            assert running.leases == [other.lease]
            again = await Computing.again(victim.client)
            await again.ends_well()
            await other.ends_well()
            await running.until(lambda: len(running.records()) == 3)
            reasons = {record["lease"]: record["close_reason"] for record in running.records()}
            assert reasons == {victim.lease: "failed", again.lease: "drained", other.lease: "drained"}

    asyncio.run(scenario())


def test_a_device_that_no_longer_answers_ends_its_session_in_time_and_leaves_no_process(pool: Make) -> None:
    """One of two, whose process is stopped: as a driver that hangs, or a call of the program's that goes on and on. Billed until then."""

    async def scenario() -> None:
        async with pool(**REAL, call_seconds_max=1.0) as running:
            pair = {"memory_bytes": 2**30, "equivalents": [{"model": "cpu-dev", "count": 2}]}
            assert (await running.call("PUT", "api/flavors/pair", body=pair)).code < HTTPStatus.BAD_REQUEST
            victim = await Computing.begin(running, "ada", "pair")
            worker = running.machine.sessions[victim.client.session].worker
            first = psutil.Process(running.service.shell.launcher._pids[worker.id])
            others = [process for process in psutil.process_iter(["cmdline"]) if f"{worker.id}.1.sock" in str(process.info["cmdline"])]
            large = [command for storage in (8, 9) for command in (stream.Allocate(storage, 300 << 20), stream.Write(storage, 0, b"x"))]
            victim.writer.write(stream.frame(body_of(*large, stream.Read(1, 9, 0, 1))))  # which one device cannot hold together
            assert (await victim.replies(stream.Data)).data == b"x"
            assert others
            for other in others:
                suspend(other.pid)
            victim.writer.write(stream.frame(body_of(stream.Read(2, 9, 0, 1))))
            closed = await victim.client.hears(wire.LeaseClosed)
            lost = await victim.client.hears(wire.SessionLost)
            assert closed.lease == victim.lease and closed.duration_ns <= victim.age_ns + NOTICED_SECONDS * 10**9
            assert "one call of copying between devices ran for more than 1 s" in lost.message
            await running.until(lambda: not any(process.is_running() for process in (first, *others)))

    asyncio.run(scenario())
