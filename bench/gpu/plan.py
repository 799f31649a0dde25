"""How long `forebay plan` takes, in processor seconds of all its processes, by part: recorded anew, and from a stream that is known.

T5-11B of transformers on 160 devices, GPTs of 7, 20 and 65 billion parameters on 8, 64 and 160 (`examples/planning`). Bars: under 20 s by
the wall if it is recorded anew on two cores, imports included; when known, nothing is recorded.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from forebay.toolkit.planner import analysis, profile
from forebay.toolkit.planner.calls import CallShapes
from forebay.toolkit.planner.choice import choose
from forebay.toolkit.planner.iteration import IterationFinder
from forebay.toolkit.planner.machine import MODELS, Machine
from forebay.toolkit.planner.recorder import recording, script_run

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.append(str(CHECKOUT / "bench"))

from report import report  # noqa: E402

BAR_SECONDS = 20.0
PROGRAMS = {
    "T5-11B": ("t5_11b.py", "640", 160),
    "GPT of 7 billion": ("gpt.py", "7b 512", 8),
    "GPT of 20 billion": ("gpt.py", "20b 64", 64),
    "GPT of 65 billion": ("gpt.py", "65b 640", 160),
}
"""The script, its arguments (the last one says the rows of its batch), and devices."""

T = TypeVar("T")


def timed(row: dict[str, object], part: str, work: Callable[[], T]) -> T:
    """Notes processor seconds, those of child processes included."""

    def now() -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system

    began = now()
    result = work()
    row[part] = round(now() - began, 3)
    return result


def plan(row: dict[str, object], found: recording.Recording, devices: int) -> None:
    """From a recording to the choice."""
    shapes = CallShapes(found.operators)
    finder = IterationFinder(found.events, shapes)
    timed(row, "find the step", finder.finish)
    if finder.iteration is None:
        raise SystemExit("no step was found")
    iteration = finder.iteration
    step = timed(row, "follow the rows", lambda: analysis.analyse(found.events, iteration, shapes))
    prepared = timed(row, "find layers", lambda: profile.prepare(step))
    chosen = timed(row, "choose", lambda: choose(prepared, Machine(devices, MODELS["mi250"], MODELS["mi250"].memory_bytes)))
    row["plan"] = chosen.chosen.layout.name
    row["GiB"] = round(chosen.chosen.cost.memory.total / 2**30, 1)


def measure(name: str, folder: Path) -> list[dict[str, object]]:
    program, arguments, devices = PROGRAMS[name]
    path = folder / name
    command = [sys.executable, str(CHECKOUT / "examples" / "planning" / program), *arguments.split()]
    anew: dict[str, object] = {"model": name, "devices": devices, "stream": "recorded"}
    began = time.perf_counter()
    found = timed(anew, "get the stream", lambda: script_run.record(command, 3, 300.0, lambda iterations, calls: None))
    plan(anew, found, devices)
    anew["wall s"] = round(time.perf_counter() - began, 2)
    found.save(path)
    known: dict[str, object] = {"model": name, "devices": devices, "stream": f"known, {path.stat().st_size >> 10} KiB"}
    began = time.perf_counter()
    plan(known, timed(known, "get the stream", lambda: recording.load(path)), devices)
    known["wall s"] = round(time.perf_counter() - began, 2)
    return [anew, known]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in PROGRAMS for row in measure(name, Path(folder))]
    worst = max(float(str(row["wall s"])) for row in rows)
    report("plan", rows, bar_s=BAR_SECONDS, worst_s=worst)


if __name__ == "__main__":
    main()
