"""Workers: what they say, and what happens when they fail, fall silent or end."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine import refusals
from forebay_pool.machine.draining import Draining
from forebay_pool.machine.eviction import fate
from forebay_pool.machine.messages import lost
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import SessionMoved, SessionParked, WorkerGone, WorkerSaid, WorkerUnlinked
from forebay_pool.model.instructions import Kill, Show, TellWorker
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import CloseReason, Lease, Request, Session, SessionState, Worker
from forebay_pool.placement.choice import in_want, spares_for
from forebay_pool.placement.fleet import computes_on, lateness
from forebay_pool.placement.room import residents

SILENCE_HEARTBEATS = 3
"""A worker that was silent for so many heartbeats hangs. One with a session's tensors may come to itself, and is waited for."""
UNASSIGNED_HEARTBEAT_SECONDS = 5.0
"""Period of a worker's heartbeats before it was told one."""
RETRY_SECONDS_MAX = 60
"""Longest pause between attempts to prestart a worker on a device where workers die."""
FAULTS = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")
"""Signals that a process brings upon itself. Nobody else sends them here: the pool, and a host that is short of memory, send SIGKILL."""
LIES_MAX = 3
"""A device on which so many workers in a row lied about their memory is closed."""
STARTS_MAX = 64
"""Devices that are looked at for a place to prestart a worker."""


