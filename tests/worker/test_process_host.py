"""What a worker's process host does with clients that are not what they should be, and with the pool's orders."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from forebay.toolkit.remote.process_stream import ProcessStream
from forebay_wire.message_parts import Message, ProcessBounds
from forebay_wire.remote import frames
from forebay_wire.remote.frames import FrameKind
from forebay_worker.remote import host as hosts
from forebay_worker.remote.client_stream import ClientStream
from forebay_worker.remote.host import Event, ProcessHost

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
TICKET, OTHER = "0a" * 32, "0b" * 32
BOUNDS = ProcessBounds(memory_bytes=2**29, processes=32, files_bytes=2**20)
PATIENCE_SECONDS = 20
HASH = hashlib.sha256(b"four").hexdigest()


class Host:
    """A process host, with what it said."""

    def __init__(self, folder: Path, address: str | None = None) -> None:
        self.folder = folder
        self.host = ProcessHost(address or f"unix:{folder}/door", address is not None, BOUNDS, TICKET, folder, "")
        self.events: list[Event] = []
        self.streams: list[ClientStream] = []

    async def says(self, what: str) -> Event:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (found := [event for event in self.events if event[0] == what]):
                await asyncio.sleep(0.01)
                self.events += self.host.take_events()
        return found[-1]

    async def client(self, ticket: str = TICKET) -> ClientStream:
        stream = await self.stranger()
        await stream.say(frames.Enter(ticket=ticket))
        return stream

    async def stranger(self) -> ClientStream:
        self.streams.append(ClientStream(*await asyncio.open_unix_connection(f"{self.folder}/door", limit=2**20)))
        return self.streams[-1]


async def hears(stream: ClientStream) -> Message:
    """The next message; output between is passed over."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            kind, contents = await stream.next()
            if kind == FrameKind.MESSAGE:
                return frames.from_worker(contents)


@asynccontextmanager
async def opened(door: Callable[[], Host]) -> AsyncIterator[Host]:
    made = door()
    made.host.begin()
    await made.says("assigned")
    try:
        yield made
    finally:
        for stream in made.streams:
            await stream.close()
        made.host.finish()
        made.folder.rmdir()


@pytest.fixture
def door() -> Callable[[], Host]:
    """Makes hosts; their folder is short enough for a socket."""
    return lambda: Host(Path(tempfile.mkdtemp(prefix="exec-host-")))


def start(*words: str, files: tuple[frames.File, ...] = ()) -> frames.Start:
    return frames.Start(arguments=words or ("true",), files=files, result_bytes_max=2**20)


def test_who_is_not_the_session_s_client_is_turned_away(door: Callable[[], Host]) -> None:
    async def scenario() -> None:
        async with opened(door) as host:
            for wrong in (await host.client(OTHER), await host.stranger()):
                await wrong.say(start())
                assert isinstance(await hears(wrong), frames.Denied)
            first = await host.client()
            assert isinstance(await hears(first), frames.Entered)
            second = await host.client()
            denied = await hears(second)
            assert isinstance(denied, frames.Denied) and "has its client already" in denied.why
            await first.close()
            await host.says("client_gone")

    asyncio.run(scenario())


def visit(address: str, certificate: str) -> tuple[str, bytes]:
    """What a client hears that runs a program which writes a MiB, and sends it meanwhile what it reads."""
    stream = ProcessStream()
    try:
        stream.connect(address, bytes.fromhex(TICKET), None, certificate)
    except RuntimeError as error:
        stream.close()
        return str(error), b""
    stream.say(start("sh", "-c", "head -c 1048576 /dev/zero; wc -c"))
    written, message = b"", None
    while not isinstance(message, frames.Exited):
        kind, contents = stream.next()
        if kind == FrameKind.OUTPUT:
            written += contents
        elif kind == FrameKind.MESSAGE:
            message = frames.from_worker(contents)
            if isinstance(message, frames.Started):
                for piece in (bytes(2**18), bytes(2**18), b""):
                    stream.give(piece)
    stream.close()
    return str(message.status), written


