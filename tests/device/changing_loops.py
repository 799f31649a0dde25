"""``ADDRESS TICKET WORKER FOLDER LOOPS``: a notebook whose loop is another one each time, as its cells are changed.

Prints a line of JSON after each loop: how it is carried out, what this process and the worker of that process id hold, libraries of that
folder in their memory included, and the steps that took the user's thread long.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from threading import get_native_id
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
USER, SERVING = "user", ("user", "forebay-session")
"""How the names of the user's thread and of the worker's that serves it end."""
TOLD_SECONDS = 0.002
"""Of a thread's time in a step that took long."""


class Stalls:
    """Steps that took the user's thread long, and who did what meanwhile."""

    def __init__(self, worker: int) -> None:
        self.found: list[dict[str, Any]] = []
        """Of the kind ``worked``, where the user's thread and the worker's that serves it computed for long, or ``waited``: neither of them
        was ready and waited for a processor as long as it took, which on a busy machine is chance. A virtual machine's thread seems to run
        while the host has its processor for others."""
        self._tasks = _threads("client", os.getpid()) | _threads("worker", worker)
        self._collecting, self._collected = 0.0, 0.0
        gc.callbacks.append(self._note_collection)
        self.begin()

    def close(self) -> None:
        gc.callbacks.remove(self._note_collection)

    def _note_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = perf_counter()
        else:
            self._collected += perf_counter() - self._collecting

    def _told(self) -> dict[str, tuple[float, float]]:
        """For how long threads ran, and were ready to run while others ran."""
        told = {}
        for name, task in self._tasks.items():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that waited for a compiler, say
                ran, ready, _ = task.read_text().split()
                told[name] = (int(ran) / 1e9, int(ready) / 1e9)
        return told

    def begin(self) -> None:
        self._collected = 0.0
        self._faults, self._stolen = getrusage(RUSAGE_THREAD).ru_minflt, _stolen()
        self._begin, self._before = perf_counter(), self._told()

    def ends(self, step: int, did: str) -> None:
        """What the user's thread did from the last of these on."""
        took = perf_counter() - self._begin
        if took > STALL_SECONDS:
            faults = getrusage(RUSAGE_THREAD).ru_minflt - self._faults
            spent = {name: (ran - self._before[name][0], ready - self._before[name][1]) for name, (ran, ready) in self._told().items()}
            serving = [spent[name] for name in spent if name.endswith(SERVING)]
            worked, ready = sum(ran for ran, _ in serving), sum(ready for _, ready in serving)
            stolen = _stolen() - self._stolen
            kind = "worked" if worked - stolen > STALL_SECONDS else "waited" if took - ready > STALL_SECONDS else "chance"
            told = {"kind": kind, "step": step, "did": did, "took": took, "worked": worked, "ready": ready, "collected": self._collected}
            threads = {name: times for name, times in spent.items() if max(times) > TOLD_SECONDS}
            self.found.append(told | {"faults": faults, "stolen": stolen, "threads": threads})
        self.begin()


def _stolen() -> float:
    """For how long the host had processors of this machine for others, in seconds, all together (proc_stat(5))."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def _threads(who: str, pid: int) -> dict[str, Path]:
    """Of a process, each by a name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = USER if int(task.name) == get_native_id() else (task / "comm").read_text().strip()
        found[f"{who} {task.name} {name}"] = task / "schedstat"
    return found


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
                reads = number % 2 == 1 and step % READ_EVERY == 0
                if reads:
                    self.x[0, 0].item()
                stalls.ends(step, "read" if reads else "step")
            torch.cuda.synchronize()
            stalls.ends(STEPS, "synchronize")
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
        stalls.close()
        held = {"client": holdings(os.getpid(), folder), "worker": holdings(int(worker), folder)}
        tables = {"templates": _C.statistics()["templates"], "alive": _C.memory()["alive"]}
        print(json.dumps(found | held | tables | {"stalls": stalls.found, "error": notebook.error()}), flush=True)


if __name__ == "__main__":
    main()
