"""Libraries for segments that come again and again: found on disk, or made by a process of its own, one at a time."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_worker import compiler
from forebay_worker.libraries import MAKING, Libraries, OwnFolder, key_of, processor

if TYPE_CHECKING:
    from forebay_worker._executor import Server

LOG = logging.getLogger("forebay.worker")

SWITCH, AFTER = "FOREBAY_COMPILE", "FOREBAY_COMPILE_AFTER"
"""Environment variables: 0 makes no libraries at all; the seconds after which one is made."""
AFTER_SECONDS = 60.0
"""So long must a device have worked on a segment before a library of it pays."""
COMPILE_SECONDS_MAX = 4 * 3600.0
"""For one that sleeps. One that computes may take so long of a processor as ``confinement.py`` says: it waits for a busy host."""
COMPILER = (sys.executable, "-m", compiler.__name__)
INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH")


def after_seconds() -> float:
    """As the environment says, or the default."""
    return float(os.environ.get(AFTER, AFTER_SECONDS))


class Compiling:
    """Hears what the executor offers, and gives it libraries. Everything that it writes is in ``folder``, one tenant's; None: in one of
    its own that goes with it."""

    def __init__(self, executor: Server, torch_version: str, threads: int, folder: Path | None) -> None:
        self._executor = executor
        self._circumstances = (torch_version, processor(), str(threads), str(compiler.VERSION))
        self._threads = threads
        self._folder = folder
        self._own: OwnFolder | None = None
        self._segments: dict[int, tuple[str, bytes]] = {}
        self._due: list[int] = []
        self._has_due = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    @cached_property
    def _libraries(self) -> Libraries:
        """Made for the first segment that is offered. Raises OSError."""
        if self._folder is not None:
            return Libraries(self._folder)
        self._own = OwnFolder()
        return Libraries(self._own.path)

    def hear(self) -> None:
        """To be called whenever the executor rings."""
        for kind, number, body in self._executor.take_offers():
            match kind:
                case "segment":
                    self._know(number, body)
                case "due" if number in self._segments:
                    self._due.append(number)
                    self._has_due.set()
                case "barred" if number in self._segments:
                    key = self._segments[number][0]
                    self._refuse(key, body.decode())
                    LOG.warning("segment %s: %s", key, body.decode(), extra={"action": "library_barred"})
                case "forgotten":
                    self._segments.pop(number, None)
                    self._due = [one for one in self._due if one != number]

    def _know(self, number: int, body: bytes) -> None:
        self._segments[number] = (key_of(body, *self._circumstances), body)
        try:
            self._look_up(number)
        except OSError as error:
            del self._segments[number]
            self._executor.refuse_library(number, f"libraries cannot be kept: {error.strerror or error}")

    def _refuse(self, key: str, reason: str) -> None:
        """Notes it for those that come later, where notes can be written."""
        try:
            self._libraries.refuse(key, reason)
        except OSError as error:
            LOG.warning("segment %s: %s", key, error, extra={"action": "library_unnoted"})

    def _look_up(self, number: int) -> bool:
        """Whether it is known what becomes of the segment; then the executor is told."""
        key = self._segments[number][0]
        found = self._libraries.find(key)
        if found is None:
            LOG.info("segment %s came again", key, extra={"action": "segment_known"})
            return False
        if found.library is None:
            self._executor.refuse_library(number, found.refused)
        else:
            self._give(number, found.library)
        LOG.info("segment %s: %s", key, found.refused or "its library was there", extra={"action": "library_found"})
        return True

    def _give(self, number: int, library: Path) -> None:
        try:
            self._executor.give_library(number, str(library))
        except (RuntimeError, OSError) as error:
            self._executor.refuse_library(number, f"its library cannot be loaded: {error}")

    async def run(self) -> None:
        """Makes libraries until it is cancelled: first that of the segment which was due last, as a program may have left the others."""
        while True:
            await self._has_due.wait()
            if not self._due:
                self._has_due.clear()
                continue
            number = self._due.pop()
            try:
                if number in self._segments and not self._look_up(number):
                    await self._make(number)
            except OSError as error:
                self._executor.refuse_library(number, f"its library cannot be kept: {error.strerror or error}")

    async def _make(self, number: int) -> None:
        key, body = self._segments[number]
        with tempfile.TemporaryDirectory(prefix=MAKING, dir=self._libraries.folder, ignore_cleanup_errors=True) as folder:
            made = Path(folder, "segment.so")
            refused = await self._compile(made, body, Path(folder))
            if refused is None:
                self._give(number, self._libraries.keep(key, made))
            else:
                self._executor.refuse_library(number, refused)
                self._refuse(key, refused)
            LOG.info("segment %s: %s", key, refused or "its library is made", extra={"action": "library_made"})

    async def _compile(self, made: Path, body: bytes, folder: Path) -> str | None:
        """Why there is no library; None where there is. Nothing of this process's environment but what compilers need goes along."""
        environ = {name: os.environ[name] for name in INHERITED if name in os.environ}
        environ |= {"TORCHINDUCTOR_CACHE_DIR": str(self._libraries.compiler_folder), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        environ |= {"HOME": str(folder), "OMP_NUM_THREADS": str(self._threads), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *COMPILER,
            str(made),
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.DEVNULL,
            env=environ,
            cwd=folder,
            start_new_session=True,
        )
        self._process = process
        try:
            async with asyncio.timeout(COMPILE_SECONDS_MAX):
                said, _ = await process.communicate(body)
        except TimeoutError:
            return f"its library was not made in {COMPILE_SECONDS_MAX:.0f} seconds"
        finally:
            self._stop()
        try:
            refused = json.loads(said).get("refused")
        except ValueError:
            return f"its compiler ended with status {process.returncode}"
        return None if refused is None else str(refused)

    def _stop(self) -> None:
        """Ends the compiler with what it has started."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process = None

    def close(self) -> None:
        """Nothing of it runs any more, and its own folder is gone."""
        self._stop()
        if self._own is not None:
            self._own.close()
