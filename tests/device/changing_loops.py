"""``ADDRESS TICKET WORKER FOLDER LOOPS``: a notebook whose loop is another one each time, as its cells are changed.

Prints a line of JSON after each loop: how it is carried out, what this process and the worker of that process id hold, libraries of that
folder in their memory included, and the steps that took the user's thread long.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import psutil
import torch
from forebay import _C
from operator_sweep import attach

HALVES = 12
CALLS_MIN = 16
"""Of a segment; a step that repeats within itself has such shorter ones."""
STEPS = 40
"""Of a block, which ends with all of it done."""
READ_EVERY = 10
LOOP_SECONDS_MAX = 900
UNSETTLED = ("it came once or twice", "no library was made", "is being made", "held against tier 1", "is timed", "had been constant")
STALL_SECONDS = 0.05


@dataclass
class Stalls:
    """Steps that took the user's thread long."""

    worker: int
    worked: list[float] = field(default_factory=list)
    """For how long it and the worker computed meanwhile, where that is long."""
    waited: list[float] = field(default_factory=list)
    """What is left of the time in which neither of them was ready and waited for a processor: on a busy machine, chance."""

    def __post_init__(self) -> None:
        self._tasks = [Path("/proc/thread-self/schedstat"), *Path(f"/proc/{self.worker}/task").glob("*/schedstat")]
        self.begin()

    def _told(self) -> tuple[float, float]:
        """For how long threads ran, and were ready to run while others ran."""
        ran, ready = 0, 0
        for task in self._tasks:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that waited for a compiler, say
                told = task.read_text().split()
                ran, ready = ran + int(told[0]), ready + int(told[1])
        return ran / 1e9, ready / 1e9

    def begin(self) -> None:
        self._begin, self._before = perf_counter(), self._told()

    def step_ends(self) -> None:
        took = perf_counter() - self._begin
        if took > STALL_SECONDS:
            worked, ready = (now - before for now, before in zip(self._told(), self._before, strict=True))
            if worked > STALL_SECONDS:
                self.worked.append(worked)
            elif took - ready > STALL_SECONDS:
                self.waited.append(took - ready)
        self.begin()


class Notebook:
    """``x`` is halved and has a part of ``y`` added, twelve times a step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(128, 128).cuda(), torch.randn(128, 128).cuda()
        self._times: dict[int, int] = {}

    def look_at_data(self, number: int) -> float:
        """Of a shape that did not come before."""
        return float(torch.ones(number % 97 + 1, number // 97 + 2, device="cuda").mul_(number).sum())

    def step(self, number: int) -> None:
        """The bits of the number say by which of two operators it is halved: 2,048 loops that compute the same."""
        for place in range(HALVES):
            if (2 * number + 1) >> place & 1:
                self.x.div_(2.0)
            else:
                self.x.mul_(0.5)
            self.x.add_(self.y, alpha=0.25)

    def segment(self) -> dict[str, Any]:
        """The one that came most since this was asked last."""
        segments = _C.segments()
        before, self._times = self._times, {one["identity"]: one["times"] for one in segments}

        def since(one: dict[str, Any]) -> int:
            known = before.get(one["identity"], 0)
            return int(one["times"] - known if one["times"] >= known else one["times"])  # all may have been forgotten meanwhile

        came = max((one for one in segments if CALLS_MIN <= one["calls"] <= 2 * HALVES), key=since)
        return {"tier": came["tier"], "why": came["why"], "calls": came["calls"], "segments": len(segments)}

    def loop(self, number: int, stalls: Stalls) -> dict[str, Any]:
        """Until it is known who carries it out. Every other one reads what it has."""
        deadline = monotonic() + LOOP_SECONDS_MAX
        while monotonic() < deadline:
            stalls.begin()
            for step in range(STEPS):
                self.step(number)
                if number % 2 and step % READ_EVERY == 0:
                    self.x[0, 0].item()
                stalls.step_ends()
            torch.cuda.synchronize()
            stalls.step_ends()
            found = self.segment()
            if found["tier"] == 2 or not any(word in found["why"] for word in UNSETTLED):
                break
        return found

    def error(self) -> float:
        """How far a step is from what it computes, of its largest value."""
        x, y = self.x.cpu(), self.y.cpu()
        self.step(0)
        for _ in range(HALVES):
            x.mul_(0.5).add_(y, alpha=0.25)
        return float((self.x.cpu() - x).abs().max() / x.abs().max())


def holdings(pid: int, folder: str) -> dict[str, int]:
    """Of a process."""
    process = psutil.Process(pid)
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    libraries = {line.split(maxsplit=5)[5] for line in maps if folder in line}
    held = {"bytes": process.memory_info().rss, "descriptors": process.num_fds(), "threads": process.num_threads()}
    return held | {"maps": len(maps), "libraries": len(libraries)}


def main() -> None:
    address, ticket, worker, folder, loops = sys.argv[1:]
    attach(address, ticket)
    notebook = Notebook()
    for number in range(int(loops)):
        notebook.look_at_data(number)
        stalls = Stalls(int(worker))
        found = notebook.loop(number, stalls)
        held = {"client": holdings(os.getpid(), folder), "worker": holdings(int(worker), folder)}
        tables = {"templates": _C.statistics()["templates"], "alive": _C.memory()["alive"]}
        print(json.dumps(found | held | tables | {"worked": stalls.worked, "waited": stalls.waited, "error": notebook.error()}), flush=True)


if __name__ == "__main__":
    main()
