"""What a decision of the pool's state machine costs, by event and by the size of the fleet.

Bars (issue of the pool): at least 20,000 events a second with 6,000 devices and 10,000 sessions on one core, and a cost per decision that
grows no faster than logarithmically from 100 to 100,000 devices. Five sessions for every three devices run cells of a second with pauses of
half a second, in virtual time (``simulation/``): so devices are short, sessions queue, are parked and restored. Seven in ten need a whole
device, two half of one, one two together. The events of that are recorded once every session has had a lease, and handled again by
a fresh state machine: "events/s" is by the processor time of that alone, ticks included; the kinds of events are medians.
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

from forebay_pool.instructions import Instruction
from forebay_pool.state_machine import StateMachine
from forebay_pool.types import ClientSaid, Device, Event, Tick, WorkerSaid
from report import report
from simulation.agenda import SECOND_NS
from simulation.notebooks import Cell
from simulation.replay import Plan, Replay, limits_of
from simulation.trace import GIB
from simulation.world import UNIX_OFFSET_NS

BAR_EVENTS_PER_SECOND = 20_000
DEVICES_PER_NODE = 8
NODES_PER_SWITCH = 16
MODELS = ("MI300X", "MI250", "MI210")
CELL_NS = SECOND_NS
PAUSE_NS = SECOND_NS // 2
RAMP_SECONDS = 20
"""Sessions join within so long; it is not measured, nor are twice as many seconds after it."""
TICK_NS = SECOND_NS
LIMITS = limits_of(2.0, heartbeat_seconds=5.0)


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


class Recorded(Replay):
    """A history: the events of the ramp, and those to measure, each with its time."""

    def __init__(self, devices: list[Device], sessions: int, events: int, seed: int) -> None:
        super().__init__(devices, plans_of(sessions, seed), "cell", LIMITS, seed, 0)
        self.tick_ns = TICK_NS
        self.ramp: list[tuple[Event, int]] = []
        self.history: list[tuple[Event, int]] = []
        self._pages = self.ramp
        self.start()
        self.agenda.run(3 * RAMP_SECONDS * SECOND_NS)
        self._pages = self.history
        while len(self.history) < events:
            self.agenda.run(self.agenda.now_ns + SECOND_NS // 100)

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None:
        super().saw(now_ns, event, instructions)
        self._pages.append((event, now_ns))

    def again(self) -> StateMachine:
        """A fresh state machine that has seen the ramp."""
        devices = [seat.device for seat in self.machine.fleet.seats.values()]
        machine = StateMachine(devices, dict(self.machine.fleet.flavors), LIMITS, "sim", UNIX_OFFSET_NS)
        for event, now_ns in self.ramp:
            machine.handle(event, now_ns)
        return machine


def name_of(event: Event) -> str:
    spoken = event.message if isinstance(event, ClientSaid | WorkerSaid) else event
    return type(spoken).__name__


def row_of(devices: int, sessions: int, events: int, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    recorded = Recorded(fleet_of(devices), sessions, events, seed)
    machine = recorded.again()
    gc.collect()
    gc.freeze()
    begin_ns, ticks_ns = time.process_time_ns(), 0
    for event, now_ns in recorded.history:
        if isinstance(event, Tick):
            before_ns = time.process_time_ns()
            machine.handle(event, now_ns)
            ticks_ns += time.process_time_ns() - before_ns
        else:
            machine.handle(event, now_ns)
    taken_ns = time.process_time_ns() - begin_ns
    kinds = by_kind(recorded)
    gc.unfreeze()
    print(f"{devices} devices took {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    rate = 1e9 * len(recorded.history) / taken_ns
    row = {
        "devices": devices,
        "sessions": sessions,
        "waiting": len(machine.line),
        "events/s": round(rate),
        "÷ bar": rate / BAR_EVENTS_PER_SECOND,
        "decision µs": (taken_ns - ticks_ns) / (len(recorded.history) - len(kinds["Tick"])) / 1e3,
    }
    row |= {name.lower(): statistics.median(kinds[name]) / 1e3 for name in ("Acquire", "Drained", "Parked", "Heartbeat")}
    return row | {"tick ms": statistics.median(kinds["Tick"]) / 1e6}


def by_kind(recorded: Recorded) -> dict[str, list[int]]:
    """Nanoseconds of each event, by kind: medians of these do not mind what else the machine does."""
    machine = recorded.again()
    kinds: dict[str, list[int]] = {}
    for event, now_ns in recorded.history:
        began = time.perf_counter_ns()
        machine.handle(event, now_ns)
        kinds.setdefault(name_of(event), []).append(time.perf_counter_ns() - began)
    return kinds


def growth(rows: list[dict[str, Any]]) -> float:
    """The last size's cost of a decision ÷ the first's, over the same quotient of the sizes' logarithms: at most 1 is logarithmic."""
    first, last = rows[0], rows[-1]
    return (last["decision µs"] / first["decision µs"]) / (math.log(last["devices"]) / math.log(first["devices"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000], help="devices, one measurement each")
    parser.add_argument("--events", type=int, default=20_000, help="events of each measurement")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = [row_of(size, size * 5 // 3, options.events, options.seed) for size in options.sizes]
    report("decide", rows, growth_over_logarithm=growth(rows))


if __name__ == "__main__":
    main()
