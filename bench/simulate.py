"""What a cluster saves by lending GPUs to cells: a production trace replayed through the pool's state machine in virtual time.

The trace is Alibaba's cluster-trace-gpu-v2023 (6,212 GPUs of seven models, 8,152 tasks of which 7,064 use GPUs), in two readings:
``tasks`` compute as long as they live; ``notebooks`` are sessions of the tasks' lifetimes and needs that compute in cells, as
published for interactive training (``simulation/notebooks.py`` names the source and the distributions). A device is held

- ``lifetime``: from a session's begin to its end, as notebook platforms reserve GPUs;
- ``process``: by the process while it does not idle, once for 600 s as platforms cull, once for 2 s as the pool does by default;
- ``cell``: by each cell until its work has drained.

With ``--elastic SECONDS`` hosts of eight equal GPUs, which take so long to start, are compared: the smallest fixed fleet, and the one
that the pool asks an autoscaler for, with the lowest floor that does. Paid for are all GPU-hours of a host from its start on, used or not.

For each the smallest fleet is sought, a part of the cluster with its mix of models, on which 95 % of the requests for a lease wait at
most one second. Parking and restoring take their time, bytes ÷ 12 GB/s. A session whose first lease finds no started worker waits 2 s
for one: that is counted apart ("cold starts"), as it depends on how many are kept warm, here eight. GPU-hours count shares as shares.
Goal: the cells' GPU-hours are at most a quarter of the lifetimes'.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from forebay_pool.model.elastic import NodeGroup
from report import SKIPPED, percentile, report
from simulation.agenda import SECOND_NS
from simulation.notebooks import Behaviour, Cell, Level
from simulation.replay import PATIENCE_NS, ElasticReplay, NotServable, Plan, Replay, limits_of, node_of
from simulation.trace import FOLDER, GIB, MEMORY_GIB, Node, Task, TraceMissing, first_devices, mixed, read_nodes, read_tasks

DAY_SECONDS = 86_400
LATE_SHARE_MAX = 0.05
HOST_MODEL, HOST_GPUS, HOSTS_MAX = "V100M32", 8, 31
"""Of the comparison with hosts that come and go."""
HOST_IDLE_SECONDS = 60
"""A host that is over is ended after so long, as Ray's autoscaler does by default on Kubernetes."""
JITTER_SECONDS = DAY_SECONDS // 2
"""A copy of a task begins up to so much earlier or later than the task."""
HOUR_NS = 3600 * SECOND_NS
WARM_UP_SECONDS = 7200
"""Sessions that live when the window begins have begun at some moment of so long before; what waited then is not counted."""
WARM_UP_NS = WARM_UP_SECONDS * SECOND_NS


R = TypeVar("R", bound=Replay)


@dataclass(frozen=True, slots=True)
class Case:
    """One row: a reading of the trace, and what holds a device."""

    reading: str
    level: Level
    idle_release_seconds: float

    @property
    def label(self) -> str:
        idle = f", idle {self.idle_release_seconds:g} s" if self.level == "process" else ""
        return f"{self.level}{idle}"


CASES = [
    Case("tasks", "lifetime", 1e9),
    Case("tasks", "cell", 2.0),
    Case("notebooks", "lifetime", 1e9),
    Case("notebooks", "process", 600.0),
    Case("notebooks", "process", 2.0),
    Case("notebooks", "cell", 2.0),
]

LEVELS: tuple[Level, ...] = ("lifetime", "process", "cell")


def plans_of(tasks: list[Task], reading: str, options: argparse.Namespace) -> list[Plan]:
    """The sessions of the window's tasks, in the order of the trace; times begin at the window's."""
    chance = random.Random(options.seed)
    end = max(task.deleted_seconds for task in tasks)
    begin = end - options.days * DAY_SECONDS if options.days else 0
    plans = []
    for copy in range(options.copies):
        for task in tasks:
            shift = chance.randint(-JITTER_SECONDS, JITTER_SECONDS) if copy else 0
            opens, closes = max(task.created_seconds + shift, begin), min(task.deleted_seconds + shift, end)
            if task.gpus == 0 or closes <= opens:
                continue
            if opens == begin > 0 or opens < 0:
                opens = begin - chance.randrange(WARM_UP_SECONDS)
            seconds = closes - opens
            thinks_ns, cells = Behaviour().cells(seconds, chance) if reading == "notebooks" else (0, [Cell(seconds * SECOND_NS, 0)])
            first, last = (opens - begin) * SECOND_NS + WARM_UP_NS, (closes - begin) * SECOND_NS + WARM_UP_NS
            plans.append(Plan(f"{task.name}.{copy}", task.gpus, task.share_milli, first, last, cells, thinks_ns))
    return plans


