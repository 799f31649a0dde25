"""Random histories of clients, workers, deaths, duplicates and late messages, against an obvious model of the truth.

The model knows what each worker process is really doing (it executes from the moment it reads Open until it says that it
stopped, or dies), and computes each lease's duration by itself. Invariants are checked after every event.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from forebay_pool.machine.invariants import validate
from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.events import (
    ClientSaid,
    Event,
    FlavorSet,
    Restored,
    SessionAway,
    SessionDismissed,
    SessionJoined,
    SessionLeft,
    SessionMoved,
    SessionParked,
    ShutDown,
    StoreChanged,
    Tick,
    WorkerAway,
    WorkerGone,
    WorkerSaid,
    WorkerUnlinked,
)
from forebay_pool.model.health import Reading
from forebay_pool.model.instructions import Confirm, Instruction, Keep, Kill, Launch, Meter, TellClient, TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.node_events import DeviceHealth, DeviceSet, NodeDrain, NodeJoined, NodeLost, PolicySet
from forebay_pool.model.policies import ModelPolicy, Policy
from forebay_pool.model.snapshot import LeaseSnapshot, SessionSnapshot, Snapshot, WorkerSnapshot, lease_snapshot, session_snapshot
from forebay_pool.model.types import Device, Equivalent, Flavor, Lease, Place, Request, Session
from forebay_wire import messages as wire
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

GIB = 2**30
SECOND = 1_000_000_000
LIMITS = Limits(
    heartbeat_seconds=1.0,
    session_heartbeat_seconds=20.0,
    idle_release_seconds=2.0,
    worker_start_seconds=20.0,
    park_seconds=30.0,
    close_seconds=10.0,
    resume_seconds=0.0,
    end_grace_seconds=5.0,
    worker_attempts_max=3,
    warm_workers=1,
    workers_max=8,
    sessions_max=6,
    queue_max=5,
)
RESUMING = replace(LIMITS, resume_seconds=3.0)
DEVICES = [
    Device("main/cpu:0", "main", "cpu", 0, "cpu-dev", 4 * GIB),
    Device("main/cpu:1", "main", "cpu", 1, "cpu-dev", 5 * GIB),
    Device("other/cpu:0", "other", "cpu", 0, "cpu-dev", 4 * GIB),
    Device("main/null:0", "main", "null", 0, "null", 2 * GIB),
]
FLAVORS = {
    "dev.1gb": Flavor("dev.1gb", GIB, (Equivalent("cpu-dev", 1), Equivalent("null", 1))),
    "dev.4gb": Flavor("dev.4gb", 4 * GIB, (Equivalent("cpu-dev", 1),)),
    "null.2gb": Flavor("null.2gb", 2 * GIB, (Equivalent("null", 1),)),
    "half.2gb": Flavor("half.2gb", 2 * GIB, (Equivalent("cpu-dev", 1, 500), Equivalent("null", 1, 700))),
    "pair.8gb": Flavor("pair.8gb", 8 * GIB, (Equivalent("cpu-dev", 2),)),
}
PICK = st.integers(0, 5)


@dataclass
class Process:
    """What a worker process is really doing."""

    devices: tuple[Device, ...]
    orders: list[wire.ToWorker] = field(default_factory=list)
    said: list[wire.FromWorker] = field(default_factory=list)
    session: str | None = None
    executing: int | None = None
    share_milli: int = 0
    """Its share of its devices from the last Open on."""
    alive: bool = True
    ready: bool = False
    linked: bool = True
    ended: wire.Ended | None = None
    """The last lease that is over, as it would say when it comes back."""
    ended_ns: int = 0
    parked: bool = False
    left: bool = False
    """The session's client ended its stream here."""

    @property
    def may_compute(self) -> bool:
        return self.executing is not None or any(isinstance(order, wire.Open) for order in self.orders)


@dataclass
class Held:
    """A lease as the model sees it."""

    devices: tuple[Device, ...]
    share_milli: int
    worker: str
    opened_ns: int
    confirmed_ns: int


