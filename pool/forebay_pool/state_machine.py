"""The pool's brain: events in, instructions out; no I/O, no clock, no chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from forebay_wire import messages as wire

from forebay_pool import refusals
from forebay_pool.errors import InvariantBroken
from forebay_pool.fleet import Fleet, lateness, serves
from forebay_pool.grants import assignment, flavor_message, granted
from forebay_pool.line import Line, why_placing, why_waiting
from forebay_pool.metering import SECOND_NS as SECOND
from forebay_pool.metering import cost_nano, usage_record
from forebay_pool.room import has_room, to_park
from forebay_pool.story import Story
from forebay_pool.types import (
    ClientSaid,
    CloseReason,
    Device,
    Event,
    Flavor,
    FlavorSet,
    Instruction,
    Kill,
    Launch,
    Lease,
    Limits,
    Meter,
    Note,
    Price,
    PricesSet,
    Request,
    Seat,
    Session,
    SessionDismissed,
    SessionJoined,
    SessionLeft,
    SessionState,
    Show,
    ShutDown,
    StoreChanged,
    TellClient,
    TellWorker,
    Tick,
    Worker,
    WorkerGone,
    WorkerSaid,
    WorkerUnlinked,
)

SILENCE_HEARTBEATS = 3
"""A worker that was silent for so many heartbeats is taken for dead."""
UNASSIGNED_HEARTBEAT_SECONDS = 5.0
"""Period of a worker's heartbeats before it was told one."""
RETRY_SECONDS_MAX = 60
"""Longest pause between attempts to prestart a worker on a device where workers die."""
DRAINING = "The session's previous lease is still draining."


