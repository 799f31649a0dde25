"""From a request to a lease: a device is claimed, room made, a worker readied, the lease opened."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.errors import InvariantBroken
from forebay_pool.grants import assignment
from forebay_pool.leases import Leases
from forebay_pool.line import why_placing, why_waiting
from forebay_pool.metering import SECOND_NS as SECOND
from forebay_pool.room import has_room, to_park
from forebay_pool.types import (
    Launch,
    Lease,
    Request,
    Seat,
    Session,
    Show,
    TellWorker,
    Worker,
)

DRAINING = "The session's previous lease is still draining."


class Placing(Leases):
    """Gives devices to requests."""

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

    def _launch(self, seat: Seat) -> None:
        self._launches += 1
        worker = Worker(id=f"{self._name}-w{self._launches}", device=seat.device, started_ns=self._now)
        worker.deadline_ns = self._now + int(self.limits.worker_start_seconds * SECOND)
        self.fleet.add(worker)
        self._out.append(Launch(worker.id, seat.device))

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

    def _settle_free_seats(self) -> None:
        for seat in list(self.fleet.free_seats()):
            self._settle(seat)
