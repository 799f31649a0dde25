"""Leases: opened, given back, closed, and metered."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.errors import InvariantBroken
from forebay_pool.machine.base.messages import granted, open_message
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.model.instructions import Attest, Keep, Meter, Show, TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.metering import cost_nano, passed_ns, rate, segments, whole_record
from forebay_pool.model.types import (
    GOES_ON,
    WHOLE_MILLI,
    CloseReason,
    Lease,
    Place,
    Request,
    SegmentEnd,
    Session,
    Worker,
)
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.lease_lengths import LeaseLengths
from forebay_pool.queue.accounts import Accounts
from forebay_pool.queue.preemptible import Preemptible

REPLAY_TIMES_MAX = 2
"""A replay that takes so many times as long as what may be done again is metered from then on."""


class Leases:
    """Opens leases, closes them, and meters them. The caller of ``close`` settles the seats that the lease leaves."""

    def __init__(self, step: Step, worklist: Worklist, limits: Limits, fleet: Fleet, accounts: Accounts, lengths: LeaseLengths) -> None:
        self._step = step
        self._worklist = worklist
        self._limits = limits
        self._fleet = fleet
        self._accounts = accounts
        self._lengths = lengths
        self.by_id: dict[str, Lease] = {}
        """All and only the leases that are open or closing; each is its session's ``lease``."""
        self.revocable = Preemptible()
        """All and only the open leases that nobody takes back: a higher priority may. Mutually exclusive with ``revoked``."""
        self.revoked: dict[str, Lease] = {}
        """All and only the leases of ``by_id`` that somebody takes back (``Lease.revoked_for``)."""

    def take_place(self, place: Place, session: Session, memory_bytes: int) -> None:
        """The session holds the place from now on."""
        self._fleet.take(place, session, memory_bytes)
        for account in self._accounts.both(session):
            account.hold(len(place.devices) * place.share_milli, self._step.now_ns)

    def leave_place(self, place: Place, session: Session) -> None:
        """The session holds the place no more; accounts with a bench may have room again."""
        self._fleet.leave(place, session)
        for account in self._accounts.both(session):
            account.hold(-len(place.devices) * place.share_milli, self._step.now_ns)
            if account.benched:
                self._worklist.accounts[account] = None

    def show_seats(self, place: Place) -> None:
        self._step.out += map(Show, self._fleet.seats_of(place))

    def send_granted(self, lease: Lease) -> None:
        session, worker = lease.session, lease.session.worker
        if worker is None:
            raise InvariantBroken(f"lease {lease.id} is open without a worker\n{self._step.story.of(session.id)}")
        self._step.send(session.id, granted(lease, worker))

    def add(self, lease: Lease) -> None:
        """Lists a lease that is open from now on, until ``close`` removes it."""
        self.by_id[lease.id] = lease
        self.revocable.add(lease)
        self._fleet.ends.open(lease.session, lease.flavor.name, lease.opened_ns)
        for account in self._accounts.both(lease.session):
            account.leases[lease.id] = lease

    def open(self, request: Request, place: Place) -> None:
        """Opens the lease. Its clock starts here."""
        session, worker, seats = request.session, request.session.worker, self._fleet.seats_of(place)
        held = all([session in seat.holders for seat in seats])
        if not held or session.lease is not None or worker is None or worker.devices != place.devices:
            name = place.devices[0].id
            raise InvariantBroken(f"{name} cannot be leased to session {session.id}\n{self._step.story.of(session.id, name)}")
        flavor, tariff = self._fleet.flavors[session.flavor], self._fleet.tariff
        session.epoch += 1
        session.request, session.span = None, request.span
        worker.parked_bytes, worker.opened, worker.starved, worker.stays = None, True, False, False
        session.avoid, session.due = (), False
        self._fleet.reserve(worker, seats[0].holders[session].memory_bytes)
        session.lease = lease = Lease(
            id=f"{session.id}.{session.epoch}",
            session=session,
            epoch=session.epoch,
            number=request.number,
            span=request.span,
            flavor=flavor,
            place=place,
            price=rate(tariff.price_of(flavor.name, session.tenant), tariff.surcharges, place),
            waited_ns=self._step.now_ns - request.arrived_ns,
            priority=request.priority,
            order=request.order,
            attempts=request.attempts,
            replays=request.session.replay.due or request.session.client.runs_process,
            opened_ns=self._step.now_ns,
            opened_unix_ns=self._step.unix_ns,
            confirmed_ns=self._step.now_ns,
        )
        self.add(lease)
        self._fleet.found_dead(seats[0], 0)
        self._step.out.append(TellWorker(worker.id, open_message(lease.epoch, flavor.memory_bytes)))
        self.send_granted(lease)
        self._step.out += (Attest(lease, False), Keep(lease))
        self._step.save(session)
        self._step.out.append(Show(lease))
        self.show_seats(place)
        self._step.touch(session)

    def give_back(self, lease: Lease, reason: CloseReason = "released") -> None:
        """Has the worker stop at the next command boundary. The lease closes once it has."""
        if lease.state == "open" and lease.session.worker is not None:
            lease.state, lease.ending = "closing", reason
            self.revocable.discard(lease)
            lease.session.worker.deadline_ns = self._step.now_ns + int(self._limits.close_seconds * SECOND)
            self._step.out += (TellWorker(lease.session.worker.id, wire.Close(epoch=lease.epoch)), Show(lease))

    def close(self, lease: Lease, reason: CloseReason, until_ns: int) -> None:
        """Ends the lease's clock, meters it, and leaves the seat; whoever calls this settles the seat.

        Of a lease that fails nothing more is metered, however long it was held: our failures are free.
        """
        session, seats = lease.session, self._fleet.seats_of(lease.place)
        held = all([session in seat.holders for seat in seats])
        if session.lease is not lease or not held or lease.state == "closed":
            raise InvariantBroken(f"lease {lease.id} cannot close\n{self._step.story.of(session.id, lease.device.id)}")
        held_ns = lease.metered_ns if reason == "failed" or lease.replays else until_ns - lease.opened_ns
        image = session.replay.image
        session.replay.worked_ns += 0 if lease.replays else max(0, until_ns - max(lease.opened_ns, 0 if image is None else image.at_ns))
        lease.duration_ns = min(max(lease.metered_ns, held_ns), self._step.now_ns - lease.opened_ns)
        lease.state, lease.ending = "closed", reason
        session.lease, session.used_ns = None, self._step.now_ns
        if session.worker is not None:
            session.worker.deadline_ns = None
        cost = cost_nano(lease.duration_ns, lease.price)
        closed = wire.LeaseClosed(lease=lease.id, epoch=lease.epoch, reason=reason, duration_ns=lease.duration_ns, cost_nano=cost)
        self._meter(lease, lease.duration_ns, reason)
        session.closed = closed
        self._step.out.append(Attest(lease, True))
        self._step.send(session.id, closed)
        self.leave_place(lease.place, session)
        if reason != "failed":
            self._lengths.add(lease.flavor.name, lease.duration_ns)
        del self.by_id[lease.id]
        self.revocable.discard(lease)
        self.revoked.pop(lease.id, None)
        for account in self._accounts.both(session):
            del account.leases[lease.id]
        self._step.out += (Show(lease), *map(Show, seats))

    def _meter(self, lease: Lease, held_ns: int, reason: SegmentEnd) -> None:
        """Meters the first ``held_ns`` of the lease, without the part that was metered before."""
        whole = whole_record(lease, held_ns, reason, None if reason == "failed" else self._drawn_mj(lease))
        records = segments(whole, lease.segment, lease.metered_ns, int(self._limits.segment_seconds * SECOND))
        self._step.out += map(Meter, records)
        lease.segment, lease.metered_ns = lease.segment + len(records), max(held_ns, lease.metered_ns)

    def _drawn_mj(self, lease: Lease) -> int | None:
        """The lease's share of the energy that was not metered yet. Energy that is reported late counts for the next lease."""
        worker = lease.session.worker
        if worker is None or worker.energy_mj is None or worker.metered_mj is None:
            return None
        drawn_mj, worker.metered_mj = max(0, worker.energy_mj - worker.metered_mj), worker.energy_mj
        return drawn_mj * lease.place.share_milli // WHOLE_MILLI

    def note_energy(self, worker: Worker, energy_mj: int | None) -> None:
        """The energy that the worker's devices have drawn so far. A pool before this one metered what its workers drew until now."""
        worker.energy_mj = energy_mj
        if worker.metered_mj is None:
            worker.metered_mj = energy_mj

    def start_clock(self, lease: Lease) -> None:
        """What a dead worker had done is done again, or a process has its files and starts: from here on the lease is metered."""
        lease.replays = False
        if lease.session.replay.loss is not None:
            lease.session.replay.loss.undone = False
        lease.opened_ns = lease.confirmed_ns = self._step.now_ns
        lease.opened_unix_ns = self._step.unix_ns
        self._step.save(lease.session)
        self._step.out += (Keep(lease), Show(lease))

    def end_long_replays(self) -> None:
        """Meters leases from now on in which something has been done again, or files have come, for too long."""
        for lease in self.by_id.values():
            if lease.replays and self._step.now_ns - lease.opened_ns > int(REPLAY_TIMES_MAX * self._limits.replay_seconds_max * SECOND):
                self.start_clock(lease)

    def meter_passed(self) -> None:
        """Meters the segments of open leases that are over for certain: no lease can end before a moment that it was confirmed long after.

        A lease that its worker finds idle ended when the idle stretch began. Whoever was confirmed beyond that stretch was not idle; one
        more heartbeat allows for a worker that finds it late, and for the way that its words take.
        """
        settled_ns = int((self._limits.idle_release_seconds + self._limits.heartbeat_seconds) * SECOND)
        segment_ns = int(self._limits.segment_seconds * SECOND)
        for lease in self.by_id.values():
            if lease.replays:
                continue
            sure_ns = lease.confirmed_ns - lease.opened_ns - settled_ns
            until_ns = passed_ns(lease.opened_unix_ns, lease.metered_ns, sure_ns, segment_ns)
            if until_ns > lease.metered_ns:
                self._meter(lease, until_ns, GOES_ON)
