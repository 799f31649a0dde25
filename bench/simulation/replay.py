"""A trace replayed on a fleet: the world of a benchmark, in which nothing fails and everything is measured."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.elastic import NodeGroup
from forebay_pool.model.events import Event
from forebay_pool.model.instructions import Instruction, Scale, TellClient, TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.node_events import NodeJoined, NodeLost
from forebay_pool.model.types import Device, Equivalent, Flavor
from forebay_wire import messages as wire

from simulation.agenda import MILLISECOND_NS, SECOND_NS, Agenda
from simulation.notebooks import Level, Notebook, Plan
from simulation.trace import GIB, WHOLE
from simulation.workers import Timings, Worker
from simulation.world import UNIX_OFFSET_NS, World

FLAVOR_GIB = 16
"""Device memory of a whole device's flavor: what the smallest device has. A share has its part of it."""
TENSORS_SHARE = (0.1, 0.9)
"""Part of its flavor's memory that a session's tensors take, drawn evenly: unknown from the trace."""
LINK_NS = MILLISECOND_NS // 4
"""A message's way; the service's round trip is about 0.5 ms (bench/results/history.md)."""
TICK_NS = 10 * SECOND_NS
PATIENCE_NS = SECOND_NS
"""The goal: 95 % of the requests wait no longer."""
NEVER_SECONDS = 1e9


class NotServable(Exception):
    """The fleet can never serve a session."""


