"""Which of the segments that are offered get a library of their own, and which share one that is for several sizes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fork_server
import psutil
import pytest
from forebay_wire._stream import Writer
from forebay_worker import compile_queue, confinement
from forebay_worker.compile_queue import Compiling, Costs, OfferKind
from forebay_worker.confinement import SpareProcessor
from sized_compiler_standin import ALONE

SHARED = "it is for sizes from 2 to 100, and was made of 12 and 20"
OWN = ""


def segment(rows: int, columns: int = 4) -> bytes:
    """Of no calls, and one input."""
    out = Writer()
    for number in (0, 0, 0, 1):
        out.varint(number)
    out.u8(5)
    out.geometry(6, (rows, columns), (columns, 1), 0)
    out.varint(0)
    return out.bytes()


@dataclass
class Executor:
    """What a worker's executor is to whoever makes libraries."""

    compiling: Any = None
    offered: list[tuple[str, int, bytes]] = field(default_factory=list)
    told: list[tuple[int, str]] = field(default_factory=list)
    """For which sizes a segment's library is, why it is for its own alone, or why it has none."""
    lacking: list[int] = field(default_factory=list)
    """Segments of which it is told that there is no library, for now."""
    took: dict[int, float] = field(default_factory=dict)
    """Of tier 1's time, by segments whose library was quicker before."""

    def take_offers(self) -> list[tuple[str, int, bytes]]:
        taken, self.offered = self.offered, []
        return taken

    def give_library(self, number: int, path: str, note: str, is_shared: bool, took: float | None) -> None:
        assert Path(path).exists()
        cost, _, sizes = note.partition("; ")
        assert re.fullmatch(r"it took \d+ s to make", cost)
        assert is_shared == (sizes == SHARED)
        self.told.append((number, sizes))
        self.took |= {} if took is None else {number: took}

    def lack_library(self, number: int) -> None:
        self.lacking.append(number)

    def refuse_library(self, number: int, why: str) -> None:
        self.told.append((number, why))

    def say(self, kind: str, number: int, body: bytes = b"") -> None:
        self.offered.append((kind, number, body))
        self.compiling.hear()

    async def hears(self, *told: tuple[int, str]) -> None:
        """Nothing else."""
        deadline = time.monotonic() + 60
        while len(self.told) < len(told):
            assert time.monotonic() < deadline, self.told
            await asyncio.sleep(0.01)
        assert self.told == [*told]
        self.told.clear()


@contextlib.asynccontextmanager
async def executor_of(libraries: Path) -> AsyncIterator[Any]:
    """A worker's."""
    executor: Any = Executor()
    executor.compiling = Compiling(executor, "2.13", 1, libraries)
    working = asyncio.create_task(executor.compiling.run())
    try:
        yield executor
    finally:
        working.cancel()
        executor.compiling.close()


async def offer_what_gained(executor: Executor) -> None:
    for number, rows in enumerate((12, 20, 33), 1):
        executor.say("segment", number, segment(rows))
    await executor.hears((1, OWN), (2, SHARED), (3, SHARED))
    assert executor.took == {2: 0.5, 3: 0.75}


async def offer(executor: Executor, libraries: Path) -> None:
    executor.say("segment", 1, segment(12))
    executor.say("due", 1)
    await executor.hears((1, OWN))
    executor.say("segment", 6, segment(20, 8))
    executor.say("due", 6)
    await executor.hears((6, ALONE))
    executor.say("segment", 2, segment(20))
    executor.say("due", 2)
    await executor.hears((2, SHARED))
    executor.say("segment", 3, segment(33))
    await executor.hears((3, SHARED))
    for number, takes in ((1, b"0.9"), (2, b"0.5"), (3, b"0.75"), (1, b"")):
        executor.say("timed", number, takes)
    async with executor_of(libraries) as other:
        await offer_what_gained(other)
    assert len(list(libraries.glob("*.so"))) == 3, "the third is not compiled"

    executor.say("segment", 7, segment(33, 8))
    executor.say("due", 7)
    await executor.hears((7, ALONE))
    executor.say("segment", 4, segment(200))
    executor.say("due", 4)
    await executor.hears((4, OWN))
    executor.say("declined", 3, b"too slow")
    executor.say("due", 3)
    await executor.hears((3, OWN))
    executor.say("rejected", 2, b"its library is wrong")
    executor.say("due", 2)
    await executor.hears((2, OWN))
    executor.say("segment", 5, segment(50))
    executor.say("due", 5)
    await executor.hears((5, OWN))
    assert not list(libraries.glob(".*")), "what was written on the way is gone"


async def offer_again(executor: Executor) -> None:
    """To another worker."""
    for number, sizes in enumerate(((12, 4), (20, 4), (33, 4), (33, 8)), 1):
        executor.say("segment", number, segment(*sizes))
    await executor.hears((1, OWN), (2, OWN), (3, OWN), (4, ALONE))
    assert not executor.took, "those that were quicker are others by now"


