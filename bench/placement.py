"""How much of a cluster each placement policy fills: the pool's own score against the policies of the literature.

After Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023),
on the trace published with it: tasks drawn from the trace arrive at the empty cluster and never leave, until they have asked for 130 %
of its 6,212 GPUs. A task that finds no place on one node is lost. The policies are rankings in the pool's own placement, and every task
is a session of the state machine. As the pool leases devices alone, hosts' processors and memory bound nothing here.

"lost at" is the arrived demand at which the first task found no place. "unallocated" is the part of the cluster that nobody has when
the arrived demand is 100 % of it, and at the end. "fragmented" is the part of that which the mean task of the trace could not use.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.events import ClientSaid, SessionJoined, SessionLeft, WorkerSaid
from forebay_pool.model.instructions import Launch
from forebay_pool.model.policies import Policy
from forebay_pool.model.types import Device
from forebay_pool.placement.ranking import ForebayRanking, Ranking
from forebay_wire import messages as wire
from report import SKIPPED, report
from simulation.rankings import BestFitRanking, FirstFitRanking, FragmentationRanking, RandomRanking
from simulation.replay import Plan, flavors_of, limits_of
from simulation.trace import FOLDER, WHOLE, Task, TraceMissing, devices_of, read_nodes, read_tasks

POLICIES: dict[str, Callable[[int], Ranking]] = {
    "Forebay": lambda seed: ForebayRanking(),
    "fragmentation gradient": lambda seed: FragmentationRanking(),
    "best fit": lambda seed: BestFitRanking(),
    "first fit": lambda seed: FirstFitRanking(),
    "random": RandomRanking,
}
ARRIVED_MAX = 1.3
"""Demand that arrives, as a part of the cluster."""


class Cluster:
    """A state machine that is filled, and what of each device is left."""

    def __init__(self, devices: list[Device], tasks: list[Task], ranking: Ranking) -> None:
        plans = [Plan(task.name, task.gpus, task.share_milli, 0, 0, []) for task in tasks]
        flavors = flavors_of(plans, dict.fromkeys(device.model for device in devices))
        policy = Policy(gang_spread="node")
        self.machine = StateMachine(devices, flavors, limits_of(2.0), "b", 0, policy, ranking)
        self.free_milli = {device: WHOLE for device in devices}
        self.names = 0

    def place(self, task: Task) -> bool:
        """Whether the task found a place, which it has from then on."""
        self.names += 1
        name, flavor = f"s{self.names}", f"gpu.{task.gpus}x{task.share_milli}"
        self.machine.handle(SessionJoined(name, bytes(32), "trace", "trace", name, flavor), self.names)
        span = wire.Span(id="1", kind="process", label=name)
        out = self.machine.handle(ClientSaid(name, wire.Acquire(request=1, span=span)), self.names)
        launched = next((instruction for instruction in out if isinstance(instruction, Launch)), None)
        if launched is None:
            self.machine.handle(SessionLeft(name), self.names)
            return False
        for device in launched.devices:
            self.free_milli[device] -= task.share_milli
        worker, first = launched.worker, launched.devices[0]
        model = wire.DeviceModel(kind=first.kind, model=first.model)
        ready = wire.Ready(worker=worker, address="unix:/x", torch="2", device=model, pid=1)
        self.machine.handle(WorkerSaid(worker, ready), self.names)
        self.machine.handle(WorkerSaid(worker, wire.Assigned(session=name)), self.names)
        return True

    @property
    def unallocated(self) -> float:
        """In GPUs."""
        return sum(self.free_milli.values()) / WHOLE

    def fragmented(self, mix: Counter[tuple[int, int]]) -> float:
        """GPUs of what is left that the mean task of the mix cannot use: all of a node where it finds no place, else rests too small."""
        nodes: dict[str, list[int]] = {}
        for device, free in self.free_milli.items():
            nodes.setdefault(device.node, []).append(free)
        lost = 0.0
        for (gpus, share), weight in mix.items():
            for rests in nodes.values():
                enough = sum(rest >= share for rest in rests) >= gpus
                lost += weight * sum(rest for rest in rests if not enough or rest < share)
        return lost / mix.total() / WHOLE


def fill(devices: list[Device], tasks: list[Task], policy: str, seed: int) -> dict[str, float]:
    """One run: the same seed draws the same tasks for every policy."""
    chance = random.Random(seed)
    cluster = Cluster(devices, tasks, POLICIES[policy](seed))
    mix = Counter((task.gpus, task.share_milli) for task in tasks)
    arrived, lost_at, placing_ns, figures = 0.0, 0.0, [], {}
    while arrived < ARRIVED_MAX * len(devices):
        task = chance.choice(tasks)
        before, arrived = arrived, arrived + task.demand
        began = time.perf_counter_ns()
        placed = cluster.place(task)
        placing_ns.append(time.perf_counter_ns() - began)
        if not placed and not lost_at:
            lost_at = before
        if before < len(devices) <= arrived:
            figures["unallocated at 100 %"] = cluster.unallocated / len(devices)
            figures["fragmented"] = cluster.fragmented(mix) / cluster.unallocated
    figures["unallocated at the end"] = cluster.unallocated / len(devices)
    return figures | {"lost at": lost_at / len(devices), "median µs": statistics.median(placing_ns) / 1e3}


def row_of(policy: str, runs: list[dict[str, float]]) -> dict[str, Any]:
    mean = {name: statistics.fmean(run[name] for run in runs) for name in runs[0]}
    percents = {name: f"{100 * mean[name]:.2f} %" for name in ("lost at", "unallocated at 100 %", "unallocated at the end", "fragmented")}
    return {"policy": policy} | percents | {"session + placement µs": mean["median µs"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=FOLDER, help="folder of cluster-trace-gpu-v2023 (default: beside the checkout)")
    parser.add_argument("--nodes", type=int, default=10, help="every so-manieth node only")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each policy")
    options = parser.parse_args()
    try:
        devices = [device for node in read_nodes(options.trace)[:: options.nodes] for device in devices_of(node)]
        tasks = [task for task in read_tasks(options.trace) if task.gpus]
    except TraceMissing as missing:
        print(f"not measured: {missing}", file=sys.stderr)
        return SKIPPED
    rows = []
    for policy in POLICIES:
        began = time.perf_counter()
        rows.append(row_of(policy, [fill(devices, tasks, policy, seed) for seed in range(options.seeds)]))
        print(f"{policy}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    report("placement", rows, gpus=len(devices), seeds=options.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