class Workers(Draining):
    """Hears workers, and parts them from their sessions when they are gone."""

    def _bury(self, session: Session, state: SessionState) -> None:
        del self.sessions[session.id]
        self._drop_carrier(session)
        self._leave_group(session)
        self._set_state(session, state)
        self._keep(session)

    def _lose(self, session: Session, cause: Cause) -> None:
        """The session's tensors are gone with its worker."""
        self._forget_request(session)
        self._tell(session.id, lost(cause))
        self._note("session_lost", session=session.id, tenant=session.tenant, cause=cause)
        self._bury(session, "lost")

    def _worker_said(self, event: WorkerSaid) -> None:
        worker, message = self.fleet.workers.get(event.worker), event.message
        if worker is not None and worker.state != "ending":
            if self._hangs(worker) and not isinstance(message, wire.ResumeWorker):
                self._comes_to_itself(worker)
            worker.seen_ns = self._now
            self._on_worker[type(message)](worker, message)
        elif isinstance(message, wire.ResumeWorker):
            self._out.append(TellWorker(event.worker, wire.End()))

    def _hangs(self, worker: Worker) -> bool:
        """Whether it fell silent, whatever became of its link; else one that is away has lost its link alone."""
        return worker.away_ns is not None and worker.away_ns - worker.seen_ns > self._silence_ns(worker)

    def _silence_ns(self, worker: Worker) -> int:
        """After so long without a word it hangs."""
        own_period = worker.state in ("bound", "left")
        beat_seconds = self.limits.heartbeat_seconds
        return int(SILENCE_HEARTBEATS * (beat_seconds if own_period else max(beat_seconds, UNASSIGNED_HEARTBEAT_SECONDS)) * SECOND)

    def _comes_to_itself(self, worker: Worker) -> None:
        """It hung, with its link intact: what it was told meanwhile waits there, and it goes on with that."""
        silent_ns = self._now - worker.seen_ns
        excuse(worker, silent_ns, self._now)
        worker.away_ns = None
        for own in (worker.session, worker.keeps, worker.carries):
            if own is not None:
                self._show(own)  # what it keeps off its device is metered from now on at the latest
        self._note("worker_heard_again", worker=worker.id, node=worker.device.node, seconds=f"{silent_ns / SECOND:.0f}")
        self._show_and_settle(worker)

    def _ready(self, worker: Worker, message: wire.Ready) -> None:
        if worker.state == "starting" and worker.carries is not None:
            worker.address, worker.away_ns = message.address, None
            self._carry(worker, worker.carries)
        elif worker.state == "starting":
            worker.state, worker.address, worker.deadline_ns, worker.away_ns = "warm", message.address, None, None
            self.fleet.doubt(worker, False)  # if another pool started it, it has done nothing yet
            self._note("worker_ready", worker=worker.id, device=worker.device.id, torch=message.torch, pid=message.pid)
            self._show_and_settle(worker)

    def _assigned(self, worker: Worker, message: wire.Assigned) -> None:
        if worker.state == "assigning" and worker.session is not None and worker.session.id == message.session:
            worker.state, worker.deadline_ns = "bound", None
            self._taken_over(worker, worker.session)
            self._settle_all(worker)

    def _heartbeat(self, worker: Worker, message: wire.Heartbeat) -> None:
        memory_bytes, session = message.memory_bytes, worker.session
        lease = None if session is None else session.lease
        changed = worker.memory_bytes != memory_bytes
        worker.memory_bytes = memory_bytes
        self._drew(worker, message.energy_mj)
        if lease is not None and lease.epoch == message.epoch:
            lease.confirmed_ns = self._now
        if memory_bytes > worker.reserved_bytes and self._lies(worker, memory_bytes):
            return
        if message.operator and self._overruns(worker, message.operator, message.operator_seconds):
            return
        worker.call = f"one call of {message.operator} that has run for {message.operator_seconds:.0f} s" if message.operator else ""
        if session is not None and changed:
            self._less_is_parked(session)
            self._show(session)

    def _overruns(self, worker: Worker, operator: str, seconds: float) -> bool:
        """Whether one call of its program's runs for too long: nothing interrupts it, so the worker is ended."""
        if seconds <= self.limits.call_seconds_max:
            return False
        cause = Cause("endless_call", operator=operator, seconds=f"{self.limits.call_seconds_max:g}")
        self._fail(worker, cause, by_program=True)
        return True

    def _lies(self, worker: Worker, memory_bytes: int) -> bool:
        """Whether the worker says that it holds more than was set aside for it: it is not to be trusted, and fails."""
        if not worker.reserved_bytes or memory_bytes <= worker.reserved_bytes:
            return False
        seat = self.fleet.seats[worker.device.id]
        seat.lies += 1
        if seat.lies >= LIES_MAX:
            self._cordon(seat, Cause("workers_over_memory", count=seat.lies), drains=False, lasting=True)
        self._fail(worker, Cause("over_its_memory", held=str(memory_bytes), most=str(worker.reserved_bytes)))
        return True

    def _parked(self, worker: Worker, message: wire.Parked) -> None:
        if worker.parking and not self._lies(worker, message.bytes):
            self._note_parked(worker, message.bytes)
            worker.spilled_bytes = message.spilled_bytes
            if worker.session is not None:
                self._go_on(worker.session)
            self._settle_all(worker)

    def _note_parked(self, worker: Worker, parked_bytes: int) -> None:
        """Its device is free of it; whoever calls this settles the seat."""
        worker.parking, worker.restoring, worker.deadline_ns = False, False, None
        worker.memory_bytes, worker.parked_bytes = 0, parked_bytes
        self.fleet.reserve(worker, 0)
        if worker.session is not None:
            self._note("session_parked", session=worker.session.id, tenant=worker.session.tenant, bytes=parked_bytes)
            self._touch(worker.session)
            self._keep(worker.session)

    def _back_on_device(self, worker: Worker, message: wire.Restored) -> None:
        if worker.restoring:
            worker.restoring, worker.deadline_ns, worker.spilled_bytes = False, None, 0
            self._empty(*self.fleet.seats_under(worker))
            self._settle_all(worker)

    def _go_on(self, session: Session) -> None:
        """The next step towards the lease that is being opened for the session, if there is one."""
        request = session.request
        if request is not None and request.place is not None:
            self._advance(request, request.place)

    # Moving

    def _left(self, worker: Worker, message: wire.Left) -> None:
        """The session is between two workers. A lease that was open goes on elsewhere, as another one."""
        session = worker.session
        if worker.state == "carrying" and worker.carries is not None:
            self._carried(worker, worker.carries, message)
        if session is None or worker.state != "bound":
            return
        self._let_image_go(session)
        lease = session.lease
        goes_on = lease is not None and lease.state == "open" and not self.stopping
        if lease is not None:
            self._close(lease, "moved" if goes_on else lease.ending, self._now)
        self.fleet.let_go(worker, session, message.bytes, wire.Source(address=message.address, ticket=message.ticket))
        worker.spilled_bytes = message.spilled_bytes
        self._note("session_left", session=session.id, tenant=session.tenant, worker=worker.id, bytes=message.bytes)
        if session.request is None and goes_on and session.span is not None:
            self._request(session, 0, session.span, session.priority)
        elif session.request is not None and not self._suits(session.request, message.bytes):
            self._place_again(session.request)
        else:
            self._go_on(session)
        self._touch(session)
        self._keep(session)
        self._show_and_settle(worker)

    def _suits(self, request: Request, image_bytes: int) -> bool:
        """Whether the place was chosen, and what the tensors turned out to take is set aside there."""
        place = request.place
        return place is not None and image_bytes <= self.fleet.seats[place.devices[0].id].holders[request.session].memory_bytes

    def _taken_over(self, worker: Worker, session: Session) -> None:
        """The worker has the tensors that it was told to fetch. The one that the session left keeps them until the client is here."""
        if session.image is None:
            return
        if session.request is None or session.request.place is None:
            self._dismiss(worker, drains_milli=0)  # nobody waits for the lease any more, and nothing is set aside for the tensors here
            return
        self._note("session_moved", session=session.id, tenant=session.tenant, worker=worker.id, device=worker.device.id)

    def _let_image_go(self, session: Session) -> None:
        """The worker that fetched the tensors serves the client: the one that the session left may go."""
        if session.image is not None and session.worker is not None and session.worker.opened:
            self._dismiss(session.image, drains_milli=0)
            self._less_is_parked(session)
            self._keep(session)

    def _go_back(self, session: Session, lease: Lease, cause: str) -> None:
        """The worker died before the client sent it anything: another one fetches the tensors from where they still are."""
        if lease.attempts + 1 >= self.limits.worker_attempts_max:
            self._end(session, "failed", Cause("workers_died_moving", cause, attempts=lease.attempts + 1))
            return
        self._request(session, lease.number, lease.span, lease.priority, lease.order)
        if session.request is not None:
            session.request.attempts = lease.attempts + 1
        self._keep(session)

    def _session_moved(self, event: SessionMoved) -> None:
        session = self.sessions.get(event.session)
        if session is not None:
            self.move(session)

    def move(self, session: Session) -> None:
        """Has the session leave its worker at the next command boundary, for another device if there is one."""
        worker = session.worker
        if worker is not None and worker.state == "bound" and worker.opened:
            session.avoid = worker.devices
            self._ask_to_leave(worker, session)

    def _session_parked(self, event: SessionParked) -> None:
        session = self.sessions.get(event.session)
        worker = None if session is None else session.worker
        seat = None if worker is None else self.fleet.seats[worker.device.id]
        if worker is None or seat is None or worker not in residents(seat):
            return
        if fate(worker, self.fleet, self.accounts) == "park":
            self._park(worker)

    def _starved(self, worker: Worker, message: wire.Starved) -> None:
        session = worker.session
        if session is None or worker.state != "bound":
            return
        if session.lease is None:
            self._stay(worker, session)  # what comes before a LEAVE needs a lease here
        self._starve(session)

    def _starve(self, session: Session) -> None:
        """Device work waits: the pool asks on the session's behalf, unless its client does not read and is not there to go on."""
        if session.lease is not None or session.request is not None or self.stopping:
            return
        if session.span is not None and not session.stalled:
            self._request(session, 0, session.span, session.priority)
        elif session.worker is not None:
            session.worker.starved = True

    def _client_gone(self, worker: Worker, message: wire.ClientGone) -> None:
        session = worker.session
        if session is not None:
            self._end(session, "released", Cause("connection_ended"))

    def _worker_unlinked(self, event: WorkerUnlinked) -> None:
        worker = self.fleet.workers.get(event.worker)
        if worker is not None and worker.state != "ending":
            self._fail(worker, event.cause)

    def _worker_gone(self, event: WorkerGone) -> None:
        worker = self.fleet.workers.get(event.worker)
        if worker is None:
            return
        if worker.state != "ending":
            self._note("worker_failed", worker=worker.id, device=worker.device.id, cause=event.cause)
            crashed = self._crashed(worker, event.cause)
            self._part(worker, event.cause, drains=False, by_program=crashed)
        if not self.has_room_for_workers:
            self._unsettle(self.fleet.makes, gone=True)
        self.fleet.remove(worker)
        self._show_and_settle(worker)

    def _crashed(self, worker: Worker, cause: str) -> bool:
        """Whether the process ended by a fault of its own within a lease: it is its session's calls alone that it carries out then."""
        session = worker.session
        lease = None if session is None else session.lease
        if session is None or lease is None or not (isinstance(cause, Cause) and cause.code == "killed"):
            return False
        crashed = cause.values["signal"] in FAULTS
        if crashed:
            whose = {"session": session.id, "tenant": session.tenant, "user": session.user}
            self._note("worker_crashed", worker=worker.id, lease=lease.id, signal=str(cause.values["signal"]), **whose)
        return crashed

    def _show_and_settle(self, worker: Worker) -> None:
        """Something changed on the worker's devices."""
        self._out += (Show(self.fleet.seats[device.id]) for device in worker.devices)
        self._settle_all(worker)

    def _fail(self, worker: Worker, cause: str, by_program: bool = False) -> None:
        """The worker is taken for dead, and killed; its device is not leased again before it is gone.

        ``by_program`` says that it computes for too long, which is its program's doing, and no failure of ours: its lease is billed.
        """
        session = worker.session
        held = session is not None and session.lease is not None
        self._note("worker_failed", worker=worker.id, device=worker.device.id, cause=cause)
        self._part(worker, cause, drains=held, by_program=by_program)
        self._out.append(Kill(worker.id))
        self._show_and_settle(worker)

    def _part(self, worker: Worker, cause: str, drains: bool, by_program: bool = False) -> None:
        """Separates a dead worker from its session: one that ever had a lease is lost, another tries a new worker."""
        session, seat, kept = worker.session, self.fleet.seats[worker.device.id], worker.keeps
        lease = None if session is None else session.lease
        if lease is not None:
            until_ns = lease.confirmed_ns if worker.away_ns is None else max(lease.confirmed_ns, worker.away_ns)
            self._close(lease, lease.ending if by_program else "failed", until_ns)
        opened, carried = worker.opened, worker.carries is not None
        for of_session in (session, kept):
            if of_session is not None:
                self._less_is_parked(of_session)
        self.fleet.retire(worker, lease.place.share_milli if lease is not None and drains else 0)
        if not opened:
            self.fleet.found_dead(seat, seat.failures + 1)
            pause_seconds = min(RETRY_SECONDS_MAX, 2 ** min(seat.failures - 1, 10))
            seat.retry_ns = self._now + pause_seconds * SECOND
        if kept is not None and kept.worker is not None and kept.worker.state == "bound":
            kept.worker.opened = True  # it has them
            self._touch(kept)
            self._keep(kept)
        elif kept is not None:
            if kept.worker is not None:
                self._dismiss(kept.worker, drains_milli=0)
            self._lose(kept, Cause("worker_gone", cause, device=worker.device.id))
        elif session is None and not carried:
            wanting = in_want(seat, worker.devices)
            request = wanting[-1].request if len(wanting) > len(spares_for(seat, worker.devices)) else None
            if request is not None:
                self._retry(request, cause)
        elif session is None:
            return  # the tensors are where they were
        elif opened and session.image is not None and lease is not None and not self.stopping:
            self._go_back(session, lease, cause)
        elif opened:
            self._lose(session, Cause("worker_gone", cause, device=worker.device.id))
        elif session.request is not None:
            self._retry(session.request, cause)

    def _retry(self, request: Request, cause: str) -> None:
        """A worker died before the grant: another one, so many times; the user pays nothing for it."""
        request.attempts += 1
        if request.attempts < self.limits.worker_attempts_max:
            self._place_again(request)
            return
        self._drop_request(request.session, refusals.workers_die(request.number, request.attempts, cause))

    def _know(self, worker: Worker, epoch: int) -> None:
        """The worker stopped; if that was a lease that this pool did not know, its devices may be leased again."""
        if worker.unknown_epoch is not None and epoch >= worker.unknown_epoch:
            worker.unknown_epoch = worker.deadline_ns = None
            self.fleet.doubt(worker, False)
            self._empty(*self.fleet.seats_under(worker))
            self._show_and_settle(worker)

    def _drained(self, worker: Worker, message: wire.Drained) -> None:
        self._measured(worker, message)
        self._know(worker, message.epoch)
        self._close_for_worker(worker, message.epoch, "drained", 0)

    def _idle(self, worker: Worker, message: wire.Idle) -> None:
        self._measured(worker, message)
        self._know(worker, message.epoch)
        self._close_for_worker(worker, message.epoch, "idle", message.idle_ns)

    def _closed(self, worker: Worker, message: wire.Closed) -> None:
        self._measured(worker, message)
        self._know(worker, message.epoch)
        session = worker.session
        idles = session is not None and session.lease is not None and session.lease.ending == "idle"
        self._close_for_worker(worker, message.epoch, "drained", message.idle_ns if idles else 0, interrupted=True)

    def _waiting(self, worker: Worker, message: wire.Waiting) -> None:
        """In a collective, for others. Who is in no group here is idle; others are as long as none of theirs computes."""
        lease = self._open_lease(worker, message.epoch)
        if lease is None:
            return
        lease.confirmed_ns, lease.waits_since_ns = self._now, self._now - message.idle_ns
        if lease.session.group is None:
            self._give_back(lease, "idle")
        else:
            self._regroup[lease.session.group] = None

    def _working(self, worker: Worker, message: wire.Working) -> None:
        lease = self._open_lease(worker, message.epoch)
        if lease is not None:
            lease.confirmed_ns, lease.waits_since_ns = self._now, None

    def _open_lease(self, worker: Worker, epoch: int) -> Lease | None:
        """The worker's lease, if it is open and has this epoch."""
        lease = None if worker.session is None else worker.session.lease
        return lease if lease is not None and lease.epoch == epoch and lease.state == "open" else None

    def _measured(self, worker: Worker, message: wire.Drained | wire.Idle | wire.Closed) -> None:
        """What the worker holds as its lease ends: it may be parked at once, and must not be taken for less."""
        if message.memory_bytes is not None:
            worker.memory_bytes = message.memory_bytes
        self._drew(worker, message.energy_mj)

    def _drew(self, worker: Worker, energy_mj: int | None) -> None:
        """What the worker's devices have drawn by now. One that another pool started had that pool meter it until here."""
        worker.energy_mj = energy_mj
        if worker.metered_mj is None:
            worker.metered_mj = energy_mj

    def _close_for_worker(self, worker: Worker, epoch: int, reason: CloseReason, idle_ns: int, interrupted: bool = False) -> None:
        """The worker has stopped. A lease that was revoked in the middle of its work is asked for again."""
        session = worker.session
        lease = None if session is None else session.lease
        if session is None or lease is None or lease.epoch != epoch:
            return
        self._let_image_go(session)
        session.due = lease.waits_since_ns is not None
        taken_back = lease.state == "closing" and (interrupted or lease.ending != "revoked")
        self._close(lease, lease.ending if taken_back else reason, self._now - idle_ns)
        if session.request is not None:
            self._enqueue(session.request)
        self._touch(session)
        self._let_rest(lease)
        if session.stalled and session.worker is not None:
            self._park(session.worker)
        self.fleet.seats[lease.device.id].lies = 0
        self._free_up(*self.fleet.seats_of(lease.place))
        self._offer_seats()
        if session.request is not None:
            self._tell_place(session.request)
        elif taken_back and lease.ending == "revoked" and not self.stopping and not session.stalled:
            self._request(session, 0, lease.span, lease.priority, lease.order)

    def _end(self, session: Session, reason: CloseReason, cause: str | None) -> None:
        """Ends the session; its open lease is billed until now, or as far as it was confirmed where its worker is away. Its device waits
        until the worker is gone."""
        lease, worker = session.lease, session.worker
        if lease is not None:
            until_ns = self._now if worker is None or worker.away_ns is None else lease.confirmed_ns
            self._close(lease, lease.ending if lease.state == "closing" else reason, until_ns)
        if reason == "failed":
            self._drop_parking(session)
        self._forget_request(session)
        self._less_is_parked(session)
        for holder in (worker, session.image):
            if holder is not None and holder.state != "ending":
                self._dismiss(holder, lease.place.share_milli if lease is not None and holder is worker else 0)
        if cause is not None:
            self._tell(session.id, lost(cause))
        self._bury(session, "ended")
        if worker is not None:
            self._show_and_settle(worker)

    def _end_overfull(self) -> None:
        """Ends the sessions whose device is needed, and that may not be parked."""
        overfull, self._overfull = self._overfull, {}
        for name, cause in overfull.items():
            session = self.sessions.get(name)
            if session is not None and session.lease is None:
                self._end(session, "released", cause)

    def _check_workers(self) -> None:
        """Fails workers that are silent or late, and kills those that do not end."""
        soon_ns = int(SILENCE_HEARTBEATS * self.limits.heartbeat_seconds * SECOND)
        for worker in list(self.fleet.workers.values()):
            quiet_ns = self._now - worker.seen_ns
            if quiet_ns <= soon_ns and worker.deadline_ns is worker.away_ns is worker.leave_by_ns is None:
                continue  # as nearly all are
            silent = worker.state != "starting" and quiet_ns > self._silence_ns(worker)
            late = worker.deadline_ns is not None and self._now > worker.deadline_ns
            if worker.state == "ending":
                if late:
                    worker.deadline_ns = None
                    self._out.append(Kill(worker.id))
            elif worker.away_ns is not None:
                self._check_absent(worker, worker.away_ns, self._hangs(worker))
            elif not silent and worker.session is not None and worker.leave_by_ns is not None and self._now > worker.leave_by_ns:
                self._note("session_stays", session=worker.session.id, tenant=worker.session.tenant, worker=worker.id)
                self._stay(worker, worker.session)
            elif silent:
                self._falls_silent(worker)
            elif late:
                self._fail(worker, lateness(worker, self.limits), by_program=computes_on(worker))

    def _falls_silent(self, worker: Worker) -> None:
        """It hangs, or its host does. With a session's tensors it is waited for, as one without a link is; else another takes its place."""
        self._note("worker_silent", worker=worker.id, node=worker.device.node)
        if worker.keeps is not None or (worker.session is not None and worker.opened):
            worker.away_ns = self._now
            self._show_and_settle(worker)
        else:
            self._fail(worker, Cause("silent", heartbeats=SILENCE_HEARTBEATS))

    def _check_absent(self, worker: Worker, away_ns: int, hangs: bool) -> None:
        """Gives it up in time. One that hangs keeps its place for as long as one call may run, unless somebody waits for a device."""
        patience_seconds = self.limits.resume_seconds
        if hangs and not self.queue.waiting:
            patience_seconds = max(patience_seconds, self.limits.call_seconds_max)
        if self._now - away_ns <= int(patience_seconds * SECOND):
            return
        if hangs:
            beats = (self._now - worker.seen_ns) // int(self.limits.heartbeat_seconds * SECOND)
            self._fail(worker, Cause("silent", heartbeats=beats))
        else:
            self._fail(worker, Cause("not_back", seconds=f"{patience_seconds:g}"))

    def _make_way(self) -> None:
        """Where the pool has all the workers it may and somebody waits, one that was started ahead of need makes way."""
        if not self.accepting or not self.queue.waiting or len(self.fleet.workers) < self.limits.workers_max:
            return
        warm = (worker for worker in self.fleet.workers.values() if worker.state == "warm" and worker.session is None)
        idle = next((worker for worker in warm if not in_want(self.fleet.seats[worker.device.id], worker.devices)), None)
        if idle is not None:
            self._dismiss(idle, drains_milli=0)

    def _keep_warm(self) -> None:
        """Prestarts workers on free devices, so many of each kind. One place is left to somebody who waits."""
        workers_max = self.limits.workers_max - (1 if self.queue.waiting else 0)
        for kind, spare in self.fleet.spare.items():
            room = min(self.limits.warm_workers - spare, workers_max - len(self.fleet.workers))
            if room > 0:
                for seat in list(self.fleet.seats_to_start(kind, STARTS_MAX)):
                    if room and not seat.spares and seat.retry_ns <= self._now:
                        room -= 1
                        self._launch((seat.device,))


def excuse(worker: Worker, missed_ns: int, now_ns: int) -> None:
    """The worker has so much longer for all that it is waited for."""
    worker.seen_ns = min(now_ns, worker.seen_ns + missed_ns)
    worker.away_ns = None if worker.away_ns is None else min(now_ns, worker.away_ns + missed_ns)
    worker.deadline_ns = None if worker.deadline_ns is None else worker.deadline_ns + missed_ns
    worker.leave_by_ns = None if worker.leave_by_ns is None else worker.leave_by_ns + missed_ns
