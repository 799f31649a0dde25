"""Starts and ends worker processes. Every Launch is followed by exactly one ``on_exit``."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from forebay_pool.types import Device

PR_SET_PDEATHSIG = 1
LINE_BYTES_MAX = 64 * 1024
OUTPUT_SECONDS_MAX = 1.0
"""How long the log of an ended worker is waited for, should a child of its own keep the pipe open."""

_LIBC = ctypes.CDLL(None, use_errno=True)

log = logging.getLogger(__name__)


class Launcher(Protocol):
    """Where workers come from."""

    def start(self, worker: str, devices: tuple[Device, ...], token: str) -> None:
        """Starts a worker for the devices, which computes on the first, and will link up with ``token``; returns at once."""

    def kill(self, worker: str) -> None:
        """Ends the worker's process at once, if there is one."""

    async def close(self) -> None:
        """Ends every worker and waits until they are gone."""


class LocalLauncher:
    """Workers are child processes of the pool, each the leader of its own process group, and die with it."""

    def __init__(
        self,
        python: Path,
        socket_dir: Path,
        pool_url: str,
        environ: Mapping[str, str],
        inherit: Iterable[str],
        log_level: str,
        on_exit: Callable[[str, str], None],
    ) -> None:
        self._python = python
        self._socket_dir = socket_dir
        self._pool_url = pool_url
        self._environ = {name: environ[name] for name in inherit if name in environ}
        self._log_level = log_level
        self._on_exit = on_exit
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pids: dict[str, int] = {}
        self._killed: set[str] = set()

    @property
    def workers(self) -> int:
        """Processes that run."""
        return len(self._tasks)

    def start(self, worker: str, devices: tuple[Device, ...], token: str) -> None:
        self._tasks[worker] = asyncio.create_task(self._watch(worker, devices[0], token), name=f"worker {worker}")

    def kill(self, worker: str) -> None:
        self._killed.add(worker)
        pid = self._pids.get(worker)
        if pid is not None:
            _kill_group(pid)

    async def close(self) -> None:
        for worker in list(self._tasks):
            self.kill(worker)
        await asyncio.gather(*self._tasks.values())

    async def _watch(self, worker: str, device: Device, token: str) -> None:
        try:
            cause = await self._run(worker, device, token)
        except OSError as error:
            cause = f"{self._python} cannot be started: {error.strerror}"
        finally:
            self._tasks.pop(worker, None)
            self._pids.pop(worker, None)
            self._killed.discard(worker)
        self._on_exit(worker, cause)

    async def _run(self, worker: str, device: Device, token: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(str(self._python), "-m", "forebay_worker", "--pool", self._pool_url, "--worker", worker),
            *("--device", device.local, "--socket-dir", str(self._socket_dir), "--log-level", self._log_level),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**self._environ, "FOREBAY_WORKER_TOKEN": token},
            process_group=0,
            preexec_fn=_die_with(os.getpid()),
            limit=LINE_BYTES_MAX,
        )
        self._pids[worker] = process.pid
        if worker in self._killed:
            _kill_group(process.pid)
        output = asyncio.create_task(self._log_output(worker, process))
        status = await process.wait()
        _kill_group(process.pid)
        await asyncio.wait([output], timeout=OUTPUT_SECONDS_MAX)
        output.cancel()
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"

    async def _log_output(self, worker: str, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                line = b"(a line too long to log)"
            if not line:
                return
            log.info("%s: %s", worker, line.decode(errors="replace").rstrip(), extra={"action": "worker_output", "worker": worker})


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _die_with(parent: int) -> Callable[[], None]:
    def set_death_signal() -> None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal
