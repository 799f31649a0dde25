"""Libraries for segments that come again and again: found on disk, or made by a process of its own, one at a time.

Where a program has asked for libraries, they are made while it goes on, and timed by turns. Elsewhere segments are *steady*: what carries
them out never depends on times. Their libraries are made where the host has a processor to spare, and what they gain is foretold."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay_worker import compiler
from forebay_worker.confinement import SpareProcessor, Watch
from forebay_worker.libraries import MAKING, Found, Libraries, OwnFolder, Sizes, key_of, processor

if TYPE_CHECKING:
    from forebay_worker._executor import Server

LOG = logging.getLogger("forebay.worker")

SWITCH, AFTER = "FOREBAY_COMPILE", "FOREBAY_COMPILE_AFTER"
"""Environment variables: 0 makes no libraries at all; the seconds after which one is made."""
AFTER_SECONDS = 60.0
"""Device seconds a segment must have used before compiling it is worthwhile."""
LIGHTER = 0.9
"""Of the device's time that a steady segment takes, a library may take so much at most."""
SLOWER = 0.98
"""Of its time from end to end."""
COMPILE_SECONDS_MAX = 4 * 3600.0
"""For one that sleeps. One that computes may take so long of a processor as ``confinement.py`` says: it waits for a busy host."""
COMPILER = (sys.executable, "-m", compiler.__name__)
ALIKE_MAX = 4
"""At most this many segments are compared to find one that differs only in a size."""
ALIKE_BYTES_MAX = 4 << 20
"""Of a description; nothing is looked for that is like a longer one."""
INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH")


def after_seconds() -> float:
    """As the environment says, or the default."""
    return float(os.environ.get(AFTER, AFTER_SECONDS))


class OfferKind(StrEnum):
    """What the executor offers: of a segment, of a kernel (``KERNEL``), or of the session (``LEAVING``, ``IMPORTED``)."""

    SEGMENT = "segment"
    """Its description."""
    STEADY = "steady"
    """As ``SEGMENT``. Its session waits until it is known whether there is a library."""
    DUE = "due"
    """With what it costs, of a steady one."""
    REJECTED = "rejected"
    """Its library is wrong, or failed; with the reason."""
    DECLINED = "declined"
    """Its library is for several sizes, and of no use to it; with the reason."""
    TIMED = "timed"
    """What its library takes of tier 1's time; nothing if it is not quicker."""
    FORGOTTEN = "forgotten"
    KERNEL = "kernel"
    """Its description."""
    LEAVING = "leaving"
    IMPORTED = "imported"
    """The libraries that came with the session."""


@dataclass(frozen=True)
class Costs:
    """Of a segment that tier 1 carries out: the least that was seen, in seconds."""

    busy: float
    """Of the device."""
    period: float
    """From one end to the next."""
    gather: float
    """Until all its steps have come."""

    def takes(self, library_seconds: float) -> float | None:
        """What a library would take of the period; None where it is not known to be quicker. The library begins when all steps
        have come, and nothing is counted on to go on beside that."""
        takes = (self.gather + library_seconds) / self.period
        return takes if math.isfinite(self.period) and library_seconds <= LIGHTER * self.busy and takes <= SLOWER else None


@dataclass
class Offered:
    """A segment that may get a library."""

    key: str
    body: bytes
    form: str = ""
    """The same for segments that differ in numbers alone, sizes among them; empty until it is asked for."""
    shares: str = ""
    """The form, where it has a library that is for several sizes."""
    wants_own: bool = False
    """Such a library was of no use to it."""
    has_own: bool = False
    alone: str = ""
    """Why no library of others is for it, where they have the same calls."""
    bare_form: str = ""
    """The same for segments that differ in constants, and in which numbers change; empty until it is asked for."""
    changing: set[tuple[int, int]] = field(default_factory=set)
    """The numbers that change in it."""
    was_widened: bool = False
    """It was described anew, with numbers that changed in other sessions."""
    is_due: bool = False
    is_steady: bool = False
    costs: Costs | None = None
    """Of a steady one that is due."""


