"""Goes on where another pool stopped."""

from __future__ import annotations

from dataclasses import replace

from forebay_wire import messages as wire

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.sessions.absence import GATHER_SECONDS, Absence
from forebay_pool.machine.workers.failing import Failing
from forebay_pool.machine.workers.replays import Replays
from forebay_pool.model.events import Restored
from forebay_pool.model.history import Spent
from forebay_pool.model.instructions import Forget, Kill, Meter, Show
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.snapshot import LeaseSnapshot, ParkingSnapshot, ReplaySnapshot, SessionSnapshot, Snapshot, WorkerSnapshot
from forebay_pool.model.types import GOES_ON, Device, Lease, Parking, Place, Replay, Session, Worker
from forebay_pool.placement.fleet import Fleet
from forebay_pool.queue.accounts import Accounts


class Restoring:
    """Builds the records that a pool before this one wrote."""

    def __init__(
        self,
        step: Step,
        admission: Admission,
        limits: Limits,
        sessions: dict[str, Session],
        fleet: Fleet,
        accounts: Accounts,
        leases: Leases,
        parked: ParkedSessions,
        granting: Granting,
        failing: Failing,
        absence: Absence,
        replays: Replays,
    ) -> None:
        self._step = step
        self._admission = admission
        self._limits = limits
        self._sessions = sessions
        self._fleet = fleet
        self._accounts = accounts
        self._leases = leases
        self._parked = parked
        self._granting = granting
        self._failing = failing
        self._absence = absence
        self._replays = replays

    def restored(self, event: Restored) -> None:
        snapshot = event.kept
        self._begin_with(snapshot)
        for worker in snapshot.workers:
            self._restore_worker(worker)
        for session in snapshot.sessions:
            self._restore_session(session, snapshot)
        for lease in sorted(snapshot.leases, key=lambda lease: -lease.opened_ns):
            self._restore_lease(lease)
        for parking in snapshot.parkings:
            self._restore_parking(parking)
        for restored in self._sessions.values():
            self._step.touch(restored)
            if restored.waited is not None:
                self._admission.awaited[restored.id] = restored
        self._admission.awaited_until_ns = self._step.now_ns + int(min(GATHER_SECONDS, self._limits.resume_seconds) * SECOND)
        self._step.note("restored", sessions=len(self._sessions), workers=len(self._fleet.workers), leases=len(snapshot.leases))

    def _begin_with(self, snapshot: Snapshot) -> None:
        """Restores usage and the order of arrival as the pool before knew them."""
        held = [
            Spent(
                one.tenant, one.user, one.opened_ns + one.metered_ns, self._held_until_ns(one, snapshot), len(one.devices) * one.share_milli
            )
            for one in snapshot.leases
        ]
        self._accounts.begin_with(snapshot.history, held, self._step.now_ns)
        orders = [session.waits.order for session in snapshot.sessions if session.waits is not None]
        self._granting.orders = max(orders, default=self._granting.orders)

    def _held_until_ns(self, lease: LeaseSnapshot, snapshot: Snapshot) -> int:
        """Until now if the lease goes on, else until it was last confirmed."""
        lives = any(session.id == lease.session for session in snapshot.sessions) and bool(self._devices(lease.devices))
        return self._step.now_ns if lives else lease.opened_ns + lease.confirmed_ns

    def _restore_worker(self, saved: WorkerSnapshot) -> None:
        devices = self._devices(saved.devices)
        if devices:
            now_ns = self._step.now_ns
            worker = Worker(saved.id, devices, started_ns=now_ns, seen_ns=now_ns, away_ns=now_ns, metered_mj=None)
            self._fleet.add(worker)
            self._fleet.doubt(worker, True)
        else:
            self._step.out.append(Kill(saved.id))

    def _devices(self, names: tuple[str, ...]) -> tuple[Device, ...]:
        """The devices of these names; none unless all of them are there."""
        seats = [self._fleet.seats[name] for name in names if name in self._fleet.seats]
        return tuple(seat.device for seat in seats) if len(seats) == len(names) else ()

    def _restore_session(self, saved: SessionSnapshot, snapshot: Snapshot) -> None:
        session = Session(
            id=saved.id,
            secret=saved.secret,
            tenant=saved.tenant,
            user=saved.user,
            process=saved.process,
            flavor=saved.flavor,
            priority=saved.priority,
            waited=saved.waits,
            since_unix_ns=saved.since_unix_ns,
            epoch=saved.epoch,
            left=saved.left,
            span=saved.span,
            used_ns=self._step.now_ns,
            away_ns=self._step.now_ns,
        )
        if saved.replay is not None:
            session.replay = self._restored(saved.replay)
            self._replays.add(session)
        worker = self._fleet.workers.get(saved.worker or "")
        if saved.flavor not in self._fleet.flavors or (worker is None and saved.opened):
            if worker is not None:
                self._failing.fail(worker, f"its session's flavor {saved.flavor} is gone")
            self._step.note("session_lost", session=saved.id, tenant=saved.tenant, cause="its worker or its flavor is gone")
            session.state = "lost"
            self._step.save(session)
            return
        record = snapshot.closed.get(saved.id)
        if record is not None and record.close_reason != GOES_ON:
            reason, duration_ns = record.close_reason, record.duration_ns
            session.closed = wire.LeaseClosed(lease=record.lease, epoch=saved.epoch, reason=reason, duration_ns=duration_ns)
        self._sessions[session.id] = self._absence.away[session.id] = session
        if worker is not None:
            worker.state = "warm"
            self._fleet.give(worker, session)
            worker.state, worker.opened = "bound", saved.opened
            worker.parked_bytes = saved.parked_bytes
            self._fleet.reserve(worker, saved.reserved_bytes)

    def _restored(self, saved: ReplaySnapshot) -> Replay:
        """With the time of its image by the clock of this host."""
        image = saved.image
        if image is not None:
            image = replace(image, at_ns=self._step.now_ns - max(0, self._step.unix_ns - image.at_unix_ns))
        nodes = set() if image is None or image.node is None else {image.node}
        return Replay(saved.possible, saved.loss and replace(saved.loss), saved.worked_ns, image, nodes=nodes)

    def _restore_lease(self, saved: LeaseSnapshot) -> None:
        session, flavor = self._sessions.get(saved.session), self._fleet.flavors.get(saved.flavor)
        worker = None if session is None else session.worker
        place = Place(self._devices(saved.devices), saved.share_milli)
        # A later lease may hold the place: then the end of this one was lost.
        taken = any(seat.free_milli < place.share_milli for seat in self._fleet.seats_of(place))
        if session is None or flavor is None or worker is None or worker.devices != place.devices or taken:
            self._step.out += (Meter(record) for record in saved.failed(int(self._limits.segment_seconds * SECOND)))
            return
        self._leases.take_place(place, session, worker.reserved_bytes)
        self._granting.orders += 1
        session.lease = lease = Lease(
            id=saved.id,
            session=session,
            epoch=saved.epoch,
            number=saved.number,
            span=saved.span,
            flavor=flavor,
            place=place,
            price=saved.price,
            waited_ns=saved.waited_ns,
            opened_ns=saved.opened_ns,
            opened_unix_ns=saved.opened_unix_ns,
            confirmed_ns=saved.opened_ns + saved.confirmed_ns,
            segment=saved.segment,
            metered_ns=saved.metered_ns,
            order=self._granting.orders,
            replays=session.replay.due,
        )
        self._leases.add(lease)
        self._step.out.append(Show(lease))
        self._leases.show_seats(place)

    def _restore_parking(self, saved: ParkingSnapshot) -> None:
        """The stretch goes on if the session is still where it was, or still has its image. Otherwise nobody knows when it ended, and what
        was not metered is free."""
        session = self._sessions.get(saved.session)
        image = None if session is None or not saved.image else session.replay.image
        holder = None if session is None else session.worker if saved.image else session.parked_at
        there = image is not None if saved.image else holder is not None
        if session is None or not there or saved.bytes != (holder and holder.parked_bytes if image is None else image.bytes):
            self._step.out.append(Forget(saved.id))
            return
        self._parked.add(
            Parking(
                id=saved.id,
                session=session,
                holder=holder,
                bytes=saved.bytes,
                span=saved.span,
                opened_ns=saved.opened_ns,
                opened_unix_ns=saved.opened_unix_ns,
                segment=saved.segment,
                metered_ns=saved.metered_ns,
                image=image,
            )
        )
