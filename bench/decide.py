"""What a decision of the pool's state machine costs, by the size of the fleet, under a load that is unkind to all that is remembered.

Bars: at least 20,000 events a second with 6,000 devices and 10,000 sessions on one core, and a cost per decision that grows no faster than
logarithmically from 100 to 100,000 devices. The load is ``simulation/rush.py``: five sessions for every three devices, a tenant for every
25 of them, with quotas, priorities, preemption, shares, gangs, and models that serve some flavors only. "events/s" counts all that is
handled, ticks and the looks that tell those who wait included, by the processor time of this thread (others share the machine; by the
clock on the wall beside it). A decision is an event that is neither a tick nor a look.
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
from simulation.rush import UNKIND, Rush

BAR_EVENTS_PER_SECOND = 20_000
PERIODIC = ("Tick", "Look")


def row_of(devices: int, sessions: int, events: int, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    rush = Rush(devices, sessions, seed)
    for _ in rush.play(UNKIND.settled_ns):
        pass
    gc.collect()
    took = list(islice(rush.play(), events))
    print(f"{devices} devices took {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    rate = 1e9 * len(took) / sum(one.cpu_ns for one in took)
    decisions = [one.cpu_ns / 1e3 for one in took if one.kind not in PERIODIC]
    row = {
        "devices": devices,
        "sessions": sessions,
        "waiting": took[-1].waiting,
        "events/s": round(rate),
        "÷ bar": rate / BAR_EVENTS_PER_SECOND,
        "by the wall": round(1e9 * len(took) / sum(one.wall_ns for one in took)),
        "decision µs": statistics.fmean(decisions),
        "median": statistics.median(decisions),
        "p99": percentile(decisions, 0.99),
        "worst": max(decisions),
    }
    return row | {f"{kind.lower()} ms": max((one.cpu_ns / 1e6 for one in took if one.kind == kind), default=0.0) for kind in PERIODIC}


def growth(rows: list[dict[str, Any]]) -> float:
    """The last size's cost of a decision ÷ the first's, over the same quotient of the sizes' logarithms: at most 1 is logarithmic."""
    first, last = rows[0], rows[-1]
    return (last["decision µs"] / first["decision µs"]) / (math.log(last["devices"]) / math.log(first["devices"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000], help="devices, one measurement each")
    parser.add_argument("--events", type=int, default=10_000, help="events of each measurement")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    collect_rarely()
    rows = [row_of(size, size * 5 // 3, options.events, options.seed) for size in options.sizes]
    report("decide", rows, growth_over_logarithm=growth(rows))


if __name__ == "__main__":
    main()
