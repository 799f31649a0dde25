"""From a request to a lease: a device is claimed, room made, a worker readied, the lease opened."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.errors import InvariantBroken
from forebay_pool.fleet import in_want, memory_limit, spares_for
from forebay_pool.grants import assignment
from forebay_pool.leases import Leases
from forebay_pool.line import why_placing, why_waiting
from forebay_pool.metering import SECOND_NS as SECOND
from forebay_pool.room import has_room, to_park
from forebay_pool.types import (
    Device,
    Keep,
    Launch,
    Lease,
    Place,
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
        place = self.find_place(request.session)
        if place is None:
            self.line.add(request)
        else:
            self._claim(request, place)

    def find_place(self, session: Session) -> Place | None:
        """Where the session's next lease can be opened now."""
        if not self.accepting:
            return None
        return self.fleet.find(session, self._held_bytes(session), self.limits.workers_max)

    def _claim(self, request: Request, place: Place) -> None:
        self.fleet.take(place, request.session, self._need_bytes(request.session, place))
        request.place = place
        self._show_seats(place)
        self._advance(request, place)

    def _show_seats(self, place: Place) -> None:
        self._out += [Show(seat) for seat in self.fleet.seats_of(place)]

    def _advance(self, request: Request, place: Place) -> None:
        """Takes the next steps towards the grant: make room, get a worker ready; grants when both are done."""
        session, seat = request.session, self.fleet.seats[place.devices[0].id]
        roomy = self._make_room(seat, session)
        if self._has_worker(session, place) and roomy:
            self._grant(request, place)
        else:
            self._tell_place(request)

    def _held_bytes(self, session: Session) -> int:
        """What the session's tensors have set aside on their device, or took there before they were parked."""
        worker = session.worker
        return 0 if worker is None else max(worker.reserved_bytes, worker.parked_bytes or 0)

    def _need_bytes(self, session: Session, place: Place) -> int:
        """What is set aside for the session's next lease. It never shrinks while tensors are on the device."""
        return max(memory_limit(self.fleet.flavors[session.flavor], place.devices[0]), self._held_bytes(session))

    def _make_room(self, seat: Seat, session: Session) -> bool:
        """Parks as many residents as it takes; True once there is room."""
        if has_room(seat, session, seat.holders[session].memory_bytes):
            return True
        for worker in to_park(seat):
            self._park(worker)
        return False

    def _park(self, worker: Worker) -> None:
        if not worker.parking and worker.parked_bytes is None:
            worker.parking = True
            worker.deadline_ns = self._now + int(self.limits.park_seconds * SECOND)
            self._out.append(TellWorker(worker.id, wire.Park()))

    def _has_worker(self, session: Session, place: Place) -> bool:
        """Whether the session's worker is ready to be opened; takes the next step towards it."""
        worker = session.worker
        if worker is not None:
            return worker.state == "bound" and not worker.parking and worker.away_ns is None
        seat = self.fleet.seats[place.devices[0].id]
        spares = spares_for(seat, place.devices)
        ready = next((worker for worker in spares if worker.state == "warm" and worker.away_ns is None), None)
        if ready is None:
            if len(spares) < len(in_want(seat, place.devices)):
                self._launch(place.devices)
            return False
        self.fleet.give(ready, session)
        ready.deadline_ns = self._now + int(self.limits.worker_start_seconds * SECOND)
        assign = assignment(session, ready, self.fleet.flavors[session.flavor], self.limits)
        self._out.append(TellWorker(ready.id, assign))
        self._keep(session)
        return False

    def _launch(self, devices: tuple[Device, ...]) -> None:
        self._launches += 1
        worker = Worker(id=f"{self._name}-w{self._launches}", devices=devices, started_ns=self._now)
        worker.deadline_ns = self._now + int(self.limits.worker_start_seconds * SECOND)
        self.fleet.add(worker)
        self._out.append(Launch(worker.id, devices))

    def _grant(self, request: Request, place: Place) -> None:
        """Opens the lease: its clock starts here."""
        session, worker, seats = request.session, request.session.worker, self.fleet.seats_of(place)
        held = all(session in seat.holders for seat in seats)
        if not held or session.lease is not None or worker is None or worker.devices != place.devices:
            name = place.devices[0].id
            raise InvariantBroken(f"{name} cannot be leased to session {session.id}\n{self.story.of(session.id, name)}")
        flavor = self.fleet.flavors[session.flavor]
        session.epoch += 1
        session.request, session.span = None, request.span
        worker.reserved_bytes, worker.parked_bytes = seats[0].holders[session].memory_bytes, None
        worker.opened, worker.starved = True, False
        session.lease = lease = Lease(
            id=f"{session.id}.{session.epoch}",
            session=session,
            epoch=session.epoch,
            number=request.number,
            span=request.span,
            flavor=flavor,
            place=place,
            price=self.prices.get(flavor.name),
            waited_ns=self._now - request.arrived_ns,
            opened_ns=self._now,
            opened_unix_ns=self._now + self._unix_offset_ns,
            confirmed_ns=self._now,
        )
        seats[0].failures = 0
        limit_bytes = memory_limit(flavor, place.devices[0])
        self._out.append(TellWorker(worker.id, wire.Open(epoch=lease.epoch, memory_limit_bytes=limit_bytes)))
        self._tell_granted(lease)
        self._out += (Keep(lease), Keep(session), Show(lease))
        self._show_seats(place)
        self._touch(session)

    def _tell_place(self, request: Request) -> None:
        """Tells the client where its request stands, if that is news."""
        if request.place is not None:
            seat = self.fleet.seats[request.place.devices[0].id]
            reason = why_placing(seat, seat.holders[request.session].memory_bytes)
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
        """The session waits no longer; the place it had claimed goes to whose turn it is."""
        self._forget_request(session)
        if refusal is not None:
            self._tell(session.id, refusal)
        self._touch(session)

    def _forget_request(self, session: Session) -> None:
        """Drops the session's request and leaves the place it had claimed."""
        request = session.request
        if request is None:
            return
        session.request = None
        self._leave_line(request)
        self._leave_place(request)

    def _place_again(self, request: Request) -> None:
        """Places a request anew, at its old place in the order of arrival."""
        request.told = None
        self._leave_line(request)
        self._leave_place(request)
        self._place(request)
        if request.session.request is request:
            self._tell_place(request)

    def _leave_place(self, request: Request) -> None:
        place, request.place = request.place, None
        if place is None:
            return
        self.fleet.leave(place, request.session)
        seats = self.fleet.seats_of(place)
        if len(place.devices) > 1 and not in_want(seats[0], place.devices):
            for worker in spares_for(seats[0], place.devices):
                self._dismiss(worker, drains_milli=0)
        self._show_seats(place)
        self._free_up(*seats)

    def _dismiss(self, worker: Worker, drains_milli: int) -> None:
        """Tells the worker to exit; it is killed if it does not within its grace."""
        self.fleet.retire(worker, drains_milli)
        worker.deadline_ns = self._now + int(self.limits.end_grace_seconds * SECOND)
        self._out.append(TellWorker(worker.id, wire.End()))

    def _leave_line(self, request: Request) -> None:
        """Takes the request out of the line: those behind it may need less than it did."""
        self.line.remove(request)
        if request.session.worker is not None:
            self._free_up(*(self.fleet.seats[device.id] for device in request.session.worker.devices))

    def _settle(self, seat: Seat) -> None:
        """Whatever changed on the seat: leases being opened there go on, and what is free goes to whose turn it is."""
        for session in list(seat.holders):
            request = session.request
            if request is not None and request.place is not None and request.place.devices[0] is seat.device:
                self._advance(request, request.place)
        self._free_up(seat)

    def _free_up(self, *seats: Seat) -> None:
        """Something of the seats may be free: they are offered to the line at the end of the event."""
        self._loose |= {seat.device.id: seat for seat in seats}

    def _offer_seats(self) -> None:
        """Offers what the event left free to those whose turn it is."""
        if self._look_anew:
            self._look_anew = False
            while self._start_first(self.line.heads()):
                pass
        while self._loose:
            seat = self._loose.pop(next(iter(self._loose)))
            while self._start_first(self.heads_for(seat)):
                pass

    def _start_first(self, heads: list[Request]) -> bool:
        """Claims a place for the first of them that can start now; whether there was one."""
        for request in heads if self.accepting and not self.stopping else ():
            place = self.find_place(request.session)
            if place is not None:
                self._leave_line(request)
                self._claim(request, place)
                return True
        return False

    def heads_for(self, seat: Seat) -> list[Request]:
        """Those whose turn it may be on the seat, in turn."""
        return self.line.heads_for(seat, self.fleet.flavors_of(seat)) if seat.free_milli else []