def test_over_a_network_the_worker_shows_the_certificate_that_it_told_of(door: Callable[[], Host]) -> None:
    async def scenario() -> None:
        async with opened(lambda: Host(door().folder, "tcp:127.0.0.1:0")) as host:
            assert host.host.address.startswith("tcp:127.0.0.1:") and not host.host.address.endswith(":0")
            refused, _ = await asyncio.to_thread(visit, host.host.address, OTHER)
            assert refused == "the worker shows another certificate than the pool told of"
            assert (await asyncio.to_thread(visit, host.host.address, ""))[0]  # who speaks no TLS hears nothing that he understands
            host.host.open(1, 0)
            status, written = await asyncio.to_thread(visit, host.host.address, host.host.certificate)
            assert status == "0" and written == bytes(2**20) + b"524288\n"
            await host.says("client_gone")

    asyncio.run(scenario())


HOSTILE = {
    "a name that leads out": ((frames.File(path="../made", size=4, hash=HASH),), b"four", "no name of a file"),
    "other contents": ((frames.File(path="a", size=4, hash=HASH),), b"five", "other contents"),
    "an absolute name": ((frames.File(path="/made", size=4, hash=HASH),), b"four", "no name of a file"),
    "a file below a file": (tuple(frames.File(path=path, size=4, hash=HASH) for path in ("a", "a/b")), b"four", "Not a directory"),
    "more contents": ((frames.File(path="a", size=4, hash=HASH),), b"fours", "more bytes"),
    "more than there is room for": ((frames.File(path="a", size=2**40, hash=HASH),), b"", "may have"),
}


def test_files_that_are_not_what_they_should_be_end_that_session_alone(door: Callable[[], Host], pytestconfig: pytest.Config) -> None:
    async def scenario(files: tuple[frames.File, ...], contents: bytes, why: str) -> None:
        async with opened(door) as host:
            stream = await host.client()
            assert isinstance(await hears(stream), frames.Entered)
            await stream.say(start(files=files))
            answer = await hears(stream)
            if isinstance(answer, frames.Wanted):
                for _ in files:
                    await stream.send(FrameKind.CONTENTS, contents)
                answer = await hears(stream)
            assert isinstance(answer, frames.Denied) and why in answer.why
            await host.says("client_gone")
            assert [path.name for path in host.folder.iterdir()] == ["door"]

    for files, contents, why in list(HOSTILE.values())[: None if pytestconfig.getoption("--full-sweep") else 2]:
        asyncio.run(scenario(files, contents, why))


def test_a_client_that_sends_more_than_the_process_reads_is_turned_away(door: Callable[[], Host]) -> None:
    async def scenario() -> None:
        async with opened(door) as host:
            host.host.open(1, 0)
            stream = await host.client()
            await hears(stream)
            await stream.say(start("sleep", "100"))
            assert isinstance(await hears(stream), frames.Wanted)
            assert isinstance(await hears(stream), frames.Started)
            for _ in range(9):
                await stream.send(FrameKind.INPUT, bytes(2**18))
            told = await hears(stream)
            while isinstance(told, frames.Took):
                told = await hears(stream)
            assert isinstance(told, frames.Denied) and "input" in told.why
            await host.says("client_gone")

    asyncio.run(scenario())


def test_orders_before_the_process_runs_and_after_it(door: Callable[[], Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "ENTER_SECONDS_MAX", 0.2)

    async def scenario() -> None:
        async with opened(door) as host:
            host.host.open(1, 0)
            assert (await host.says("idle"))[1] == 1
            host.host.park(0, 0)
            await host.says("parked")
            host.host.restore()
            await host.says("restored")
            host.host.open(2, 0)
            host.host.close(2)
            assert (await host.says("closed"))[1] == 2
            stream = await host.client()
            await hears(stream)
            host.host.open(3, 0)
            await stream.say(start("sh", "-c", "exit 3"))
            assert (await host.says("working"))[1] == 3 and (await host.says("drained"))[1] == 3
            told = [await hears(stream) for _ in range(4)]
            assert told[2] == frames.Exited(status=3) and isinstance(told[3], frames.Results)
            assert json.loads(told[3].encode())["files"] == []
            await stream.close()
            await host.says("client_gone")

    asyncio.run(scenario())