class Compiling:
    """Hears what the executor offers, and gives it libraries. They are kept in ``folder``, one tenant's; None: in one of its own that goes
    with it, unless it is told another in time."""

    def __init__(self, executor: Server, torch_version: str, threads: int, folder: Path | None) -> None:
        self._executor = executor
        self._circumstances = (torch_version, processor(), str(threads), str(compiler.VERSION))
        self._threads = threads
        self._folder = folder
        self._told: Path | None = None
        self._own: OwnFolder | None = None
        self._segments: dict[int, Offered] = {}
        self._new: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        self._to_make: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        self._processes: set[asyncio.subprocess.Process] = set()
        self._spare = SpareProcessor()

    @cached_property
    def _libraries(self) -> Libraries:
        """Made for the first segment that is offered. Raises OSError."""
        if self._folder is not None:
            return Libraries(self._folder)
        self._own = OwnFolder()
        if self._told is not None:
            try:
                return Libraries(self._told, self._own.path)
            except OSError as error:  # this host has no such folder, or not for this account; its name is the tenant's secret
                LOG.warning("no folder keeps this tenant's libraries: %s", error.strerror or "", extra={"action": "libraries_not_kept"})
        return Libraries(self._own.path)

    def keep_in(self, folder: Path) -> None:
        """To be called before anything is offered. Where it cannot be used, libraries go with the worker."""
        self._told = folder

    def hear(self) -> None:
        """To be called whenever the executor rings."""
        for kind, number, body in self._executor.take_offers():
            match OfferKind(kind):
                case OfferKind.SEGMENT | OfferKind.STEADY:
                    self._know(number, body, is_steady=kind == OfferKind.STEADY)
                case OfferKind.DUE if number in self._segments:
                    if body:
                        self._segments[number].costs = Costs(*map(float, body.split()))
                    self._segments[number].is_due = True
                    self._to_make.put_nowait(number)
                case OfferKind.REJECTED if number in self._segments:
                    self._reject(self._segments[number], body.decode())
                case OfferKind.DECLINED if number in self._segments:
                    self._leave_shared(self._segments[number], body.decode())
                case OfferKind.TIMED if number in self._segments:
                    self._judge(self._segments[number].key, float(body) if body else None)
                case OfferKind.LEAVING if self._segments:
                    self._pack()
                case OfferKind.IMPORTED:
                    self._unpack(body)
                case OfferKind.FORGOTTEN:
                    self._segments.pop(number, None)

    def _pack(self) -> None:
        """Has the session take along what its next worker needs, if that does not have this folder."""
        keys = [key for one in self._segments.values() for key in (one.key, one.shares, one.bare_form) if key]
        with self._carrying("leave"):
            self._executor.take_along(self._libraries.packed(keys, self._circumstances))

    def _unpack(self, packed: bytes) -> None:
        with self._carrying("come"):
            count = self._libraries.unpack(packed, self._circumstances)
            LOG.info("%d libraries came along with the session", count, extra={"action": "libraries_brought"})

    @contextlib.contextmanager
    def _carrying(self, ways: str) -> Iterator[None]:
        """A session goes on without them: they can be made again."""
        try:
            yield
        except (OSError, ValueError) as error:
            LOG.warning("no libraries %s along with the session: %s", ways, error, extra={"action": "libraries_not_carried"})

    def _reject(self, segment: Offered, reason: str) -> None:
        """Its library was wrong; that for several sizes goes, and the segment may get one of its own."""
        self._refuse(segment.shares or segment.key, reason)
        LOG.warning("segment %s: %s", segment.shares or segment.key, reason, extra={"action": "library_barred"})
        if segment.shares:
            self._leave_shared(segment, reason)

    def _leave_shared(self, segment: Offered, reason: str) -> None:
        segment.shares, segment.wants_own = "", True
        self._libraries.forget(segment.key)
        LOG.info("segment %s: %s", segment.key, reason, extra={"action": "library_declined"})

    def _know(self, number: int, body: bytes, is_steady: bool) -> None:
        before = self._segments.get(number)
        was_widened = before is not None and before.was_widened
        self._segments[number] = Offered(key_of(body, *self._circumstances), body, was_widened=was_widened, is_steady=is_steady)
        try:
            if not self._look_up(number):
                self._new.put_nowait(number)
        except OSError as error:
            del self._segments[number]
            self._executor.refuse_library(number, f"libraries cannot be kept: {error.strerror or error}")

    def _refuse(self, key: str, reason: str) -> None:
        with self._noting(key):
            self._libraries.refuse(key, reason)

    def _judge(self, key: str, takes: float | None) -> None:
        with self._noting(key):
            self._libraries.judge(key, takes)

    @contextlib.contextmanager
    def _noting(self, key: str) -> Iterator[None]:
        """For those that come later, where notes can be written."""
        try:
            yield
        except OSError as error:
            LOG.warning("segment %s: %s", key, error, extra={"action": "library_unnoted"})

    def _look_up(self, number: int) -> bool:
        """Whether it is known what becomes of the segment; then the executor is told."""
        segment = self._segments[number]
        found = self._libraries.find(segment.key)
        if found is None:
            LOG.info("segment %s came again", segment.key, extra={"action": "segment_known"})
            return False
        if found.library is None:
            self._executor.refuse_library(number, found.refused)
        else:
            segment.has_own = found.sizes is None
            segment.shares = "" if segment.has_own else found.library.stem
            self._give(number, found.library, found)
        LOG.info("segment %s: %s", segment.key, found.refused or "its library was there", extra={"action": "library_found"})
        return True

    def _give(self, number: int, library: Path, found: Found) -> None:
        try:
            self._executor.give_library(number, str(library), found.note, found.sizes is not None, found.takes)
        except (RuntimeError, OSError) as error:
            self._executor.refuse_library(number, f"its library cannot be loaded: {error}")

    async def run(self) -> None:
        """Makes libraries until it is cancelled: first that of the segment which was due last, as a program may have left the others.
        Before that new ones are given what was made of those that differ from them in a size."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._greet, self._make_next):
                tasks.create_task(self._go_on(work))

    async def _go_on(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await work()

    async def _greet(self) -> None:
        """Of the next segment that is new: whether it is to be described anew."""
        number = await self._new.get()
        segment = self._segments.get(number)
        if segment is None:
            return
        with self._keeping(number):
            if await self._widen(number, segment):
                return
            self._executor.lack_library(number)
            self._to_make.put_nowait(number)

    async def _make_next(self) -> None:
        """Of the next segment without a library: one that is for several sizes, or, where it is due, one that is made."""
        number = await self._to_make.get()
        segment = self._segments.get(number)
        if segment is not None and segment.is_steady:
            await self._spare.wait()
        if segment is None or not self._is_there(number, segment):
            return
        with self._keeping(number):
            if segment.has_own or segment.shares:  # since it was due
                return await self._foretell(number, segment)
            if not await self._share(number, segment) and segment.is_due and not self._look_up(number):
                await self._make(number, segment)
            await self._foretell(number, segment)

    @contextlib.contextmanager
    def _keeping(self, number: int) -> Iterator[None]:
        """The segment stays as it is where nothing can be kept."""
        try:
            yield
        except OSError as error:
            self._executor.refuse_library(number, f"its library cannot be kept: {error.strerror or error}")

    async def _foretell(self, number: int, segment: Offered) -> None:
        """What the library of a steady segment takes of its time, where that is not known. Then the executor has it."""
        key = segment.shares or segment.key
        found = self._libraries.find(segment.key)
        if segment.costs is None or found is None or found.library is None or found.is_judged or not self._is_there(number, segment):
            return
        with self._folder_for_making() as folder:
            said = await self._ask(compiler.TIME, segment.body, (), folder, {compiler.LIBRARY: str(found.library)})
        takes = segment.costs.takes(float(said["seconds"])) if "seconds" in said else None
        self._judge(segment.key, takes)
        LOG.info("segment %s: its library takes %s of its time", key, takes, extra={"action": "library_foretold"})
        if self._is_there(number, segment):
            self._look_up(number)

    def _is_there(self, number: int, segment: Offered) -> bool:
        """Whether the executor still has it, as it was."""
        return self._segments.get(number) is segment

    async def _read(self, segment: Offered) -> None:
        """Its forms, and which numbers change in it; once, and not of long ones."""
        from forebay_worker import descriptions  # not needed where nothing is compiled

        if segment.form or len(segment.body) > ALIKE_BYTES_MAX:
            return

        def look() -> tuple[bytes, bytes, set[tuple[int, int]]]:
            description = descriptions.read(segment.body)
            bare_form = descriptions.form_without_numbers(description)
            return descriptions.form_of(description), bare_form, descriptions.changing_in(description)

        form, bare_form, changing = await asyncio.to_thread(look)
        segment.form = key_of(form, *self._circumstances, compiler.SIZE)
        segment.bare_form = key_of(bare_form, *self._circumstances, "changing")
        segment.changing = changing

    async def _form_of(self, segment: Offered) -> str:
        """Not told of long ones."""
        await self._read(segment)
        return segment.form

    async def _widen(self, number: int, segment: Offered) -> bool:
        """Whether numbers changed in other sessions' segments that stand still in this one, as Adam's corrections do after some hundreds of
        steps; then it is offered anew with them. So it has the same library."""
        await self._read(segment)
        noted = self._libraries.changing(segment.bare_form) if segment.bare_form else set()
        if segment.was_widened or noted <= segment.changing or not self._is_there(number, segment):
            return False
        segment.was_widened = True
        self._executor.widen_segment(number, noted | segment.changing)
        LOG.info("segment %s: other numbers changed before", segment.key, extra={"action": "segment_widened"})
        return True

    async def _share(self, number: int, segment: Offered) -> bool:
        """Whether there is a library of others that differ from it in a size which is for its own size, too; then it has that."""
        form = "" if segment.wants_own else await self._form_of(segment)
        found = self._libraries.find(form) if form else None
        if found is None or found.library is None or found.sizes is None:
            return False
        with self._folder_for_making() as folder:
            said = await self._ask(compiler.SIZE, segment.body, found.sizes.described, folder)
        segment.alone = str(said.get("alone", ""))
        if said.get("size", 0) not in found.sizes or not self._is_there(number, segment):
            return False
        self._libraries.share(segment.key, form)
        segment.shares = form
        self._give(number, found.library, found)
        LOG.info("segment %s: the library of %s is for its size, too", segment.key, form, extra={"action": "library_shared"})
        return True

    async def _alike(self, segment: Offered) -> list[Offered]:
        """Others that differ from it in numbers alone, and have a library each; none where there was one for several sizes."""
        form = "" if segment.wants_own else await self._form_of(segment)
        if not form or self._libraries.find(form) is not None:
            return []
        others = [one for one in self._segments.values() if one.has_own and one.key != segment.key]
        return [one for one in others if await self._form_of(one) == form][-ALIKE_MAX:]

    async def _make(self, number: int, segment: Offered) -> None:
        alike = await self._alike(segment)
        with self._folder_for_making() as folder:
            made, begin = Path(folder, "segment.so"), time.monotonic()
            said = await self._ask(str(made), segment.body, [one.body for one in alike], folder)
            seconds = time.monotonic() - begin
            refused = str(said["refused"]) if "refused" in said else None
            if refused is not None:
                self._executor.refuse_library(number, refused)
                self._refuse(segment.key, refused)
            elif "sizes" in said:
                one, other = said["made_of"]
                ranges = tuple((first, last) for first, last in said["sizes"])
                sizes = Sizes(ranges, (one, other), (alike[said["alike"]].body, segment.body))
                self._libraries.keep(segment.form, made, seconds, sizes)
                self._libraries.share(segment.key, segment.form)
            else:
                self._libraries.keep(segment.key, made, seconds, alone=str(said.get("alone", segment.alone)))
            if refused is None and segment.bare_form:
                self._libraries.note_changing(segment.bare_form, segment.changing)
            if refused is None and self._is_there(number, segment) and not segment.is_steady:
                self._look_up(number)
            LOG.info("segment %s: %s", segment.key, refused or "its library is made", extra={"action": "library_made"})

    @contextlib.contextmanager
    def _folder_for_making(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix=MAKING, dir=self._libraries.workshop, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    async def _ask(
        self, what: str, body: bytes, alike: Sequence[bytes], folder: Path, more: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """What a compiling process says, ``refused`` where it says nothing. Nothing of this process's environment but what compilers need
        goes along, and ``more``."""
        files = [folder / f"alike_{number}" for number in range(len(alike))]
        for file, one in zip(files, alike, strict=True):
            file.write_bytes(one)
        environ = {name: os.environ[name] for name in INHERITED if name in os.environ}
        environ |= {"TORCHINDUCTOR_CACHE_DIR": str(self._libraries.compiler_folder), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        environ |= {"HOME": str(folder), "OMP_NUM_THREADS": str(self._threads), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        environ |= more or {}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *COMPILER,
            what,
            *map(str, files),
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.DEVNULL,
            env=environ,
            cwd=folder,
            start_new_session=True,
        )
        self._processes.add(process)
        watch = asyncio.create_task(Watch(process.pid, folder).run())
        giving_way = asyncio.create_task(self._spare.give_way(process.pid)) if self._gives_way() else None
        try:
            async with asyncio.timeout(COMPILE_SECONDS_MAX):
                said, _ = await process.communicate(body)
        except TimeoutError:
            return {"refused": f"its library was not made in {COMPILE_SECONDS_MAX:.0f} seconds"}
        finally:
            ended_for = watch.result() if watch.done() else ""
            watch.cancel()
            if giving_way is not None:
                giving_way.cancel()
            self._stop(process)
            await process.wait()
        if ended_for:
            return {"refused": ended_for}
        try:
            return dict(json.loads(said))
        except (ValueError, TypeError):
            return {"refused": f"its compiler ended with status {process.returncode}"}

    def _gives_way(self) -> bool:
        """Whether no program has asked for libraries."""
        return all(segment.is_steady for segment in self._segments.values())

    def _stop(self, process: asyncio.subprocess.Process) -> None:
        """Ends the compiler with what it has started."""
        self._processes.discard(process)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Nothing of it runs any more, and its own folder is gone."""
        for process in tuple(self._processes):
            self._stop(process)
        if self._own is not None:
            self._own.close()
