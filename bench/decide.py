"""What a decision of the pool's state machine costs, by the size of the fleet, under a kind load and an unkind one.

Bars: at least 20,000 events a second with 6,000 devices and 10,000 sessions on one core, and a cost per decision that grows no faster than
logarithmically from 100 to 100,000 devices. The loads are those of ``simulation/rush.py``: five sessions for every three devices, a tenant
for every 25 of them, with quotas, priorities, preemption, shares, gangs, and models that serve some flavors only. In the kind load people
think between their cells, as they do: most events open and close leases of sessions whose tensors are where they were, and workers' beats
are a third of all. In the unkind one hardly anybody thinks, so a quarter of all sessions wait and every other cell moves a session.

"events/s" counts all that is handled, ticks and the looks that tell those who wait included, by the processor time of this thread (others
share the machine; by the clock on the wall beside it); "no beats/s" does not count the workers' beats, whose time counts all the same. A
decision is an event that is neither a tick nor a look. The last report is of closes alone, each with the start of whoever is next, while
so many wait.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from itertools import islice
from typing import Any

from forebay_pool.garbage import collect_rarely
from report import percentile, report
from simulation.rush import KIND, UNKIND, Load, Rush, Took

BAR_EVENTS_PER_SECOND = 20_000
LOADS = {"kind": KIND, "unkind": UNKIND}
PERIODIC = ("Tick", "Look")
CLOSE = "Drained"
BEAT = "Heartbeat"
CROWD_DEVICES = 6_000
SESSIONS_PER_WAITER = 1.75
"""Of the unkind load's sessions beyond the devices, which is how many there must be for one to wait."""


def play(devices: int, sessions: int, events: int, seed: int, load: Load) -> list[Took]:
    """What so many events take once the load has settled."""
    began = time.perf_counter()
    rush = Rush(devices, sessions, seed, load)
    for _ in rush.play(load.settled_ns):
        pass
    gc.collect()
    took = list(islice(rush.play(), events))
    print(f"{devices} devices took {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return took


def row_of(name: str, devices: int, events: int, seed: int) -> dict[str, Any]:
    sessions = devices * 5 // 3
    took = play(devices, sessions, events, seed, LOADS[name])
    cpu_ns = sum(one.cpu_ns for one in took)
    decisions = [one for one in took if one.kind not in PERIODIC]
    costs = [one.cpu_ns / 1e3 for one in decisions]
    row = {
        "load": name,
        "devices": devices,
        "sessions": sessions,
        "waiting": took[-1].waiting,
        "events/s": round(1e9 * len(took) / cpu_ns),
        "÷ bar": 1e9 * len(took) / cpu_ns / BAR_EVENTS_PER_SECOND,
        "by the wall": round(1e9 * len(took) / sum(one.wall_ns for one in took)),
        "no beats/s": round(1e9 * sum(one.kind != BEAT for one in took) / cpu_ns),
        "decision µs": statistics.fmean(costs),
        "median": statistics.median(costs),
        "p99": percentile(costs, 0.99),
        "worst": max(costs),
    }
    return row | {f"{kind.lower()} ms": max((one.cpu_ns / 1e6 for one in took if one.kind == kind), default=0.0) for kind in PERIODIC}


def closes(waiting: int, events: int, seed: int) -> dict[str, Any]:
    """What it takes to close a lease and start whoever is next, while about so many wait."""
    took = play(CROWD_DEVICES, CROWD_DEVICES + int(waiting * SESSIONS_PER_WAITER), events, seed, UNKIND)
    costs = [one.cpu_ns / 1e3 for one in took if one.kind == CLOSE]
    middle = {"median µs": statistics.median(costs), "p99": percentile(costs, 0.99), "worst": max(costs)}
    return {"devices": CROWD_DEVICES, "waiting": took[-1].waiting, "closes": len(costs)} | middle


def growth(rows: list[dict[str, Any]]) -> float:
    """The last size's cost of a decision ÷ the first's, over the same quotient of the sizes' logarithms: at most 1 is logarithmic."""
    first, last = rows[0], rows[-1]
    return (last["decision µs"] / first["decision µs"]) / (math.log(last["devices"]) / math.log(first["devices"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[100, 1_000], help="devices, one measurement of each load each")
    parser.add_argument("--loads", choices=LOADS, nargs="+", default=[*LOADS])
    parser.add_argument("--waiting", type=int, default=0, help="measure closes alone, while about so many wait")
    parser.add_argument("--events", type=int, default=10_000, help="events of each measurement")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    collect_rarely()
    for name in options.loads if options.sizes else ():
        rows = [row_of(name, size, options.events, options.seed) for size in options.sizes]
        report(f"decide-{name}", rows, growth_over_logarithm=growth(rows))
    if options.waiting:
        report("decide-closes", [closes(options.waiting, options.events, options.seed)])


if __name__ == "__main__":
    main()
