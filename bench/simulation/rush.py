"""A crowd that keeps the pool busy, with as little around the state machine as will do: no links, nothing fails, answers come at once.

It is meant to be unkind to whatever the pool remembers: many tenants and users of unlike weights, some stopped by quotas and some with
priorities; whole devices, shares of them and gangs, on models that serve some flavors and not others; more sessions than devices, so
that the line is long, tensors are parked, restored and moved; sessions that end, and others that come.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.events import ClientSaid, Event, Look, QuotaSet, SessionJoined, SessionLeft, Tick, WorkerGone, WorkerSaid
from forebay_pool.model.instructions import Instruction, Kill, Launch, TellClient, TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.types import Device, Equivalent, Flavor, Quota
from forebay_wire import messages as wire

from simulation.agenda import MILLISECOND_NS, SECOND_NS
from simulation.world import UNIX_OFFSET_NS

GIB = 2**30
DEVICES_PER_NODE = 8
NODES_PER_SWITCH = 16
MODELS = (("A80", 80, 300), ("B40", 40, 150), ("C24", 24, 100))
"""Name, memory in GiB, speed."""
FLAVORS = {
    "any": (20, (("C24", 1, 1000), ("B40", 1, 1000), ("A80", 1, 1000))),
    "large": (64, (("A80", 1, 1000),)),
    "half": (16, (("B40", 1, 500), ("A80", 1, 500))),
    "quarter": (6, (("C24", 1, 250), ("B40", 1, 250))),
    "pair": (40, (("C24", 2, 1000), ("B40", 2, 1000))),
    "eight": (300, (("A80", 8, 1000),)),
}
"""Memory in GiB, and what serves it: model, devices, thousandths."""
POPULARITY = {"any": 40, "large": 15, "half": 20, "quarter": 15, "pair": 8, "eight": 2}
SESSIONS_PER_TENANT = 25
USERS_PER_TENANT = 5
CELL_SECONDS = (0.2, 3.0)
LEAVES_SHARE = 0.01
"""Of the leases that close, those after which the session ends and another one comes."""
HEARTBEAT_SECONDS = 5.0
RAMP_NS = 2 * SECOND_NS
"""Within so long everybody comes."""
LOOK_NS = 100 * MILLISECOND_NS
TICK_NS = SECOND_NS


class Load(NamedTuple):
    """How long people think between two cells, and when the crowd has settled."""

    pause_seconds: tuple[float, float]
    settled_ns: int


UNKIND = Load(pause_seconds=(0.02, 0.4), settled_ns=5 * SECOND_NS)
"""Hardly anybody thinks: more compute than there is, always; a long line, and whoever resumes finds others on its device."""
KIND = Load(pause_seconds=(2.0, 20.0), settled_ns=30 * SECOND_NS)
"""People think seven times as long as their cells take: most find their tensors where they were, and their device free."""

LIMITS = Limits(
    heartbeat_seconds=HEARTBEAT_SECONDS,
    session_heartbeat_seconds=3600.0,
    idle_release_seconds=2.0,
    worker_start_seconds=60.0,
    park_seconds=60.0,
    close_seconds=60.0,
    end_grace_seconds=5.0,
    worker_attempts_max=3,
    warm_workers=8,
    workers_max=1_000_000,
    sessions_max=1_000_000,
    queue_max=1_000_000,
    resume_seconds=0.0,
    preempt_priority_gap=50,
)


def some_fleet(count: int) -> list[Device]:
    """Nodes of eight devices of one model each."""
    devices = []
    for number in range(count):
        node, index = divmod(number, DEVICES_PER_NODE)
        model, memory_gib, speed = MODELS[node % len(MODELS)]
        switch = f"sw{node // NODES_PER_SWITCH}"
        devices.append(Device(f"n{node}/null:{index}", f"n{node}", "null", index, model, memory_gib * GIB, speed=speed, switch=switch))
    return devices


def some_flavors() -> dict[str, Flavor]:
    return {
        name: Flavor(name, memory_gib * GIB, tuple(Equivalent(*served) for served in ways)) for name, (memory_gib, ways) in FLAVORS.items()
    }


@dataclass(slots=True, eq=False)
class Process:
    """A worker's process, as far as the pool can tell."""

    devices: tuple[Device, ...]
    session: str | None = None
    epoch: int | None = None
    bytes: int = 0
    gone: bool = False