def test_a_second_size_gets_a_library_that_further_ones_share_until_it_is_wrong_or_too_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_queue, "COMPILER", (fork_server.services(), str(Path(__file__).with_name("sized_compiler_standin.py"))))

    async def run(again: bool) -> None:
        async with executor_of(tmp_path / "libraries") as executor:
            await (offer_again(executor) if again else offer(executor, tmp_path / "libraries"))

    asyncio.run(run(again=False))
    asyncio.run(run(again=True))
    assert len(list((tmp_path / "libraries").glob("*.so"))) == 7, "all have one of their own now"


# Of programs that ask for nothing


async def until(holds: Any) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def costs(busy: float, period: float, gather: float) -> bytes:
    return f"{busy} {period} {gather}".encode()


async def offer_steadily(executor: Executor, spare: asyncio.Event) -> None:
    """Of 10 to 40 rows, whose libraries take 10 to 40 ms."""
    for number, rows in enumerate((10, 20, 30, 40), 1):
        executor.say("steady", number, segment(rows, number))
        await until(lambda number=number: number in executor.lacking)  # type: ignore[misc]
    executor.say("due", 1, costs(0.02, 0.03, 0.005))
    executor.say("due", 2, costs(0.022, 0.03, 0.005))
    executor.say("due", 3, costs(0.1, 0.03, 0.005))
    await asyncio.sleep(0.2)
    assert executor.told == [], "the host has no processor to spare"
    spare.set()
    await until(lambda: {number for number, _ in executor.told} == {1, 2, 3})
    assert executor.took == {1: 0.5}, "the second gains too little of the device's time, and the third nothing from end to end"


async def offer_steadily_again(executor: Executor) -> None:
    for number, rows in enumerate((10, 20, 30, 40), 1):
        executor.say("steady", number, segment(rows, number))
    assert [number for number, _ in executor.told] == [1, 2, 3], "at once, as its session waits"
    assert executor.took == {1: 0.5}
    await until(lambda: executor.lacking == [4])


def test_what_a_program_did_not_ask_for_is_made_where_a_processor_is_to_spare_and_its_gain_is_foretold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_queue, "COMPILER", (fork_server.services(), str(Path(__file__).with_name("sized_compiler_standin.py"))))
    spare = asyncio.Event()

    async def never(_self: SpareProcessor, _session: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(SpareProcessor, "wait", lambda _self: spare.wait())
    monkeypatch.setattr(SpareProcessor, "give_way", never)

    async def run(again: bool) -> None:
        async with executor_of(tmp_path / "libraries") as executor:
            await (offer_steadily_again(executor) if again else offer_steadily(executor, spare))

    asyncio.run(run(again=False))
    asyncio.run(run(again=True))
    assert len(list((tmp_path / "libraries").glob("*.so"))) == 3, "nobody was at the fourth for long"


@pytest.mark.parametrize(
    ("busy", "period", "gather", "library", "takes"),
    [
        (0.1, 0.2, 0.02, 0.05, 0.35),
        (0.1, 0.1, 0.0, 0.09, 0.9),
        (0.1, 0.1, 0.0, 0.091, None),  # the device is hardly less at work
        (0.1, 0.1, 0.06, 0.05, None),  # steps are gathered first, and then take as long
        (0.1, 0.2, 0.15, 0.05, None),  # the program is what takes so long
        (0.1, float("inf"), 0.0, 0.05, None),  # it is not known
    ],
)
def test_a_gain_is_foretold_without_anything_that_might_overlap(
    busy: float, period: float, gather: float, library: float, takes: float | None
) -> None:
    assert Costs(busy, period, gather).takes(library) == (None if takes is None else pytest.approx(takes))


def test_a_compiler_is_stopped_while_the_host_has_no_processor_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process, of a host whose processors are told to be idle or not."""
    idle = [2.0]
    monkeypatch.setattr(confinement, "BUSY_SECONDS", 0.01)
    monkeypatch.setattr(SpareProcessor, "_idle", lambda _self: asyncio.sleep(0.01, idle[0]))

    async def run() -> None:
        spare = SpareProcessor()
        await spare.wait()
        process = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
        seen = psutil.Process(process.pid)
        giving_way = asyncio.create_task(spare.give_way(process.pid))
        for left, state in ((0.0, psutil.STATUS_STOPPED), (1.0, psutil.STATUS_STOPPED), (1.5, psutil.STATUS_SLEEPING)):
            idle[0] = left
            await asyncio.sleep(0.3)
            assert seen.status() == state, left
        idle[0] = 0.0
        await until(lambda: seen.status() == psutil.STATUS_STOPPED)
        giving_way.cancel()
        await until(lambda: seen.status() == psutil.STATUS_SLEEPING)
        process.kill()
        await process.wait()

    asyncio.run(run())


def test_idle_processors_are_counted_as_the_host_tells() -> None:
    async def run() -> float:
        return await SpareProcessor()._idle()

    assert -0.1 <= asyncio.run(run()) <= len(os.sched_getaffinity(0)) * 1.2


def test_the_executor_says_each_kind_of_offer_and_no_other() -> None:
    module = (Path(__file__).parents[2] / "worker" / "csrc" / "module.cpp").read_text()
    assert sorted(re.findall(r'return tuple\("(\w+)"', module)) == sorted(OfferKind)
