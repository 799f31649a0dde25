"""Going on after a broken link, and where another pool stopped: who is away, who comes back, and who is given up.

A worker keeps its session's tensors, and computes on, while it has no link. So its lease goes on if it says, when it is back, that it
held it all the time; else the lease ended when the worker says, or at the last confirmed moment.
"""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.messages import assignment, is_ticket
from forebay_pool.machine.sessions import Sessions
from forebay_pool.machine.workers import excuse
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import Restored, SessionAway, SessionGrouped, WorkerAway
from forebay_pool.model.history import Spent
from forebay_pool.model.instructions import Confirm, Forget, Kill, Meter, Show, TellWorker
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.snapshot import LeaseSnapshot, ParkingSnapshot, SessionSnapshot, Snapshot, WorkerSnapshot
from forebay_pool.model.types import GOES_ON, Device, Lease, Parking, Place, QueuePlace, Session, Worker

CONFIRM_SECONDS = 2.0
"""How often it is written until when leases are confirmed: what a crash may cost us, at most, of a lease that ends with it."""

GATHER_SECONDS = 2.0
"""How long a pool that starts waits for those who stood in the queue, before it gives to others what they were to get."""


class Resuming(Sessions):
    """Waits for those who are away."""

    _away: dict[str, Session]
    """Sessions whose clients are waited for; those that ended meanwhile are still here."""
    _confirmed_ns: int = 0
    """When confirmations were written last."""

    # Away

    def _session_away(self, event: SessionAway) -> None:
        session = self.sessions.get(event.session)
        if session is None:
            return
        if not self.limits.resume_seconds:
            self._end(session, "released", None)
            return
        session.away_ns, session.stalled = self._now, event.stalled
        self._away[session.id] = session
        request = session.request
        if request is not None and (request.number or event.stalled):
            session.waited = QueuePlace(request.number, request.arrived_unix_ns, request.order)
            self._drop_request(session, None)
        if not event.stalled or session.worker is None:
            return
        if session.lease is not None:
            self._give_back(session.lease)
        elif session.worker.opened:
            self._park(session.worker)

    def _worker_away(self, event: WorkerAway) -> None:
        worker = self.fleet.workers.get(event.worker)
        if worker is None or worker.state == "ending":
            return
        if self.limits.resume_seconds:
            worker.away_ns = self._now
        else:
            self._fail(worker, "its link to the pool ended")

    def _give_up_absent(self) -> None:
        """Ends the sessions whose clients did not come back in time."""
        until_ns = self._now - int(self.limits.resume_seconds * SECOND)
        for session in list(self._away.values()):
            if session.away_ns is None or self.sessions.get(session.id) is not session:
                del self._away[session.id]
            elif session.away_ns < until_ns:
                self._note("session_absent", session=session.id, tenant=session.tenant)
                self._end(session, "released", None)

    def _excuse(self, missed_ns: int) -> None:
        """The pool stood still: whoever is waited for has so much longer."""
        for worker in self.fleet.workers.values():
            excuse(worker, missed_ns, self._now)
        for session in self._away.values():
            if session.away_ns is not None:
                session.away_ns = min(self._now, session.away_ns + missed_ns)
        for group in self._groups.values():
            if group.until_ns is not None:
                group.until_ns += missed_ns
        for lease in self._revoked.values():
            lease.revoke_ns += missed_ns
        self._awaited_until_ns += missed_ns
        self._note("pool_stood_still", seconds=f"{missed_ns / SECOND:.1f}")

    def _gather(self) -> None:
        """Lets leases open: the sessions that waited have asked again, or have had time to."""
        for session in list(self._awaited.values()):
            if self.sessions.get(session.id) is not session or self._now >= self._awaited_until_ns:
                del self._awaited[session.id]
                self._look_anew = True

    def _write_confirmations(self) -> None:
        if self._now - self._confirmed_ns < int(CONFIRM_SECONDS * SECOND):
            return
        since_ns, self._confirmed_ns = self._confirmed_ns, self._now
        self._meter_passed()
        self._meter_parked()
        held = (session.lease for session in self.sessions.values())
        news = tuple(lease for lease in held if lease is not None and lease.confirmed_ns > max(since_ns, lease.opened_ns))
        if news:
            self._out.append(Confirm(news))

    # A client is back

    def _session_grouped(self, event: SessionGrouped) -> None:
        session = self.sessions.get(event.session)
        if session is None or session.group is not None or session.request is not None:
            return
        group = self._join_group(session, event.group)
        if group is not None:
            group.gathered = True

    def _resume_session(self, session: Session, message: wire.ResumeSession) -> None:
        self._adopt(self.fleet.workers.get(message.worker or ""), session, message.ticket)
        worker, lease = session.worker, session.lease
        session.away_ns, session.stalled = None, False
        at = {holder.id for holder in (worker, session.image) if holder is not None} | {session.left}
        if message.worker is not None and message.worker not in at:
            self._end(session, "failed", Cause("worker_unknown", worker=message.worker))
            return
        if worker is not None and worker.id == message.worker and not worker.opened:
            self._resume_opened(worker, session)
        session.span = session.span or message.span
        self._tell_flavor(session)
        if message.epoch is not None and (lease is None or lease.epoch != message.epoch):
            self._tell(session.id, _closed(session, message.epoch))
        if lease is not None and lease.state == "open" and lease.epoch != message.epoch:
            self._tell_granted(lease)
        if worker is not None and worker.starved:
            self._starve(session)
        if worker is not None and worker.leave_by_ns is not None:
            self._tell(session.id, wire.Leave())

    def _adopt(self, worker: Worker | None, session: Session | None, shown: str | None) -> None:
        """A pool that died before that was written gave the session its first worker. Whoever of both is back first shows the ticket,
        which only a pool can make. A client that came back without a worker had not heard of it, and has nothing there."""
        if worker is None or session is None or not is_ticket(shown, session, worker):
            return
        free = worker.unsure and worker.state == "starting" and worker.keeps is None
        alone = session.worker is None and session.image is None and session.request is None
        if free and alone and session.away_ns is not None:
            worker.state = "warm"
            self.fleet.give(worker, session)
            worker.state = "bound"
            self._note("session_adopted", session=session.id, tenant=session.tenant, worker=worker.id)

    # A worker is back

    def _resume_worker(self, worker: Worker, message: wire.ResumeWorker) -> None:
        if message.epoch is not None or message.ended is not None:  # else it holds nothing yet
            self._adopt(worker, self.sessions.get(message.session or ""), message.ticket)
        session, own = worker.session, worker.session or worker.keeps or worker.carries
        limit_bytes = (message.memory_limit_bytes or 0) if worker.unsure else 0
        worker.away_ns, worker.address, worker.memory_bytes = None, message.address, message.memory_bytes
        strange = message.session is not None and (own is None or own.id != message.session)
        self.fleet.doubt(worker, strange)
        if own is not None:
            self._show(own)  # what it keeps off its device is metered from now on at the latest
        if strange:  # nothing opens there before it has ended: what it holds was never written
            self._fail(worker, "it came back with a session that is not its own")
        elif worker.carries is not None:
            self._resume_carrier(worker, worker.carries, message)
            self._show_and_settle(worker)
        elif session is None or message.session is None:
            self._resume_spare(worker)
            self._show_and_settle(worker)
        else:
            self._resume_bound(worker, session, message, limit_bytes)
            self._show_and_settle(worker)
        for device in worker.devices:
            seat = self.fleet.seats[device.id]
            if not seat.is_open:
                self._close_seat(seat)

    def _resume_bound(self, worker: Worker, session: Session, message: wire.ResumeWorker, limit_bytes: int) -> None:
        """It serves its session, and says what became of that meanwhile; a pool before let it hold so much, as far as that is not known."""
        if message.epoch is not None or message.ended is not None:
            if not worker.opened:
                self._resume_opened(worker, session)
            if limit_bytes and worker.parked_bytes is None:
                self._reserve_again(worker, session, max(message.memory_bytes, limit_bytes))
        if worker.state == "assigning" and message.assigned:
            worker.state, worker.deadline_ns = "bound", None
            self._taken_over(worker, session)
        session.epoch = max(session.epoch, message.epoch or 0, message.ended.epoch if message.ended is not None else 0)
        self._resume_lease(worker, session, message)
        self._close_unknown(worker)
        self._resume_parking(worker, session, message)
        if message.left is not None:
            self._left(worker, message.left)
        elif message.client_gone:
            self._end(session, "released", Cause("connection_ended"))
        elif message.starved:
            self._starve(session)

    def _resume_opened(self, worker: Worker, session: Session) -> None:
        """It had a lease, as it says or its client that went there, by a pool that died before that was written."""
        worker.opened = True
        self._touch(session)
        self._keep(session)

    def _resume_carrier(self, worker: Worker, session: Session, message: wire.ResumeWorker) -> None:
        """It fetches tensors, or has them, or did not hear that it should."""
        if message.session is None:
            self._carry(worker, session)
        elif message.left is not None:
            self._carried(worker, session, message.left)

    def _resume_spare(self, worker: Worker) -> None:
        """It serves nobody as far as it knows: it is ready, or did not hear of its session, or has lost it."""
        session = worker.session
        if worker.state == "starting":
            worker.state, worker.deadline_ns = "warm", None
        elif session is not None and not worker.opened and all(self.fleet.seats[device.id].is_open for device in worker.devices):
            worker.state, worker.deadline_ns = "assigning", self._now + int(self.limits.worker_start_seconds * SECOND)
            assign = assignment(session, worker, self.fleet.flavors[session.flavor], self.limits)
            self._out.append(TellWorker(worker.id, assign))
        elif session is not None and worker.opened:
            self._fail(worker, "it came back without its session")

    def _resume_lease(self, worker: Worker, session: Session, message: wire.ResumeWorker) -> None:
        lease, ended = session.lease, message.ended
        known = None if lease is None else lease.epoch
        worker.unknown_epoch = None if message.epoch == known else message.epoch
        if worker.unknown_epoch is not None:
            self.fleet.doubt(worker, True)
        if lease is None:
            pass
        elif message.epoch == lease.epoch:
            lease.confirmed_ns = self._now
            if lease.state == "closing":
                worker.deadline_ns = self._now + int(self.limits.close_seconds * SECOND)
                self._out.append(TellWorker(worker.id, wire.Close(epoch=lease.epoch)))
        elif ended is not None and ended.epoch == lease.epoch:
            self._close_for_worker(worker, lease.epoch, ended.reason, ended.idle_ns + ended.ago_ns)
        else:
            self._close_for_worker(worker, lease.epoch, "failed", self._now - lease.confirmed_ns)

    def _close_unknown(self, worker: Worker) -> None:
        """Granted by a pool that died before it was written: it is free, and over. Nothing opens there before the worker says so."""
        if worker.unknown_epoch is not None:
            worker.deadline_ns = self._now + int(self.limits.close_seconds * SECOND)
            self._out.append(TellWorker(worker.id, wire.Close(epoch=worker.unknown_epoch)))

    def _resume_parking(self, worker: Worker, session: Session, message: wire.ResumeWorker) -> None:
        kept_bytes = message.parked_bytes if message.left is None else message.left.bytes
        if session.parking is not None and session.parking.bytes != kept_bytes:
            self._drop_parking(session)
        if message.parked_bytes is not None and session.lease is None:
            self._note_parked(worker, message.parked_bytes)
        elif worker.parking:
            worker.parking = False
            self._park(worker)
        elif worker.restoring:
            worker.restoring, worker.deadline_ns = False, None
        elif worker.parked_bytes is not None:  # brought back for a lease, by a pool that died before it was written
            memory_bytes, worker.parked_bytes = max(worker.parked_bytes, message.memory_bytes, message.memory_limit_bytes or 0), None
            self._reserve_again(worker, session, memory_bytes)

    def _reserve_again(self, worker: Worker, session: Session, memory_bytes: int) -> None:
        """Sets aside what a pool that died before it was written had given the session there, be its flavor another one by now."""
        if worker.reserved_bytes < memory_bytes:
            self.fleet.reserve(worker, memory_bytes)
            self._touch(session)
            self._keep(session)

    # Where another pool stopped

    def _restored(self, event: Restored) -> None:
        kept = event.kept
        self._begin_with(kept)
        for worker in kept.workers:
            self._restore_worker(worker)
        for session in kept.sessions:
            self._restore_session(session, kept)
        for lease in sorted(kept.leases, key=lambda lease: -lease.opened_ns):
            self._restore_lease(lease)
        for parking in kept.parkings:
            self._restore_parking(parking)
        for restored in self.sessions.values():
            self._touch(restored)
            if restored.waited is not None:
                self._awaited[restored.id] = restored
        self._awaited_until_ns = self._now + int(min(GATHER_SECONDS, self.limits.resume_seconds) * SECOND)
        self._note("restored", sessions=len(self.sessions), workers=len(self.fleet.workers), leases=len(kept.leases))

    def _begin_with(self, kept: Snapshot) -> None:
        """What the tenants used, and who came after whom: as the pool before knew it."""
        held = [
            Spent(one.tenant, one.user, one.opened_ns + one.metered_ns, self._held_until_ns(one, kept), len(one.devices) * one.share_milli)
            for one in kept.leases
        ]
        self.accounts.begin_with(kept.history, held, self._now)
        self._orders = max((session.waits.order for session in kept.sessions if session.waits is not None), default=self._orders)

    def _held_until_ns(self, lease: LeaseSnapshot, kept: Snapshot) -> int:
        """Up to now if it goes on, else to where it is known to have been held."""
        lives = any(session.id == lease.session for session in kept.sessions) and bool(self._devices(lease.devices))
        return self._now if lives else lease.opened_ns + lease.confirmed_ns

    def _restore_worker(self, kept: WorkerSnapshot) -> None:
        devices = self._devices(kept.devices)
        if devices:
            worker = Worker(kept.id, devices, started_ns=self._now, seen_ns=self._now, away_ns=self._now, metered_mj=None)
            self.fleet.add(worker)
            self.fleet.doubt(worker, True)
        else:
            self._out.append(Kill(kept.id))

    def _devices(self, names: tuple[str, ...]) -> tuple[Device, ...]:
        """Those of these names; none unless all are there still."""
        seats = [self.fleet.seats[name] for name in names if name in self.fleet.seats]
        return tuple(seat.device for seat in seats) if len(seats) == len(names) else ()

    def _restore_session(self, kept: SessionSnapshot, all_kept: Snapshot) -> None:
        session = Session(
            id=kept.id,
            secret=kept.secret,
            tenant=kept.tenant,
            user=kept.user,
            process=kept.process,
            flavor=kept.flavor,
            priority=kept.priority,
            waited=kept.waits,
            since_ns=self._now,
            since_unix_ns=kept.since_unix_ns,
            epoch=kept.epoch,
            left=kept.left,
            span=kept.span,
            used_ns=self._now,
            away_ns=self._now,
        )
        worker = self.fleet.workers.get(kept.worker or "")
        if kept.flavor not in self.fleet.flavors or (worker is None and kept.opened):
            if worker is not None:
                self._fail(worker, f"its session's flavor {kept.flavor} is gone")
            self._note("session_lost", session=kept.id, tenant=kept.tenant, cause="its worker or its flavor is gone")
            session.state = "lost"
            self._keep(session)
            return
        record = all_kept.closed.get(kept.id)
        if record is not None and record.close_reason != GOES_ON:
            reason, duration_ns = record.close_reason, record.duration_ns
            session.closed = wire.LeaseClosed(lease=record.lease, epoch=kept.epoch, reason=reason, duration_ns=duration_ns)
        self.sessions[session.id] = self._away[session.id] = session
        if worker is not None:
            worker.state = "warm"
            self.fleet.give(worker, session)
            worker.state, worker.opened = "bound", kept.opened
            worker.parked_bytes = kept.parked_bytes
            self.fleet.reserve(worker, kept.reserved_bytes)

    def _restore_lease(self, kept: LeaseSnapshot) -> None:
        session, flavor = self.sessions.get(kept.session), self.fleet.flavors.get(kept.flavor)
        worker = None if session is None else session.worker
        place = Place(self._devices(kept.devices), kept.share_milli)
        taken = any(seat.free_milli < place.share_milli for seat in self.fleet.seats_of(place))  # by a later lease: this one's end was lost
        if session is None or flavor is None or worker is None or worker.devices != place.devices or taken:
            self._out += (Meter(record) for record in kept.failed(int(self.limits.segment_seconds * SECOND)))
            return
        self._take_place(place, session, worker.reserved_bytes)
        self._orders += 1
        session.lease = lease = Lease(
            id=kept.id,
            session=session,
            epoch=kept.epoch,
            number=kept.number,
            span=kept.span,
            flavor=flavor,
            place=place,
            price=kept.price,
            waited_ns=kept.waited_ns,
            opened_ns=kept.opened_ns,
            opened_unix_ns=kept.opened_unix_ns,
            confirmed_ns=kept.opened_ns + kept.confirmed_ns,
            segment=kept.segment,
            metered_ns=kept.metered_ns,
            order=self._orders,
        )
        self._list_lease(lease)
        self._out.append(Show(lease))
        self._show_seats(place)


    def _restore_parking(self, kept: ParkingSnapshot) -> None:
        """It goes on if the session is still where it was; else nobody knows when it ended, and what was not metered is free."""
        session = self.sessions.get(kept.session)
        holder = None if session is None else session.parked_at
        stays = session is not None and holder is not None and holder.parked_bytes == kept.bytes
        if session is None or holder is None or not stays:
            self._out.append(Forget(kept.id))
            return
        self._list_parking(
            Parking(
                id=kept.id,
                session=session,
                holder=holder,
                bytes=kept.bytes,
                span=kept.span,
                opened_ns=kept.opened_ns,
                opened_unix_ns=kept.opened_unix_ns,
                segment=kept.segment,
                metered_ns=kept.metered_ns,
            )
        )


def _closed(session: Session, epoch: int) -> wire.LeaseClosed:
    """What the client missed of the lease's end. A lease that nobody remembers was never written, and is free."""
    if session.closed is not None and session.closed.epoch >= epoch:
        return session.closed
    return wire.LeaseClosed(lease=f"{session.id}.{epoch}", epoch=epoch, reason="failed", duration_ns=0)
