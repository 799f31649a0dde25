"""What a decision of the pool's state machine costs, by event and by the size of the fleet.

Bars (issue of the pool): at least 20,000 events a second with 6,000 devices and 10,000 sessions on one core, and a cost per decision that
grows no faster than logarithmically from 100 to 100,000 devices. Five sessions for every three devices run cells of a second with pauses of
half a second, in virtual time (``simulation/``): so devices are short, sessions queue, are parked and restored. Seven in ten need a whole
device, two half of one, one two together. Only the time inside ``StateMachine.handle`` counts, once every session has had a lease.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import statistics
import sys
import time
from typing import Any

from forebay_pool.types import ClientSaid, Device, Event, Instruction, WorkerSaid
from report import report
from simulation.agenda import SECOND_NS
from simulation.notebooks import Cell
from simulation.replay import Plan, Replay, limits_of
from simulation.trace import GIB

BAR_EVENTS_PER_SECOND = 20_000
DEVICES_PER_NODE = 8
NODES_PER_SWITCH = 16
MODELS = ("MI300X", "MI250", "MI210")
CELL_NS = SECOND_NS
PAUSE_NS = SECOND_NS // 2
RAMP_SECONDS = 20
"""Sessions join within so long; it is not measured, nor are twice as many seconds after it."""
TICK_NS = SECOND_NS


def fleet_of(count: int) -> list[Device]:
    """Nodes of eight devices of one model each."""
    devices = []
    for number in range(count):
        node = number // DEVICES_PER_NODE
        name, model = f"n{node}", MODELS[node % len(MODELS)]
        index = number % DEVICES_PER_NODE
        switch = f"sw{node // NODES_PER_SWITCH}"
        devices.append(Device(f"{name}/null:{index}", name, "null", index, model, 32 * GIB, switch=switch))
    return devices


def plans_of(count: int, seed: int) -> list[Plan]:
    """So many sessions that never end by themselves."""
    chance = random.Random(seed)
    plans = []
    for number in range(count):
        gpus, share = chance.choices([(1, 1000), (1, 500), (2, 1000)], weights=[7, 2, 1])[0]
        opens_ns = int(chance.uniform(0, RAMP_SECONDS) * SECOND_NS)
        plans.append(Plan(f"s{number}", gpus, share, opens_ns, 0, [Cell(CELL_NS, PAUSE_NS)] * 10_000))
    return plans


class Timed(Replay):
    """Takes the time of every call of the state machine."""

    def __init__(self, devices: int, sessions: int, seed: int) -> None:
        plans = plans_of(sessions, seed)
        super().__init__(fleet_of(devices), plans, "cell", limits_of(2.0, heartbeat_seconds=5.0), seed, 0)
        self.tick_ns = TICK_NS
        self.measured = False
        self.taken_ns: dict[str, list[int]] = {}
        handle = self.machine.handle

        def timed(event: Event, now_ns: int) -> list[Instruction]:
            began = time.perf_counter_ns()
            out = handle(event, now_ns)
            if self.measured:
                self.taken_ns.setdefault(name_of(event), []).append(time.perf_counter_ns() - began)
            return out

        self.machine.handle = timed  # type: ignore[method-assign]

    def measure(self, events: int) -> None:
        """Runs the ramp, then so many events."""
        self.start()
        self.agenda.run(3 * RAMP_SECONDS * SECOND_NS)
        gc.collect()
        gc.freeze()
        self.measured = True
        done = self.events + events
        while self.events < done:
            self.agenda.run(self.agenda.now_ns + SECOND_NS // 100)
        gc.unfreeze()


def name_of(event: Event) -> str:
    spoken = event.message if isinstance(event, ClientSaid | WorkerSaid) else event
    return type(spoken).__name__


def row_of(devices: int, sessions: int, events: int, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    timed = Timed(devices, sessions, seed)
    timed.measure(events)
    decisions = [value for name, values in timed.taken_ns.items() if name != "Tick" for value in values]
    ticks = timed.taken_ns.get("Tick", [0])
    rate = 1e9 * (len(decisions) + len(ticks)) / (sum(decisions) + sum(ticks))
    print(f"{devices} devices took {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)

    def mean_us(name: str) -> float:
        return statistics.fmean(timed.taken_ns.get(name, [0])) / 1e3

    return {
        "devices": devices,
        "sessions": sessions,
        "waiting": len(timed.machine.line),
        "events/s": round(rate),
        "÷ bar": rate / BAR_EVENTS_PER_SECOND,
        "decision µs": statistics.fmean(decisions) / 1e3,
        "acquire": mean_us("Acquire"),
        "drained": mean_us("Drained"),
        "parked": mean_us("Parked"),
        "heartbeat": mean_us("Heartbeat"),
        "tick ms": statistics.fmean(ticks) / 1e6,
    }


def growth(rows: list[dict[str, Any]]) -> float:
    """The last size's cost of a decision ÷ the first's, over the same quotient of the sizes' logarithms: at most 1 is logarithmic."""
    first, last = rows[0], rows[-1]
    return (last["decision µs"] / first["decision µs"]) / (math.log(last["devices"]) / math.log(first["devices"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 6_000], help="devices, one measurement each")
    parser.add_argument("--events", type=int, default=50_000, help="events of each measurement")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = [row_of(size, size * 5 // 3, options.events, options.seed) for size in options.sizes]
    report("decide", rows, growth_over_logarithm=growth(rows))


if __name__ == "__main__":
    main()
