"""The pool's state machine in virtual time, with short words for what happens to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay_pool.machine.invariants import validate
from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.elastic import NodeGroup
from forebay_pool.model.events import ClientSaid, Event, SessionJoined, Tick, WorkerGone, WorkerSaid
from forebay_pool.model.instructions import Instruction, Kill, Launch, Meter, TellClient, TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.types import Device, Equivalent, Flavor, UsageRecord
from forebay_wire import messages as wire

GIB = 2**30
MS = 1_000_000
SECOND = 1_000_000_000
UNIX_OFFSET_NS = 1_700_000_000 * SECOND


def limits(**changes: Any) -> Limits:
    values: dict[str, Any] = {
        "heartbeat_seconds": 1.0,
        "session_heartbeat_seconds": 20.0,
        "idle_release_seconds": 2.0,
        "worker_start_seconds": 60.0,
        "park_seconds": 30.0,
        "close_seconds": 10.0,
        "end_grace_seconds": 5.0,
        "resume_seconds": 0.0,
        "worker_attempts_max": 3,
        "warm_workers": 0,
        "workers_max": 64,
        "sessions_max": 100,
        "queue_max": 100,
    }
    return Limits(**(values | changes))


def devices(count: int = 1, gib: int = 8, model: str = "cpu-dev") -> list[Device]:
    kind: Any = "cpu" if model == "cpu-dev" else "null"
    return [Device(f"main/{kind}:{index}", "main", kind, index, model, gib * GIB) for index in range(count)]


def flavor(name: str, gib: int, *models: str) -> Flavor:
    return Flavor(name, gib * GIB, tuple(Equivalent(model, 1) for model in models or ("cpu-dev",)))


class World:
    """The machine, what it said, and short words for what happens to it. Invariants are checked after every event."""

    def __init__(
        self, seats: list[Device] | None = None, flavors: list[Flavor] | None = None, groups: Sequence[NodeGroup] = (), **changes: Any
    ) -> None:
        known = flavors or [flavor("dev.1gb", 1), flavor("dev.4gb", 4), flavor("dev.8gb", 8), flavor("huge", 64)]
        self.limits = limits(**changes)
        there = devices() if seats is None else seats
        self.machine = StateMachine(there, {f.name: f for f in known}, self.limits, "p", UNIX_OFFSET_NS, groups=groups)
        self.now = SECOND
        self.served: dict[str, tuple[wire.Runtime, ...]] = {}
        """What hosts serve, by their names; others serve all."""
        self.out: list[Instruction] = []
        self.fresh: list[Instruction] = []

    def do(self, event: Event) -> list[Instruction]:
        self.fresh = self.machine.handle(event, self.now)
        self.out += self.fresh
        validate(self.machine, ticked=isinstance(event, Tick))
        return self.fresh

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def tick(self) -> None:
        self.do(Tick(UNIX_OFFSET_NS))

    # What was said

    def told(self, session: str) -> list[Any]:
        """All that the session's client was told."""
        return [i.message for i in self.out if isinstance(i, TellClient) and i.session == session]

    def last(self, session: str) -> Any:
        return self.told(session)[-1]

    def ordered(self, worker: str) -> list[Any]:
        """All that the worker was told."""
        return [i.message for i in self.out if isinstance(i, TellWorker) and i.worker == worker]

    @property
    def launched(self) -> list[str]:
        return [i.worker for i in self.out if isinstance(i, Launch)]

    @property
    def killed(self) -> list[str]:
        return [i.worker for i in self.out if isinstance(i, Kill)]

    @property
    def records(self) -> list[UsageRecord]:
        return [i.record for i in self.out if isinstance(i, Meter)]

    # What happens

    def join(self, session: str, flavor: str = "dev.1gb", user: str = "ada", tenant: str = "acme") -> None:
        self.do(SessionJoined(session, session.encode().ljust(32, b"s"), tenant, user, "python train.py", flavor))

    def join_ranks(self, *sessions: str, flavor: str = "dev.1gb", group: str = "a", size: int | None = None, **whose: str) -> None:
        """The sessions are one torchrun's processes, in the order of their ranks."""
        user, tenant = whose.get("user", "ada"), whose.get("tenant", "acme")
        for rank, name in enumerate(sessions):
            member = wire.GroupMember(id=group * 64, rank=rank, size=size or len(sessions))
            self.do(SessionJoined(name, name.encode().ljust(32, b"s"), tenant, user, "python train.py", flavor, group=member))

    def client(self, session: str, message: wire.FromClient) -> None:
        self.do(ClientSaid(session, message))

    def worker(self, worker: str, message: wire.FromWorker) -> None:
        self.do(WorkerSaid(worker, message))

    def acquire(self, session: str, number: int = 1, span: str | None = None, runtime: Any = None) -> None:
        work = wire.Span(id=span or f"{session}-{number}", kind="cell", label="n.ipynb", cell=1)
        self.client(session, wire.Acquire(request=number, span=work, runtime=runtime))

    def worker_of(self, session: str) -> str:
        worker = self.machine.sessions[session].worker
        assert worker is not None
        return worker.id

    def epoch(self, session: str) -> int:
        return self.machine.sessions[session].epoch

    def ready(self, worker: str) -> None:
        device = self.machine.fleet.workers[worker].device
        model = wire.DeviceModel(kind=device.kind, model=device.model)
        served = self.served.get(device.node)
        self.worker(worker, wire.Ready(worker=worker, address=f"unix:/{worker}", torch="2", device=model, pid=1, runtimes=served))

    def settle(self) -> None:
        """Every worker does what it was told, until there is nothing left to do."""
        done = getattr(self, "_done", 0)
        while done < len(self.out):
            instruction = self.out[done]
            done += 1
            self._done = done
            if isinstance(instruction, Launch) and instruction.worker in self.machine.fleet.workers:
                self.ready(instruction.worker)
            elif isinstance(instruction, Kill):
                self.do(WorkerGone(instruction.worker, "killed"))
            elif isinstance(instruction, TellWorker):
                self._obey(instruction.worker, instruction.message)

    def _obey(self, worker: str, message: wire.ToWorker) -> None:
        match message:
            case wire.Assign():
                session = self.machine.sessions.get(message.session)
                door = "unix:/door" if session is not None and session.client.runs_process else None
                self.worker(worker, wire.Assigned(session=message.session, door=door))
            case wire.Park():
                self.worker(worker, wire.Parked(bytes=self.machine.fleet.workers[worker].memory_bytes))
            case wire.Restore():
                self.worker(worker, wire.Restored())
            case wire.Close():
                self.worker(worker, wire.Closed(epoch=message.epoch))
            case wire.End():
                self.do(WorkerGone(worker, "exited with status 0"))

    def lease(self, session: str, number: int = 1, flavor: str = "dev.1gb") -> str:
        """The session, new or not, gets a lease; its worker."""
        if session not in self.machine.sessions:
            self.join(session, flavor)
        self.acquire(session, number)
        self.settle()
        assert self.machine.sessions[session].lease is not None, self.told(session)
        return self.worker_of(session)

    def drain(self, session: str, energy_mj: int | None = None) -> None:
        self.worker(self.worker_of(session), wire.Drained(epoch=self.epoch(session), energy_mj=energy_mj))
