"""One run of a user's process: its client's files come, it runs while the lease is open, and what it changed goes back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from forebay_wire.message_parts import ProcessBounds
from forebay_wire.remote import folder, frames
from forebay_wire.remote.frames import INPUT_BYTES_MAX, PIECE_BYTES, File, FrameKind, StreamError

from forebay_worker.remote.client_stream import ClientStream
from forebay_worker.remote.contents import Contents
from forebay_worker.remote.files import Files
from forebay_worker.remote.sandbox import Order
from forebay_worker.remote.sandboxed_process import Outcome, SandboxedProcess
from forebay_worker.remote.scratch import Scratch

STOP_SECONDS = 5.0
"""Between a request to end and the end."""


class RunRefused(Exception):
    """What the client asks for is not done; the message says why."""


class Lease(Protocol):
    """What a run asks of the lease, and tells."""

    async def opened(self) -> None:
        """Waits until a lease is open."""

    def began(self) -> None:
        """The process runs."""

    def ended(self) -> None:
        """The process, and all that it started, are gone."""


@dataclass
class Run:
    """From the client's first word about files to its last."""

    stream: ClientStream
    scratch: Scratch
    process: SandboxedProcess
    lease: Lease
    bounds: ProcessBounds
    account: int
    readable: tuple[str, ...]
    environment: dict[str, str]
    owner: int | None
    contents: Contents | None
    egress: str
    """The socket of the proxy that lets the process out; empty: there is none."""
    _inputs: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    _waiting_bytes: int = 0
    _wanted: asyncio.Future[frames.Wanted] = field(init=False)
    _stopping: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Until the client is gone. Raises ConnectionError once it is, RunRefused, StreamError, ValueError, OSError, NotConfined."""
        start = frames.from_client(await self.stream.message())
        if not isinstance(start, frames.Start):
            raise StreamError(f"{start.type} where start was awaited")
        files = Files(self.scratch.work, self.owner, self.contents)
        await self._take(files, start.files)
        self._wanted = asyncio.get_running_loop().create_future()
        listens = asyncio.create_task(self._listen())
        works = asyncio.create_task(self._work(start, files))
        try:
            await asyncio.wait((listens, works), return_when=asyncio.FIRST_COMPLETED)
            if works.done():
                works.result()
            await listens
        finally:
            for task in (listens, works):
                task.cancel()
            await asyncio.gather(listens, works, return_exceptions=True)

    # Files that come

    async def _take(self, files: Files, told: tuple[File, ...]) -> None:
        size = sum(file.size for file in told)
        if size > self.bounds.files_bytes:
            most = f"{self.bounds.files_bytes / 2**30:g} GiB"
            raise RunRefused(f"The folder has {size / 2**30:.1f} GiB; a process here may have {most} of files.")
        wanted = frames.Wanted(places=tuple(await asyncio.to_thread(files.take_kept, told)))
        await self.stream.say(wanted)
        pieces = self._pieces()
        for file in wanted.of(told):
            await files.take(file, pieces)
        if wanted.places and self.contents is not None:
            await asyncio.to_thread(self.contents.make_room)

    async def _pieces(self) -> AsyncIterator[bytes]:
        while True:
            kind, contents = await self.stream.next()
            if kind != FrameKind.CONTENTS or not contents:
                raise StreamError(f"{kind.name} where contents were awaited")
            yield contents

    # The process

    async def _work(self, start: frames.Start, files: Files) -> None:
        await self.lease.opened()
        await self.process.start(self._order(start.arguments))
        self.lease.began()
        await self.stream.say(frames.Started())
        outcome = await self._follow()
        await self.stream.say(frames.Exited(status=outcome.status, why=outcome.why))
        changed, left = await asyncio.to_thread(files.changed, start.result_bytes_max)
        await self.stream.say(frames.Results(files=tuple(changed), left=tuple(left)))
        for file in (await self._wanted).of(tuple(changed)):
            await self._send(file)

    def _order(self, arguments: tuple[str, ...]) -> Order:
        return Order(
            scratch=self.scratch.path,
            arguments=arguments,
            account=self.account,
            readable=self.readable,
            environment=self.environment,
            memory_bytes=self.bounds.memory_bytes,
            processes=self.bounds.processes,
            files_bytes=self.bounds.files_bytes,
            egress=self.egress,
        )

    async def _follow(self) -> Outcome:
        """Carries what it writes and reads until it is over."""
        pumps = asyncio.gather(
            self._pump(self.process.output, FrameKind.OUTPUT), self._pump(self.process.errors, FrameKind.ERRORS)
        )
        feeds = asyncio.create_task(self._feed())
        try:
            outcome = await self.process.end()
            self.lease.ended()
            await pumps
            return outcome
        finally:
            feeds.cancel()
            pumps.cancel()
            await asyncio.gather(feeds, pumps, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, kind: FrameKind) -> None:
        while piece := await source.read(PIECE_BYTES):
            await self.stream.send(kind, piece)

    async def _feed(self) -> None:
        """Gives the process what it reads, as fast as it does."""
        while True:
            piece = await self._inputs.get()
            if not piece:
                self.process.input.close()
                return
            try:
                self.process.input.write(piece)
                await self.process.input.drain()
            except OSError:  # it reads no more
                pass
            self._waiting_bytes -= len(piece)
            await self.stream.say(frames.Took(bytes=len(piece)))

    async def _send(self, file: File) -> None:
        opened = folder.open_file(self.scratch.work, file.path)
        with open(opened, "rb"):
            for piece in folder.pieces_of(opened, file.size):
                await self.stream.send(FrameKind.CONTENTS, piece)

    # What the client says meanwhile

    async def _listen(self) -> None:
        while True:
            kind, contents = await self.stream.next()
            if kind == FrameKind.INPUT:
                self._waiting_bytes += len(contents)
                if self._waiting_bytes > INPUT_BYTES_MAX:
                    raise StreamError(f"more than {INPUT_BYTES_MAX} bytes of input that the process has not read")
                self._inputs.put_nowait(contents)
            elif kind == FrameKind.MESSAGE:
                self._hear(frames.from_client(contents))
            else:
                raise StreamError(f"{kind.name} while the process runs")

    def _hear(self, message: frames.Enter | frames.Start | frames.Signal | frames.Wanted) -> None:
        if isinstance(message, frames.Signal):
            self.process.signal(message.number)
        elif isinstance(message, frames.Wanted) and not self._wanted.done():
            self._wanted.set_result(message)
        else:
            raise StreamError(f"{message.type} while the process runs")

    # The pool

    def stop(self) -> None:
        """Has the process end: it is asked to, and killed if it does not."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        self.process.signal(signal.SIGTERM)
        await asyncio.sleep(STOP_SECONDS)
        self.process.signal(signal.SIGKILL)