@dataclass(slots=True, eq=False)
class Member:
    """One of the crowd: who it is, and what it needs."""

    name: str
    tenant: str
    user: str
    flavor: str
    priority: int
    requests: int = 0
    worker: str | None = None


@dataclass(slots=True)
class Took:
    """What an event cost the state machine."""

    kind: str
    cpu_ns: int
    wall_ns: int
    waiting: int = field(default=0)


class Rush:
    """So many sessions on so many devices. :meth:`play` lets time pass, event by event."""

    def __init__(self, devices: int, sessions: int, seed: int = 1, load: Load = UNKIND) -> None:
        self._load = load
        self.chance = random.Random(seed)
        self.machine = StateMachine(some_fleet(devices), some_flavors(), LIMITS, "rush", UNIX_OFFSET_NS)
        self.now_ns = 0
        self._agenda: list[tuple[int, int, Event]] = []
        self._count = 0
        self._processes: dict[str, Process] = {}
        self._members: dict[str, Member] = {}
        self._names = 0
        tenants = max(2, sessions // SESSIONS_PER_TENANT)
        for tenant in range(tenants):
            self._say(0, QuotaSet(f"t{tenant}", None, self._some_quota(devices * 1000 // tenants)))
        for _ in range(sessions):
            self._come(int(self.chance.uniform(0, RAMP_NS)), f"t{self.chance.randrange(tenants)}")
        self._say(TICK_NS, Tick(UNIX_OFFSET_NS))
        self._say(LOOK_NS, Look())

    def _some_quota(self, fair_milli: int) -> Quota:
        """Three in ten may hold about their part of the fleet, one in ten for so many seconds of a window."""
        kind = self.chance.random()
        weight, priority_max = self.chance.choice([1, 1, 2, 4]), self.chance.choice([0, 0, 0, 20, 90])
        if kind < 0.3:
            return Quota(devices_milli=max(8000, int(fair_milli * self.chance.uniform(0.5, 1.5))), weight=weight, priority_max=priority_max)
        if kind < 0.4:
            seconds = max(8, int(10 * fair_milli / 1000 * self.chance.uniform(0.3, 1.0)))
            return Quota(device_seconds=seconds, window_seconds=10, weight=weight, priority_max=priority_max)
        return Quota(weight=weight, priority_max=priority_max)

    def _come(self, at_ns: int, tenant: str) -> None:
        chance = self.chance
        self._names += 1
        flavor = chance.choices([*POPULARITY], weights=[*POPULARITY.values()])[0]
        user = f"u{chance.randrange(USERS_PER_TENANT)}"
        member = Member(f"s{self._names}", tenant, user, flavor, chance.choice([0, 0, 0, -10, 20, 90]))
        self._members[member.name] = member
        self._say(at_ns, SessionJoined(member.name, bytes(32), tenant, user, "python", flavor, member.priority))
        self._acquire(member, at_ns + self._pause_ns())

    def _pause_ns(self) -> int:
        return int(self.chance.uniform(*self._load.pause_seconds) * SECOND_NS)

    def _acquire(self, member: Member, at_ns: int) -> None:
        member.requests += 1
        span = wire.Span(id=f"{member.name}-{member.requests}", kind="cell", label="n", cell=member.requests)
        self._say(at_ns, ClientSaid(member.name, wire.Acquire(request=member.requests, span=span)))

    def _say(self, at_ns: int, event: Event) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (at_ns, self._count, event))

    # Time passes

    def play(self, until_ns: int | None = None) -> Iterator[Took]:
        """Event by event, until a time or for ever; what each took."""
        machine = self.machine
        while until_ns is None or self._agenda[0][0] <= until_ns:
            self.now_ns, _, event = heapq.heappop(self._agenda)
            if self._is_void(event):
                continue
            wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            out = machine.handle(event, self.now_ns)
            cpu_ns, wall_ns = time.thread_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns
            self._after(event)
            for instruction in out:
                self._carry_out(instruction)
            yield Took(name_of(event), cpu_ns, wall_ns, len(machine.queue))

    def _is_void(self, event: Event) -> bool:
        """Whether its sender is gone, or does something else by now."""
        if isinstance(event, ClientSaid):
            return event.session not in self._members
        if not isinstance(event, WorkerSaid):
            return False
        process = self._processes[event.worker]
        if isinstance(event.message, wire.Drained | wire.Closed):
            if process.epoch != event.message.epoch:
                return True
            process.epoch = None
        return process.gone

    def _after(self, event: Event) -> None:
        if isinstance(event, Tick):
            self._say(self.now_ns + TICK_NS, event)
        elif isinstance(event, Look):
            self._say(self.now_ns + LOOK_NS, event)
        elif isinstance(event, WorkerSaid) and isinstance(event.message, wire.Heartbeat):
            self._beat(event.worker)

    def _beat(self, worker: str) -> None:
        process = self._processes[worker]
        beat = wire.Heartbeat(epoch=process.epoch, memory_bytes=process.bytes, busy_ns=0, commands=0)
        self._say(self.now_ns + int(HEARTBEAT_SECONDS * SECOND_NS), WorkerSaid(worker, beat))

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case TellWorker():
                self._order(instruction.worker, instruction.message)
            case TellClient():
                self._answer(self._members.get(instruction.session), instruction.message)
            case Launch():
                self._processes[instruction.worker] = Process(instruction.devices)
                device = instruction.devices[0]
                model = wire.DeviceModel(kind=device.kind, model=device.model)
                ready = wire.Ready(worker=instruction.worker, address=f"unix:/{instruction.worker}", torch="2", device=model, pid=1)
                self._say(self.now_ns + SECOND_NS // 2, WorkerSaid(instruction.worker, ready))
            case Kill():
                self._exit(instruction.worker)

    def _order(self, worker: str, order: wire.ToWorker) -> None:
        process = self._processes[worker]
        soon_ns = self.now_ns + MILLISECOND_NS
        match order:
            case wire.Assign():
                process.session = order.session
                self._members[order.session].worker = worker
                self._say(soon_ns, WorkerSaid(worker, wire.Assigned(session=order.session)))
                self._beat(worker)
            case wire.Open():
                process.epoch = order.epoch
                process.bytes = order.memory_limit_bytes // 2
                takes_ns = int(self.chance.uniform(*CELL_SECONDS) * SECOND_NS)
                self._say(self.now_ns + takes_ns, WorkerSaid(worker, wire.Drained(epoch=order.epoch)))
            case wire.Close():
                self._say(soon_ns, WorkerSaid(worker, wire.Closed(epoch=order.epoch)))
            case wire.Park():
                self._say(soon_ns, WorkerSaid(worker, wire.Parked(bytes=process.bytes)))
            case wire.Restore():
                self._say(soon_ns, WorkerSaid(worker, wire.Restored()))
            case wire.End():
                self._exit(worker)

    def _exit(self, worker: str) -> None:
        process = self._processes[worker]
        if not process.gone:
            process.gone = True
            self._say(self.now_ns + MILLISECOND_NS, WorkerGone(worker, "ended"))

    def _answer(self, member: Member | None, message: wire.ToClient) -> None:
        if member is None:
            return
        match message:
            case wire.LeaseClosed() if message.reason in ("drained", "idle", "released"):
                if self.chance.random() < LEAVES_SHARE:
                    self._say(self.now_ns, SessionLeft(member.name))
                    del self._members[member.name]
                    self._come(self.now_ns + self._pause_ns(), member.tenant)
                else:
                    self._acquire(member, self.now_ns + self._pause_ns())
            case wire.Refused():
                self._acquire(member, self.now_ns + SECOND_NS)
            case wire.Leave() if member.worker is not None:
                left = wire.Left(bytes=self._processes[member.worker].bytes, address=member.worker, ticket="a" * 64)
                self._say(self.now_ns + MILLISECOND_NS, WorkerSaid(member.worker, left))
            case wire.SessionLost():
                raise RuntimeError(f"session {member.name} was lost although nothing fails here: {message.message}")


def name_of(event: Event) -> str:
    spoken = event.message if isinstance(event, ClientSaid | WorkerSaid) else event
    return type(spoken).__name__
