"""Which of the segments that are offered get a library of their own, and which share one that is for several sizes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fork_server
import pytest
from forebay_wire._stream import Writer
from forebay_worker import compile_queue
from forebay_worker.compile_queue import Compiling, OfferKind
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


def test_the_executor_says_each_kind_of_offer_and_no_other() -> None:
    module = (Path(__file__).parents[2] / "worker" / "csrc" / "module.cpp").read_text()
    assert sorted(re.findall(r'return tuple\("(\w+)"', module)) == sorted(OfferKind)
