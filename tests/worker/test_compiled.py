"""Segments that come again are carried out by libraries, and only by those that are right."""

from __future__ import annotations

import _ctypes
import asyncio
import ctypes
import fcntl
import os
import re
import shutil
import socket
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from compiler_standin import GIVEN
from conftest import StartWorker, geometry_of
from forebay_wire import messages, stream
from forebay_wire.stream import Argument, Output, OutputTag, Tag, Template
from forebay_worker import standalone
from forebay_worker.libraries import Libraries
from forebay_worker.link import WorkerLink
from link_to_pool import Linked
from segment_rounds import COMPILED, DETERMINISTIC
from torch._inductor import aot_compile

aten = torch.ops.aten
STEPS = 24
SECONDS_MAX = 240
NEVER = "1e9"
BEING_MADE = "library is being made"
LOOPS, AT_ONCE = 24, 8
ROWS = (512, 384, 448, 320, 20)
GATHERING_SECONDS = 0.03
PAUSE_SECONDS = 0.05
"""Without a step, in which a segment is held back no longer."""
STRAYS_MAX = 16
"""Such in a row that a segment may have."""


@dataclass
class Loop:
    """Twelve times ``x.mul_(0.5).add_(y, alpha=alpha)`` a round, which is a segment of 24 calls."""

    client: Any
    alpha: float
    settings: int | None = COMPILED
    rounds: int = 0

    def __post_init__(self) -> None:
        self.x, self.y = torch.randn(512, 512), torch.randn(512, 512)
        self.prepare()

    def prepare(self) -> None:
        self.places = [self.client.upload(one) for one in (self.x, self.y)]
        tensor, same = Argument(Tag.TENSOR, geometry=geometry_of(self.x)), Output(OutputTag.SAME)
        number = Argument(Tag.SCALAR_DOUBLE)
        half = Argument(Tag.SCALAR_TENSOR, dtype=7, flag=True)
        self.mul = self.client.template(Template(self.client.operator(aten.mul_.Tensor), (tensor, half), (same,)))
        self.add = self.client.template(Template(self.client.operator(aten.add_.Tensor), (tensor, tensor, number), (same,)))
        self.copy = self.client.template(Template(self.client.operator(aten.copy_.default), (tensor, tensor, Argument(Tag.BOOL)), (same,)))
        if self.settings is not None:
            self.client.send(stream.Settings(self.settings))
        assert isinstance(self.client.sync(), stream.Done)

    def calls(self) -> list[stream.Call]:
        x, y = (stream.View(place, 0) for place in self.places)
        return [stream.Call(self.mul, (x, 0.5)), stream.Call(self.add, (x, y, self.alpha))] * (STEPS // 2)

    def round(self) -> None:
        if self.rounds == 0:
            for call in self.calls():
                self.client.writer.add(call)
        else:
            self.client.writer.add(stream.Follow(STEPS))
        self.rounds += 1
        assert isinstance(self.client.sync(), stream.Done)

    def standing(self) -> tuple[int, str]:
        self.client.send(stream.TellSegments(self.client.request()))
        reply = self.client.reply()
        assert isinstance(reply, stream.Segments)
        segment = max(reply.segments, key=lambda one: one.calls * one.times)
        assert segment.calls == STEPS
        return segment.tier, segment.why

    def run_until(self, why: str, seconds_max: float = SECONDS_MAX) -> tuple[int, str]:
        """Rounds until the segment's standing says so."""
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline:
            for _ in range(10):
                self.round()
            found = self.standing()
            if re.search(why, f"tier {found[0]}: {found[1]}"):
                return found
            time.sleep(1 if BEING_MADE in found[1] else 0.02)  # the compiler needs the processor
        raise AssertionError(f"the segment stayed at {found} in {self.rounds} rounds")

    def check(self) -> None:
        """A round from new values is what PyTorch makes of them."""
        x = torch.randn_like(self.x)
        self.client.writer.add(stream.Write(self.places[0], 0, x.numpy().tobytes()))
        self.round()
        for _ in range(STEPS // 2):
            x.mul_(0.5).add_(self.y, alpha=self.alpha)
        torch.testing.assert_close(self.client.download(self.places[0], geometry_of(x)), x, rtol=1e-5, atol=1e-5)


@dataclass
class Remainder(Loop):
    """A loop that converges to twice alpha times ``y``, and keeps what it lacks to that: soon rounding alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.places.append(self.client.upload(torch.zeros(512, 512)))

    def calls(self) -> list[stream.Call]:
        x, y, lack = (stream.View(place, 0) for place in self.places)
        rounds = [stream.Call(self.mul, (x, 0.5)), stream.Call(self.add, (x, y, self.alpha))] * (STEPS // 2 - 1)
        return [*rounds, stream.Call(self.copy, (lack, x)), stream.Call(self.add, (lack, y, -2 * self.alpha))]


@dataclass
class Notebook(Loop):
    """Halves by one of two operators each time, so that there are 4,096 such loops, which compute the same."""

    number: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        tensor, two = Argument(Tag.TENSOR, geometry=geometry_of(self.x)), Argument(Tag.SCALAR_TENSOR, dtype=7, flag=True)
        div = self.client.operator(aten.div_.Tensor)
        self.div = self.client.template(Template(div, (tensor, two), (Output(OutputTag.SAME),)))

    def calls(self) -> list[stream.Call]:
        x, y = (stream.View(place, 0) for place in self.places)
        halves = (stream.Call(self.mul, (x, 0.5)), stream.Call(self.div, (x, 2.0)))
        add = stream.Call(self.add, (x, y, self.alpha))
        return [call for place in range(STEPS // 2) for call in (halves[self.number >> place & 1], add)]

    def change(self) -> None:
        """To a loop that is not known."""
        self.number += 1
        self.rounds = 0

    def forget(self) -> None:
        """All that came."""
        self.client.send(stream.Cut(True))
        self.rounds = 0


@dataclass
class TwoLengths(Loop):
    """Every second round goes on with half of the rows, two calls more often."""

    def __post_init__(self) -> None:
        super().__post_init__()
        half = Argument(Tag.TENSOR, geometry=geometry_of(self.x[:256]))
        double = Argument(Tag.SCALAR_DOUBLE)
        add = Template(self.client.operator(aten.add_.Tensor), (half, half, double), (Output(OutputTag.SAME),))
        self.add_half = self.client.template(add)

    def calls(self) -> list[stream.Call]:
        if self.rounds % 2 == 0:
            return super().calls()
        x, y = (stream.View(place, 0) for place in self.places)
        return [*super().calls()[:4], *[stream.Call(self.add_half, (x, y, 0.125))] * (STEPS - 2)]

    def round(self) -> None:
        for call in self.calls():
            self.client.writer.add(call)
        self.rounds += 1
        assert isinstance(self.client.sync(), stream.Done)

    def standings(self) -> dict[int, tuple[int, str]]:
        """Of both segments, by how many calls they have."""
        self.client.send(stream.TellSegments(self.client.request()))
        return {one.calls: (one.tier, one.why) for one in self.client.reply().segments}

    def standing(self) -> tuple[int, str]:
        return self.standings().get(STEPS, (0, ""))

    def check(self) -> None:
        x = torch.randn(512, 512)
        self.client.writer.add(stream.Write(self.places[0], 0, x.numpy().tobytes()))
        for length in (STEPS // 2, 2) if self.rounds % 2 == 0 else (2, STEPS // 2):
            self.round()
            for _ in range(length):
                x.mul_(0.5).add_(self.y, alpha=self.alpha)
            x[:256].add_(self.y[:256], alpha=0.125 * (STEPS - 2) * (length == 2))
        torch.testing.assert_close(self.client.download(self.places[0], geometry_of(x)), x, rtol=1e-5, atol=1e-5)


@dataclass
class Lengths(Loop):
    """Rounds of several lengths by turns, of the same calls."""

    def __post_init__(self) -> None:
        self.lengths: list[Loop] = []
        for rows in ROWS[:2]:
            self.add_length(rows)

    def add_length(self, rows: int) -> None:
        self.lengths.append(OneLength(self.client, self.alpha, rows=rows))

    def round(self) -> None:
        for one in self.lengths:
            one.round()
        self.rounds += 1

    def standings(self) -> list[tuple[int, str]]:
        """Of the lengths, in the order in which they came first."""
        self.client.send(stream.TellSegments(self.client.request()))
        return [(one.tier, one.why) for one in self.client.reply().segments if one.calls == STEPS]

    def standing(self) -> tuple[int, str]:
        """That of the one with the lowest tier."""
        return min(self.standings())

    def check(self) -> None:
        for one in self.lengths:
            one.check()


@dataclass
class OneLength(Loop):
    """One of several, whose calls come in full."""

    rows: int = 0

    def __post_init__(self) -> None:
        self.x, self.y = torch.randn(self.rows, 512), torch.randn(self.rows, 512)
        self.prepare()

    def round(self) -> None:
        for call in self.calls():
            self.client.writer.add(call)
        assert isinstance(self.client.sync(), stream.Done)


@dataclass
class Fading(Loop):
    """Whose factor changes from round to round, and then no more."""

    def calls(self) -> list[stream.Call]:
        constant, self.alpha = self.alpha, self.alpha + 2.0**-self.rounds
        try:
            return super().calls()
        finally:
            self.alpha = constant

    def round(self) -> None:
        for call in self.calls():
            self.client.writer.add(call)
        self.rounds += 1
        assert isinstance(self.client.sync(), stream.Done)


class RemainderTimes(torch.nn.Module):
    """What a library of such a loop computes, where the factor is 1."""

    def __init__(self, alpha: float, factor: float) -> None:
        super().__init__()
        self.alpha, self.factor = alpha, factor

    def forward(self, x: torch.Tensor, y: torch.Tensor, lack: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(STEPS // 2 - 1):
            x = torch.add(x * 0.5, y, alpha=self.alpha)
        return x, torch.sub(x, y, alpha=2 * self.alpha) * self.factor


MakeLoop = Callable[..., Loop]


@pytest.fixture
def loop_of(start_worker: StartWorker) -> Iterator[MakeLoop]:
    """Makes loops on workers that have such a folder of libraries."""
    clients: list[Any] = []

    def make(libraries: Path, alpha: float, after: str = "0", settings: int | None = COMPILED, **options: Any) -> Loop:
        kind, rounds = options.pop("kind", Loop), options.pop("rounds", 0)
        options = {"program": (str(Path(__file__).with_name("hurried_compilers_worker.py")),)} | options
        clients.append(start_worker("--libraries", str(libraries), "--compile-after", after, **options).connect())
        clients[-1].hello()
        loop: Loop = kind(clients[-1], alpha, settings, rounds)
        return loop

    yield make
    for client in clients:
        client.socket.close()


def once_made(kept: Path) -> str:
    """After how long a worker makes a library that the first test has made; where that did not run, at once."""
    return NEVER if any(kept.glob("*.so")) else "0"


def unread_by(peer: socket.socket) -> int:
    """Bytes that were sent, and not taken."""
    answer = fcntl.ioctl(peer, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(answer, sys.byteorder)


def key_of(libraries: Path) -> str:
    """Of the one library there is."""
    (found,) = libraries.glob("*.so")
    return found.stem


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which the first test's library is, for those that come after it."""
    folder = tmp_path_factory.mktemp("libraries")
    yield folder
    shutil.rmtree(folder)


def test_a_segment_that_comes_again_gets_a_library_which_is_held_against_tier_1_and_serves(loop_of: MakeLoop, kept: Path) -> None:
    loop = loop_of(kept, 0.25)
    _, why = loop.run_until("tier 2")
    assert re.fullmatch(r"its library takes \d\.\d\d of the time of tier 1; it took \d+ s to make", why)
    for _ in range(3):
        loop.check()
    assert Libraries(kept).find(key_of(kept)) is not None
    assert not list(kept.glob(".making-*")), "what was written on the way is gone"


def test_a_library_that_gained_serves_another_worker_once_it_is_proved_and_is_timed_later(loop_of: MakeLoop, kept: Path) -> None:
    loop_of(kept, 0.25, after=once_made(kept)).run_until("tier 2")
    loop, reasons = loop_of(kept, 0.25, after=NEVER), []
    loop.round()
    while (found := loop.standing())[0] < 2:
        loop.round()
        reasons.append(found[1])
    assert "its library is being held against tier 1" in reasons
    assert not any("timed" in reason for reason in reasons)
    loop.check()
    loop.run_until("tier 1: its library is timed against tier 1")
    loop.run_until("tier 2")
    loop.check()


def test_a_loop_of_two_lengths_keeps_the_library_of_one(loop_of: MakeLoop, kept: Path) -> None:
    """Both begin with the same four calls, so each time it is told on the way which of them comes."""
    loop = loop_of(kept, 0.25, after=once_made(kept), kind=TwoLengths)
    loop.run_until("tier 2")
    for _ in range(40):
        loop.check()
    assert loop.standing()[0] == 2


@pytest.mark.full_sweep
@pytest.mark.timeout(5 * SECONDS_MAX)
def test_each_length_of_a_loop_is_served_and_further_ones_without_a_library_of_their_own(loop_of: MakeLoop, tmp_path: Path) -> None:
    """The first gets a library for itself, the second one that is for all lengths, and serves those that come later once it is proved for
    each, and faster."""
    libraries = tmp_path / "libraries"
    loop: Any = loop_of(libraries, 0.25, kind=Lengths)
    loop.run_until("tier 2", 2 * SECONDS_MAX)
    (_, own), (_, shared) = sorted(loop.standings(), key=lambda one: len(one[1]))
    sizes = re.search(r"; it is for sizes from 2 to \d+, and was made of 384 and 512$", shared)
    assert sizes and own.endswith(" s to make")
    made = sorted(libraries.glob("*.so"))
    assert len(made) == 2
    for rows in ROWS[2:]:
        loop.add_length(rows)
        loop.run_until("tier 1: its library is timed against tier 1")
        loop.run_until("tier 2")
        assert loop.standings()[-1][1].endswith(sizes.group())
        loop.check()
    assert sorted(libraries.glob("*.so")) == made
    log = (tmp_path / "worker-0.log").read_text()
    assert log.count("is for its size, too") == len(ROWS) - 2

    another: Any = loop_of(libraries, 0.25, after=NEVER, kind=Lengths)
    another.run_until("tier 2")
    assert {why for _, why in another.standings()} == {own, shared}, "another worker finds both"
    another.check()


def known_segments(log: Path, count: int) -> list[str]:
    """Keys of those that a worker's compiler was told of, in their order."""
    deadline = time.monotonic() + 30
    while len(found := re.findall(r"segment ([0-9a-f]{40}) came again", log.read_text())) < count:
        assert time.monotonic() < deadline, "the worker's log does not tell the segments' keys"
        time.sleep(0.01)
    return found


def test_a_length_that_comes_late_is_described_as_one_that_came_early(loop_of: MakeLoop, tmp_path: Path) -> None:
    """A number that changes while a loop is new, as a correction of Adam's does, is taken as changing where it did for other lengths."""

    def known_with(alphas: Sequence[float], loop: Any, log: Path) -> list[str]:
        for alpha in alphas:
            for one in loop.lengths:
                one.alpha = alpha
            loop.round()
        return known_segments(log, len(loop.lengths))

    keys, changing = [], (0.25, 0.375, 0.5, 0.625)
    for number, alphas in enumerate((changing, changing[-1:] * len(changing))):
        loop: Any = loop_of(tmp_path / f"libraries-{number}", 0.25, after=NEVER, kind=Lengths)
        log = tmp_path / f"worker-{number}.log"
        known_with(changing, loop, log)
        loop.add_length(ROWS[2])
        keys.append(known_with(alphas, loop, log))
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 3


def test_a_loop_whose_numbers_stand_still_has_the_library_of_when_they_changed(loop_of: MakeLoop, tmp_path: Path) -> None:
    (tmp_path / GIVEN).write_bytes(b"what no worker loads")
    options: Any = {"kind": Fading, "program": (str(Path(__file__).with_name("standin_compilers_worker.py")),)}
    logs = [tmp_path / f"worker-{number}.log" for number in range(2)]
    loop_of(tmp_path / "libraries", 0.25, **options).run_until("cannot be loaded")
    key = known_segments(logs[0], 1)[0]
    loop_of(tmp_path / "libraries", 0.25, after=NEVER, rounds=60, **options).run_until("cannot be loaded")
    assert key not in known_segments(logs[1], 1), "before it hears which numbers changed"
    assert logs[1].read_text().count("other numbers changed before") == 1
    there = f"segment {key}: its library was there"
    deadline = time.monotonic() + SECONDS_MAX
    while there not in logs[1].read_text() and time.monotonic() < deadline:
        time.sleep(0.02)  # the worker tells what it found after the rounds have been answered
    assert there in logs[1].read_text()


def test_a_library_is_gone_when_it_is_closed(kept: Path) -> None:
    library = kept / f"{key_of(kept)}.so"
    opened = ctypes.CDLL(str(library))
    assert str(library) in Path("/proc/self/maps").read_text()
    _ctypes.dlclose(opened._handle)
    assert str(library) not in Path("/proc/self/maps").read_text()


def mapped(pid: int, libraries: Path) -> set[str]:
    """The libraries of the folder that are in the process's memory."""
    return set(re.findall(rf"{libraries}/\S+", Path(f"/proc/{pid}/maps").read_text()))


def test_a_notebook_that_changes_its_loop_again_and_again_leaves_no_library_behind(loop_of: MakeLoop, kept: Path, tmp_path: Path) -> None:
    """Each loop gets a library, which is held against tier 1."""
    libraries = tmp_path / "libraries"
    shutil.copy(kept / f"{key_of(kept)}.so", tmp_path / GIVEN)
    program = (str(Path(__file__).with_name("standin_compilers_worker.py")),)
    notebook: Any = loop_of(libraries, 0.25, kind=Notebook, program=program, python=sys.executable)
    alive = (one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE)
    (worker,) = (one for one in alive if str(libraries) in one.cmdline())
    held = []
    for number in range(LOOPS):
        deadline = time.monotonic() + 30
        while len(mapped(worker.pid, libraries)) <= number % AT_ONCE:
            notebook.round()
            assert time.monotonic() < deadline, "the loop got no library"
        for _ in range(8):
            notebook.round()
        if number % AT_ONCE == AT_ONCE - 1:
            notebook.forget()
            notebook.check()
            deadline = time.monotonic() + 10
            while mapped(worker.pid, libraries):
                assert time.monotonic() < deadline, "what nobody can use any more is gone"
                time.sleep(0.01)
            held.append((worker.num_fds(), worker.num_threads(), worker.memory_info().rss))
        notebook.change()
    first, last = held[0], held[-1]
    assert last[0] <= first[0] + 1 and last[1] <= first[1] + 1, held
    assert last[2] <= first[2] + (24 << 20), held
    assert not list(libraries.glob(".*")), "what was written on the way is gone"


def plant(library: Path, loop: Loop, libraries: Libraries, log: Path) -> str:
    """Makes it what such a loop's next worker finds; returns its key."""
    loop.run_until("no library was made")
    (key,) = known_segments(log, 1)
    libraries.keep(key, library, 0)
    return key


def test_a_wrong_library_is_barred_for_good_and_serves_nothing(loop_of: MakeLoop, kept: Path, tmp_path: Path) -> None:
    libraries, right = Libraries(tmp_path / "libraries"), kept / f"{key_of(kept)}.so"
    shutil.copy(right, tmp_path / "planted.so")
    key = plant(tmp_path / "planted.so", loop_of(libraries.folder, 0.125, after=NEVER), libraries, tmp_path / "worker-0.log")

    loop = loop_of(libraries.folder, 0.125, after=NEVER)
    assert loop.run_until("wrong")[0] == 1
    assert loop.rounds <= 20, "it was barred as soon as it was tried"
    loop.check()
    deadline = time.monotonic() + 10
    while (found := libraries.find(key)) is None or not found.refused:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    loop = loop_of(libraries.folder, 0.125)
    assert loop.run_until("wrong")[0] == 1, "another worker does not even try it"


@pytest.mark.full_sweep
@pytest.mark.filterwarnings("ignore")  # of what the compiler imports
@pytest.mark.parametrize(
    ("factor", "why"), [(1, "tier 2|timed|takes"), (2, "its library is wrong: result 1 is not that of tier 1 from other inputs")]
)
def test_where_a_result_is_rounding_alone_a_wrong_library_is_told_by_other_inputs(
    loop_of: MakeLoop, tmp_path: Path, factor: float, why: str
) -> None:
    """Twice what is lacking is no farther from 0 than tier 1 comes when its inputs are off by their last bit."""
    libraries, like = Libraries(tmp_path / "libraries"), torch.randn(512, 512)
    with torch.no_grad():
        graph = torch.fx.symbolic_trace(RemainderTimes(0.3, factor))
        aot_compile(graph, (like, like.clone(), like.clone()), options={"aot_inductor.output_path": str(tmp_path / "planted.so")})
    plant(tmp_path / "planted.so", loop_of(libraries.folder, 0.3, after=NEVER, kind=Remainder), libraries, tmp_path / "worker-0.log")
    loop = loop_of(libraries.folder, 0.3, after=NEVER, kind=Remainder)
    loop.run_until(why)
    assert factor == 1 or loop.rounds <= 20, "it was barred as soon as it was tried"


def test_nothing_is_described_compiled_or_sought_for_a_program_that_wants_none(loop_of: MakeLoop, tmp_path: Path) -> None:
    loop = loop_of(tmp_path / "libraries", 0.25, settings=DETERMINISTIC)
    for _ in range(80):
        loop.round()
    assert loop.standing() == (1, "")
    assert "came again" not in (tmp_path / "worker-0.log").read_text()
    assert not (tmp_path / "libraries").exists()


def test_a_program_that_wants_none_any_longer_keeps_tier_1(loop_of: MakeLoop, kept: Path) -> None:
    loop = loop_of(kept, 0.25, after=once_made(kept))
    loop.run_until("tier 2")
    loop.client.send(stream.Settings(DETERMINISTIC))
    loop.check()
    assert loop.standing() == (1, "")


# Programs that ask for nothing


def tiers_of(loop: Loop, rounds: int) -> list[int]:
    """After each round."""
    found = []
    for _ in range(rounds):
        loop.round()
        found.append(loop.standing()[0])
    return found


def judge(folder: Path, takes: float | None) -> None:
    """Of all libraries there: what they take of tier 1's time."""
    libraries = Libraries(folder)
    for library in folder.glob("*.so"):
        libraries.judge(library.stem, takes)


def test_a_library_that_is_known_to_be_quicker_serves_from_the_same_coming_on_each_time(loop_of: MakeLoop, kept: Path) -> None:
    loop_of(kept, 0.25, after=once_made(kept)).run_until("tier 2|takes")
    judge(kept, 0.5)
    loops = [loop_of(kept, 0.25, after=NEVER, settings=None) for _ in range(2)]
    tiers = [tiers_of(loop, 8) for loop in loops]
    assert tiers[0] == tiers[1] and tiers[0][-4:] == [2] * 4
    loops[0].check()
    judge(kept, None)
    loop = loop_of(kept, 0.25, after=NEVER, settings=None)
    assert tiers_of(loop, 8)[-1] == 1, "whether it is quicker is not known"


def test_steps_stay_held_back_however_long_a_steady_program_pauses(loop_of: MakeLoop, kept: Path) -> None:
    loop_of(kept, 0.25, after=once_made(kept)).run_until("tier 2|takes")
    judge(kept, 0.5)
    loop = loop_of(kept, 0.25, after=NEVER, settings=None)
    assert tiers_of(loop, 8)[-1] == 2
    for _ in range(STRAYS_MAX + 2):
        loop.client.writer.add(stream.Follow(STEPS // 2))
        loop.client.send()
        time.sleep(2 * PAUSE_SECONDS)
        loop.client.writer.add(stream.Follow(STEPS - STEPS // 2))
        assert isinstance(loop.client.sync(), stream.Done)
    assert loop.standing()[0] == 2
    loop.check()


def test_steps_that_are_held_back_are_carried_out_when_nothing_comes(loop_of: MakeLoop, kept: Path) -> None:
    """A segment that a library serves breaks off in the middle."""
    loop = loop_of(kept, 0.25, after=once_made(kept))
    loop.run_until("tier 2")
    x = torch.randn(512, 512)
    loop.client.writer.add(stream.Write(loop.places[0], 0, x.numpy().tobytes()))
    loop.client.send(stream.Follow(2))
    x.mul_(0.5).add_(loop.y, alpha=0.25)
    torch.testing.assert_close(loop.client.download(loop.places[0], geometry_of(x)), x)


def in_parts(loop: Loop, pause_seconds: float) -> None:
    """A round whose program pauses twice."""
    for steps in (1, STEPS // 2):
        loop.client.send(stream.Follow(steps))
        time.sleep(pause_seconds)
    loop.client.send(stream.Follow(STEPS - 1 - STEPS // 2))
    assert isinstance(loop.client.sync(), stream.Done)


def test_steps_that_come_slowly_are_held_back_while_some_come(loop_of: MakeLoop, kept: Path) -> None:
    loop = loop_of(kept, 0.25, after=once_made(kept))
    loop.run_until("tier 2")
    for _ in range(STRAYS_MAX + 2):
        in_parts(loop, 0.7 * PAUSE_SECONDS)
    loop.check()
    assert loop.standing()[0] == 2


def test_a_segment_within_which_its_program_pauses_each_time_stays_at_tier_1(loop_of: MakeLoop, tmp_path: Path) -> None:
    loop = loop_of(tmp_path / "libraries", 0.25, after=NEVER)
    loop.round()
    for _ in range(STRAYS_MAX + 4):
        in_parts(loop, 1.4 * PAUSE_SECONDS)
    assert loop.standing() == (1, "its program pauses within it, leaves it, or computes indices that lead nowhere, too often")


def test_a_session_takes_its_libraries_along_to_another_host(
    loop_of: MakeLoop, kept: Path, start_on_pool: Callable[..., Linked], tmp_path: Path
) -> None:
    loop_of(kept, 0.25, after=once_made(kept)).run_until("tier 2")
    deadline = time.monotonic() + 10
    while (found := Libraries(kept).find(key_of(kept))) is None or found.takes is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shutil.copytree(kept, tmp_path / "here")
    source = None
    for name, computes in (("here", True), ("between", False), ("there", True)):
        worker = start_on_pool("--libraries", str(tmp_path / name), "--compile-after", NEVER)
        worker.assign(source)
        worker.pool.expect(messages.Assigned)
        worker.open()
        client = worker.client()
        with client.socket:
            if computes:
                loop = Loop(client, 0.25)
                loop.run_until("tier 2")
                assert loop.rounds <= 200, "it gained before, so it is not timed for some 340"
                loop.check()
                client.writer.add(stream.Free(tuple(loop.places)))
            client.send(stream.Leave(client.request()))
            assert isinstance(client.reply(), stream.Done)
            left = worker.pool.expect(messages.Left)
            source = messages.Source(address=left.address, ticket=left.ticket)
    assert key_of(tmp_path / "there") == key_of(tmp_path / "here")


def test_steps_are_left_unread_while_they_are_gathered(loop_of: MakeLoop, kept: Path) -> None:
    """Whoever sends them has no worker to wake up for each."""
    loop = loop_of(kept, 0.25, after=once_made(kept))
    loop.run_until("tier 2")
    left = 0
    for _ in range(30):
        for steps, pause in ((1, 0.3), (1, 0.2), (STEPS - 3, 0.5)):
            loop.client.send(stream.Follow(steps))
            time.sleep(pause * GATHERING_SECONDS)
            if pause == 0.2:
                left = left + 1 if unread_by(loop.client.socket) else 0
        loop.client.send(stream.Follow(1))
        assert isinstance(loop.client.sync(), stream.Done)
        if left == 5:
            break
    assert left == 5
    loop.check()
    assert loop.standing()[0] == 2


class Ringing:
    """An executor that has an offer ready just after its offers were taken, as its own thread may."""

    def __init__(self) -> None:
        self.event_descriptor, self.address, self.certificate = os.eventfd(1, os.EFD_NONBLOCK), "", ""
        self.heard = 0

    def hear(self) -> None:
        self.heard += 1
        os.eventfd_write(self.event_descriptor, 1)

    def take_events(self) -> list[tuple[str, int, int, int, str]]:
        os.eventfd_read(self.event_descriptor)
        return [("client_gone", 0, 0, 0, "")] if self.heard == 2 else []

    def assign(self, *_: Any) -> None: ...

    def open(self, *_: Any) -> None: ...


def test_an_offer_that_comes_while_offers_are_taken_is_heard() -> None:
    executor: Any = Ringing()
    asyncio.run(asyncio.wait_for(standalone.serve(executor, b"", 0, executor.hear), 10))
    link = WorkerLink(Any, executor, Any, heard=executor.hear)  # type: ignore[arg-type]
    link._tell_events()
    assert os.eventfd_read(executor.event_descriptor) == 1, "it rings again"
    os.close(executor.event_descriptor)
