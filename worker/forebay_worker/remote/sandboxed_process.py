"""A user's process, as its worker has it: a guard that starts it, with pipes to both."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
from typing import Any, NamedTuple

from forebay_worker.remote.sandbox import Order
from forebay_worker.remote.scratch import Scratch

KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "HOME")
"""Of the worker's environment, what its guard starts with."""
START_SECONDS_MAX = 20.0
WORDS_BYTES_MAX = 4096


class Outcome(NamedTuple):
    """How a process ended."""

    status: int
    why: str
    """Why the host ended it, where it did."""


class NotConfined(Exception):
    """The sandbox cannot be had on this host; the message, for operators, says why."""


class SandboxedProcess:
    """Has a guard for its scratch from the start; the process itself runs from :meth:`start` on."""

    def __init__(self, guard: asyncio.subprocess.Process, control: int, reports: asyncio.StreamReader) -> None:
        self._guard, self._control, self._reports = guard, control, reports

    @classmethod
    async def prepare(cls, scratch: Scratch) -> SandboxedProcess:
        """Starts the guard of a scratch. Raises OSError."""
        control_read, control = os.pipe()
        report, report_write = os.pipe()
        command = (sys.executable, "-m", "forebay_worker.remote.guard", scratch.path, str(control_read), str(report_write))
        try:
            guard = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
                pass_fds=(control_read, report_write),
                start_new_session=True,
            )
        finally:
            os.close(control_read)
            os.close(report_write)
        reports = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reports), os.fdopen(report, "rb"))
        return cls(guard, control, reports)

    async def start(self, order: Order) -> None:
        """Returns when the process runs. Raises NotConfined."""
        line = json.dumps(dataclasses.asdict(order)).encode() + b"\n"
        await asyncio.to_thread(_write_all, self._control, line)
        try:
            report = await asyncio.wait_for(self._report(), START_SECONDS_MAX)
        except TimeoutError:
            raise NotConfined(f"the sandbox did not start within {START_SECONDS_MAX:g} s") from None
        if "started" not in report:
            raise NotConfined(await self._last_words(report))

    async def _report(self) -> dict[str, Any]:
        line = await self._reports.readline()
        return dict(json.loads(line)) if line else {"failed": "its guard is gone"}

    async def _last_words(self, report: dict[str, Any]) -> str:
        words = await self.errors.read(WORDS_BYTES_MAX)
        return " ".join(f"{report.get('failed', '')}: {words.decode(errors='replace')}".split()).strip(": ")

    async def end(self) -> Outcome:
        """Waits until the process, and all that it started, are gone. Raises NotConfined where it never ran."""
        report = await self._report()
        if "status" not in report:
            raise NotConfined(await self._last_words(report))
        return Outcome(int(report["status"]), str(report["why"]))

    def signal(self, number: int) -> None:
        """Has it get a signal."""
        if self._control >= 0:
            with contextlib.suppress(OSError):
                os.write(self._control, f"{number}\n".encode())

    @property
    def output(self) -> asyncio.StreamReader:
        return _there(self._guard.stdout)

    @property
    def errors(self) -> asyncio.StreamReader:
        return _there(self._guard.stderr)

    @property
    def input(self) -> asyncio.StreamWriter:
        if self._guard.stdin is None:
            raise RuntimeError("a guard without pipes")
        return self._guard.stdin

    def let_go(self) -> None:
        """What still runs is killed, and the scratch is removed, both soon."""
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    async def gone(self) -> None:
        """Waits until that is done."""
        await self._guard.wait()


def _there(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    if stream is None:
        raise RuntimeError("a guard without pipes")
    return stream


def _write_all(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(descriptor, data) :]
