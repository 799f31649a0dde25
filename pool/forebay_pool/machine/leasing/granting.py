"""From a request to a lease: a place is claimed and prepared, and the lease is opened."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.refusals import not_servable, why_not_brought
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.place_finder import PlaceFinder
from forebay_pool.machine.leasing.preparing import Preparing
from forebay_pool.machine.leasing.queue_positions import QueuePositions
from forebay_pool.machine.leasing.reservations import Reservations
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.model.instructions import Show
from forebay_pool.model.types import Place, Request, Seat, Session, Worker
from forebay_pool.placement.capacity import equivalents_for
from forebay_pool.placement.choice import in_want, spares_for
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.forecast import Arrivals
from forebay_pool.queue.accounts import Accounts
from forebay_pool.queue.crashes import CrashWait
from forebay_pool.queue.queue import Queue


class Granting:
    """Takes a request from its arrival to its grant. The requests of a group are granted together."""

    def __init__(
        self,
        step: Step,
        worklist: Worklist,
        admission: Admission,
        fleet: Fleet,
        queue: Queue,
        accounts: Accounts,
        arrivals: Arrivals,
        leases: Leases,
        positions: QueuePositions,
        processes: WorkerProcesses,
        reservations: Reservations,
        places: PlaceFinder,
        preparing: Preparing,
    ) -> None:
        self._step = step
        self._worklist = worklist
        self._admission = admission
        self._fleet = fleet
        self._queue = queue
        self._accounts = accounts
        self._arrivals = arrivals
        self._leases = leases
        self._positions = positions
        self._processes = processes
        self._reservations = reservations
        self._places = places
        self._preparing = preparing
        self.orders = 0
        """The place in the order of arrival of the request that came last."""

    def request(self, session: Session, number: int, span: wire.Span, priority: int, order: int | None = None) -> None:
        """Files a request. ``order`` is its place in the order of arrival, if it had one before."""
        waited, session.waited = session.waited, None
        arrived_unix_ns = self._step.unix_ns
        if waited is not None and waited.number == number and order is None:
            order, arrived_unix_ns = waited.order, min(arrived_unix_ns, waited.arrived_unix_ns)
        if self._admission.awaited.pop(session.id, None) is not None:
            self._worklist.whole_queue = True
        self.orders += order is None
        self._fleet.demand.add(session.flavor)
        self._arrivals.add(session.flavor, self._step.now_ns)
        session.request = request = Request(
            session=session,
            number=number,
            span=span,
            order=self.orders if order is None else order,
            arrived_ns=arrived_unix_ns - self._step.unix_offset_ns,
            arrived_unix_ns=arrived_unix_ns,
            priority=self._accounts.priority_of(session, priority),
        )
        if session.lease is None:
            self._place(request)
        if session.request is request:
            self._positions.send(request)
            if request.place is None:
                self._step.save(session)
        self._step.touch(session)

    def _place(self, request: Request) -> None:
        """Claims a free place for the request, or puts it in the queue. Groups are placed when the event ends, all members at once."""
        session = request.session
        if session.group is not None:
            self._worklist.groups[session.group] = None
            return
        demand_milli = self._queue.demand_milli(self._fleet.lane_of(session))
        barred = self._queue.bars(session, request.span, demand_milli, self._step.now_ns)
        place = None if barred else self._places.find(request) or self._places.find_elsewhere(request)
        if place is not None:
            self._claim(request, place)
            return
        self.queue_up(request)

    def count_crash(self, session: Session) -> CrashWait | None:
        """A call of the session ended its worker. Returns the wait before its user's next worker, if there is a new one."""
        wait = self._queue.crashes.add(session, self._step.now_ns)
        if wait is not None:
            self._rerank()
        return wait

    def end_crash_waits(self) -> None:
        if self._queue.crashes.end_waits(self._step.now_ns):
            self._rerank()

    def _rerank(self) -> None:
        """Other requests may start than before."""
        self._queue.rebuild()
        self._worklist.whole_queue = True

    def queue_up(self, request: Request) -> None:
        """Puts the request in the queue. Refuses it if no device can ever serve it."""
        session = request.session
        unservable = None if session.pinned else why_not_brought(session, self._fleet.flavors[session.flavor], self._fleet)
        if unservable is not None:
            self.drop(session, not_servable(unservable, request.number))
            return
        self._queue.add(request)
        self._reservations.contend(request.lane, request)

    def enqueue(self, request: Request) -> None:
        """Puts a request in the queue that has waited for its session's own lease to drain."""
        if request.session.group is None:
            self._queue.add(request)
        else:
            self._worklist.groups[request.session.group] = None

    def waits(self, request: Request) -> bool:
        """True if the request is in the queue."""
        return self._queue.has(request)

    def move(self, request: Request) -> bool:
        """Claims a place on other devices for the request and for all that start with it. True if there was one."""
        group = request.session.group
        if group is not None:
            return self.claim_all(self._places.find_together(group.waiting, moves=True))
        place = self._places.find_elsewhere(request)
        if place is not None:
            self.leave_queue(request)
            self._claim(request, place)
        return place is not None

    def _claim(self, request: Request, place: Place) -> None:
        self._take_for(request, place)
        self.advance(request, place)

    def start(self, request: Request) -> bool:
        """Claims places for the request and for all that start with it. True if there were any."""
        group = request.session.group
        if group is not None:
            return self.claim_all(self._places.find_together(group.waiting))
        place = self._places.find_alone(request)
        return place is not None and self.claim_all({request: place})

    def claim_all(self, places: dict[Request, Place]) -> bool:
        """Takes the requests out of the queue and claims their places, then prepares the places. True if there are any."""
        for request in places:
            self.leave_queue(request)
        for request, place in places.items():
            self._take_for(request, place)
        for request, place in places.items():
            if request.place is place:
                self.advance(request, place)
        return bool(places)

    def _take_for(self, request: Request, place: Place) -> None:
        self._leases.take_place(place, request.session, self._places.need_bytes(request.session, place))
        request.place = place
        self._leases.show_seats(place)

    def advance(self, request: Request, place: Place) -> None:
        """Takes the next step towards the grant: makes room or readies a worker. Opens the leases once both are done."""
        group = request.session.group
        opening = [(request, place)] if group is None else group.opening
        ready = all([self._preparing.prepare(one, its_place) for one, its_place in opening])
        if ready and any(self._accounts.bar(one.session, one.span, 0, self._step.now_ns) is not None for one, _ in opening):
            self.place_again(request)
        elif ready:
            for one, its_place in opening:
                self._leases.open(one, its_place)
        else:
            self._positions.send(request)

    def continue_opening(self, session: Session) -> None:
        """Takes the next step towards the session's lease, if one is being opened."""
        request = session.request
        if request is not None and request.place is not None:
            self.advance(request, request.place)

    def _settle(self, seat: Seat) -> None:
        """Something changed on the seat: leases that are being opened there take their next step, and the seat is offered to the queue."""
        for session in list(seat.holders):
            request = session.request
            if request is not None and request.place is not None:
                self.advance(request, request.place)
        self._worklist.offer(seat)

    def settle(self, worker: Worker) -> None:
        """Settles each of the worker's devices."""
        for seat in self._fleet.seats_under(worker):
            self._settle(seat)

    def show_and_settle(self, worker: Worker) -> None:
        """Something changed on the worker's devices: their rows are shown, and they are settled."""
        self._step.out += (Show(self._fleet.seats[device.id]) for device in worker.devices)
        self.settle(worker)

    def stay(self, worker: Worker, session: Session) -> None:
        """The session does not leave the worker: its request waits for that worker's devices. Nothing is lost."""
        worker.leave_by_ns, worker.stays = None, True
        self._choose_served_flavor(worker, session)
        request, lease = session.request, session.lease
        if request is None:
            return
        if lease is None and request.place is not None and request.place.devices == worker.devices:
            self.advance(request, request.place)
        elif lease is None:
            self.place_again(request)
        elif lease.state == "open" and lease.span.id == request.span.id:
            lease.number, session.request = request.number, None
            self._leases.send_granted(lease)

    def _choose_served_flavor(self, worker: Worker, session: Session) -> None:
        """The session cannot leave its worker. If the worker's devices do not serve its flavor, it gets the nearest flavor that they
        serve."""
        if not equivalents_for(worker.devices, self._fleet.flavors[session.flavor]):
            flavor = self._fleet.nearest_flavor(worker)
            if flavor is not None:
                session.flavor = flavor.name
                self._positions.send_flavor(session)
                self._step.save(session)

    def drop(self, session: Session, refusal: wire.Refused | None) -> None:
        """The session's request ends with the refusal, if there is one. The place that it had claimed is offered to the queue."""
        self.forget(session)
        self._step.save(session)
        if refusal is not None:
            self._step.send(session.id, refusal)
        self._step.touch(session)

    def forget(self, session: Session) -> None:
        """Removes the session's request from the queue and from its place."""
        request = session.request
        if request is None:
            return
        session.request = None
        self.leave_queue(request)
        self._leave_place(request)

    def place_again(self, request: Request) -> None:
        """Places a request again. It keeps its order of arrival. All members of its group are placed again with it."""
        group = request.session.group
        if group is not None:
            for one in group.requests:
                one.told = None
                self.leave_queue(one)
                self._leave_place(one)
            self._worklist.groups[group] = None
            return
        request.told = None
        self.leave_queue(request)
        self._leave_place(request)
        self._place(request)
        if request.session.request is request:
            self._positions.send(request)

    def _leave_place(self, request: Request) -> None:
        """Undoes the claim of the request's place. Workers that were started or assigned for it are dismissed."""
        place, request.place = request.place, None
        if place is None:
            return
        self._leases.leave_place(place, request.session)
        session = request.session
        if session.image is not None and session.worker is not None:
            self._processes.dismiss(session.worker, drains_milli=0)  # it was to fetch the tensors, which are still where they were
        seats = self._fleet.seats_of(place)
        if len(place.devices) > 1 and not in_want(seats[0], place.devices):
            for worker in spares_for(seats[0], place.devices):
                self._processes.dismiss(worker, drains_milli=0)
        self._leases.show_seats(place)
        self._worklist.offer(*seats)

    def leave_queue(self, request: Request) -> None:
        """Takes the request out of the queue. Requests behind it may need less than it did, so they are offered what it waited for."""
        self._queue.remove(request)
        self._worklist.accounts |= dict.fromkeys(self._accounts.both(request.session))
        self._reservations.leave(request)
        if request.session.worker is not None:
            self._worklist.offer(*(self._fleet.seats[device.id] for device in request.session.worker.devices))