class PoolHistory(RuleBasedStateMachine):
    LIMITS = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.machine = StateMachine(DEVICES, FLAVORS, self.LIMITS, "p", 0)
        self.now = 1
        self.processes: dict[str, Process] = {}
        self.leases: dict[str, Held] = {}
        self.metered: set[str] = set()
        self.granted: set[str] = set()
        self.asked: set[str] = set()
        """Sessions whose clients are to leave their worker."""
        self.tensors: dict[str, str] = {}
        """Where the tensors of each session are that ever computed: the name of a process."""
        self.images: dict[str, tuple[int, str]] = {}
        """The last image of each session, and the host that has it."""
        self.numbers = 0
        self.names = 0
        self.served: tuple[wire.Runtime, ...] | None = None

    # Carrying events and instructions

    def do(self, event: Event) -> None:
        if isinstance(event, WorkerSaid) and isinstance(event.message, wire.Heartbeat):
            for held in self.leases.values():
                if held.worker == event.worker and self.epoch_of(event.worker) == event.message.epoch and self.listens(event.worker):
                    held.confirmed_ns = self.now
        waited = {request for session in self.machine.sessions.values() if (request := session.request) is not None}
        waited = {request for request in waited if self.machine.queue.has(request)}
        for instruction in self.machine.handle(event, self.now):
            self.carry_out(event, instruction)
        validate(self.machine, ticked=isinstance(event, Tick))
        self.check_groups(waited)

    def check_groups(self, waited: set[Request]) -> None:
        """Of those of a group who waited, all start or none does; and nobody waits in a collective for somebody who is in the queue."""
        for group in self.machine.groups:
            before = [request for request in waited if request.session.group is group and request.session.request is request]
            started = [request for request in before if request.place is not None]
            left = [request for request in before if self.machine.queue.has(request)]
            assert not (started and left), f"{len(started)} of a group start without {len(left)} others"
            held = [lease for lease in group.leases if lease.state == "open" and lease.waits_since_ns is not None]
            assert not held or not any(map(self.machine.queue.has, group.requests)), "a lease is held for somebody who waits for one"

    @rule(pick=PICK, idle_ns=st.integers(0, 5 * SECOND), goes_on=st.booleans())
    def waits_in_a_collective(self, pick: int, idle_ns: int, goes_on: bool) -> None:
        found = self.a_process(pick)
        if found is not None and found[1].executing is not None:
            epoch = found[1].executing
            found[1].said.append(wire.Working(epoch=epoch) if goes_on else wire.Waiting(epoch=epoch, idle_ns=idle_ns))

    def listens(self, worker: str) -> bool:
        known = self.machine.fleet.workers.get(worker)
        return known is not None and known.state != "ending"

    def epoch_of(self, worker: str) -> int | None:
        known = self.machine.fleet.workers.get(worker)
        return known.session.epoch if known is not None and known.session is not None else None

    def carry_out(self, event: Event, instruction: Instruction) -> None:
        match instruction:
            case Launch():
                self.processes[instruction.worker] = Process(instruction.devices)
            case Kill():
                assert instruction.worker in self.processes
            case TellWorker():
                self.order(instruction.worker, instruction.message)
            case TellClient() if isinstance(instruction.message, wire.Leave):
                self.asked.add(instruction.session)
            case TellClient() if isinstance(instruction.message, wire.Granted):
                self.grant(instruction.message)
            case Meter():
                self.meter(event, instruction)

    def order(self, worker: str, message: wire.ToWorker) -> None:
        process = self.processes[worker]
        if not process.linked:
            return
        process.orders.append(message)
        if isinstance(message, wire.Open):
            process.share_milli = self.place_of(worker).share_milli
            computing = [other for other in self.processes.values() if other.alive and other.may_compute]
            for device in process.devices:
                used = sum(other.share_milli for other in computing if device in other.devices)
                assert used <= 1000, f"workers that execute have {used}/1000 of one device"

    def place_of(self, worker: str) -> Place:
        session = self.machine.fleet.workers[worker].session
        assert session is not None
        assert session.lease is not None
        return session.lease.place

    def grant(self, granted: wire.Granted) -> None:
        if granted.lease in self.leases:
            return
        assert granted.lease not in self.granted, "a lease was granted again after it had closed"
        self.granted.add(granted.lease)
        devices, share_milli = self.processes[granted.worker].devices, self.place_of(granted.worker).share_milli
        assert len(devices) == granted.devices
        for device in devices:
            used = sum(held.share_milli for held in self.leases.values() if device in held.devices)
            assert used + share_milli <= 1000, "more of a device is leased than there is"
        self.leases[granted.lease] = Held(devices, share_milli, granted.worker, self.now, self.now)

    def meter(self, event: Event, instruction: Meter) -> None:
        record = instruction.record
        assert record.id not in self.metered, "a segment was metered twice"
        self.metered.add(record.id)
        assert record.lease in self.leases, self.machine.story.of(record.session)
        held = self.leases.pop(record.lease)
        until = self.now
        if record.close_reason == "failed":
            until = held.opened_ns
        elif isinstance(event, WorkerSaid) and isinstance(event.message, wire.Idle):
            until = max(held.opened_ns, self.now - event.message.idle_ns)
        elif isinstance(event, WorkerSaid) and isinstance(event.message, wire.ResumeWorker) and event.message.ended is not None:
            until = max(held.opened_ns, self.now - event.message.ended.idle_ns - event.message.ended.ago_ns)
        elif isinstance(event, WorkerSaid) and isinstance(event.message, wire.Closed) and record.close_reason == "idle":
            until = max(held.opened_ns, self.now - event.message.idle_ns)
        elif isinstance(event, SessionLeft | SessionDismissed) and not self.processes[held.worker].linked:
            until = held.confirmed_ns
        assert record.duration_ns == until - held.opened_ns, f"{record} not until {until}: {self.machine.story.of(record.session)}"
        assert record.started_at_unix_ns == held.opened_ns
        assert record.devices == len(held.devices)

    # Clients

    def a_session(self, pick: int) -> str | None:
        names = list(self.machine.sessions)
        return names[pick % len(names)] if names else None

    @rule(flavor=st.sampled_from([*FLAVORS, "none"]))
    def joins(self, flavor: str) -> None:
        self.names += 1
        self.do(SessionJoined(f"s{self.names}", bytes(32), "acme", "ada", "python", flavor))

    @rule(flavor=st.sampled_from([*FLAVORS]), group=st.sampled_from("ab"), rank=st.integers(0, 2), size=st.integers(2, 3))
    def joins_a_group(self, flavor: str, group: str, rank: int, size: int) -> None:
        self.names += 1
        member = wire.GroupMember(id=group * 64, rank=min(rank, size - 1), size=size)
        self.do(SessionJoined(f"s{self.names}", bytes(32), "acme", "ada", "python", flavor, group=member))

    @rule(flavor=st.sampled_from([*FLAVORS]), group=st.sampled_from("cd"), size=st.integers(2, 3))
    def some_compute_together(self, flavor: str, group: str, size: int) -> None:
        for rank in range(size):
            self.joins_a_group(flavor, group, rank, size)
            self.acquires(-1, False)
        self.all_do_what_they_were_told(True)

    @rule(served=st.sampled_from([None, ("torch",), ("torch", "xla"), ("xla", "exec")]))
    def hosts_are_set_up(self, served: tuple[wire.Runtime, ...] | None) -> None:
        """Workers that start from now on serve this."""
        self.served = served

    @rule(pick=PICK, same_span=st.booleans(), runtime=st.sampled_from(["torch", "xla"]))
    def names_a_runtime(self, pick: int, same_span: bool, runtime: Any) -> None:
        self.acquires(pick, same_span, runtime)

    @rule(pick=PICK, same_span=st.booleans())
    def acquires(self, pick: int, same_span: bool, runtime: Any = None) -> None:
        name = self.a_session(pick)
        if name is not None:
            self.numbers += 1
            last = self.machine.sessions[name].span
            span = last if same_span and last is not None else wire.Span(id=f"span{self.numbers}", kind="cell", label="n", cell=1)
            self.do(ClientSaid(name, wire.Acquire(request=self.numbers, span=span, runtime=runtime)))

    @rule(pick=PICK, back=st.integers(0, 2))
    def cancels(self, pick: int, back: int) -> None:
        name = self.a_session(pick)
        if name is not None:
            self.do(ClientSaid(name, wire.Cancel(request=max(0, self.numbers - back))))

    @rule(pick=PICK, back=st.integers(0, 1))
    def releases(self, pick: int, back: int) -> None:
        name = self.a_session(pick)
        if name is not None:
            self.do(ClientSaid(name, wire.Release(epoch=max(0, self.machine.sessions[name].epoch - back))))

    @rule(pick=PICK, flavor=st.sampled_from([*FLAVORS, "none"]))
    def chooses(self, pick: int, flavor: str) -> None:
        name = self.a_session(pick)
        if name is not None:
            self.do(ClientSaid(name, wire.ChooseFlavor(flavor=flavor)))

    @rule(pick=PICK, dismissed=st.booleans())
    def leaves(self, pick: int, dismissed: bool) -> None:
        name = self.a_session(pick)
        if name is not None:
            self.do(SessionDismissed(name, "revoked", "over") if dismissed else SessionLeft(name))
            self.do(ClientSaid(name, wire.Acquire(request=1, span=wire.Span(id="late", kind="cell", label="n"))))

    # Workers

    def a_process(self, pick: int) -> tuple[str, Process] | None:
        living = [(name, process) for name, process in self.processes.items() if process.alive]
        return living[pick % len(living)] if living else None

    def act(self, name: str, process: Process) -> None:
        """The process does the next thing it was told."""
        if not process.ready:
            process.ready = True
            model = wire.DeviceModel(kind=process.devices[0].kind, model=process.devices[0].model)
            process.said.append(wire.Ready(worker=name, address="unix:/x", torch="2", device=model, pid=1, runtimes=self.served))
        elif process.orders:
            order = process.orders.pop(0)
            match order:
                case wire.Assign():
                    process.session = order.session
                    if order.source is not None and not self.fetch(name, order.source, order.session):
                        self.die(process)
                        return
                    if order.image:
                        assert self.images[order.session] == (order.image, process.devices[0].node), "an image is read where there is none"
                        assert not self.processes[self.tensors[order.session]].alive, "an image is read although the tensors are there"
                        self.tensors[order.session] = name
                    process.said.append(wire.Assigned(session=order.session))
                case wire.Open():
                    assert not process.parked, "opened while parked"
                    assert process.session is not None
                    assert self.tensors.setdefault(process.session, name) == name, "a session computes where its tensors are not"
                    process.executing = order.epoch
                case wire.Close():
                    if process.executing == order.epoch:
                        self.stop(process, order.epoch, None)
                    process.said.append(wire.Closed(epoch=order.epoch, idle_ns=order.epoch * SECOND))
                case wire.Park():
                    assert process.executing is None, "parked while executing"
                    process.parked = True
                    if not process.left:
                        process.said.append(wire.Parked(bytes=7))
                case wire.Restore():
                    process.parked = False
                    process.said.append(wire.Restored())
                case wire.End():
                    self.die(process)

    def fetch(self, name: str, source: wire.Source, session: str) -> bool:
        """Whether the process gets the session's tensors from where the pool says they are."""
        other = self.processes[source.address]
        there = other.alive and other.left and other.session == session and self.tensors[session] in (source.address, name)
        if there:
            self.tensors[session] = name
        return there

    def die(self, process: Process) -> None:
        process.alive, process.executing = False, None
        process.orders.clear()

    def hear(self, name: str, process: Process, twice: bool = False) -> None:
        """What the process said first reaches the pool, perhaps twice."""
        if process.said:
            message = process.said.pop(0)
            for _ in range(1 + twice if process.linked else 0):
                self.do(WorkerSaid(name, message))

    @rule(pick=PICK)
    def acts(self, pick: int) -> None:
        found = self.a_process(pick)
        if found is not None:
            self.act(*found)

    @rule(beat=st.booleans())
    def all_do_what_they_were_told(self, beat: bool) -> None:
        for name, process in list(self.processes.items()):
            while process.alive and (process.orders or process.said or not process.ready):
                self.act(name, process)
                self.hear(name, process)
            if process.alive and beat:
                process.said.append(wire.Heartbeat(epoch=process.executing, memory_bytes=7, busy_ns=0, commands=0))
                self.hear(name, process)

    @rule(flavor=st.sampled_from([*FLAVORS]), many=st.integers(1, 3))
    def some_compute(self, flavor: str, many: int) -> None:
        for _ in range(many):
            self.joins(flavor)
            self.acquires(-1, False)
        self.all_do_what_they_were_told(True)

    @rule(pick=PICK, twice=st.booleans())
    def is_heard(self, pick: int, twice: bool) -> None:
        found = self.a_process(pick)
        if found is not None:
            self.hear(*found, twice)

    @rule(pick=PICK, idle_ns=st.none() | st.integers(0, 5 * SECOND))
    def stops(self, pick: int, idle_ns: int | None) -> None:
        found = self.a_process(pick)
        if found is not None and found[1].executing is not None:
            epoch = found[1].executing
            self.stop(found[1], epoch, idle_ns)
            found[1].said.append(wire.Drained(epoch=epoch) if idle_ns is None else wire.Idle(epoch=epoch, idle_ns=idle_ns))

    def stop(self, process: Process, epoch: int, idle_ns: int | None) -> None:
        process.executing, process.ended_ns = None, self.now
        reason: Literal["drained", "idle"] = "drained" if idle_ns is None else "idle"
        process.ended = wire.Ended(epoch=epoch, reason=reason, idle_ns=idle_ns or 0, ago_ns=0)

    @rule(pick=PICK, unasked=st.booleans(), image=st.integers(0, 2))
    def a_client_leaves_its_worker(self, pick: int, unasked: bool, image: int) -> None:
        found = self.a_process(pick)
        if found is not None and (unasked or found[1].session in self.asked):
            self.leave(*found, image)

    def leave(self, name: str, process: Process, image: int = 0) -> None:
        """The client of the process's session ends its stream there, and all before it is done."""
        if process.session is None or process.left or self.tensors.get(process.session) != name:
            return
        self.asked.discard(process.session)
        process.left, process.executing = True, None
        process.said.append(wire.Left(bytes=7, image=image, address=name, ticket="a" * 64))
        self.images[process.session] = (image, process.devices[0].node)

    @rule(pick=PICK)
    def an_operator_moves(self, pick: int) -> None:
        name = self.a_session(pick)
        if name is not None:
            self.do(SessionMoved(name))

    @rule(pick=PICK)
    def an_operator_parks(self, pick: int) -> None:
        name = self.a_session(pick)
        if name is not None:
            self.do(SessionParked(name))

    @rule(pick=PICK)
    def beats(self, pick: int) -> None:
        found = self.a_process(pick)
        if found is not None and found[1].ready:
            found[1].said.append(wire.Heartbeat(epoch=found[1].executing, memory_bytes=7, busy_ns=0, commands=0))

    @rule(pick=PICK, gone=st.booleans())
    def starves_or_loses_its_client(self, pick: int, gone: bool) -> None:
        found = self.a_process(pick)
        if found is not None and found[1].session is not None:
            found[1].said.append(wire.ClientGone() if gone else wire.Starved())

    @rule(pick=PICK, unlinked_first=st.booleans(), told=st.booleans())
    def dies(self, pick: int, unlinked_first: bool, told: bool) -> None:
        found = self.a_process(pick)
        if found is None:
            return
        name, process = found
        if unlinked_first:
            self.do(WorkerUnlinked(name, "link ended"))
        while told and process.said:
            self.hear(name, process)
        self.die(process)
        self.do(WorkerGone(name, "killed"))
        self.do(WorkerSaid(name, wire.Starved()))

    # Nodes and devices

    @rule(pick=PICK, cordoned=st.booleans())
    def a_device_is_closed_or_opened(self, pick: int, cordoned: bool) -> None:
        self.do(DeviceSet(DEVICES[pick % len(DEVICES)].id, cordoned, "a test"))

    @rule(pick=PICK, celsius=st.sampled_from([40, 90, 95, 99]), errors=st.integers(0, 2), xid=st.sampled_from([None, None, 31, 79]))
    def a_device_is_read(self, pick: int, celsius: int, errors: int, xid: int | None) -> None:
        self.do(DeviceHealth(Reading(DEVICES[pick % len(DEVICES)].id, celsius, errors, xid)))

    @rule(node=st.sampled_from(["main", "other"]), drains=st.booleans(), grace=st.sampled_from([None, 0.0, 1.0]))
    def a_node_drains_or_is_opened(self, node: str, drains: bool, grace: float | None) -> None:
        self.do(NodeDrain(node, drains, grace))

    @rule(back=st.booleans(), dies=st.booleans())
    def a_node_is_lost_or_comes_back(self, back: bool, dies: bool) -> None:
        if back:
            self.do(NodeJoined("other", tuple(device for device in DEVICES if device.node == "other")))
            return
        self.do(NodeLost("other", "it does not answer"))
        for name, process in list(self.processes.items()):
            if dies and process.alive and any(device.node == "other" for device in process.devices):
                self.die(process)
                self.do(WorkerGone(name, "its node is gone"))

    @rule(tenants=st.sampled_from([None, frozenset({"acme"}), frozenset({"globex"})]))
    def a_model_is_kept_for_tenants(self, tenants: frozenset[str] | None) -> None:
        self.do(PolicySet(Policy(models={"null": ModelPolicy("null", tenants)})))

    @rule(pick=PICK, lie=st.integers(1, 3))
    def lies(self, pick: int, lie: int) -> None:
        found = self.a_process(pick)
        if found is not None and found[1].executing is not None:
            found[1].said.append(wire.Heartbeat(epoch=found[1].executing, memory_bytes=lie * 3 * GIB, busy_ns=0, commands=0))

    # The pool's surroundings

    @rule(seconds=st.sampled_from([0, 0.001, 0.001, 0.5, 0.5, 1.1, 1.1, 4]))
    def waits(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self.do(Tick(0))

    @precondition(lambda self: self.processes)
    @rule(accepting=st.booleans())
    def store_changes(self, accepting: bool) -> None:
        self.do(StoreChanged(accepting))

    @rule(served=st.booleans())
    def flavor_changes(self, served: bool) -> None:
        models = ("cpu-dev", "null") if served else ("MI210",)
        self.do(FlavorSet(Flavor("dev.1gb", GIB, tuple(Equivalent(model, 1) for model in models))))

    def teardown(self) -> None:
        """Left alone with healthy workers on open devices, everybody who waits is served; then the end leaves nothing behind."""
        self.do(PolicySet(Policy()))
        self.do(NodeJoined("other", ()))
        for node in ("main", "other"):
            self.do(NodeDrain(node, False))
        for device in DEVICES:
            self.do(DeviceSet(device.id, False))
        self.do(StoreChanged(True))
        for _ in range(60):
            for name, process in list(self.processes.items()):
                self.live(name, process)
            self.now += SECOND // 4
            self.do(Tick(0))
        waiting = [session.id for session in self.machine.sessions.values() if session.request is not None]
        assert not waiting, f"{waiting} wait for ever\n{self.machine.story.of(*waiting)}"
        self.do(ShutDown())
        for name in list(self.processes):
            self.do(WorkerGone(name, "killed"))
        assert not self.leases
        assert {record.rpartition("/")[0] for record in self.metered} == self.granted
        assert not self.machine.sessions and not self.machine.fleet.workers and not len(self.machine.queue)

    def live(self, name: str, process: Process) -> None:
        """A healthy process does all it was told, and ends its span."""
        known = self.machine.fleet.workers.get(name)
        if not process.alive or known is None or known.state == "ending":
            self.die(process)
            self.do(WorkerGone(name, "killed"))
            return
        while process.alive and (process.orders or process.said or not process.ready):
            self.act(name, process)
            self.hear(name, process)
        if not process.alive:
            self.do(WorkerGone(name, "killed"))
            return
        if process.session in self.asked:
            self.leave(name, process)
        if process.executing is not None:
            process.said.append(wire.Drained(epoch=process.executing))
            self.stop(process, process.executing, None)
        if process.alive:
            process.said.append(wire.Heartbeat(epoch=process.executing, memory_bytes=7, busy_ns=0, commands=0))
            self.hear(name, process)


class BrokenHistory(PoolHistory):
    """The same with links that break and pools that die: the next one goes on with what was written by then."""

    LIMITS = RESUMING

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, SessionSnapshot] = {}
        self.kept: dict[str, LeaseSnapshot] = {}
        self.pools = 0

    def carry_out(self, event: Event, instruction: Instruction) -> None:
        super().carry_out(event, instruction)
        match instruction:
            case Keep(Session() as session) if session.state in ("lost", "ended"):
                self.sessions.pop(session.id, None)
            case Keep(Session() as session):
                self.sessions[session.id] = session_snapshot(session)
            case Keep(Lease() as lease) if lease.state != "closed":
                self.kept[lease.id] = lease_snapshot(lease)
            case Confirm():
                for lease in instruction.leases:
                    self.kept[lease.id] = replace(self.kept[lease.id], confirmed_ns=lease.confirmed_ns - lease.opened_ns)
            case Meter():
                self.kept.pop(instruction.record.lease, None)

    @rule(pick=PICK, heard=st.booleans())
    def loses_its_link(self, pick: int, heard: bool) -> None:
        found = self.a_process(pick)
        if found is None or not found[1].ready or not found[1].linked:
            return
        name, process = found
        while heard and process.said:
            self.hear(name, process)
        self.unlink(name, process)
        self.do(WorkerAway(name))

    def unlink(self, name: str, process: Process) -> None:
        """What was ordered is carried out yet; what was said is lost."""
        while process.alive and process.orders:
            self.act(name, process)
        process.said.clear()
        process.linked = False

    @rule(pick=PICK)
    def links_up_again(self, pick: int) -> None:
        found = self.a_process(pick)
        if found is not None and not found[1].linked:
            self.relink(*found)

    @rule()
    def all_workers_link_up_again(self) -> None:
        for name, process in list(self.processes.items()):
            if process.alive and not process.linked:
                self.relink(name, process)

    def relink(self, name: str, process: Process) -> None:
        process.linked, process.said = True, []
        ended = None
        if process.ended is not None:
            ended = process.ended.model_copy(update={"ago_ns": self.now - process.ended_ns})
        known = self.machine.fleet.workers.get(name)
        for lease, held in self.leases.items():
            mine = known is not None and known.session is not None and known.session.lease is not None and known.session.lease.id == lease
            if mine and self.listens(name) and self.epoch_of(name) == process.executing:
                held.confirmed_ns = self.now
        resume = wire.ResumeWorker(
            worker=name,
            address="unix:/x",
            session=process.session,
            epoch=process.executing,
            ended=ended,
            starved=False,
            client_gone=False,
            memory_bytes=7,
            parked_bytes=None,
        )
        self.do(WorkerSaid(name, resume))

    @rule(pick=PICK, stalled=st.booleans())
    def client_loses_its_link(self, pick: int, stalled: bool) -> None:
        name = self.a_session(pick)
        if name is not None:
            self.do(SessionAway(name, stalled))

    @rule(pick=PICK, right=st.booleans())
    def client_links_up_again(self, pick: int, right: bool) -> None:
        name = self.a_session(pick)
        if name is not None:
            session = self.machine.sessions[name]
            worker = None if session.worker is None else session.worker.id
            epoch = session.epoch if right else max(0, session.epoch - 1)
            self.do(ClientSaid(name, wire.ResumeSession(session=name, key="0" * 64, worker=worker, epoch=epoch)))

    @precondition(lambda self: self.leases)
    @rule(seconds=st.sampled_from([0.1, 2.0, 5.0]))
    def the_pool_is_killed_and_another_goes_on(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        for name, process in self.processes.items():
            self.unlink(name, process)
        living = {name: one for name, one in self.processes.items() if one.alive}
        workers = tuple(WorkerSnapshot(name, tuple(d.id for d in one.devices), "", "", 1, 1) for name, one in living.items())
        for lease, held in self.leases.items():
            held.confirmed_ns = held.opened_ns + self.kept[lease].confirmed_ns
        self.pools += 1
        self.processes = living
        self.machine = StateMachine(DEVICES, FLAVORS, RESUMING, f"q{self.pools}", 0)
        self.do(Restored(Snapshot(tuple(self.sessions.values()), workers, tuple(self.kept.values()))))
        assert not set(self.leases) - {s.lease.id for s in self.machine.sessions.values() if s.lease is not None}

    def live(self, name: str, process: Process) -> None:
        if process.alive and not process.linked:
            self.relink(name, process)
        super().live(name, process)


TestBrokenHistory = BrokenHistory.TestCase
TestBrokenHistory.settings = settings(settings.get_profile("costly"), stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow])
TestPoolHistory = PoolHistory.TestCase
TestPoolHistory.settings = settings(settings.get_profile("costly"), stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow])