def requests_of(plans: list[Plan], level: Level) -> int:
    """About how many leases are asked for."""
    return len(plans) if level == "lifetime" else sum(len(plan.cells) for plan in plans)


def smallest_fleet(nodes: list[Node], plans: list[Plan], case: Case, options: argparse.Namespace) -> Replay:
    """The replay on the smallest fleet whose requests are in time, by bisection."""
    most = sum(node.gpus for node in nodes)
    low, high, best = 0, 8, None
    while best is None or high - low > max(1, high // 50):
        count = high if best is None else (low + high) // 2
        replay = try_fleet(nodes, plans, case, count, options)
        if replay is not None:
            best, high = replay, count
        elif count >= most:
            raise SystemExit(f"{most} GPUs are too few for {case.reading}, {case.label}")
        else:
            low, high = count, high if best is not None else min(2 * high, most)
    return best


def replay_of(nodes: list[Node], plans: list[Plan], case: Case, count: int, options: argparse.Namespace) -> Replay:
    """The case on so many GPUs, about to begin."""
    limits = limits_of(case.idle_release_seconds)
    return Replay(first_devices(nodes, count), plans, case.level, limits, options.seed, WARM_UP_NS)


def try_fleet(nodes: list[Node], plans: list[Plan], case: Case, count: int, options: argparse.Namespace) -> Replay | None:
    """The replay on so many GPUs; None if too many requests are late."""
    began = time.perf_counter()
    replay = replay_of(nodes, plans, case, count, options)
    try:
        done = replay.run(LATE_SHARE_MAX * requests_of(plans, case.level))
    except NotServable:
        done = False
    done = done and percentile(replay.waits_ns, 1 - LATE_SHARE_MAX) <= PATIENCE_NS
    verdict = "enough" if done else "too few"
    print(f"  {count} GPUs are {verdict}: {replay.events} events, {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return replay if done else None


def row_of(case: Case, replay: Replay, lifetime_gpu_ns: float) -> dict[str, Any]:
    fleet_gpu_ns = len(replay.machine.fleet.seats) * max(plan.ends_ns for plan in replay.plans)
    waits = [wait / SECOND_NS for wait in replay.waits_ns]
    restores = [restore / SECOND_NS for restore in replay.restores_ns] or [0.0]
    return {
        "reading": case.reading,
        "held by": case.label,
        "GPUs": len(replay.machine.fleet.seats),
        "held GPU-h": round(replay.held_gpu_ns / HOUR_NS),
        "÷ lifetime": round(replay.held_gpu_ns / lifetime_gpu_ns, 3),
        "saved GPU-h": round((lifetime_gpu_ns - replay.held_gpu_ns) / HOUR_NS),
        "use of held": round(replay.worked_gpu_ns / replay.held_gpu_ns, 3),
        "use of fleet": round(replay.worked_gpu_ns / fleet_gpu_ns, 3),
        "wait p50 s": round(percentile(waits, 0.5), 3),
        "p95": round(percentile(waits, 0.95), 3),
        "p99": round(percentile(waits, 0.99), 2),
        "start p95 s": round(percentile([start / SECOND_NS for start in replay.starts_ns], 0.95), 3),
        "cold starts": replay.cold_starts,
        "evictions": replay.parkings,
        "restore p50 s": round(percentile(restores, 0.5), 2),
        "p99 s": round(percentile(restores, 0.99), 2),
        "Jain": round(jain(replay.paces), 4),
    }


def hosts_of(seconds: float, floor: int) -> NodeGroup:
    """Those of the elastic comparison."""
    return NodeGroup(HOST_MODEL, "null", MEMORY_GIB[HOST_MODEL] * GIB, HOST_GPUS, floor, HOSTS_MAX, seconds)


def fixed_hosts(plans: list[Plan], count: int, options: argparse.Namespace) -> Replay:
    """The notebooks' cells on so many hosts that are always there, about to begin."""
    devices = [device for number in range(count) for device in node_of(f"node-{number}", hosts_of(0.0, 0))]
    return Replay(devices, plans, "cell", limits_of(2.0), options.seed, WARM_UP_NS)


def elastic_hosts(plans: list[Plan], floor: int, options: argparse.Namespace) -> ElasticReplay:
    """The same on hosts that come and go."""
    group = hosts_of(options.elastic, floor)
    return ElasticReplay(group, plans, "cell", limits_of(2.0), options.seed, WARM_UP_NS, HOST_IDLE_SECONDS * SECOND_NS)


def fewest(hosts: Callable[[int], R], most: int) -> R:
    """The replay with the fewest hosts on which 95 % of the requests are in time, by bisection."""
    low, high = -1, most
    best: R | None = None
    while best is None or high - low > 1:
        count = (low + high) // 2 if high - low > 1 else high
        began, replay = time.perf_counter(), hosts(count)
        try:
            done = replay.run(LATE_SHARE_MAX * sum(len(plan.cells) for plan in replay.plans))
        except NotServable:
            done = False
        done = done and percentile(replay.waits_ns, 1 - LATE_SHARE_MAX) <= PATIENCE_NS
        print(f"  {count} hosts are {'enough' if done else 'too few'}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        if done:
            best, high = replay, count
        elif count == high:
            raise SystemExit(f"{most} hosts are too few")
        else:
            low = count
    return best


def elastic_rows(plans: list[Plan], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The fixed fleet and one host less, and the one that grows, without a floor and with one."""
    fixed = fewest(lambda count: fixed_hosts(plans, count, options), HOSTS_MAX)
    count = len(fixed.machine.fleet.seats) // HOST_GPUS
    fewer, grown = fixed_hosts(plans, count - 1, options), elastic_hosts(plans, 0, options)
    floored = fewest(lambda floor: elastic_hosts(plans, floor, options), count)
    fewer.run(float("inf"))
    grown.run(float("inf"))
    window_ns = max(plan.ends_ns for plan in plans) - WARM_UP_NS
    rows = [_host_row(f"{hosts} fixed", hosts, 0, hosts * window_ns, replay) for hosts, replay in ((count, fixed), (count - 1, fewer))]
    for replay in (grown, floored):
        replay.settle()
        rows.append(_host_row(f"elastic, floor of {replay.group.nodes_min}", replay.most, replay.started, replay.paid_ns, replay))
    for row in rows:
        row["÷ fixed"] = round(row["paid GPU-h"] / rows[0]["paid GPU-h"], 3)
    return rows


def _host_row(hosts: str, most: int, started: int, paid_ns: int, replay: Replay) -> dict[str, Any]:
    waits = [wait / SECOND_NS for wait in replay.waits_ns]
    return {
        "hosts": hosts,
        "most": most,
        "started": started,
        "paid GPU-h": round(paid_ns * HOST_GPUS / HOUR_NS),
        "held GPU-h": round(replay.held_gpu_ns / HOUR_NS),
        "wait p50 s": round(percentile(waits, 0.5), 3),
        "p95": round(percentile(waits, 0.95), 3),
        "p99": round(percentile(waits, 0.99), 1),
        "evictions": replay.parkings,
    }


def jain(values: list[float]) -> float:
    """Jain's index of fairness: 1 if all are equal, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """What every measurement on the trace can be asked for."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=FOLDER, help="folder of cluster-trace-gpu-v2023 (default: beside the checkout)")
    parser.add_argument("--days", type=int, default=1, help="only the trace's last days; 0: all 149")
    parser.add_argument("--copies", type=int, default=1, help="so many times the trace's load")
    parser.add_argument("--reading", choices=["tasks", "notebooks"], help="only this reading")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--elastic", type=float, metavar="SECONDS", help="compare fixed hosts with hosts that take so long to start")
    parser.add_argument("--gpus", type=int, help="replay on so many GPUs instead of looking for the smallest fleet")
    parser.add_argument("--held-by", action="append", choices=["lifetime", "process", "cell"], help="only these (lifetime is always there)")
    options = parser.parse_args()
    try:
        nodes, tasks = mixed(read_nodes(options.trace)), read_tasks(options.trace)
    except TraceMissing as missing:
        print(f"not measured: {missing}", file=sys.stderr)
        return SKIPPED
    if options.elastic is not None:
        rows = elastic_rows(plans_of(tasks, "notebooks", options), options)
        report("simulate-elastic", rows, days=options.days or "all", copies=options.copies, seed=options.seed, start=options.elastic)
        return 0
    rows = []
    lifetime_gpu_ns = 0.0
    for case in CASES:
        if options.reading not in (None, case.reading) or case.level not in ("lifetime", *(options.held_by or LEVELS)):
            continue
        plans = plans_of(tasks, case.reading, options)
        print(f"{case.reading}, {case.label}: {len(plans)} sessions, {sum(len(p.cells) for p in plans)} cells", file=sys.stderr)
        if options.gpus:
            replay = replay_of(nodes, plans, case, options.gpus, options)
            replay.run(float("inf"))
        else:
            replay = smallest_fleet(nodes, plans, case, options)
        if case.level == "lifetime":
            lifetime_gpu_ns = replay.held_gpu_ns
        rows.append(row_of(case, replay, lifetime_gpu_ns))
    report("simulate", rows, days=options.days or "all", copies=options.copies, seed=options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