class StateMachine:
    """Owns devices, flavors, sessions, leases and the queue. ``name`` makes worker ids unique among pools."""

    def __init__(self, devices: Iterable[Device], flavors: Mapping[str, Flavor], limits: Limits, name: str, unix_offset_ns: int) -> None:
        self.limits = limits
        self.fleet = Fleet(devices, flavors)
        self.line = Line()
        self.sessions: dict[str, Session] = {}
        self.prices: Mapping[str, Price] = {}
        self.accepting = True
        self.stopping = False
        self.story = Story()
        self._name = name
        self._unix_offset_ns = unix_offset_ns
        self._now = 0
        self._out: list[Instruction] = []
        self._orders = 0
        self._launches = 0
        self._on: dict[type[Any], Callable[[Any], None]] = {
            SessionJoined: self._session_joined,
            ClientSaid: self._client_said,
            SessionLeft: self._session_over,
            SessionDismissed: self._session_over,
            WorkerSaid: self._worker_said,
            WorkerUnlinked: self._worker_unlinked,
            WorkerGone: self._worker_gone,
            FlavorSet: self._flavor_set,
            PricesSet: self._prices_set,
            StoreChanged: self._store_changed,
            Tick: self._tick,
            ShutDown: self._shut_down,
            wire.Acquire: self._acquire,
            wire.Cancel: self._cancel,
            wire.ChooseFlavor: self._choose_flavor,
            wire.Release: self._release,
            wire.Ready: self._ready,
            wire.Assigned: self._assigned,
            wire.Drained: self._drained,
            wire.Idle: self._idle,
            wire.Starved: self._starved,
            wire.Heartbeat: self._heartbeat,
            wire.Parked: self._parked,
            wire.Closed: self._drained,
            wire.ClientGone: self._client_gone,
        }
        self._session: Session
        self._worker: Worker

    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        """What to do about the event. ``now_ns`` never goes back. Raises InvariantBroken before it leases a device twice."""
        if now_ns < self._now:
            raise InvariantBroken(f"the clock went back from {self._now} to {now_ns} ns with {event}")
        self._now = now_ns
        out: list[Instruction] = []
        self._out = out
        self.story.add(now_ns, event, out)
        self._on[type(event)](event)
        return out

    # Sessions come and go

    def _session_joined(self, event: SessionJoined) -> None:
        refusal = self._no_session_for(event)
        if refusal is not None:
            self._tell(event.session, refusal)
            return
        session = Session(
            id=event.session,
            secret=event.secret,
            tenant=event.tenant,
            user=event.user,
            process=event.process,
            flavor=event.flavor,
            since_ns=self._now,
            since_unix_ns=self._now + self._unix_offset_ns,
            used_ns=self._now,
        )
        self.sessions[session.id] = session
        self._tell_flavor(session)
        self._out.append(Show(session))

    def _no_session_for(self, event: SessionJoined) -> wire.Refused | None:
        if event.session in self.sessions:
            raise InvariantBroken(f"session {event.session} joined twice")
        if self.stopping:
            return refusals.shutting_down()
        if len(self.sessions) >= self.limits.sessions_max:
            return refusals.too_many_sessions(self.limits.sessions_max)
        flavor = self.fleet.flavors.get(event.flavor)
        if flavor is None:
            return refusals.unknown_flavor(event.flavor, self.fleet)
        why = self.fleet.why_not(flavor)
        return None if why is None else refusals.not_servable(f"{why} Choose another flavor (`forebay flavor list`).")

    def _tell_flavor(self, session: Session) -> None:
        flavor = flavor_message(self.fleet.flavors[session.flavor], self.prices.get(session.flavor))
        opened = wire.SessionOpened(session=session.id, flavor=flavor, heartbeat_seconds=self.limits.session_heartbeat_seconds)
        self._tell(session.id, opened)

    def _session_over(self, event: SessionLeft | SessionDismissed) -> None:
        session = self.sessions.get(event.session)
        if session is not None and isinstance(event, SessionDismissed):
            self._end(session, event.reason, event.sentence)
        elif session is not None:
            self._end(session, "released", None)

    def _end(self, session: Session, reason: CloseReason, sentence: str | None) -> None:
        """Ends the session; its open lease is billed until now, and its device waits until the worker is gone."""
        lease, worker = session.lease, session.worker
        if lease is not None:
            self._close(lease, lease.ending if lease.state == "closing" else reason, self._now)
        seat = self._forget_request(session)
        if worker is not None:
            seat = self.fleet.seats[worker.device.id]
            self._dismiss(worker, drains=lease is not None)
        if sentence is not None:
            self._tell(session.id, wire.SessionLost(message=sentence))
        self._bury(session, "ended")
        if seat is not None:
            self._out.append(Show(seat))
            self._settle(seat)

    def _lose(self, session: Session, sentence: str) -> None:
        """The session's tensors are gone with its worker."""
        self._forget_request(session)
        self._tell(session.id, wire.SessionLost(message=sentence))
        self._note("session_lost", session=session.id, tenant=session.tenant, cause=sentence)
        self._bury(session, "lost")

    def _bury(self, session: Session, state: SessionState) -> None:
        del self.sessions[session.id]
        self._set_state(session, state)

    # Asking for a lease

    def _client_said(self, event: ClientSaid) -> None:
        session = self.sessions.get(event.session)
        if session is not None:
            self._session = session
            self._on[type(event.message)](event.message)
        elif isinstance(event.message, wire.Acquire):
            self._tell(event.session, refusals.no_session(event.message.request))

    def _acquire(self, message: wire.Acquire) -> None:
        session = self._session
        lease, pending = session.lease, session.request
        if lease is not None and lease.state == "open" and lease.span.id == message.span.id:
            lease.number = message.request
            self._tell_granted(lease)
            return
        refusal = self._no_lease_for(session, message.request)
        if refusal is not None:
            self._tell(session.id, refusal)
        elif pending is not None:
            pending.number, pending.span, pending.told = message.request, message.span, None
            self._tell_place(pending)
        else:
            self._request(session, message.request, message.span)

    def _no_lease_for(self, session: Session, number: int) -> wire.Refused | None:
        pending = session.request
        if self.stopping:
            return refusals.shutting_down(number)
        if not self.accepting:
            return refusals.unwritten(number)
        if pending is not None and pending.number not in (0, number):
            return refusals.waits_already(number, pending.number)
        if pending is None and len(self.line) >= self.limits.queue_max:
            return refusals.queue_full(number, len(self.line))
        why = refusals.why_not(session, self.fleet.flavors[session.flavor], self.fleet)
        return None if why is None else refusals.not_servable(why, number)

    def _request(self, session: Session, number: int, span: wire.Span) -> None:
        self._orders += 1
        session.request = request = Request(session=session, number=number, span=span, order=self._orders, arrived_ns=self._now)
        if session.lease is None:
            self._place(request)
        if session.request is request:
            self._tell_place(request)
        self._touch(session)

    def _place(self, request: Request) -> None:
        """Claims a free device for the request, or puts it in the line."""
        session = request.session
        seat: Seat | None
        if not self.accepting:
            seat = None
        elif session.worker is not None:
            seat = self.fleet.seats[session.worker.device.id]
            seat = seat if self.fleet.is_free(seat) else None
        else:
            seat = self.fleet.choose(self.fleet.flavors[session.flavor], len(self.fleet.workers) < self.limits.workers_max)
        if seat is None:
            self.line.add(request)
        else:
            self._claim(request, seat)

    def _claim(self, request: Request, seat: Seat) -> None:
        self.fleet.take(seat, request.session)
        request.place = seat.device
        self._out.append(Show(seat))
        self._advance(request, seat)

    def _advance(self, request: Request, seat: Seat) -> None:
        """Takes the next steps towards the grant: make room, get a worker ready; grants when both are done."""
        session = request.session
        need_bytes = self._need_bytes(session)
        roomy = self._make_room(seat, session, need_bytes)
        if self._has_worker(session, seat) and roomy:
            self._grant(request, seat, need_bytes)
        else:
            self._tell_place(request)

    def _need_bytes(self, session: Session) -> int:
        """What is set aside for the session's next lease. It never shrinks while tensors are on the device."""
        worker = session.worker
        held = 0 if worker is None else max(worker.reserved_bytes, worker.parked_bytes or 0)
        return max(self.fleet.flavors[session.flavor].memory_bytes, held)

    def _make_room(self, seat: Seat, session: Session, need_bytes: int) -> bool:
        """Parks as many residents as it takes; True once there is room."""
        if has_room(seat, session, need_bytes):
            return True
        for worker in to_park(seat, session, need_bytes):
            worker.parking = True
            worker.deadline_ns = self._now + int(self.limits.park_seconds * SECOND)
            self._out.append(TellWorker(worker.id, wire.Park()))
        return False

    def _has_worker(self, session: Session, seat: Seat) -> bool:
        """Whether the session's worker is ready to be opened; takes the next step towards it."""
        worker = session.worker
        if worker is not None:
            return worker.state == "bound" and not worker.parking
        spares = [worker for worker in seat.workers.values() if worker.session is None and worker.state in ("starting", "warm")]
        ready = next((worker for worker in spares if worker.state == "warm"), None)
        if ready is None:
            if not spares:
                self._launch(seat)
            return False
        self.fleet.give(ready, session)
        ready.deadline_ns = self._now + int(self.limits.worker_start_seconds * SECOND)
        assign = assignment(session, ready, self.fleet.flavors[session.flavor], self.limits)
        self._out.append(TellWorker(ready.id, assign))
        return False

    def _grant(self, request: Request, seat: Seat, need_bytes: int) -> None:
        """Opens the lease: its clock starts here."""
        session, worker = request.session, request.session.worker
        if seat.holder is not session or session.lease is not None or worker is None or worker.device is not seat.device:
            raise InvariantBroken(f"{seat.device.id} cannot be leased to session {session.id}\n{self.story.of(session.id, seat.device.id)}")
        flavor = self.fleet.flavors[session.flavor]
        session.epoch += 1
        session.request, session.span = None, request.span
        worker.reserved_bytes, worker.parked_bytes, worker.opened = need_bytes, None, True
        session.lease = lease = Lease(
            id=f"{session.id}.{session.epoch}",
            session=session,
            epoch=session.epoch,
            number=request.number,
            span=request.span,
            flavor=flavor,
            device=seat.device,
            price=self.prices.get(flavor.name),
            waited_ns=self._now - request.arrived_ns,
            opened_ns=self._now,
            opened_unix_ns=self._now + self._unix_offset_ns,
            confirmed_ns=self._now,
        )
        seat.failures = 0
        self._out.append(TellWorker(worker.id, wire.Open(epoch=lease.epoch, memory_limit_bytes=flavor.memory_bytes)))
        self._tell_granted(lease)
        self._out += (Show(lease), Show(seat))
        self._touch(session)

    def _tell_granted(self, lease: Lease) -> None:
        session, worker = lease.session, lease.session.worker
        if worker is None:
            raise InvariantBroken(f"lease {lease.id} is open without a worker\n{self.story.of(session.id)}")
        self._tell(session.id, granted(lease, worker))

    def _tell_place(self, request: Request) -> None:
        """Tells the client where its request stands, if that is news."""
        if request.place is not None:
            reason = why_placing(self.fleet.seats[request.place.id], self._need_bytes(request.session))
            self._tell_queued(request, 1, reason)
        elif request.session.lease is not None:
            self._tell_queued(request, 1, DRAINING)
        elif request.told is None:
            self._tell_waiting(request, self.line.position_of_newest(request, self.fleet))

    def _tell_waiting(self, request: Request, position: int) -> None:
        self._tell_queued(request, position, why_waiting(request.session, self.fleet, self.accepting, self.limits.workers_max))

    def _tell_queued(self, request: Request, position: int, reason: str) -> None:
        if request.told != (position, reason):
            request.told = (position, reason)
            self._tell(request.session.id, wire.Queued(request=request.number, position=position, reason=reason))
            self._out.append(Show(request.session))

    # Taking requests back

    def _cancel(self, message: wire.Cancel) -> None:
        session = self._session
        if session.request is not None and session.request.number == message.request:
            self._drop_request(session, None)
        elif session.lease is not None and session.lease.number == message.request:
            self._give_back(session.lease)

    def _release(self, message: wire.Release) -> None:
        lease = self._session.lease
        if lease is not None and lease.epoch == message.epoch:
            self._give_back(lease)

    def _give_back(self, lease: Lease) -> None:
        if lease.state == "open" and lease.session.worker is not None:
            lease.state, lease.ending = "closing", "released"
            lease.session.worker.deadline_ns = self._now + int(self.limits.close_seconds * SECOND)
            self._out += (TellWorker(lease.session.worker.id, wire.Close(epoch=lease.epoch)), Show(lease))

    def _drop_request(self, session: Session, refusal: wire.Refused | None) -> None:
        """The session waits no longer; the seat it had claimed goes to whose turn it is."""
        seat = self._forget_request(session)
        if refusal is not None:
            self._tell(session.id, refusal)
        self._touch(session)
        if seat is not None:
            self._settle(seat)

    def _forget_request(self, session: Session) -> Seat | None:
        """Drops the session's request and leaves the seat it had claimed: the caller settles that seat."""
        request = session.request
        if request is None:
            return None
        session.request = None
        self.line.remove(request)
        if request.place is None:
            return None
        seat = self.fleet.seats[request.place.id]
        self.fleet.leave(seat)
        self._out.append(Show(seat))
        return seat

    def _choose_flavor(self, message: wire.ChooseFlavor) -> None:
        session = self._session
        flavor = self.fleet.flavors.get(message.flavor)
        if flavor is None:
            self._tell(session.id, refusals.unknown_flavor(message.flavor, self.fleet))
            return
        why = refusals.why_not(session, flavor, self.fleet)
        if why is not None:
            self._tell(session.id, refusals.not_servable(why))
            return
        session.flavor = flavor.name
        self._tell_flavor(session)
        if session.request is not None and session.lease is None:
            self._place_again(session.request)
        self._out.append(Show(session))

    def _place_again(self, request: Request) -> None:
        """Places a request anew, at its old place in the order of arrival."""
        place, request.place, request.told = request.place, None, None
        self.line.remove(request)
        if place is not None:
            self.fleet.leave(self.fleet.seats[place.id])
        self._place(request)
        if request.session.request is request:
            self._tell_place(request)
        if place is not None:
            self._settle(self.fleet.seats[place.id])

    # Workers

    def _launch(self, seat: Seat) -> None:
        self._launches += 1
        worker = Worker(id=f"{self._name}-w{self._launches}", device=seat.device, started_ns=self._now)
        worker.deadline_ns = self._now + int(self.limits.worker_start_seconds * SECOND)
        self.fleet.add(worker)
        self._out.append(Launch(worker.id, seat.device))

    def _worker_said(self, event: WorkerSaid) -> None:
        worker = self.fleet.workers.get(event.worker)
        if worker is not None and worker.state != "ending":
            worker.seen_ns = self._now
            self._worker = worker
            self._on[type(event.message)](event.message)

    def _ready(self, message: wire.Ready) -> None:
        worker = self._worker
        if worker.state == "starting":
            worker.state, worker.address, worker.deadline_ns = "warm", message.address, None
            self._note("worker_ready", worker=worker.id, device=worker.device.id, torch=message.torch, pid=message.pid)
            self._settle(self.fleet.seats[worker.device.id])

    def _assigned(self, message: wire.Assigned) -> None:
        worker = self._worker
        if worker.state == "assigning" and worker.session is not None and worker.session.id == message.session:
            worker.state, worker.deadline_ns = "bound", None
            self._settle(self.fleet.seats[worker.device.id])

    def _heartbeat(self, message: wire.Heartbeat) -> None:
        worker = self._worker
        session = worker.session
        changed = worker.memory_bytes != message.memory_bytes
        worker.memory_bytes = message.memory_bytes
        if session is not None and session.lease is not None and session.lease.epoch == message.epoch:
            session.lease.confirmed_ns = self._now
        if session is not None and changed:
            self._out.append(Show(session))

    def _parked(self, message: wire.Parked) -> None:
        worker = self._worker
        if worker.parking:
            worker.parking, worker.deadline_ns = False, None
            worker.reserved_bytes, worker.memory_bytes, worker.parked_bytes = 0, 0, message.bytes
            if worker.session is not None:
                self._note("session_parked", session=worker.session.id, tenant=worker.session.tenant, bytes=message.bytes)
                self._touch(worker.session)
            self._settle(self.fleet.seats[worker.device.id])

    def _starved(self, message: wire.Starved) -> None:
        session = self._worker.session
        if session is not None and session.lease is None and session.request is None and session.span is not None and not self.stopping:
            self._request(session, 0, session.span)

    def _client_gone(self, message: wire.ClientGone) -> None:
        session = self._worker.session
        if session is not None:
            self._end(session, "released", "The process's connection to its worker ended, and the session with it.")

    def _worker_unlinked(self, event: WorkerUnlinked) -> None:
        worker = self.fleet.workers.get(event.worker)
        if worker is not None and worker.state != "ending":
            self._fail(worker, event.cause)

    def _fail(self, worker: Worker, cause: str) -> None:
        """The worker is taken for dead, and killed; its device is not leased again before it is gone."""
        session = worker.session
        held = session is not None and session.lease is not None
        self._note("worker_failed", worker=worker.id, device=worker.device.id, cause=cause)
        self._part(worker, cause, drains=held)
        self._out.append(Kill(worker.id))
        self._settle(self.fleet.seats[worker.device.id])

    def _worker_gone(self, event: WorkerGone) -> None:
        worker = self.fleet.workers.get(event.worker)
        if worker is None:
            return
        if worker.state != "ending":
            self._note("worker_failed", worker=worker.id, device=worker.device.id, cause=event.cause)
            self._part(worker, event.cause, drains=False)
        self.fleet.remove(worker)
        seat = self.fleet.seats[worker.device.id]
        self._out.append(Show(seat))
        self._settle(seat)

    def _part(self, worker: Worker, cause: str, drains: bool) -> None:
        """Separates a dead worker from its session: one that ever had a lease is lost, another tries a new worker."""
        session, seat = worker.session, self.fleet.seats[worker.device.id]
        if session is not None and session.lease is not None:
            self._close(session.lease, "failed", session.lease.confirmed_ns)
        opened = worker.opened
        self.fleet.retire(worker, drains)
        if not opened:
            seat.failures += 1
            pause_seconds = min(RETRY_SECONDS_MAX, 2 ** min(seat.failures - 1, 10))
            seat.retry_ns = self._now + pause_seconds * SECOND
        if session is None:
            holder = seat.holder
            if holder is not None and holder.request is not None and holder.worker is None:
                self._retry(holder.request, cause)
        elif opened:
            self._lose(session, f"The worker on {worker.device.id} that held this session's tensors is gone ({cause}).")
        elif session.request is not None:
            self._retry(session.request, cause)

    def _retry(self, request: Request, cause: str) -> None:
        """A worker died before the grant: another one, so many times; the user pays nothing for it."""
        request.attempts += 1
        if request.attempts < self.limits.worker_attempts_max:
            self._place_again(request)
            return
        self._drop_request(request.session, refusals.workers_die(request.number, request.attempts, cause))

    # Leases close

    def _drained(self, message: wire.Drained | wire.Closed) -> None:
        self._close_for_worker(message.epoch, "drained", 0)

    def _idle(self, message: wire.Idle) -> None:
        self._close_for_worker(message.epoch, "idle", message.idle_ns)

    def _close_for_worker(self, epoch: int, reason: CloseReason, idle_ns: int) -> None:
        session = self._worker.session
        lease = None if session is None else session.lease
        if session is None or lease is None or lease.epoch != epoch:
            return
        self._close(lease, lease.ending if lease.state == "closing" else reason, self._now - idle_ns)
        if session.request is not None:
            self.line.add(session.request)
        self._touch(session)
        self._settle(self.fleet.seats[lease.device.id])
        if session.request is not None:
            self._tell_place(session.request)

    def _close(self, lease: Lease, reason: CloseReason, until_ns: int) -> None:
        """Ends the lease's clock, meters it, and leaves the seat; whoever calls this settles the seat."""
        session = lease.session
        seat = self.fleet.seats[lease.device.id]
        if session.lease is not lease or seat.holder is not session or lease.state == "closed":
            raise InvariantBroken(f"lease {lease.id} cannot close\n{self.story.of(session.id, seat.device.id)}")
        lease.duration_ns = min(max(0, until_ns - lease.opened_ns), self._now - lease.opened_ns)
        lease.state, lease.ending = "closed", reason
        session.lease, session.used_ns = None, self._now
        if session.worker is not None:
            session.worker.deadline_ns = None
        cost = cost_nano(lease.duration_ns, lease.price)
        closed = wire.LeaseClosed(lease=lease.id, epoch=lease.epoch, reason=reason, duration_ns=lease.duration_ns, cost_nano=cost)
        self._out.append(Meter(usage_record(lease)))
        self._tell(session.id, closed)
        self.fleet.leave(seat)
        self._out += (Show(lease), Show(seat))

    # The pool's own affairs

    def _settle(self, seat: Seat) -> None:
        """Whatever changed on the seat: the lease being opened there goes on, or a free seat goes to whose turn it is."""
        holder = seat.holder
        if holder is not None:
            if holder.request is not None and holder.request.place is seat.device:
                self._advance(holder.request, seat)
            return
        if not self.accepting or self.stopping or not self.fleet.is_free(seat):
            return
        request = self.line.first_for(seat, self.flavors_for(seat))
        if request is not None:
            self.line.remove(request)
            self._claim(request, seat)

    def flavors_for(self, seat: Seat) -> tuple[str, ...]:
        """The flavors whose waiting sessions may start here; none where that takes a new worker, and the pool has all it may."""
        spare = any(worker.session is None and worker.state in ("starting", "warm") for worker in seat.workers.values())
        return self.fleet.flavors_of(seat) if spare or len(self.fleet.workers) < self.limits.workers_max else ()

    def _flavor_set(self, event: FlavorSet) -> None:
        self.fleet.set_flavor(event.flavor)
        for session in list(self.sessions.values()):
            request = session.request
            if request is None:
                continue
            flavor = self.fleet.flavors[session.flavor]
            why = refusals.why_not(session, flavor, self.fleet)
            if why is not None:
                self._drop_request(session, refusals.not_servable(why, request.number))
            elif request.place is not None and not serves(request.place, flavor):
                self._place_again(request)
        self._settle_free_seats()

    def _settle_free_seats(self) -> None:
        for seat in list(self.fleet.free_seats()):
            self._settle(seat)

    def _prices_set(self, event: PricesSet) -> None:
        self.prices = event.prices

    def _store_changed(self, event: StoreChanged) -> None:
        self.accepting = event.accepting
        if self.accepting:
            self._settle_free_seats()

    def _tick(self, event: Tick) -> None:
        self._unix_offset_ns = event.unix_offset_ns
        self._check_workers()
        if self.line.waiting:
            self._settle_free_seats()
            for request, position in self.line.positions(self.fleet):
                self._tell_waiting(request, position)
        if not self.stopping:
            self._keep_warm()

    def _check_workers(self) -> None:
        """Fails workers that are silent or late, and kills those that do not end."""
        beat_seconds = self.limits.heartbeat_seconds
        silence_ns = int(SILENCE_HEARTBEATS * beat_seconds * SECOND)
        warm_silence_ns = int(SILENCE_HEARTBEATS * max(beat_seconds, UNASSIGNED_HEARTBEAT_SECONDS) * SECOND)
        for worker in list(self.fleet.workers.values()):
            quiet_ns = self._now - worker.seen_ns
            silent = quiet_ns > (silence_ns if worker.state == "bound" else warm_silence_ns) and worker.state != "starting"
            late = worker.deadline_ns is not None and self._now > worker.deadline_ns
            if worker.state == "ending":
                if late:
                    worker.deadline_ns = None
                    self._out.append(Kill(worker.id))
            elif silent or late:
                self._fail(worker, f"silent for {SILENCE_HEARTBEATS} heartbeats" if silent else lateness(worker, self.limits))

    def _keep_warm(self) -> None:
        """Prestarts workers on free devices, so many of each kind."""
        for kind, spare in self.fleet.spare.items():
            room = min(self.limits.warm_workers - spare, self.limits.workers_max - len(self.fleet.workers))
            if room > 0:
                seats = [seat for seat in self.fleet.free_seats() if seat.device.kind == kind and seat.retry_ns <= self._now]
                for seat in sorted(seats, key=lambda seat: len(seat.workers))[:room]:
                    self._launch(seat)

    def _shut_down(self, event: ShutDown) -> None:
        self.stopping = True
        for session in list(self.sessions.values()):
            self._end(session, "revoked", "The pool is shutting down; its sessions end with it.")
        for worker in list(self.fleet.workers.values()):
            if worker.state != "ending":
                self._dismiss(worker, drains=False)

    def _dismiss(self, worker: Worker, drains: bool) -> None:
        """Tells the worker to exit; it is killed if it does not within its grace."""
        self.fleet.retire(worker, drains)
        worker.deadline_ns = self._now + int(self.limits.end_grace_seconds * SECOND)
        self._out.append(TellWorker(worker.id, wire.End()))

    # Small things

    def _touch(self, session: Session) -> None:
        self._set_state(session, session.doing)

    def _set_state(self, session: Session, state: SessionState) -> None:
        if session.state != state:
            session.state = state
            session.since_ns, session.since_unix_ns = self._now, self._now + self._unix_offset_ns
        self._out.append(Show(session))

    def _tell(self, session: str, message: wire.ToClient) -> None:
        self._out.append(TellClient(session, message))

    def _note(self, action: str, **fields: str | int) -> None:
        self._out.append(Note(action, fields))
