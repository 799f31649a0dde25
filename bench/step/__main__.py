"""A steady training step on the virtual device against native eager on the same machine: ``PYTHONPATH=bench python -m step``.

Bars: geometric mean of the ratios at most 1.0, none above 1.1, with one thread and with two, by tier 1 (bound replay).
Both run in one process by turns; the worker is a process of its own on the same cores, as with a development device.

With ``--compiled`` each model runs in another process, too, that asks for libraries (tier 2), and both are measured by turns when its step
has one, or will have none. Bars: a geometric mean of at most 0.70 of native with one thread and 0.80 with two, at most 1.02 of tier 1's
ratio, and 1.05 of its own step while the library is made. With ``--torch-compile`` the same is held against ``torch.compile`` of the model,
natively; the optimizer is eager there. Bar: 1.0. Then each model runs in processes that ask for nothing: with those libraries, and with
none. Bars: a geometric mean of at most 0.70 of native with libraries, and at most 1.02 of tier 1's ratio with none.

``--ordinary`` takes nineteen programs more, which read numbers and draw as people's do. ``--defaults`` holds processes that ask for
nothing, and have no libraries, against those that want none, block by block: a minute for three models.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import psutil
from report import report

from step.models import MODELS, Step
from step.ordinary import ORDINARY

os.environ.setdefault("FOREBAY_URL", "local")

import torch
from forebay import _C

WARM_UP_STEPS = 5
COMPILE_SECONDS_MAX = 900.0
COMPILE_AFTER_SECONDS = 1.0
MEMORY_BYTES = 4 << 30
REST_SECONDS = 0.05
PAIRS_WHILE_MADE = 20
PAUSE_SECONDS = 1.0
STEPS_UNTIL_STEADY = 300
"""After a library came: with how many threads the step is quicker is found meanwhile."""
PLAIN_MODELS = 5
"""So many are measured in a minute or two; the others are there for what compiling makes of them."""

UNSETTLED = ("it came once or twice", "no library was made", "is being made", "held against tier 1", "is timed", "had been constant")
"""Of reasons why a tier is not higher: those that may change."""
BEING_MADE = "is being made"
COMPILE = "FOREBAY_COMPILE"
STEPS_UNTIL_SERVED = 30
"""Of a process that asks for nothing: a library that is there serves by then."""


def block_ms(step: Step, count: int, synchronize: Callable[[], None]) -> float:
    """Mean time of a step over a block that ends when its work is done, in ms."""
    start = perf_counter()
    for _ in range(count):
        step()
    synchronize()
    return (perf_counter() - start) / count * 1e3


@contextmanager
def worker(threads: int, libraries: str | None) -> Iterator[None]:
    """Connects this process's virtual device to a worker of its own, which keeps libraries there, and ends when this process does."""
    ticket, folder = secrets.token_bytes(32), tempfile.TemporaryDirectory(prefix="fb-")
    command = [sys.executable, "-m", "forebay_worker", "--standalone", f"unix:{folder.name}/worker.sock", "--threads", str(threads)]
    command += ["--ticket", ticket.hex(), "--memory", str(MEMORY_BYTES), "--log-level", "error"]
    command += [] if libraries is None else ["--libraries", libraries, "--compile-after", str(COMPILE_AFTER_SECONDS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    with folder:
        _C.connect(json.loads(process.stdout.readline())["address"], ticket)
        _C.lease_opened(1, 1 << 40)
        yield


def largest_segment() -> dict[str, Any]:
    """The one that most calls were part of."""
    return dict(max(_C.segments(), key=lambda segment: segment["calls"] * segment["times"]))


def until_settled(step: Step, steps: int) -> dict[str, Any]:
    """Runs blocks until it is known whether a library serves the step: its tier, the reason, and how long that took.

    "made s" is how long its compiler took; "while made" what a step takes meanwhile, of what it takes while the compiler is halted, by
    turns: the median over pairs of blocks. After these the steps pause, as a compiler has little of processors that others want.
    """
    begin, made, slowed = perf_counter(), list[float](), list[float]()
    while perf_counter() - begin < COMPILE_SECONDS_MAX:
        ms, segment = block_ms(step, steps, torch.cuda.synchronize), largest_segment()
        if BEING_MADE in segment["why"] and len(slowed) >= PAIRS_WHILE_MADE:
            sleep(PAUSE_SECONDS)
            made.append(perf_counter() - begin)
        elif BEING_MADE in segment["why"]:
            with compilers_halted():
                halted_s, halted_ms = perf_counter(), block_ms(step, steps, torch.cuda.synchronize)
                halted_s = perf_counter() - halted_s
            begin += halted_s
            made.append(perf_counter() - begin)
            slowed.append(ms / halted_ms)
        elif segment["tier"] == 2 or not any(word in segment["why"] for word in UNSETTLED):
            break
    found = {"tier": segment["tier"], "why no higher": segment["why"], "settled s": perf_counter() - begin}
    block_ms(step, STEPS_UNTIL_STEADY, torch.cuda.synchronize)
    return found | {"made s": made[-1] - made[0] if made else math.nan, "while made": statistics.median(slowed or [math.nan])}


@contextmanager
def compilers_halted() -> Iterator[None]:
    """Halts what this process's worker lets make libraries, with all that these started; each has a session of its own."""
    sessions = set[int]()
    for one in psutil.Process().children(recursive=True):
        with suppress(ProcessLookupError):
            sessions.add(os.getsid(one.pid))
    sessions.discard(os.getsid(0))

    def signal_all(number: int) -> None:
        for session in sessions:
            with suppress(ProcessLookupError):
                os.killpg(session, number)

    signal_all(signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(signal.SIGCONT)


def rested_block_ms(step: Step, count: int, synchronize: Callable[[], None]) -> float:
    """The same of a block that begins when the threads of what was measured before have gone to sleep: OpenMP's wait by spinning, for
    some 20 ms by default, and would keep a processor from it."""
    sleep(REST_SECONDS)
    return block_ms(step, count, synchronize)


def answer(name: str, options: argparse.Namespace) -> None:
    """Says in a line how the model's step stands, and for each line that comes the times of a block in ms: the virtual device's, native,
    and native of what ``torch.compile`` makes."""
    with worker(torch.get_num_threads(), options.libraries):
        make = (MODELS | ORDINARY)[name]
        steps = [(make("cuda"), torch.cuda.synchronize), (make("cpu"), lambda: None)]
        if options.torch_compile:
            steps.append((make("cpu", torch.compile), lambda: None))
        for step, synchronize in steps:
            block_ms(step, WARM_UP_STEPS, synchronize)
        settled = {}
        if options.libraries is not None and os.environ.get(COMPILE) == "1":
            settled = until_settled(steps[0][0], options.steps)
        elif options.libraries is not None:
            block_ms(steps[0][0], STEPS_UNTIL_SERVED, torch.cuda.synchronize)
            settled = {"tier": largest_segment()["tier"]}
        print(json.dumps({"threads": torch.get_num_threads(), "model": name} | settled), flush=True)
        for _ in sys.stdin:
            print(json.dumps([rested_block_ms(step, options.steps, synchronize) for step, synchronize in steps]), flush=True)


class Runner:
    """A process of its own: the number of threads is fixed when a process and its worker begin."""

    def __init__(self, name: str, threads: int, options: argparse.Namespace, libraries: str | None = None, compiles: str = "0") -> None:
        """``compiles``: FOREBAY_COMPILE; empty: it is not set."""
        command = [sys.executable, "-m", "step", "--answer", "--steps", str(options.steps), name]
        command += [] if libraries is None else ["--libraries", libraries]
        command += ["--torch-compile"] if options.torch_compile and compiles == "1" else []
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(Path(__file__).parents[1]), COMPILE: compiles}
        if not compiles:
            del environment[COMPILE]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._blocks: list[list[float]] = []
        self.standing: dict[str, Any] = self._hear()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def block(self) -> None:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        self._blocks.append(self._hear())

    def ms(self) -> list[float]:
        """Medians: the virtual device's, native, native compiled."""
        return [statistics.median(times) for times in zip(*self._blocks, strict=True)]

    def ratio_to(self, other: Runner) -> float:
        """Of the virtual device to that of another process, which ran its blocks in the same rounds."""
        return statistics.median(ours[0] / theirs[0] for ours, theirs in zip(self._blocks, other._blocks, strict=True))

    def ratio(self, other: int = 1) -> float:
        """Of the virtual device to another of them, the median over the blocks."""
        return statistics.median(times[0] / times[other] for times in self._blocks)

    def close(self) -> None:
        self._process.communicate()


def row(name: str, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """One model's figures with this number of threads."""
    with tempfile.TemporaryDirectory(prefix="forebay-libraries-") as libraries:
        runners = [Runner(name, threads, options, compiles="0" if options.compiled or options.defaults else "")]
        if options.defaults:
            runners.append(Runner(name, threads, options, tempfile.mkdtemp(dir=libraries), ""))
        if options.compiled:
            runners.append(Runner(name, threads, options, libraries, "1"))
            runners += [Runner(name, threads, options, folder, "") for folder in (libraries, tempfile.mkdtemp(dir=libraries))]
        for _ in range(options.blocks):
            for runner in runners:
                runner.block()
        for runner in runners:
            runner.close()
        found = runners[0].standing | dict(zip(("virtual ms", "native ms"), runners[0].ms(), strict=True)) | {"ratio": runners[0].ratio()}
        if options.defaults:
            found["by default to none wanted"] = runners[1].ratio_to(runners[0])
        if options.compiled:
            found |= compiled(name, threads, options, runners, libraries)
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def compiled(name: str, threads: int, options: argparse.Namespace, runners: list[Runner], libraries: str) -> dict[str, Any]:
    """What a library, if there is one, does for the model: and what it costs, in seconds and in steps; from a folder that has it, too."""
    tier_1, by_library, warm, cold = runners
    again = Runner(name, threads, argparse.Namespace(**vars(options) | {"torch_compile": False}), libraries, "1")
    again.close()
    found = {"compiled ms": by_library.ms()[0], "compiled ratio": by_library.ratio()} | by_library.standing
    found["cached s"] = again.standing["settled s"]
    found |= {"by default, tier": warm.standing["tier"], "by default ratio": warm.ratio(), "with none ratio": cold.ratio()}
    gained_ms = tier_1.ms()[0] - by_library.ms()[0]
    found["pays after steps"] = found["made s"] * 1e3 / gained_ms if found["tier"] == 2 and gained_ms > 0 else math.inf
    if options.torch_compile:
        found |= {"torch.compile ms": by_library.ms()[2], "of torch.compile": by_library.ratio(2)}
    return found


def mean_of(rows: list[dict[str, Any]], column: str, threads: int) -> float:
    return math.exp(statistics.fmean(math.log(one[column]) for one in rows if one["threads"] == threads))


def figures(rows: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, float]:
    """All models' together, each with its bar."""
    found = {f"geometric_mean_{threads}_threads": mean_of(rows, "ratio", threads) for threads in options.threads}
    found |= {"bar_geometric_mean": 1.0, "largest_ratio": max(one["ratio"] for one in rows), "bar_largest_ratio": 1.1}
    if options.defaults:
        found["largest_by_default_to_none_wanted"] = max(one["by default to none wanted"] for one in rows)
        found["bar_by_default_to_none_wanted"] = 1.02
    if options.compiled:
        found |= {f"compiled_geometric_mean_{threads}_threads": mean_of(rows, "compiled ratio", threads) for threads in options.threads}
        found |= {"bar_compiled_1_threads": 0.70, "bar_compiled_2_threads": 0.80}
        found |= {"largest_compiled_to_tier_1": max(one["compiled ratio"] / one["ratio"] for one in rows), "bar_compiled_to_tier_1": 1.02}
        found |= {f"by_default_geometric_mean_{threads}_threads": mean_of(rows, "by default ratio", threads) for threads in options.threads}
        found |= {f"with_none_geometric_mean_{threads}_threads": mean_of(rows, "with none ratio", threads) for threads in options.threads}
        found |= {"largest_with_none_to_tier_1": max(one["with none ratio"] / one["ratio"] for one in rows)}
        found["bar_with_none_to_tier_1"] = 1.02
        while_made = [one["while made"] for one in rows if not math.isnan(one["while made"])]
        found |= {"median_while_made": statistics.median(while_made) if while_made else math.nan, "bar_while_made": 1.05}
    if options.compiled and options.torch_compile:
        found |= {f"of_torch_compile_{threads}_threads": mean_of(rows, "of torch.compile", threads) for threads in options.threads}
        found["bar_of_torch_compile"] = 1.0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=9, help="blocks a figure is the median of")
    parser.add_argument("--steps", type=int, default=10, help="steps in a block")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of native eager, and of the worker; 1 2 by default")
    parser.add_argument("--compiled", action="store_true", help="measure with libraries of what repeats, too")
    defaults = "hold what is there by default, with no libraries, against FOREBAY_COMPILE=0"
    parser.add_argument("--defaults", action="store_true", help=defaults)
    parser.add_argument("--ordinary", action="store_true", help="measure all models, and nineteen ordinary programs more")
    parser.add_argument("--torch-compile", action="store_true", help="with --compiled: and torch.compile, natively")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--libraries", help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="*", help=f"of {' '.join(MODELS | ORDINARY)}; the first five by default, with --compiled all")
    options = parser.parse_args()
    if options.defaults and options.compiled:
        parser.error("--defaults and --compiled are two measurements")
    some = MODELS | ORDINARY if options.ordinary else MODELS
    names = options.models or list(some)[: None if options.compiled or options.ordinary else PLAIN_MODELS]
    if options.answer:
        return answer(*names, options)
    rows = [row(name, threads, options) for threads in options.threads for name in names]
    report("step", rows, **figures(rows, options), torch=torch.__version__)


if __name__ == "__main__":
    main()
