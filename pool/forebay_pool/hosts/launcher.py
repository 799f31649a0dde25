"""Starts and ends worker processes. Every Launch is followed by exactly one ``on_exit``."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forebay_service.account import Account

from forebay_pool.hosts.image_folders import remove_folders
from forebay_pool.hosts.process_identity import process_space, started
from forebay_pool.model.causes import Cause
from forebay_pool.model.snapshot import WorkerSnapshot
from forebay_pool.model.types import Device, Kind

PR_SET_PDEATHSIG = 1
LINE_BYTES_MAX = 64 * 1024
OUTPUT_SECONDS_MAX = 1.0
"""How long the log of an ended worker is waited for, should a child of its own keep the pipe open."""

_LIBC = ctypes.CDLL(None, use_errno=True)

log = logging.getLogger(__name__)


class Launcher(Protocol):
    """Where workers come from."""

    def start(self, worker: str, devices: tuple[Device, ...], token: str, programs: bool) -> None:
        """Starts a worker for the devices, which will link up with ``token``; returns at once. ``programs``: it loads what they need."""

    def adopt(self, worker: WorkerSnapshot) -> None:
        """Watches a worker that another pool started, as if it had been started here; ``on_exit`` follows at once if it is gone."""

    def kill(self, worker: str) -> None:
        """Ends the worker's process at once, if there is one."""

    def remove(self, node: str, folders: Sequence[str]) -> None:
        """Removes folders on a host, if it is there, of sessions that need them no more; returns at once."""

    def leave(self) -> None:
        """Watches no worker any more, and ends none: another pool takes them over."""

    async def close(self) -> None:
        """Ends every worker and waits until they are gone."""


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """What each worker is started with."""

    python_of: Callable[[Kind], Path]
    """The interpreter for a kind of device."""
    socket_dir: Path | None
    """Where its command stream's socket is made; None: it listens on TCP."""
    pool_urls: str
    """Where it links up: addresses with commas between them."""
    environ: Mapping[str, str]
    resume_seconds: float
    """How long a worker lives on without a pool; 0: it dies with the pool."""
    log_level: str
    spill_dir: Path | None = None
    reconnect_seconds: float = 0.0
    """How long it waits for a client over TCP, or from outside, whose connection broke."""
    user_kernels: bool = False
    """Programs may launch kernels of their own."""
    plaintext: bool = False
    """What reaches workers over a network may be in clear, too."""

    def variables(self, programs: bool = False) -> dict[str, str]:
        """What workers are told by variables, since those of the release before, on Ray's nodes, take no more options."""
        waits = {"FOREBAY_WORKER_RECONNECT_SECONDS": str(self.reconnect_seconds)}
        told = {"FOREBAY_WORKER_PLAINTEXT": self.plaintext, "FOREBAY_WORKER_WARM_PROGRAMS": programs}
        return waits | {name: "1" for name, is_so in told.items() if is_so}

    def of(self, worker: str, devices: Sequence[Device], host: str = "127.0.0.1") -> list[str]:
        """``host`` is the address that the node of the worker and its devices is reached at."""
        listen = ("--listen", f"tcp:{host}:0") if self.socket_dir is None else ("--socket-dir", str(self.socket_dir))
        return [
            *(str(self.python_of(devices[0].kind)), "-m", "forebay_worker", "--pool", self.pool_urls),
            *("--worker", worker, *(option for device in devices for option in ("--device", device.local))),
            *(*listen, "--log-level", self.log_level, "--resume-seconds", str(self.resume_seconds)),
            *(() if self.spill_dir is None else ("--spill-dir", str(self.spill_dir))),
            *(("--kernels",) if self.user_kernels else ()),
        ]

    def of_another(self, device: Device, host: str) -> list[str]:
        """The process of a device on another node than its worker's, which connects to it; its ticket is in its environment."""
        return [
            *(str(self.python_of(device.kind)), "-m", "forebay_worker", "--standalone", f"tcp:{host}:0"),
            *("--device", device.local, "--log-level", self.log_level),
        ]


