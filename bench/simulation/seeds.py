"""Plays many seeds of a world, on every core; ``python -m simulation.seeds --help``. A failing seed prints its story."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Literal

from simulation.storm import Storm, StoryTold

World = Literal["pool", "money"]

REPORT_SECONDS = 10.0
FAILURES_MAX = 3
"""So many stories are printed before it gives up."""


def _storm_of(world: World) -> Callable[[int], Storm]:
    """The money's world needs the emulator of Stripe, which the pool's does without."""
    if world == "pool":
        return Storm
    from simulation.money.scenario import Scenario

    return Scenario


def play(seed: int, world: World = "pool") -> tuple[int, int, str | None, Counter[str]]:
    """The seed, its events, its story if it failed, and how often it came where it is to come."""
    storm = _storm_of(world)(seed)
    try:
        storm.run()
    except StoryTold as story:
        return seed, storm.steps, str(story), storm.reached
    return seed, storm.steps, None, storm.reached


def _begin() -> None:
    """A process that plays: what is imported stays and is not looked through again, and what a seed leaves is collected seldom."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def play_many(first: int, count: int, processes: int, world: World = "pool", reached: Counter[str] | None = None) -> int:
    """Returns how many failed, and adds to ``reached``."""
    sums = Counter() if reached is None else reached
    began = reported = time.monotonic()
    events = failures = 0
    with multiprocessing.Pool(processes, _begin) as pool:
        played = pool.imap_unordered(partial(play, world=world), range(first, first + count), chunksize=8)
        for done, (_, steps, story, came) in enumerate(played, 1):
            events += steps
            sums.update(came)
            if story is not None:
                failures += 1
                print(story, file=sys.stderr, flush=True)
            now = time.monotonic()
            if now - reported > REPORT_SECONDS:
                reported = now
                print(f"{done} of {count} seeds, {events} events, {failures} failed, {now - began:.0f} s", flush=True)
            if failures >= FAILURES_MAX:
                break
    print(f"{done} of {count} seeds, {events} events, {failures} failed, {time.monotonic() - began:.0f} s")
    if sums:
        print("reached:", ", ".join(f"{name} {count}" for name, count in sorted(sums.items())))
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation.seeds", description=__doc__)
    parser.add_argument("--world", choices=("pool", "money"), default="pool", help="the pool alone, or all between a device and Stripe")
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=200, help="how many")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at a time")
    options = parser.parse_args()
    if options.seed is not None:
        _, steps, story, _ = play(options.seed, options.world)
        print(story or f"seed {options.seed}: {steps} events, nothing amiss")
        return 1 if story else 0
    return 1 if play_many(options.first, options.count, options.processes, options.world) else 0


if __name__ == "__main__":
    sys.exit(main())
