"""The auditor: a slow, obvious account of the pool that sees only events and instructions, and trusts nobody.

It keeps its own books of sessions, workers, leases, memory and money, and raises :class:`Caught` as soon as the state machine's word
and its own differ. It knows no attribute of the state machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from forebay_pool.model.events import (
    BudgetSet,
    ClientSaid,
    Event,
    FlavorSet,
    PricesSet,
    QuotaSet,
    Restored,
    SessionAway,
    SessionDismissed,
    SessionJoined,
    SessionLeft,
    SessionReplays,
    ShutDown,
    Tick,
    WorkerAway,
    WorkerGone,
    WorkerSaid,
    WorkerUnlinked,
)
from forebay_pool.model.instructions import Confirm, Instruction, Keep, Kill, Launch, Meter, MeterParked, Note, TellClient, TellWorker
from forebay_pool.model.node_events import DeviceSet, NodeDrain
from forebay_pool.model.prices import Tariff
from forebay_pool.model.snapshot import SessionSnapshot, Snapshot
from forebay_pool.model.types import Device, Flavor, Lease, Price, UsageRecord
from forebay_wire import messages as wire

from simulation.books import WHOLE_MILLI, Clock, ClosureBook, Guest, Held, LossBook, Process, QuotaBook, Use, cost, share_of
from simulation.stays import Stay, StayBook


class Caught(Exception):
    """The pool did what it must not; ``ids`` are the objects concerned."""

    def __init__(self, what: str, *ids: str) -> None:
        super().__init__(f"{what} ({', '.join(ids)})")
        self.ids = ids


@dataclass(eq=False)
class Auditor:
    """Call :meth:`saw` for every event, in order, and :meth:`closes` when everything has ended."""

    flavors: dict[str, Flavor]
    unix_offset_ns: int
    hour_ns: int
    """How often open leases are metered, from full hours on."""
    replay_limit_ns: int
    """What took longer is not done again."""
    patience_ns: int
    """Within so long a worker that was told to park has done it, or was killed."""
    quotas: QuotaBook = field(default_factory=QuotaBook)
    closures: ClosureBook = field(default_factory=ClosureBook)
    guests: dict[str, Guest] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    leases: dict[str, Held] = field(default_factory=dict)
    granted: set[str] = field(default_factory=set)
    segments: set[str] = field(default_factory=set)
    ended: dict[str, Held] = field(default_factory=dict)
    """Leases that are metered; the pool may die before that is written."""
    moved: dict[str, str] = field(default_factory=dict)
    """Sessions that left a worker of which this pool knows, each with the last of them: their clients may still be there."""
    buried: dict[str, Process] = field(default_factory=dict)
    """Workers whose processes are gone; the pool may die before that is written."""
    tariff: Tariff = field(default_factory=Tariff)
    now_ns: int = 0
    written_ns: int = 0
    """What happened until then was written when the pool died last."""
    failed: set[str] = field(default_factory=set)
    """Workers that died in this step."""
    adopted: set[str] = field(default_factory=set)
    """Those that came back in this step, each to a session that no pool wrote to be at it."""
    parked: StayBook = field(init=False)
    losses: LossBook = field(init=False)

    def __post_init__(self) -> None:
        self.losses = LossBook(self.replay_limit_ns, self._demand)
        self.parked = StayBook(self.hour_ns, self._demand)

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None:
        """One step: what happened, then what the pool makes of it, then what must hold."""
        self.now_ns = now_ns
        self.failed.clear()
        self.adopted.clear()
        self._happens(event)
        for instruction in instructions:
            if isinstance(instruction, Kill):
                self._demand(instruction.worker not in self.adopted, "a worker is killed for a session that is its own", instruction.worker)
                self._killed(instruction.worker)
        for instruction in instructions:
            self._ordered(event, instruction, instructions)
        self._check_answer(event, instructions)
        self._follow_parked(event)
        self.losses.checked(now_ns)
        self._check_leases(event)
        self._check_devices()
        if isinstance(event, Tick):
            self._check_drains()

    # What happens

    def _happens(self, event: Event) -> None:
        match event:
            case SessionJoined():
                self.guests[event.session] = Guest(event.tenant, event.user, event.process, event.flavor)
            case SessionReplays():
                self.losses.keeps(event.session)
            case ClientSaid() if event.session in self.guests:
                self._client_said(event.session, self.guests[event.session], event.message)
            case SessionLeft() | SessionDismissed():
                self.guests.pop(event.session, None)
                self.losses.forget(event.session)
            case SessionAway() if event.session in self.guests:
                self.guests[event.session].asks = None
            case WorkerSaid() if event.worker in self.processes:
                self._worker_said(self.processes[event.worker], event.message)
            case WorkerAway() if event.worker in self.processes:
                self.processes[event.worker].away = True
            case Restored():
                self._pool_died(event.kept)
            case QuotaSet():
                self.quotas.set_quota(event, self.now_ns)
            case BudgetSet():
                self.quotas.set_budget(event)
            case NodeDrain():
                self.closures.set_drain(event, self.now_ns)
            case DeviceSet():
                self.closures.set_device(event)
            case WorkerUnlinked() if event.worker in self.processes:
                self._falls_silent(self.processes[event.worker])
            case WorkerGone() if event.worker in self.processes:
                process = self.buried[event.worker] = self.processes.pop(event.worker)
                self._falls_silent(process)
                process.executes, process.memory_bytes = None, 0
            case FlavorSet():
                self.flavors[event.flavor.name] = event.flavor
            case PricesSet():
                self.tariff = event.tariff
            case Tick():
                self.unix_offset_ns = event.unix_offset_ns
            case ShutDown():
                self.guests.clear()

    def _client_said(self, session: str, guest: Guest, message: wire.FromClient) -> None:
        match message:
            case wire.Acquire():
                guest.asks = message.request
            case wire.ResumeSession() if message.worker is None:
                guest.first = None  # it never heard of it
            case wire.ResumeSession():
                guest.first = guest.first if guest.first == message.worker else None
                self._adopted(guest, message.worker)
                if message.worker not in (guest.home, self.moved.get(session), self.losses.of(session).dead):
                    del self.guests[session]
            case wire.Arrived() if self.losses.arrives(session, message.epoch):
                self._end_replay(session)
            case wire.Cancel() if guest.asks == message.request:
                guest.asks = None

    def _end_replay(self, session: str) -> None:
        """From here on its lease is billed."""
        for lease in self.leases.values():
            if lease.session == session and lease.replays:
                lease.starts_clock(Clock(self.now_ns, self.now_ns + self.unix_offset_ns, replays=False))

    def _takes_too_long(self, lease: Held) -> bool:
        return lease.replays and self.losses.takes_too_long(lease.opened_ns, self.now_ns)

    def _worker_said(self, process: Process, message: wire.FromWorker) -> None:
        """What a worker stopped, it has stopped, even if nobody listens any more."""
        match message:
            case wire.Ready() if process.session is None:  # else it is heard twice, and means nothing
                process.away = False
            case wire.Drained() | wire.Idle() | wire.Closed() if message.epoch == process.executes:
                process.executes = None
            case wire.Restored():
                process.restoring = False
            case wire.Parked() if process.parking:
                process.parking, process.memory_bytes, process.parked_bytes = False, 0, message.bytes
            case wire.Left() if process.heard and process.carries:
                self._carried(process, message.bytes)
            case wire.Left() if process.heard:
                self.moved[process.session or ""] = process.name
                self.losses.moves(process.session or "")
                process.executes, process.memory_bytes, process.parked_bytes, process.left = None, 0, message.bytes, True
            case wire.Assigned() if process.heard:
                self._took_over(process, message.session)
            case wire.Heartbeat() if process.heard:
                for lease in self.leases.values():
                    if lease.worker is process and lease.epoch == message.epoch:
                        lease.clock.confirmed_ns = self.now_ns
            case wire.ClientGone() if process.heard and process.session is not None and not process.left:
                self.guests.pop(process.session, None)
            case wire.ResumeWorker():
                self._is_back(process, message)

    def _carried(self, process: Process, count_bytes: int) -> None:
        """It has what another kept, unless the session went elsewhere meanwhile."""
        guest = self.guests.get(process.session or "")
        home = None if guest is None else self.processes.get(guest.home or "")
        if guest is not None and home is not None and home.left and home is not process:
            process.opened, process.left, process.parked_bytes = True, True, count_bytes
            home.left = home.fetches = False
            home.parked_bytes, guest.home = 0, process.name

    def _adopted(self, guest: Guest, worker: str | None) -> None:
        """The session, or its first worker, says what no pool wrote, and what the auditor saw."""
        process = self.processes.get(worker or "")
        if worker == guest.first and process is not None and process.heard:
            guest.home, guest.first, guest.forgotten = worker, None, False
            self.adopted.add(process.name)
        guest.fresh = guest.fresh and worker != guest.home

    def _took_over(self, process: Process, session: str) -> None:
        """The worker has what the session had at another, if it had anything."""
        others = (other for other in self.processes.values() if other is not process and other.session == session)
        process.opened = process.opened or any(other.left for other in others)
        if session in self.guests:
            self.guests[session].home = process.name

    def _is_back(self, process: Process, message: wire.ResumeWorker) -> None:
        """The worker tells anew how it stands: what it was told while it had no link, it never heard."""
        process.away, process.executes, process.parking, process.restoring = False, message.epoch, False, False
        if message.session is None:
            process.session = None  # it never heard of the one that it was given
        if message.parked_bytes is not None:
            process.memory_bytes, process.parked_bytes = 0, message.parked_bytes
        elif message.epoch is None and message.ended is None and not message.memory_bytes:
            process.memory_bytes = 0  # nor of its lease: it has no tensors
        if message.left is not None:
            process.memory_bytes, process.parked_bytes, process.left = 0, message.left.bytes, True
            self.losses.moves(process.session or "")
            if message.assigned or process.session not in self.moved:  # else it carried the tensors, and no client was ever at it
                self.moved[process.session or ""] = process.name
        guest = self.guests.get(message.session or "")
        if guest is not None and (message.epoch is not None or message.ended is not None):
            self._adopted(guest, process.name)
        if guest is not None and process.heard and process.session == message.session:
            if message.assigned and process.fetches:
                self._took_over(process, message.session or "")
        if guest is not None and process.heard and guest.home == process.name:  # another one the pool does not take back
            guest.epoch = max(guest.epoch, message.epoch or 0, 0 if message.ended is None else message.ended.epoch)
            if message.client_gone and message.left is None:
                del self.guests[message.session or ""]
        for lease in self.leases.values():
            if lease.worker is process and lease.epoch == message.epoch and process.heard:
                lease.clock.confirmed_ns = self.now_ns

    def _pool_died(self, kept: Snapshot) -> None:
        """Another pool knows what was written. What was metered and not written is open again; what was granted and not written is free."""
        self.quotas.pool_died(self.now_ns)
        self.moved = {session.id: session.left for session in kept.sessions if session.left}
        written = {lease.id: lease for lease in kept.leases}
        epochs = {session.id: session.epoch for session in kept.sessions}
        for name, lease in list(self.ended.items()):
            if name in written:
                self.leases[name] = lease
                self.quotas.revives(name)
                del self.ended[name]
            elif lease.session in epochs and lease.epoch > epochs[lease.session]:
                self._was_free(name)
                self._forget_pieces(lease, 0)
                del self.ended[name]
        for name, lease in list(self.leases.items()):
            if name not in written:
                self._was_free(name)
                self._forget_pieces(lease, 0)
                del self.leases[name]
            else:
                self._forget_pieces(lease, written[name].segment - 1)
                self._demand(lease.metered_ns == written[name].metered_ns, "a lease goes on from where it was not metered to", name)
                lease.goes_back_to(self.written_ns)
                began = (lease.opened_ns, lease.opened_unix_ns) == (written[name].opened_ns, written[name].opened_unix_ns)
                self._demand(began, "a lease goes on that began at another time", name)
                confirmed_ns = lease.opened_ns + written[name].confirmed_ns
                self._demand(confirmed_ns <= lease.clock.confirmed_ns, "a lease was not confirmed for as long as is written", name)
                lease.clock.confirmed_ns = confirmed_ns
        self._keep_known(kept)
        self.losses.pool_died(kept, self.written_ns)
        homes = {name: guest.home for name, guest in self.guests.items()}
        self.parked.pool_died(kept, homes)

    def _forget_pieces(self, lease: Held, kept: int) -> None:
        """All but so many of its segments were not written when the pool died."""
        self._demand(kept <= len(lease.pieces), f"{kept} segments are written, and {len(lease.pieces)} were metered", lease.name)
        self.segments -= {f"{lease.name}/{number}" for number in range(kept + 1, len(lease.pieces) + 1)}
        del lease.pieces[kept:]

    def _was_free(self, name: str) -> None:
        self.granted.discard(name)
        self.quotas.forgets(name)

    def _keep_known(self, kept: Snapshot) -> None:
        """What the pool that died had not written happened for nobody: who ended then lives on, until the next one learns of it."""
        known = {worker.id for worker in kept.workers}
        self.processes |= {name: self.buried[name] for name in known & set(self.buried)}
        for process in self.processes.values():
            process.away, process.heard, process.fetches = True, True, False
        for name in set(self.processes) - known:
            self._falls_silent(self.processes.pop(name))
        opened = {process.name for process in self.processes.values() if process.opened}
        truly = {name: guest.home for name, guest in self.guests.items() if guest.home in opened}
        self.guests = {
            session.id: self._remembered(session, known, truly.get(session.id), self._opened_for(session.id))
            for session in kept.sessions
            if session.worker in known or not session.opened
        }
        homes = {guest.home for guest in self.guests.values()}
        for process in self.processes.values():  # from one of which the next pool does not know, nobody fetches anything
            process.left = process.left and process.name in homes

    @staticmethod
    def _remembered(session: SessionSnapshot, known: set[str], truly: str | None, at: str | None) -> Guest:
        """A session as the next pool knows it; its tensors are truly at that worker, if it has any."""
        home = session.worker if session.worker in known else None
        forgotten, first = truly not in (None, home), at if home is None else None
        who = (session.tenant, session.user, session.process)
        fresh = not session.opened
        return Guest(*who, session.flavor, True, session.epoch, home=home, forgotten=forgotten, fresh=fresh, first=first)

    def _falls_silent(self, process: Process) -> None:
        """A worker that ever held a lease takes its session with it, unless the one before it still has the tensors, or the pool does not
        know of a lease; one that never did makes way for the one that truly was the first."""
        if process.heard:
            process.heard = False
            self.failed.add(process.name)
            guest = self.guests.get(process.session or "")
            if guest is None or guest.home != process.name:
                return
            if process.opened and guest.fresh:
                guest.home = None
            elif process.opened and not self._goes_back(process):
                self._loses_worker(process.session or "", process)
            elif not process.opened and guest.forgotten:
                guest.home, guest.first = None, self._opened_for(process.session)

    def _loses_worker(self, session: str, worker: Process) -> None:
        guest = self.guests[session]
        replays = any(lease.replays for lease in self.leases.values() if lease.session == session)
        if self.losses.loses_worker(session, worker.name, guest.epoch, replays, worker.told_to_close == guest.epoch):
            asks = any(lease.session == session for lease in self.leases.values())  # then another worker is found at once
            guest.home, guest.first = None, None if asks else self._opened_for(session)
        else:
            del self.guests[session]

    def _opened_for(self, session: str | None) -> str | None:
        """The worker that held a lease for the session last, and did not let it go; else the one that keeps what it let go."""
        newest = [one for one in reversed(self.processes.values()) if one.session == session and one.opened]
        return next((one.name for one in (*(one for one in newest if not one.left), *newest)), None)

    def _goes_back(self, process: Process) -> bool:
        """Whether the session that was fetched to this worker still is where it was before."""
        guest = self.guests.get(process.session or "")
        others = (other for other in self.processes.values() if other is not process and other.session == process.session)
        before = next((other for other in others if other.left and other.heard), None)
        if guest is not None and guest.home == process.name and before is not None:
            guest.home = before.name
        return before is not None

    # What the pool does

    def _ordered(self, event: Event, instruction: Instruction, all_of_them: list[Instruction]) -> None:
        match instruction:
            case Launch():
                self._demand_open(instruction.devices, "a worker is launched", instruction.worker)
                self._demand(instruction.worker not in self.processes, "a worker is launched twice", instruction.worker)
                self.processes[instruction.worker] = Process(instruction.worker, instruction.devices)
            case TellWorker():
                self._told_worker(instruction)
            case TellClient():
                self._told_client(event, instruction)
            case Meter():
                self._metered(event, instruction.record, all_of_them)
            case MeterParked():
                self.parked.metered(instruction.record, self.now_ns, self._away())
            case Note(action="worker_silent" | "worker_heard_again") if instruction.fields["worker"] in self.processes:
                self.processes[str(instruction.fields["worker"])].away = instruction.action == "worker_silent"
            case Keep(Lease() as kept) if kept.id in self.leases and self._takes_too_long(self.leases[kept.id]):
                self.losses.of(kept.session.id).undone = False
                self._end_replay(kept.session.id)
            case Confirm():
                for lease in instruction.leases:
                    held = self.leases.get(lease.id)
                    confirmed = held is not None and lease.confirmed_ns == held.clock.confirmed_ns
                    self._demand(confirmed, "a lease is said to be confirmed, and is not", lease.id)

    def _killed(self, name: str) -> None:
        process = self.processes.get(name)
        if process is None:
            raise Caught("a worker that is not there is killed", name)
        self._falls_silent(process)

    def _told_worker(self, told: TellWorker) -> None:
        process = self.processes.get(told.worker)
        if process is None:
            raise Caught(f"{told.message.type} is sent to a worker that is gone", told.worker)
        message = told.message
        if isinstance(message, wire.End) and not process.heard:
            return  # it had no link when it was told first
        self._demand(process.heard, f"{message.type} is sent to a worker that was given up", process.name)
        match message:
            case wire.Assign():
                self._demand_open(process.devices, "a worker is assigned", process.name, message.session)
                mine = process.session in (None, message.session)
                self._demand(mine, "a worker is given a second session", process.name, message.session)
                self._demand(message.session in self.guests, "a worker is given a dead session", process.name, message.session)
                process.session, process.ticket, process.fetches = message.session, message.ticket, message.source is not None
                if message.source is None:
                    self.guests[message.session].home = process.name
            case wire.Carry():
                alive = process.session in (None, message.session) and message.session in self.guests
                self._demand(alive, "a worker carries a dead session, or a second one", process.name, message.session)
                process.session, process.carries = message.session, True
            case wire.Open():
                self._opened(process, message)
            case wire.Restore():
                process.memory_bytes, process.restoring = max(process.memory_bytes, process.parked_bytes), True
            case wire.Close():
                process.told_to_close = message.epoch
            case wire.Park():
                self._demand(process.executes is None, "a worker is parked while it may execute", process.name)
                process.parking, process.told_to_park_ns = True, self.now_ns
            case wire.End():
                process.heard = False
                if process.away:
                    self.parked.let_go(process.name)
                self._goes_back(process)

    def _opened(self, process: Process, message: wire.Open) -> None:
        session = process.session or ""
        self._demand_open(process.devices, "a worker is opened", process.name, session)
        self._demand(process.executes is None, "a worker is opened while it may execute", process.name, session)
        self._demand(not process.parking, "a worker is opened while it parks", process.name, session)
        guest = self.guests.get(session)
        if guest is None:
            raise Caught("a worker is opened without a live session", process.name, session)
        process.executes, process.opened, process.restoring, guest.fresh = message.epoch, True, False, False
        guest.way = process.devices[0].model, len(process.devices)
        flavor = self.flavors[guest.flavor]
        process.share_milli = share_of(flavor, process.devices)
        process.memory_bytes = max(process.memory_bytes, message.memory_limit_bytes, process.parked_bytes)
        process.parked_bytes = 0
        self._demand(process.share_milli > 0, f"{flavor.name} is not served by these devices", process.name, session)
        self._demand(message.memory_limit_bytes == flavor.memory_bytes, "a lease has another limit than its flavor", process.name, session)

    def _told_client(self, event: Event, told: TellClient) -> None:
        match told.message:
            case wire.Granted():
                self._grant(told.session, told.message)
            case wire.SessionOpened() if told.session in self.guests:
                self.guests[told.session].welcome = True
                self.guests[told.session].flavor = told.message.flavor.name
                self._check_price(told.session, told.message.flavor)
            case wire.Refused() if told.session in self.guests:
                self._refused(told.session, told.message)
            case wire.WorkerLost():
                self.losses.goes_on(told.session, back_at(event))
            case wire.SessionLost():
                guest = self.guests.pop(told.session, None)
                unserved = guest is not None and self._is_unserved(guest) and is_said("replay_unserved", told.message.cause)
                excused = guest is None or guest.forgotten or unserved or self.losses.may_be_lost(told.session)
                self._demand(excused, "a session is lost without a cause", told.session)
                self.losses.forget(told.session)

    def _is_unserved(self, guest: Guest) -> bool:
        """Whether its flavor is served otherwise by now than by what it computed on, so that nothing does its work again alike."""
        return guest.way not in {(way.model, way.count) for way in self.flavors[guest.flavor].equivalents}

    def _refused(self, session: str, refused: wire.Refused) -> None:
        guest = self.guests[session]
        if not guest.welcome:
            del self.guests[session]
        elif refused.request == guest.asks:
            guest.asks = None

    def _grant(self, session: str, granted: wire.Granted) -> None:
        guest, process = self.guests.get(session), self.processes.get(granted.worker)
        if guest is None or process is None or not process.heard:
            raise Caught(f"lease {granted.lease} is granted to a dead session, or on a dead worker", session, granted.worker)
        guest.asks = None if guest.asks == granted.request or granted.request == 0 else guest.asks
        self._demand(process.session == session and granted.ticket == process.ticket, "a lease is granted on another's worker", session)
        if granted.lease in self.leases:
            return
        self._demand(granted.lease not in self.granted, f"lease {granted.lease} is granted again after its end", session)
        self._demand(granted.epoch == guest.epoch + 1 == process.executes, "a lease's epoch does not follow the last one's", session)
        use = Use(guest.tenant, guest.user, guest.notebook, process.share_milli * len(process.devices), self.now_ns)
        exceeded = self.quotas.exceeded_by(use)
        self._demand(exceeded is None, f"lease {granted.lease} exceeds a quota: {exceeded}", session, process.name)
        self.quotas.opens(granted.lease, use)
        self.granted.add(granted.lease)
        guest.epoch = granted.epoch
        price = self._check_price(session, granted.flavor)
        clock = Clock(self.now_ns, self.now_ns + self.unix_offset_ns, self.losses.of(session).undone)
        self.leases[granted.lease] = Held(granted.lease, session, process, granted.epoch, price, clock)

    def _check_price(self, session: str, told: wire.Flavor) -> Price | None:
        """What an hour costs the session's tenant: there are no surcharges here."""
        guest, tariff = self.guests[session], self.tariff
        currency = tariff.currencies.get(guest.tenant) or tariff.currency
        price = None if currency is None else Price(tariff.prices.get((told.name, currency)), currency)
        wanted = (None, None) if price is None else (price.nano_per_hour, price.currency)
        self._demand((told.price_nano_per_hour, told.currency) == wanted, "a tenant is told a price that is not its own", session)
        return price

    def _metered(self, event: Event, record: UsageRecord, all_of_them: list[Instruction]) -> None:
        """Segments follow one another from the grant on, and end at full hours and at the lease's end, so that they sum to its time."""
        lease = self.leases.get(record.lease)
        if lease is None or record.id in self.segments:
            raise Caught(f"segment {record.id} is metered, but its lease is not open", record.session)
        self.segments.add(record.id)
        ids = (lease.session, lease.worker.name, lease.worker.devices[0].id)
        self._demand(record.session == lease.session, "a lease is metered to another session", *ids, record.session)
        self._demand(record.id == f"{lease.name}/{len(lease.pieces) + 1}", f"segment {record.id} is not the next one", *ids)
        start_unix_ns = lease.opened_unix_ns + lease.metered_ns
        self._demand(record.started_at_unix_ns == start_unix_ns, "a segment does not start where the one before ended", *ids)
        end_unix_ns = start_unix_ns + record.duration_ns
        lease.pieces.append(record.duration_ns)
        next_hour_unix_ns = (start_unix_ns // self.hour_ns + 1) * self.hour_ns
        self._demand(end_unix_ns <= next_hour_unix_ns, "a segment goes beyond its hour", *ids)
        self._demand(not (lease.replays and record.duration_ns), "what is done again is billed", *ids)
        if record.close_reason == "failed":
            self._demand(record.duration_ns == 0, "of a lease that failed more is billed than was before", *ids)
            self._demand(self._may_fail(event, lease), "a lease fails without a cause", *ids)
        free = record.close_reason == "failed" or lease.replays
        until_ns = lease.opened_ns + lease.metered_ns if free else self._end_of(event, lease)
        held_ns = max(0, until_ns - lease.opened_ns)
        self._demand(lease.metered_ns <= held_ns, f"{lease.metered_ns} ns are metered, and {held_ns} ns were held", *ids)
        if record.close_reason == "open":
            self._demand(end_unix_ns == next_hour_unix_ns, "a segment of an open lease ends before its hour", *ids)
            return
        del self.leases[lease.name]
        self.ended[lease.name] = lease
        if not lease.replays:
            failed_ns = max(0, lease.clock.confirmed_ns - lease.opened_ns)
            lasted = (failed_ns, self.now_ns - lease.opened_ns) if record.close_reason == "failed" else (held_ns, held_ns)
            self.losses.worked(lease.session, *lasted)
        self.quotas.closes(lease.name, self.now_ns)
        self._demand(lease.metered_ns == held_ns, f"{lease.metered_ns} ns are metered, and {held_ns} ns were held", *ids)
        closed = next((i.message for i in all_of_them if isinstance(i, TellClient) and isinstance(i.message, wire.LeaseClosed)), None)
        if closed is not None and closed.lease == lease.name:
            self._demand(closed.duration_ns == held_ns, "the client is told another duration than is metered", *ids)
            self._demand(closed.cost_nano == cost(held_ns, lease.price), "the client is told a wrong cost", *ids)

    def _may_fail(self, event: Event, lease: Held) -> bool:
        """Whether its worker died, is away, or came back without it."""
        came_back = isinstance(event, WorkerSaid) and isinstance(event.message, wire.ResumeWorker)
        return lease.worker.name in self.failed or lease.worker.away or came_back or isinstance(event, ClientSaid)

    def _end_of(self, event: Event, lease: Held) -> int:
        """Until when the lease is to be billed, by what happened."""
        if lease.worker.name in self.failed or lease.worker.away:
            return lease.clock.confirmed_ns
        if isinstance(event, WorkerSaid) and event.worker == lease.worker.name:
            message = event.message
            if isinstance(message, wire.Idle):
                return self.now_ns - message.idle_ns
            if isinstance(message, wire.ResumeWorker) and message.epoch != lease.epoch:
                ended = message.ended
                known = ended is not None and ended.epoch == lease.epoch
                return self.now_ns - ended.ago_ns - ended.idle_ns if ended is not None and known else lease.clock.confirmed_ns
        return self.now_ns

    # Parked time

    def _away(self) -> set[str]:
        return {process.name for process in self.processes.values() if process.away}

    def _follow_parked(self, event: Event) -> None:
        """Whoever is parked now, and was not, is from now on; whoever was, and is not, was metered to the end."""
        fetching = (process for process in self.processes.values() if process.fetches and process.heard and not process.left)
        fetched = {process.session: process.name for process in fetching if process.session is not None}
        now: dict[str, Stay] = {}
        for name, guest in self.guests.items():
            holder = self.processes.get(guest.home or "")
            if holder is not None and holder.heard and holder.session == name and self._keeps(holder, name in fetched):
                now[name] = Stay(name, holder.name, holder.parked_bytes, self.now_ns, self.now_ns + self.unix_offset_ns)
        back = isinstance(event, WorkerSaid) and isinstance(event.message, wire.ResumeWorker)
        excused = self.failed | ({event.worker} if isinstance(event, WorkerSaid) and back else set())
        if isinstance(event, ClientSaid) and isinstance(event.message, wire.ResumeSession):
            excused |= {stay.holder for name, stay in self.parked.stays.items() if name == event.session}  # it does not fit to its worker
        self.parked.forget({name: guest.home for name, guest in self.guests.items()}, fetched, self._away())
        self.parked.follow(now, self._away(), excused, self.now_ns)

    @staticmethod
    def _keeps(holder: Process, fetched: bool) -> bool:
        """Whether the worker has all of its session off its device, and nobody takes it over."""
        off = holder.parked_bytes > 0 and holder.memory_bytes == 0 and holder.executes is None
        return off and not (holder.left and fetched)

    # What must hold

    def _check_answer(self, event: Event, instructions: list[Instruction]) -> None:
        if isinstance(event, ClientSaid) and isinstance(event.message, wire.Acquire):
            answers = [i for i in instructions if isinstance(i, TellClient) and i.session == event.session]
            answered = any(isinstance(i.message, wire.Queued | wire.Granted | wire.Refused) for i in answers)
            self._demand(answered, f"request {event.message.request} is not answered", event.session)

    def _check_leases(self, event: Event) -> None:
        for lease in self.leases.values():
            billed = not (isinstance(event, Tick) and self._takes_too_long(lease))
            self._demand(billed, f"lease {lease.name} is free for too long", lease.session)
            self._demand(lease.session in self.guests, f"lease {lease.name} is open without a live session", lease.session)
            self._demand(lease.worker.heard, f"lease {lease.name} is open on a dead worker", lease.session, lease.worker.name)

    def _check_devices(self) -> None:
        here: dict[Device, list[Process]] = {}
        for process in self.processes.values():
            for device in process.devices:
                here.setdefault(device, []).append(process)
        for device, processes in here.items():
            milli = sum(process.share_milli for process in processes if process.executes is not None)
            used_bytes = sum(math.ceil(process.memory_bytes / len(process.devices)) for process in processes)
            if milli > WHOLE_MILLI:
                raise Caught(f"{device.id} is leased to {milli} thousandths", device.id, *names(processes))
            if used_bytes > device.memory_bytes:
                raise Caught(f"{used_bytes} bytes are set aside on {device.id}", device.id, *names(processes))

    def _check_drains(self) -> None:
        """Where the grace of a drain is over leases were taken back, and what computed no more has left its device."""
        for lease in self.leases.values():
            due = self.closures.is_due(lease.worker.devices, self.now_ns)
            taken_back = lease.worker.told_to_close == lease.epoch or not lease.worker.heard
            self._demand(not due or taken_back, f"lease {lease.name} stays on a drained node", lease.session, lease.worker.name)
        for process in self.processes.values():
            drains = any(device.node in self.closures.drains for device in process.devices)
            busy = process.executes is not None or process.restoring or process.away
            if drains and process.heard and process.memory_bytes and not busy:
                leaves = process.parking and self.now_ns <= process.told_to_park_ns + self.patience_ns
                self._demand(leaves, "tensors rest on a drained node", process.name, process.session or "")

    def check_served(self, sessions: Iterable[str]) -> None:
        """For a calm moment: nobody waits any more."""
        for name in sessions:
            guest = self.guests.get(name)
            self._demand(guest is None or guest.asks is None, f"request {guest and guest.asks} is never granted", name)

    def closes(self) -> None:
        """After the pool's end: every lease metered once, every worker ended."""
        for lease in self.leases.values():
            raise Caught(f"lease {lease.name} was never metered", lease.session)
        for stay in self.parked.stays.values():
            raise Caught(f"parked time {stay.name} was never metered to its end", stay.session)
        for process in self.processes.values():
            raise Caught("a worker never ended", process.name)
        self._demand(len(self.ended) == len(self.granted), f"{len(self.granted)} leases, {len(self.ended)} metered to their ends")

    def _demand_open(self, devices: tuple[Device, ...], what: str, *ids: str) -> None:
        closed = self.closures.closed_of(devices)
        self._demand(closed is None, f"{what} on {closed}, which is closed", *ids)

    def _demand(self, holds: bool, what: str, *ids: str) -> None:
        if not holds:
            raise Caught(what, *ids)


def names(processes: Iterable[Process]) -> list[str]:
    """Of workers, and of the sessions they serve."""
    return [name for process in processes for name in (process.name, process.session) if name is not None]


def is_said(code: str, cause: wire.Cause | None) -> bool:
    """Whether it is the cause, or a part of it."""
    return cause is not None and (cause.code == code or any(is_said(code, part) for part in cause.parts))


def back_at(event: Event) -> str | None:
    """The worker that a client says it is at which has just come back."""
    match event:
        case ClientSaid(message=wire.ResumeSession() as message):
            return message.worker
    return None