def flavors_of(plans: Iterable[Plan], models: Iterable[str]) -> dict[str, Flavor]:
    """A flavor for each need, served by every model."""
    models = list(models)
    needs = {plan.flavor: (plan.gpus, plan.share_milli) for plan in plans}
    return {
        name: Flavor(name, FLAVOR_GIB * GIB * gpus * share // WHOLE, tuple(Equivalent(model, gpus, share) for model in models))
        for name, (gpus, share) in needs.items()
    }


def limits_of(idle_release_seconds: float, heartbeat_seconds: float = 3600.0) -> Limits:
    """Bounds that do not bind: devices alone are short here."""
    return Limits(
        heartbeat_seconds=heartbeat_seconds,
        session_heartbeat_seconds=3600.0,
        idle_release_seconds=idle_release_seconds,
        worker_start_seconds=60.0,
        park_seconds=300.0,
        close_seconds=NEVER_SECONDS,
        end_grace_seconds=5.0,
        worker_attempts_max=3,
        warm_workers=8,
        workers_max=1_000_000,
        sessions_max=1_000_000,
        queue_max=1_000_000,
        resume_seconds=0.0,
    )


class Replay(World):
    """Plays the plans, and keeps what happened."""

    def __init__(
        self,
        devices: list[Device],
        plans: list[Plan],
        level: Level,
        limits: Limits,
        seed: int,
        counts_from_ns: int,
        groups: Sequence[NodeGroup] = (),
    ) -> None:
        flavors = flavors_of(plans, dict.fromkeys([*(device.model for device in devices), *(group.model for group in groups)]))
        machine = StateMachine(devices, flavors, limits, "sim", UNIX_OFFSET_NS, groups=groups)
        timings = Timings(spare_heartbeat_ns=int(limits.heartbeat_seconds * SECOND_NS))  # nothing fails: as rare as the others'
        super().__init__(machine, Agenda(), timings, lambda: LINK_NS, TICK_NS)
        self.plans = plans
        self.level: Level = level
        self.counts_from_ns = counts_from_ns
        self.waits_ns: list[int] = []
        """Of each request for a lease after ``counts_from_ns``, until the grant, without what its worker took to start."""
        self.cold_starts = 0
        """Sessions that waited for their worker to start."""
        self.late = 0
        """Requests that waited longer than PATIENCE_NS."""
        self.starts_ns: list[int] = []
        """From a cell's begin until its first command is executed: waiting, restoring and messages."""
        self.restores_ns: list[int] = []
        self.parkings = 0
        self.events = 0
        self.held_gpu_ns = 0.0
        self.worked_gpu_ns = 0.0
        self.paces: list[float] = []
        """Of each session that ended: its work ÷ (its work and what it waited)."""
        self._chance = random.Random(seed)
        self._granted_ns: dict[str, tuple[int, float]] = {}
        self._demands = {plan.name: plan.demand for plan in plans}
        self._asking: dict[str, int] = {}
        self._started_ns: dict[str, int] = {}
        self.watchers.append(self)

    def run(self, late_max: float) -> bool:
        """Until the last session has ended; False as soon as more than ``late_max`` requests are late. Raises NotServable."""
        self.start()
        while len(self.paces) < len(self.plans):
            self.agenda.run(self.agenda.now_ns + 600 * SECOND_NS)
            if self.late + self._overdue() > late_max:
                return False
        return True

    def start(self) -> None:
        """Puts every session's begin on the agenda."""
        for plan in self.plans:
            self.agenda.at(plan.opens_ns, lambda plan=plan: self._open(plan))  # type: ignore[misc]
        self.agenda.at(0, self.tick)

    def _overdue(self) -> int:
        """Requests that still wait and are late already."""
        since = (since_ns for since_ns in self._asking.values() if since_ns >= self.counts_from_ns)
        return sum(self.agenda.now_ns - since_ns > PATIENCE_NS for since_ns in since)

    def _open(self, plan: Plan) -> None:
        Notebook(self, plan, self.level).open()

    # What sessions tell

    def asked(self, session: Notebook) -> None:
        self._asking[session.name] = self.agenda.now_ns

    def served(self, session: Notebook) -> int:
        """The session got what it asked for; how long it waited."""
        since_ns = self._asking.pop(session.name, None)
        if since_ns is None:
            return 0
        waited_ns = self.agenda.now_ns - since_ns - self._started_ns.pop(session.name, 0)
        if since_ns >= self.counts_from_ns:
            self.waits_ns.append(waited_ns)
            self.late += waited_ns > PATIENCE_NS
        return waited_ns

    def closed(self, session: Notebook) -> None:
        whole = session.worked_ns + session.waited_ns
        self.paces.append(session.worked_ns / whole if session.worked_ns else 1.0)
        self.worked_gpu_ns += session.worked_ns * self._demands[session.name]
        self.agenda.after(SECOND_NS, lambda: self.forget(session))

    # What is seen

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None:
        self.events += 1
        for instruction in instructions:
            if type(instruction) is TellClient:
                self._told(now_ns, instruction.session, instruction.message)
            elif type(instruction) is TellWorker and isinstance(instruction.message, wire.Assign):
                self._assigned(self.workers[instruction.worker], instruction.message.session)

    def _assigned(self, worker: Worker, session: str) -> None:
        """The session has a worker: for how long it had waited for that to start."""
        starting_ns = worker.ready_ns - max(worker.launched_ns, self._asking.get(session, 0))
        if starting_ns > 0:
            self.cold_starts += 1
            self._started_ns[session] = starting_ns

    def _told(self, now_ns: int, session: str, message: wire.ToClient) -> None:
        if isinstance(message, wire.Granted):
            self._granted_ns.setdefault(message.lease, (now_ns, self._demands[session]))
        elif isinstance(message, wire.LeaseClosed):
            opened_ns, demand = self._granted_ns.pop(message.lease)
            self.held_gpu_ns += (now_ns - opened_ns) * demand
        elif isinstance(message, wire.Refused | wire.SessionLost):
            raise NotServable(f"session {session}: {message.message}")

    def tensor_bytes(self, limit_bytes: int) -> int:
        return int(self._chance.uniform(*TENSORS_SHARE) * limit_bytes)

    def work_begins(self, worker: Worker) -> None:
        client = self.clients.get(worker.session or "")
        if isinstance(client, Notebook) and client.wanted_ns is not None:
            self.starts_ns.append(self.agenda.now_ns - client.wanted_ns)
            client.wanted_ns = None

    def parks(self, worker: Worker) -> None:
        self.parkings += 1

    def restores(self, worker: Worker, taken_ns: int) -> None:
        self.restores_ns.append(taken_ns)


def node_of(name: str, group: NodeGroup) -> tuple[Device, ...]:
    """The devices of a node of the group."""
    return tuple(Device(f"{name}/null:{index}", name, "null", index, group.model, group.memory_bytes) for index in range(group.devices))


class ElasticReplay(Replay):
    """On nodes of one group, which an autoscaler starts and ends as Ray's does: a node is there after the group's time to start, and goes
    once it was over for as long as ``idle_ns``."""

    def __init__(
        self, group: NodeGroup, plans: list[Plan], level: Level, limits: Limits, seed: int, counts_from_ns: int, idle_ns: int
    ) -> None:
        super().__init__([], plans, level, limits, seed, counts_from_ns, (group,))
        self.group = group
        self.idle_ns = idle_ns
        self.paid_ns = 0
        """For how long nodes were paid for, from their start on, of what is counted."""
        self.started = 0
        self.most = 0
        """Nodes at a time."""
        self._since_ns: dict[str, int] = {}
        """When each node that is there, or on its way, was started."""
        self._over: frozenset[str] = frozenset()

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None:
        super().saw(now_ns, event, instructions)
        for instruction in instructions:
            if isinstance(instruction, Scale):
                self._scale(instruction)

    def _scale(self, scale: Scale) -> None:
        for _ in range(scale.nodes[self.group.model] - len(self._since_ns)):
            self.started += 1
            name = f"node-{self.started}"
            self._since_ns[name] = self.agenda.now_ns
            joined = NodeJoined(name, node_of(name, self.group))
            self.agenda.after(int(self.group.start_seconds * SECOND_NS), lambda joined=joined: self.apply(joined))  # type: ignore[misc]
        self.most = max(self.most, len(self._since_ns))
        for name in scale.over - self._over:
            self.agenda.after(self.idle_ns, lambda name=name: self._end(name))  # type: ignore[misc]
        self._over = scale.over

    def _end(self, name: str) -> None:
        """The node ends, unless it is wanted again; one that was over, wanted, and over again meanwhile goes a little early."""
        if name in self._over and name in self._since_ns:
            self._pay(name)
            self.apply(NodeLost(name, "the autoscaler ended it"))

    def _pay(self, name: str) -> None:
        begun_ns = max(self._since_ns.pop(name), self.counts_from_ns)
        self.paid_ns += max(0, self.agenda.now_ns - begun_ns)

    def settle(self) -> None:
        """Pays for the nodes that are there at the end."""
        for name in list(self._since_ns):
            self._pay(name)
