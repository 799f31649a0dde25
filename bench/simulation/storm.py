"""A small pool in a bad week: seeded faults of links, workers, nodes, clocks and the database, under an auditor's eyes."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from forebay_pool.errors import InvariantBroken
from forebay_pool.machine.invariants import validate
from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.machine.workers.liveness import SILENCE_HEARTBEATS
from forebay_pool.model.events import ClientSaid, Event, FlavorSet, PricesSet, SessionDismissed, ShutDown, StoreChanged, Tick, WorkerSaid
from forebay_pool.model.instructions import Instruction
from forebay_pool.model.limits import Limits
from forebay_pool.model.prices import Tariff
from forebay_pool.model.types import Device, Equivalent, Flavor
from forebay_wire.messages import ResumeSession, ResumeWorker

from simulation.agenda import MILLISECOND_NS, SECOND_NS, Agenda
from simulation.auditor import Auditor, Caught
from simulation.books import WHOLE_MILLI
from simulation.operator import Operator
from simulation.outages import Outages
from simulation.people import Person
from simulation.workers import Timings, Worker
from simulation.world import UNIX_OFFSET_NS

GIB = 2**30
STORM_NS = 30 * SECOND_NS
"""How long things go wrong."""
CALM_NS = 45 * SECOND_NS
"""Then so long nothing does: whoever waits must be served."""
END_NS = 15 * SECOND_NS
MODELS = ("MI210", "T4")

Machine = Callable[..., StateMachine]


class StoryTold(AssertionError):
    """A seed failed; the message has the story of the objects concerned and the command that replays it."""


class Storm(Outages):
    """One seed's history. ``machine`` makes the state machine, which tests replace by broken ones.

    With ``stalls`` workers stand still now and then, beside all else.
    """

    def __init__(self, seed: int, machine: Machine = StateMachine, strict: bool = True, stalls: bool = False) -> None:
        self.seed = seed
        self.strict = strict
        """Whether the state machine's own invariants are checked too, after every event."""
        self.chance = chance = random.Random(seed)
        self._stalls = stalls
        self._whims = random.Random(-1 - seed)
        """Of stalls: so a history without them stays as it was."""
        self.roughness = chance.choice([0.0, 0.3, 1.0])
        """Share of the links' faults that strike."""
        devices = [*some_devices(chance)]
        self._flavors = flavors = some_flavors(chance, devices)
        self.flavor_names = list(flavors)
        self.tenants = ["acme", "bolt"]
        self.limits = replace(some_limits(chance), replay_seconds_max=(1.0, 4.0, 60.0)[seed % 3])
        self.devices = devices
        self._machine = machine
        self.unix_offset_ns = UNIX_OFFSET_NS
        self.served = dict(flavors)
        """The flavors as an operator set them last."""
        made = self.make_machine("p1")
        resume_ns = int(self.limits.resume_seconds * SECOND_NS)
        super().__init__(made, Agenda(), some_timings(chance), self._delay, SECOND_NS // 2, chance, resume_ns)
        replay_ns = int(self.limits.replay_seconds_max * SECOND_NS)
        self.auditor = Auditor(dict(flavors), UNIX_OFFSET_NS, int(self.limits.segment_seconds * SECOND_NS), replay_ns, self._patience_ns())
        self.operator = Operator(self, random.Random(chance.random()))
        self.watchers = [self.auditor, self.disk, self]
        self.calm = False
        self.steps = 0
        self.reached: Counter[str] = Counter()
        """How often a world that counts it came where it is to come."""
        self._nodes = sorted({device.node for device in devices})
        self._lost_nodes: set[str] = set()
        self._names = 0
        self._tariff = Tariff()

    def make_machine(self, name: str) -> StateMachine:
        return self._machine(self.devices, dict(self.served), self.limits, name, self.unix_offset_ns)

    def settings(self) -> list[Event]:
        self.auditor.unix_offset_ns, self.auditor.written_ns = self.unix_offset_ns, self.disk.written_ns
        return self.operator.quotas_set()

    def closures(self) -> list[Event]:
        return [*self.operator.closures_set(), PricesSet(self._tariff)]

    def _patience_ns(self) -> int:
        """Within so long a worker that was told to park has done it, was given up, or was killed; the pool looks at every tick."""
        hangs_seconds = SILENCE_HEARTBEATS * self.limits.heartbeat_seconds + self.limits.call_seconds_max
        return int((self.limits.park_seconds + hangs_seconds + 1.0) * SECOND_NS)

    def run(self) -> None:
        """Raises StoryTold if the pool does what it must not."""
        try:
            self._play()
        except Caught as caught:
            raise StoryTold(self._story(str(caught), *caught.ids)) from caught
        except InvariantBroken as broken:
            raise StoryTold(self._story(str(broken))) from broken
        except Exception as error:  # whatever the pool raises ends it, and everybody's work
            raise StoryTold(self._story(f"the pool raised {error!r}")) from error

    def _play(self) -> None:
        self._set_prices(1.0)
        self.tick()
        for _ in range(self.chance.randint(2, 9)):
            self.agenda.after(int(self.chance.expovariate(1) * SECOND_NS), self._arrive)
        self.agenda.after(SECOND_NS, self._strike)
        self.operator.start()
        if self._stalls:
            self.agenda.after(SECOND_NS, self._stall)
        self.agenda.run(STORM_NS)
        self._clear_up()
        self.agenda.run(STORM_NS + CALM_NS)
        self.auditor.check_served(self.auditor.guests)
        self.apply(ShutDown())
        self.agenda.run(STORM_NS + CALM_NS + END_NS)
        self.auditor.closes()

    def _story(self, what: str, *ids: str) -> str:
        again = f"PYTHONPATH=bench python -m simulation.seeds --seed {self.seed}"
        story = f"\n{self.machine.story.of(*ids)}" if ids else ""
        return f"seed {self.seed}, {self.agenda.now_ns / SECOND_NS:.3f} s: {what}{story}\nreplay it: {again}"

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None:
        self.steps += 1
        if self.strict:
            validate(self.machine, ticked=isinstance(event, Tick))

    # People come

    def _arrive(self) -> None:
        if not self.calm:
            self._names += 1
            name = f"s{self._names:03d}"
            Person(self, name, random.Random(self.chance.random())).start()

    def departed(self, person: Person) -> None:
        self.forget(person)
        self.agenda.after(int(self.chance.expovariate(1) * SECOND_NS), self._arrive)

    def dismissal(self, name: str) -> SessionDismissed:
        return SessionDismissed(name, self.chance.choice(["released", "revoked"]), "An operator ended the session.")

    def apply_soon(self, event: Event) -> None:
        self.agenda.after(MILLISECOND_NS, lambda: self.apply(event))

    def tensor_bytes(self, limit_bytes: int) -> int:
        return int(self.chance.random() * limit_bytes)

    # Links: late, slow, and heard twice

    def _delay(self) -> int:
        rough = not self.calm and self.chance.random() < 0.02 * self.roughness
        return int(self.chance.uniform(0, 4 * SECOND_NS)) if rough else self.chance.randrange(5 * MILLISECOND_NS)

    def apply(self, event: Event) -> None:
        super().apply(event)
        heard = isinstance(event, ClientSaid | WorkerSaid) and not isinstance(event.message, ResumeSession | ResumeWorker)
        repeats = heard and not self.calm and self.chance.random() < 0.03 * self.roughness
        if repeats:
            pools, again = self.pools, super().apply
            delay_ns = int(self.chance.expovariate(2) * SECOND_NS)
            self.agenda.after(delay_ns, lambda: again(event) if self.pools == pools else None)

    # Faults

    def _strike(self) -> None:
        if self.calm:
            return
        faults: list[Callable[[], None]] = [
            self._kill_worker,
            self._kill_worker,
            self._hang_worker,
            self._lose_node,
            self._jump_clock,
            self._stop_store,
            self.kill_pool,
            self._break_link,
            self._break_link,
            self._change_flavor,
            self._change_prices,
        ]
        self.chance.choice(faults)()
        self.agenda.after(int(self.chance.expovariate(0.7) * SECOND_NS), self._strike)

    def _some_worker(self) -> Worker | None:
        living = [worker for worker in self.workers.values() if worker.alive]
        return self.chance.choice(living) if living else None

    def _kill_worker(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            self.exits(worker, "killed by signal 9")

    def _hang_worker(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            worker.hung = True

    def _stall(self) -> None:
        """A worker stands still for a while, and then goes on with all that it was told."""
        if self.calm:
            return
        living = [worker for worker in self.workers.values() if worker.alive]
        if living:
            worker, ns = self._whims.choice(living), int(self._whims.uniform(0.5, 8.0) * SECOND_NS)
            worker.to_pool.hold(ns)
            self._orders[worker.name].hold(ns)
        self.agenda.after(int(self._whims.expovariate(0.7) * SECOND_NS), self._stall)

    def _break_link(self) -> None:
        worker, clients = self._some_worker(), list(self.clients.values())
        if worker is not None and self.chance.random() < 0.5:
            self.break_worker(worker)
        elif clients:
            self.break_client(self.chance.choice(clients))

    def _lose_node(self) -> None:
        node = self.chance.choice(self._nodes)
        self._lost_nodes.add(node)
        for worker in list(self.workers.values()):
            if any(device.node == node for device in worker.devices):
                self.exits(worker, "the node is lost")
        self.agenda.after(int(self.chance.uniform(1, 5) * SECOND_NS), lambda: self._lost_nodes.discard(node))

    def launch(self, name: str, devices: tuple[Device, ...]) -> None:
        super().launch(name, devices)
        lost = any(device.node in self._lost_nodes for device in devices)
        if lost or (not self.calm and self.chance.random() < 0.03):
            self.exits(self.workers[name], "it could not be started")

    def _jump_clock(self) -> None:
        self.unix_offset_ns = max(0, self.unix_offset_ns + self.chance.randint(-3600, 3600) * SECOND_NS)

    def _stop_store(self) -> None:
        """The database refuses; the pool stops opening leases once too much is unwritten, which is at once here, or never."""
        self.disk.stopped_ns = self.agenda.now_ns
        if self.chance.random() < 0.5:
            self.apply(StoreChanged(False))
        self.agenda.after(int(self.chance.uniform(0.1, 4) * SECOND_NS), self._start_store)

    def _start_store(self) -> None:
        self.disk.stopped_ns = None
        self.apply(StoreChanged(True))

    def _change_flavor(self) -> None:
        flavor = self._flavors[self.chance.choice(self.flavor_names)]
        models = self.chance.choice([MODELS, MODELS, MODELS[:1], ("H100",)])
        served = tuple(equivalent for equivalent in flavor.equivalents if equivalent.model in models)
        self._set_flavor(Flavor(flavor.name, flavor.memory_bytes, served))

    def _set_flavor(self, flavor: Flavor) -> None:
        if not self.down:
            self.served[flavor.name] = flavor
            self.apply(FlavorSet(flavor))

    def _change_prices(self) -> None:
        self._set_prices(0.8)

    def _set_prices(self, share: float) -> None:
        if not self.down:
            dollars = {name: self.chance.randrange(10**12) for name in self.flavor_names if self.chance.random() < share}
            won = {(name, "KRW"): 3 * nano for name, nano in dollars.items() if nano % 4}
            self._tariff = Tariff({(name, "USD"): nano for name, nano in dollars.items()} | won, {}, "USD", {self.tenants[-1]: "KRW"})
            self.apply(PricesSet(self._tariff))

    def _clear_up(self) -> None:
        """Faults stop: there is a pool, flavors can be served again, nothing is closed or stopped by a quota, the database writes."""
        self.calm = True
        self.start_pool()
        self._lost_nodes.clear()
        for flavor in self._flavors.values():
            self._set_flavor(flavor)
        self.operator.lets_all()
        self._start_store()

    # Ground truth: what computes on a device at a time has its shares, and what lies there its memory

    def work_begins(self, worker: Worker) -> None:
        for device in worker.devices:
            here = [other for other in self.workers.values() if device in other.devices]
            if sum(self._share(other) for other in here if other.working) > WHOLE_MILLI:
                raise Caught("more compute on one device than it has", device.id, *(other.name for other in here))
            used_bytes = sum(math.ceil(other.device_bytes / len(other.devices)) for other in here)
            if used_bytes > device.memory_bytes:
                raise Caught(f"{used_bytes} bytes are on the device", worker.name, device.id)

    def _share(self, worker: Worker) -> int:
        process = self.auditor.processes.get(worker.name)
        return 0 if process is None else process.share_milli


def some_devices(chance: random.Random) -> list[Device]:
    return [
        Device(f"node{node}/null:{index}", f"node{node}", "null", index, chance.choice(MODELS), chance.choice([1, 2, 3]) * GIB)
        for node in range(chance.randint(1, 3))
        for index in range(chance.randint(1, 2))
    ]


def some_flavors(chance: random.Random, devices: list[Device]) -> dict[str, Flavor]:
    """Two or three of whole devices, shares and gangs; each can be served here as long as nobody changes it."""
    flavors = {}
    for _ in range(chance.randint(2, 3)):
        count = chance.choice([1, 1, 1, 2]) if len(devices) > 1 else 1
        share = chance.choice([WHOLE_MILLI, WHOLE_MILLI, 500, 300]) if count == 1 else WHOLE_MILLI
        most = count * max(device.memory_bytes for device in devices) // GIB
        memory_bytes = chance.randint(1, most) * GIB * share // WHOLE_MILLI
        equivalents = tuple(
            Equivalent(model, count, share)
            for model in MODELS
            if sum(d.model == model and count * d.memory_bytes >= memory_bytes for d in devices) >= count
        )
        if equivalents:
            flavors[f"{count}x{share}.{memory_bytes // 2**20}mb"] = Flavor(
                f"{count}x{share}.{memory_bytes // 2**20}mb", memory_bytes, equivalents
            )
    return flavors or some_flavors(chance, devices)


def some_limits(chance: random.Random) -> Limits:
    return Limits(
        heartbeat_seconds=1.0,
        session_heartbeat_seconds=20.0,
        idle_release_seconds=chance.choice([0.5, 2.0]),
        worker_start_seconds=chance.choice([1.0, 5.0]),
        park_seconds=3.0,
        close_seconds=2.0,
        end_grace_seconds=2.0,
        worker_attempts_max=3,
        warm_workers=chance.randint(0, 2),
        workers_max=chance.randint(2, 12),
        sessions_max=chance.choice([3, 100]),
        queue_max=chance.choice([1, 100]),
        resume_seconds=chance.choice([0.0, 3.0]),
        call_seconds_max=3.0,
        segment_seconds=chance.choice([0.5, 2.0, 3_600.0]),
    )


def some_timings(chance: random.Random) -> Timings:
    return Timings(
        start_ns=int(chance.uniform(0.01, 0.9) * SECOND_NS),
        assign_ns=chance.randrange(20 * MILLISECOND_NS),
        exit_ns=int(chance.uniform(0, 1) * SECOND_NS),
        copy_bytes_per_second=chance.choice([GIB, 20 * GIB]),
    )