class LocalLauncher:
    """Workers are child processes of the pool, each the leader of its own process group. They die with the pool, or outlive it for the
    seconds in which the next one may take them over; a worker that nobody takes over ends by itself. They run under ``account``, which the
    pool must be able to give them, or else under its own.
    """

    def __init__(
        self,
        command: WorkerCommand,
        on_start: Callable[[str, tuple[str, ...], str, int, int], None],
        on_exit: Callable[[str, str], None],
        account: Account | None = None,
    ) -> None:
        self._command = command
        self._account = account
        self._on_start = on_start
        self._on_exit = on_exit
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pids: dict[str, int] = {}
        self._killed: set[str] = set()
        self._elsewhere: dict[str, asyncio.Event] = {}

    @property
    def workers(self) -> int:
        """Processes that run."""
        return len(self._tasks)

    def start(self, worker: str, devices: tuple[Device, ...], token: str, programs: bool) -> None:
        life = self._run(worker, devices, token, programs)
        self._tasks[worker] = asyncio.create_task(self._watch(worker, life), name=f"worker {worker}")

    def adopt(self, worker: WorkerSnapshot) -> None:
        self._tasks[worker.id] = asyncio.create_task(self._watch(worker.id, self._follow(worker)), name=f"worker {worker.id}")

    def kill(self, worker: str) -> None:
        self._killed.add(worker)
        pid = self._pids.get(worker)
        if pid is not None:
            _kill_group(pid)
        if worker in self._elsewhere:
            self._elsewhere[worker].set()

    def remove(self, node: str, folders: Sequence[str]) -> None:
        """In a thread of its own: there may be much to remove."""
        threading.Thread(target=remove_folders, args=(folders,), name="forebay-images", daemon=True).start()

    def leave(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def close(self) -> None:
        for worker in list(self._tasks):
            self.kill(worker)
        await asyncio.gather(*self._tasks.values())

    async def _watch(self, worker: str, life: Coroutine[None, None, str]) -> None:
        try:
            cause = await life
        except OSError as error:
            cause = Cause("not_started", program=str(error.filename), problem=error.strerror or "")
        finally:
            self._tasks.pop(worker, None)
            self._pids.pop(worker, None)
            self._elsewhere.pop(worker, None)
            self._killed.discard(worker)
        self._on_exit(worker, cause)

    async def _run(self, worker: str, devices: tuple[Device, ...], token: str, programs: bool) -> str:
        command = self._command.of(worker, devices)
        process = subprocess.Popen(
            self._account.command(command) if self._account else command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**self._command.environ, **self._command.variables(programs), "FOREBAY_WORKER_TOKEN": token},
            process_group=0,
            preexec_fn=None if self._command.resume_seconds else _die_with(os.getpid()),
        )
        self._on_start(worker, tuple(device.id for device in devices), token, process.pid, started(process.pid) or 0)
        output = asyncio.create_task(_log_output(worker, process))
        await self._end_of(worker, os.pidfd_open(process.pid), process.pid)
        status = process.wait()
        _kill_group(process.pid)
        await asyncio.wait([output], timeout=OUTPUT_SECONDS_MAX)
        output.cancel()
        return Cause("killed", signal=signal.Signals(-status).name) if status < 0 else Cause("exited", status=status)

    async def _follow(self, worker: WorkerSnapshot) -> str:
        """Waits for the end of a process that is no child of ours, or until a worker elsewhere is given up."""
        if worker.boot != process_space():
            given_up = self._elsewhere[worker.id] = asyncio.Event()
            await given_up.wait()
            return Cause("given_up")
        try:
            descriptor = os.pidfd_open(worker.pid)
        except OSError:
            return Cause("ended_unwatched")
        if started(worker.pid) != worker.started:
            os.close(descriptor)
            return Cause("ended_unwatched")
        await self._end_of(worker.id, descriptor, worker.pid)
        _kill_group(worker.pid)
        return Cause("ended")

    async def _end_of(self, worker: str, descriptor: int, pid: int) -> None:
        """Returns once the process of this descriptor has ended; until then it can be killed."""
        self._pids[worker] = pid
        if worker in self._killed:
            _kill_group(pid)
        try:
            await _readable(descriptor)
        finally:
            os.close(descriptor)


async def _log_output(worker: str, process: subprocess.Popen[bytes]) -> None:
    reader = asyncio.StreamReader(LINE_BYTES_MAX)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    try:
        while line := await _line(reader):
            log.info("%s: %s", worker, line.decode(errors="replace").rstrip(), extra={"action": "worker_output", "worker": worker})
    finally:
        transport.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:
        return b"(a line too long to log)"


async def _readable(descriptor: int) -> None:
    """Returns when there is something to read."""
    loop = asyncio.get_running_loop()
    rung = asyncio.Event()
    loop.add_reader(descriptor, rung.set)
    try:
        await rung.wait()
    finally:
        loop.remove_reader(descriptor)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:  # a pool before started it, in a user namespace that was not kept for this one
        log.error("process %d is not this pool's to end; end it as root", pid, extra={"action": "kill_refused", "pid": pid})


def _die_with(parent: int) -> Callable[[], None]:
    def set_death_signal() -> None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal
