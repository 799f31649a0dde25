"""What a worker has in place of the executor where its session is a process: the pool's orders, and what the pool is told."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from forebay_wire.message_parts import ProcessBounds
from forebay_wire.remote import frames
from forebay_wire.remote.frames import StreamError

from forebay_worker.remote.certificate import server_context
from forebay_worker.remote.client_stream import ClientStream
from forebay_worker.remote.contents import Contents
from forebay_worker.remote.egress import Egress
from forebay_worker.remote.run import Run, RunRefused
from forebay_worker.remote.sandbox import Order
from forebay_worker.remote.sandboxed_process import NotConfined, SandboxedProcess
from forebay_worker.remote.scratch import SOCKET, Scratch, is_root, own_account, sweep

LOG = logging.getLogger("forebay.worker")
ENTER_SECONDS_MAX = 20.0
"""Who has a lease comes within so long, or the lease is idle."""
GONE_SECONDS_MAX = 5.0
READ_AHEAD_BYTES = 2**20
PACKAGES = ("site-packages", "dist-packages")
"""What installers name the folders that they fill; others on the path may be anybody's."""
SEARCHED = ("/usr/local/bin", "/usr/bin", "/bin")
Event = tuple[str, int, int, int, str]
"""As the executor tells of events: what, the epoch, a number, bytes on disk, and a text."""


class ProcessHost:
    """Runs one process for one client, as leases allow. Made in the loop that it works in."""

    def __init__(self, address: str, encrypted: bool, bounds: ProcessBounds, ticket: str, parent: Path | None, why_not: str) -> None:
        """``address``: of the door for the client, ``unix:PATH`` or ``tcp:HOST:PORT``, of which the port may be another one; ``parent``:
        where the scratch is made; ``why_not``: what keeps this worker from it, if something does."""
        self.address = address
        self.certificate = ""
        self.event_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._bounds, self._ticket, self._why_not = bounds, ticket, why_not
        self._encrypted = encrypted
        self._parent = parent or Path(tempfile.gettempdir())
        self._account = own_account()
        self._events: list[Event] = []
        self._server: asyncio.Server | None = None
        self._run: Run | None = None
        self._epoch: int | None = None
        """Of the lease that is open."""
        self._open = asyncio.Event()
        self._closing = False
        self._running_since_ns: int | None = None
        self._worked_ns = 0
        self._commands = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # What the link asks of an executor

    def take_events(self) -> list[Event]:
        """What happened since the last call; the descriptor is readable where something did."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.event_descriptor)
        taken, self._events = self._events, []
        return taken

    def statistics(self) -> tuple[int | None, int, int, int]:
        """The open lease's epoch, bytes on the device, nanoseconds of work, and how much was begun."""
        since = self._running_since_ns
        return self._epoch, 0, self._worked_ns + (0 if since is None else time.monotonic_ns() - since), self._commands

    def running(self) -> None:
        """No call of an operator runs here."""

    def begin(self) -> None:
        """Finds out whether this host confines, and opens the door if it does."""
        self._spawn(self._begin())

    def open(self, epoch: int, _memory_limit_bytes: int) -> None:
        self._epoch = epoch
        self._open.set()
        if self._run is None:
            self._spawn(self._await_client(epoch))

    def close(self, epoch: int) -> None:
        if self._running_since_ns is not None and self._run is not None:
            self._closing = True
            self._run.stop()
        else:
            self._say("closed", epoch)
            self._epoch = None
            self._open.clear()

    def park(self, _host_bytes: int, _spill_bytes: int) -> None:
        """There is nothing on the device."""
        self._say("parked")

    def restore(self) -> None:
        self._say("restored")

    def finish(self) -> None:
        """Nothing comes any more. A process that still runs is killed."""
        if self._server is not None:
            self._server.close()
        if self.address.startswith("unix:"):
            Path(self.address.removeprefix("unix:")).unlink(missing_ok=True)
        if self._run is not None:
            self._run.process.let_go()
        for task in self._tasks:
            task.cancel()
        os.close(self.event_descriptor)

    # What a run asks of the lease

    async def opened(self) -> None:
        await self._open.wait()

    def began(self) -> None:
        self._running_since_ns, self._commands = time.monotonic_ns(), 1
        self._say("working", self._epoch or 0)

    def ended(self) -> None:
        if self._running_since_ns is not None:
            self._worked_ns += time.monotonic_ns() - self._running_since_ns
        self._running_since_ns = None
        if self._epoch is not None:
            self._say("closed" if self._closing else "drained", self._epoch)
        self._epoch = None
        self._open.clear()

    # The door

    async def _begin(self) -> None:
        try:
            await self._try_sandbox()
            await self._open_door()
        except (NotConfined, OSError) as error:
            LOG.error("this host cannot confine a process: %s", error, extra={"action": "unconfined"})
            self._say("unconfined", text=str(error)[: frames.PATH_BYTES_MAX // 2])
            return
        self._say("assigned")

    async def _open_door(self) -> None:
        """Raises OSError."""
        kind, _, where = self.address.partition(":")
        if kind == "unix":
            self._server = await asyncio.start_unix_server(self._welcome, where, limit=READ_AHEAD_BYTES)
            os.chmod(where, 0o666)  # noqa: S103 who may come is in who knows the ticket, as at the command stream's door
            return
        context, self.certificate = server_context() if self._encrypted else (None, "")
        host = where.rpartition(":")[0]
        self._server = await asyncio.start_server(self._welcome, host.strip("[]"), 0, ssl=context, limit=READ_AHEAD_BYTES)
        self.address = f"tcp:{host}:{self._server.sockets[0].getsockname()[1]}"

    async def _try_sandbox(self) -> None:
        """Starts a program that does nothing in the sandbox. Raises NotConfined, OSError."""
        if self._why_not:
            raise NotConfined(self._why_not)
        sweep(self._parent)
        scratch = Scratch(self._parent, self._account)
        process = await SandboxedProcess.prepare(scratch)
        try:
            await process.start(self._order_of_trial(scratch))
            outcome = await process.end()
            if outcome.status:
                raise NotConfined(f"a program in the sandbox ended with status {outcome.status}")
        finally:
            process.let_go()
            scratch.let_go()

    def _order_of_trial(self, scratch: Scratch) -> Order:
        bounds = self._bounds
        limits = (bounds.memory_bytes, bounds.processes, bounds.files_bytes)
        return Order(scratch.path, (sys.executable, "-c", ""), self._account, _readable(), _environment(), *limits)

    async def _await_client(self, epoch: int) -> None:
        await asyncio.sleep(ENTER_SECONDS_MAX)
        if self._run is None and self._epoch == epoch:
            self._epoch = None
            self._open.clear()
            self._say("idle", epoch, int(ENTER_SECONDS_MAX * 1e9))

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = ClientStream(reader, writer)
        try:
            async with asyncio.timeout(ENTER_SECONDS_MAX):
                entered = frames.from_client(await stream.message())
            if not isinstance(entered, frames.Enter) or not hmac.compare_digest(entered.ticket, self._ticket):
                raise RunRefused("This ticket is not of this worker's session.")
            if self._run is not None:
                raise RunRefused("This session's process has its client already.")
            await self._serve(stream)
        except (RunRefused, StreamError, ValueError, NotConfined, OSError, TimeoutError) as error:
            if not isinstance(error, ConnectionError):
                LOG.warning("a client's process ends: %s", error, extra={"action": "process_refused"})
                with contextlib.suppress(ConnectionError):
                    await stream.say(frames.Denied(why=str(error)[: frames.PATH_BYTES_MAX // 2] or "It took too long."))
        finally:
            await stream.close()

    async def _serve(self, stream: ClientStream) -> None:
        """One client, until it is gone: nothing of its process is left then."""
        scratch = Scratch(self._parent, self._account)
        process = await SandboxedProcess.prepare(scratch)
        owner = self._account if is_root() else None
        egress = Egress(f"{scratch.path}/{SOCKET}", self._bounds.egress) if self._bounds.egress else None
        given = (self._bounds, self._account, _readable(), _environment(), owner, self._contents())
        self._run = Run(stream, scratch, process, self, *given, "" if egress is None else egress.path)
        try:
            if egress is not None:
                await egress.open()
            await stream.say(frames.Entered())
            await self._run.serve()
        finally:
            if egress is not None:
                egress.close()
            process.let_go()
            scratch.let_go()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.gone(), GONE_SECONDS_MAX)
            self._say("client_gone")

    def _contents(self) -> Contents | None:
        if self._bounds.contents is None:
            return None
        try:
            return Contents(Path(self._bounds.contents))
        except OSError as error:
            LOG.warning("contents of files are not kept: %s", error, extra={"action": "contents_off"})
            return None

    def _say(self, what: str, epoch: int = 0, number: int = 0, text: str = "") -> None:
        self._events.append((what, epoch, number, 0, text))
        os.eventfd_write(self.event_descriptor, 1)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _readable() -> tuple[str, ...]:
    """The folders of this interpreter that are not the system's, and of packages of other environments that it has as well."""
    packages = (path for path in sys.path if Path(path).name in PACKAGES)
    found: list[str] = []
    for folder in (sys.base_prefix, sys.prefix, *packages):
        if not any(Path(folder).is_relative_to(other) for other in ("/usr", *found)):
            found.append(folder)
    return tuple(found)


def _environment() -> dict[str, str]:
    """What the process starts with. Nothing of the worker's is in it."""
    path = os.pathsep.join(dict.fromkeys((f"{sys.prefix}/bin", f"{sys.base_prefix}/bin", *SEARCHED)))
    return {"PATH": path, "HOME": "/home/user", "USER": "user", "LOGNAME": "user", "LANG": "C.UTF-8", "TMPDIR": "/tmp"}  # noqa: S108
