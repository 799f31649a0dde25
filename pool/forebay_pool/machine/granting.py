"""From a request to a lease: a device is claimed, room made, a worker readied, the lease opened."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from forebay_wire import messages as wire

from forebay_pool.errors import InvariantBroken
from forebay_pool.machine.eviction import eviction
from forebay_pool.machine.messages import END, LEAVE, RESTORE, assignment, open_message
from forebay_pool.machine.queue_positions import QueuePositions
from forebay_pool.machine.refusals import not_servable, why_not_brought
from forebay_pool.model.instructions import Keep, Launch, Show, TellWorker
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.metering import rate
from forebay_pool.model.types import WHOLE_MILLI, Device, Lane, Lease, Make, Place, Request, Seat, Session, Standing, Worker, tensor_bytes
from forebay_pool.placement.capacity import equivalents_for, part_of
from forebay_pool.placement.choice import UNBOUND, Bounds, in_want, spares_for
from forebay_pool.placement.room import has_room, opening_bytes, surplus_bytes
from forebay_pool.queue.backfill import shadow_ns
from forebay_pool.queue.fair_share import Turns
from forebay_pool.queue.reasons import DRAINING, why_placing

MOVERS_MAX = 4_096
"""How many requests of the queue a tick goes through, to move those whose devices stay busy."""
MOVES_MAX = 64
"""For how many of these a tick looks for another place."""
SHADOW_SECONDS = 1
"""How long an estimate of when somebody can start is good."""


class Granting(QueuePositions):
    """Gives devices to requests.

    What is free and cannot serve the first who waits yet is kept for it: a device for whoever waits there, because its tensors are there;
    all that is free of a make for the first of those who wait for any (the keeper), so that nothing needs to be noted device by device.
    """

    _tried_milli = 0
    """What is taken, only to see whether others who start with it have room too."""
    _movers: Iterator[Request] | None = None
    """Requests of the queue that have yet to be looked at for a move."""

    def _request(self, session: Session, number: int, span: wire.Span, priority: int, order: int | None = None) -> None:
        """Files a request; ``order`` is its place in the order of arrival, if it had one before."""
        waited, session.waited = session.waited, None
        arrived_unix_ns = self._now + self._unix_offset_ns
        if waited is not None and waited.number == number and order is None:
            order, arrived_unix_ns = waited.order, min(arrived_unix_ns, waited.arrived_unix_ns)
        if self._awaited.pop(session.id, None) is not None:
            self._look_anew = True
        self._orders += order is None
        self.fleet.demand.add(session.flavor)
        self.arrivals.add(session.flavor, self._now)
        session.request = request = Request(
            session=session,
            number=number,
            span=span,
            order=self._orders if order is None else order,
            arrived_ns=arrived_unix_ns - self._unix_offset_ns,
            arrived_unix_ns=arrived_unix_ns,
            priority=self.accounts.priority_of(session, priority),
        )
        if session.lease is None:
            self._place(request)
        if session.request is request:
            self._tell_place(request)
            if request.place is None:
                self._keep(session)
        self._touch(session)

    def _place(self, request: Request) -> None:
        """Claims a free place for the request, or puts it in the queue. A group is placed as one, at the end of the event."""
        session = request.session
        if session.group is not None:
            self._regroup[session.group] = None
            return
        barred = self.accounts.bar(session, request.span, self.queue.demand_milli(self.fleet.lane_of(session)), self._now) is not None
        place = None if barred else self.find_place(request) or self._find_elsewhere(request)
        if place is not None:
            self._claim(request, place)
            return
        self._queue_up(request)

    def _queue_up(self, request: Request) -> None:
        """Puts the request in the queue, unless nothing there ever serves it."""
        session = request.session
        hopeless = None if session.pinned else why_not_brought(session, self.fleet.flavors[session.flavor], self.fleet)
        if hopeless is not None:
            self._drop_request(session, not_servable(hopeless, request.number))
            return
        self.queue.add(request)
        self._contend(request.lane, request)

    def _enqueue(self, request: Request) -> None:
        """Puts a request in the queue that waited for its session's lease to drain."""
        if request.session.group is None:
            self.queue.add(request)
        else:
            self._regroup[request.session.group] = None

    def _contend(self, lane: Lane, newcomer: Request) -> None:
        """Something may have to be kept for somebody who came into the lane, if it is the first there."""
        head = self.queue.head(lane, self._now)
        if head is None or head[1] is not newcomer:
            return
        if lane[0]:
            self._free_up(*(self.fleet.seats[device] for device in lane[0]))
        else:
            self._unsettle(self.fleet.makes_of(lane[1]), gone=False)

    def _unsettle(self, makes: Iterable[Make], gone: bool) -> None:
        """Who is the makes' keeper is found out at the end of the event; with ``gone`` who waited for the one there was may start."""
        for make in makes:
            self._unsettled[make] = gone or self._unsettled.get(make, False)

    def find_place(self, request: Request, passes: bool = True) -> Place | None:
        """Where the request's lease can be opened now; for one of a group: where it would be if all who wait could start now."""
        if request.session.group is None:
            return self._find_alone(request, passes)
        return self._find_together(request.session.group.waiting, passes).get(request)

    def _find_alone(self, request: Request, passes: bool = True) -> Place | None:
        """Where its lease can be opened now, without what is kept for those before it; not ``passes``: for anybody else."""
        if not self.accepting or self._awaited:
            return None
        session, kept = request.session, Keeping(self, request, passes)
        if session.worker is not None:
            return self._find_there(request, session.worker, kept)
        place = self._choose_besides(request, session.avoid, kept) if session.avoid else None
        return place or self._choose_besides(request, (), kept)

    def _find_there(self, request: Request, worker: Worker, kept: Keeping) -> Place | None:
        """Where its tensors are, if what it needs is free there."""
        session = request.session
        place = self.fleet.place_at(worker, self.fleet.flavors[session.flavor], self._held_bytes(session))
        if place is None or not self._bounds(request).allow(place) or not self._may_make_room(place, session):
            return None
        if not kept.has_any(place.devices):
            return place
        for make in {device.make: None for device in place.devices}:
            if make in self._keepers:
                self._stopped.setdefault(make, Turns()).put(session.id, self.queue.rank(request, self._now))
        return None

    def _find_elsewhere(self, request: Request) -> Place | None:
        """Where the session could move that cannot go on where its tensors are. It does not move while its worker has no link to the pool:
        that worker could not tell what left it."""
        session = request.session
        if not self.accepting or self._awaited or session.worker is None or session.worker.away_ns is not None or session.pinned:
            return None
        devices = session.worker.devices
        still_serve = equivalents_for(devices, self.fleet.flavors[session.flavor])
        if session.group is not None and still_serve and self._may_stay(session):
            return None  # it would leave its process groups
        return self._choose_besides(request, devices if still_serve else (), Keeping(self, request))

    def _may_stay(self, session: Session) -> bool:
        """Whether its devices are open, and none is held by those that it computes with: they would wait for each other."""
        seats = [] if session.worker is None else self.fleet.seats_under(session.worker)
        own = [holder for seat in seats for holder in seat.holders if holder is not session and holder.group is session.group]
        return not own and all(seat.is_open for seat in seats)

    def _choose_besides(self, request: Request, devices: tuple[Device, ...], kept: Keeping) -> Place | None:
        """The best free place without any of the devices."""
        session = request.session
        bounds = self._bounds(request, kept, {device.id for device in devices})
        while (place := self._choose(session, bounds)) is not None and not self._may_make_room(place, session):
            bounds = bounds._replace(avoid={*bounds.avoid, place.devices[0].id})
        return place

    def _choose(self, session: Session, bounds: Bounds = UNBOUND) -> Place | None:
        return self.fleet.choose(self.fleet.flavors[session.flavor], session.tenant, self.has_room_for_workers, bounds)

    def _bounds(self, request: Request, kept: Keeping | None = None, avoid: Collection[str] = ()) -> Bounds:
        """What its quotas and its tensors allow."""
        return Bounds(self.accounts.room_milli(request.session) - self._tried_milli, tensor_bytes(request.session), kept, avoid)

    def _find_together(self, requests: Sequence[Request], passes: bool = True, moves: bool = False) -> dict[Request, Place]:
        """Places for all of them at a time; none if one has none. With ``moves`` those may go elsewhere who must."""
        found: dict[Request, Place] = {}
        launches = 0
        for request in sorted(requests, key=self._scope):
            place = self._find_alone(request, passes) or (self._find_elsewhere(request) if moves else None)
            if place is None:
                break
            self.fleet.take(place, request.session, self._need_bytes(request.session, place))
            self._tried_milli += len(place.devices) * place.share_milli
            found[request] = place
            seat = self.fleet.seats[place.devices[0].id]
            launches += request.session.worker is None and len(in_want(seat, place.devices)) > len(spares_for(seat, place.devices))
        for request, place in found.items():
            self.fleet.leave(place, request.session)
        self._tried_milli = 0
        enough = len(found) == len(requests) and len(self.fleet.workers) + launches <= self.limits.workers_max
        return found if enough or len(found) == len(requests) == 1 else {}

    def _scope(self, request: Request) -> tuple[bool, int, int]:
        """Who can be in fewer places chooses first."""
        return request.session.worker is None, -self.fleet.demand_milli(self.fleet.lane_of(request.session)), request.order

    @property
    def has_room_for_workers(self) -> bool:
        return len(self.fleet.workers) < self.limits.workers_max

    def has_room_to_start(self, request: Request) -> bool:
        """Whether the pool may start the worker processes that the request, and those that start with it, need."""
        group = request.session.group
        fresh = [one for one in ([request] if group is None else group.waiting) if one.session.worker is None]
        if len(fresh) <= 1:
            return not fresh or self.has_room_for_workers
        return len(self.fleet.workers) - sum(self.fleet.spare.values()) + len(fresh) <= self.limits.workers_max

    @property
    def keeps_any(self) -> bool:
        """Whether anything is kept for anybody."""
        return bool(self._promised or self._keepers)

    def promised_to(self, device: str) -> Request | None:
        """Whom the device itself is kept for."""
        return self._promised.get(device)

    def has_way(self, request: Request, device: Device) -> bool:
        """Whether room can be made for it there: nothing is kept for who waits for residents that may not be parked."""
        return self._may_make_room(Place((device,), WHOLE_MILLI), request.session)

    @property
    def keepers(self) -> Mapping[Make, Request]:
        """Whom all that is free of each make is kept for."""
        return self._keepers

    def keeper_of(self, make: Make) -> Request | None:
        """Whom all that is free of the make is kept for."""
        return self._keepers.get(make)

    def _move_waiting(self) -> None:
        """Those whose devices stay busy go where something is left: what is free now, nobody needs who stands before them.

        So many are looked at in a tick; the next one goes on from there.
        """
        walk = self._movers or iter(list(self.queue.waiting.values()))
        self._movers = walk
        hopeless: set[tuple[str, str]] = set()
        looked = tries = 0
        for request in islice(walk, MOVERS_MAX):
            looked += 1
            session = request.session
            if not request.lane[0] or (session.flavor, session.tenant) in hopeless or not self.queue.has(request):
                continue
            if self._is_barred(request):
                continue
            if not self._move(request) and self._choose(session) is None:
                hopeless.add((session.flavor, session.tenant))
            tries += 1
            if tries == MOVES_MAX:
                return
        if looked < MOVERS_MAX:
            self._movers = None

    def _move(self, request: Request) -> bool:
        """Claims a place elsewhere for it, and for all that start with it, if there is one."""
        group = request.session.group
        if group is not None:
            return self._claim_all(self._find_together(group.waiting, moves=True))
        place = self._find_elsewhere(request)
        if place is not None:
            self._leave_line(request)
            self._claim(request, place)
        return place is not None

    def may_pass(self, request: Request, holder: Request) -> bool:
        """Whether the request may take what is kept for another: it comes before it, or will be done by then (backfill)."""
        if self.queue.rank(request, self._now) < self.queue.rank(holder, self._now):
            return True
        if holder.aged or self._now - holder.arrived_ns >= self.limits.backfill_seconds_max * SECOND:
            return False
        if self._now >= holder.shadow_until_ns:
            holder.shadow_ns = shadow_ns(holder, self.fleet, self.lengths, self._now)
            holder.shadow_until_ns = self._now + SHADOW_SECONDS * SECOND
        length_ns = self.lengths.mean_ns(request.session.flavor)
        return holder.shadow_ns is None or length_ns is None or self._now + length_ns <= holder.shadow_ns

    def _claim(self, request: Request, place: Place) -> None:
        self._take_for(request, place)
        self._advance(request, place)

    def _start(self, request: Request) -> bool:
        """Claims places for the request, and for all that start with it, if there are any now."""
        group = request.session.group
        if group is not None:
            return self._claim_all(self._find_together(group.waiting))
        place = self._find_alone(request)
        return place is not None and self._claim_all({request: place})

    def _claim_all(self, places: dict[Request, Place]) -> bool:
        for request in places:
            self._leave_line(request)
        for request, place in places.items():
            self._take_for(request, place)
        for request, place in places.items():
            if request.place is place:
                self._advance(request, place)
        return bool(places)

    def _take_for(self, request: Request, place: Place) -> None:
        self._take_place(place, request.session, self._need_bytes(request.session, place))
        request.place = place
        self._show_seats(place)

    def _show_seats(self, place: Place) -> None:
        self._out += map(Show, self.fleet.seats_of(place))

    def _advance(self, request: Request, place: Place) -> None:
        """Takes the next steps towards the grant: make room, get a worker ready; grants when both are done, for all of a group at once."""
        group = request.session.group
        opening = [(request, place)] if group is None else group.opening
        ready = all([self._prepare(one, its_place) for one, its_place in opening])
        if ready and any(self.accounts.bar(one.session, one.span, 0, self._now) is not None for one, _ in opening):
            self._place_again(request)
        elif ready:
            for one, its_place in opening:
                self._grant(one, its_place)
        else:
            self._tell_place(request)

    def _prepare(self, request: Request, place: Place) -> bool:
        """Whether its lease can be opened there; takes the next steps towards it."""
        session = request.session
        roomy = all([self._make_room(seat, session) for seat in self.fleet.seats_of(place)])
        return self._has_worker(session, place, roomy) and roomy

    def _held_bytes(self, session: Session) -> int:
        """What the session's tensors have set aside on their devices, or took there before they were parked."""
        worker = session.worker
        return 0 if worker is None else max(worker.reserved_bytes, worker.parked_bytes or 0)

    def _need_bytes(self, session: Session, place: Place) -> int:
        """What is set aside for the session's next lease. It never shrinks while tensors are on the device."""
        stays = session.worker is not None and session.worker.devices == place.devices
        limit_bytes = self.fleet.flavors[session.flavor].memory_bytes
        return max(limit_bytes, self._held_bytes(session) if stays else tensor_bytes(session))

    def _make_room(self, seat: Seat, session: Session) -> bool:
        """Parks as many residents as it takes; True once there is room."""
        if has_room(seat, session, seat.holders[session].part_bytes + opening_bytes(seat, session)):
            return True
        leaving = eviction(seat, surplus_bytes(seat), self.fleet, self.accounts)
        for worker in (*leaving.parked, *leaving.ended):
            self._park(worker)
        return False

    def _may_make_room(self, place: Place, session: Session) -> bool:
        """Whether the residents that are in the way on the place's devices may leave them."""
        if not self.accounts.bound_parking:
            return True
        part_bytes = part_of(self._need_bytes(session, place), len(place.devices))
        return all([self._may_clear(seat, session, part_bytes) for seat in self.fleet.seats_of(place)])

    def _may_clear(self, seat: Seat, session: Session, need_bytes: int) -> bool:
        own = session.worker if session.worker is not None and session.worker.id in seat.workers else None
        surplus = surplus_bytes(seat) + need_bytes - (0 if own is None else own.part_bytes)
        return eviction(seat, surplus, self.fleet, self.accounts, own).enough

    def _has_worker(self, session: Session, place: Place, roomy: bool) -> bool:
        """Whether the session's worker is ready to be opened; takes the next step towards it."""
        worker = session.worker
        if worker is not None and worker.devices != place.devices:
            self._ask_to_leave(worker, session)
            return False
        if worker is not None:
            there = worker.state == "bound" and not worker.parking and worker.away_ns is None and worker.leave_by_ns is None
            there = there and not worker.unsure
            return there and (not roomy or self._is_restored(worker, session))
        if session.image is not None and not roomy:
            return False
        seat = self.fleet.seats[place.devices[0].id]
        spares = spares_for(seat, place.devices)
        ready = next((worker for worker in spares if worker.state == "warm" and worker.away_ns is None), None)
        if ready is None:
            if len(spares) < len(in_want(seat, place.devices)):
                self._launch(place.devices)
            return False
        self.fleet.give(ready, session)
        if session.image is not None:
            self.fleet.reserve(ready, seat.holders[session].memory_bytes)  # it fetches the tensors to the device
            self._drop_carrier(session)
        patience_seconds = self.limits.worker_start_seconds + (0 if session.image is None else self.limits.park_seconds)
        ready.deadline_ns = self._now + int(patience_seconds * SECOND)
        assign = assignment(session, ready, self.fleet.flavors[session.flavor], self.limits)
        self._out.append(TellWorker(ready.id, assign))
        self._keep(session)
        return False

    def _carriers(self) -> list[Worker]:
        """The workers that fetch parked tensors off hosts that are drained."""
        return [worker for worker in self.fleet.workers.values() if worker.carries is not None]

    def _drop_carrier(self, session: Session) -> None:
        """Nobody has to carry the session's tensors: its next worker fetches them, or it is over."""
        for worker in self._carriers():
            if worker.carries is session:
                self._dismiss(worker, drains_milli=0)

    def _is_restored(self, worker: Worker, session: Session) -> bool:
        """Whether the session's tensors are on the device; has them brought there. The lease opens after that: this time is free."""
        if worker.parked_bytes is not None:
            seat = self.fleet.seats[worker.device.id]
            worker.parked_bytes, worker.restoring = None, True
            self._less_is_parked(session)
            self._show(session)
            self.fleet.reserve(worker, seat.holders[session].memory_bytes)
            worker.deadline_ns = self._now + int(self.limits.park_seconds * SECOND)
            self._out.append(TellWorker(worker.id, RESTORE))
        return not worker.restoring

    def _ask_to_leave(self, worker: Worker, session: Session) -> None:
        """Has the client end its stream at the worker; the worker says Left. One that parks the session is asked after that."""
        if worker.leave_by_ns is None and not worker.parking:
            worker.leave_by_ns = self._now + int(self.limits.park_seconds * SECOND)
            self._tell(session.id, LEAVE)

    def _stay(self, worker: Worker, session: Session) -> None:
        """The session does not leave the worker: its request waits for that one's device. Nothing is lost."""
        worker.leave_by_ns, worker.stays = None, True
        self._keep_to_flavor(worker, session)
        request, lease = session.request, session.lease
        if request is None:
            return
        if lease is None and request.place is not None and request.place.devices == worker.devices:
            self._advance(request, request.place)
        elif lease is None:
            self._place_again(request)
        elif lease.state == "open" and lease.span.id == request.span.id:
            lease.number, session.request = request.number, None
            self._tell_granted(lease)

    def _keep_to_flavor(self, worker: Worker, session: Session) -> None:
        """A flavor that its worker's devices do not serve cannot be had before what waits there is done: it has one that they serve."""
        if not equivalents_for(worker.devices, self.fleet.flavors[session.flavor]):
            flavor = self.fleet.nearest_flavor(worker)
            if flavor is not None:
                session.flavor = flavor.name
                self._tell_flavor(session)
                self._keep(session)

    def _launch(self, devices: tuple[Device, ...]) -> None:
        self._launches += 1
        worker = Worker(id=f"{self._name}-w{self._launches}", devices=devices, started_ns=self._now)
        worker.deadline_ns = self._now + int(self.limits.worker_start_seconds * SECOND)
        self.fleet.add(worker)
        self._out.append(Launch(worker.id, devices))
        if not self.has_room_for_workers:  # who has none waits for one from now on, and devices are kept for nobody who does
            self._unsettle(self.fleet.makes, gone=True)

    def _grant(self, request: Request, place: Place) -> None:
        """Opens the lease: its clock starts here."""
        session, worker, seats = request.session, request.session.worker, self.fleet.seats_of(place)
        held = all([session in seat.holders for seat in seats])
        if not held or session.lease is not None or worker is None or worker.devices != place.devices:
            name = place.devices[0].id
            raise InvariantBroken(f"{name} cannot be leased to session {session.id}\n{self.story.of(session.id, name)}")
        flavor, tariff = self.fleet.flavors[session.flavor], self.fleet.tariff
        session.epoch += 1
        session.request, session.span = None, request.span
        worker.parked_bytes, worker.opened, worker.starved, worker.stays = None, True, False, False
        session.avoid, session.due = (), False
        self.fleet.reserve(worker, seats[0].holders[session].memory_bytes)
        session.lease = lease = Lease(
            id=f"{session.id}.{session.epoch}",
            session=session,
            epoch=session.epoch,
            number=request.number,
            span=request.span,
            flavor=flavor,
            place=place,
            price=rate(tariff.price_of(flavor.name, session.tenant), tariff.surcharges, place),
            waited_ns=self._now - request.arrived_ns,
            priority=request.priority,
            order=request.order,
            attempts=request.attempts,
            opened_ns=self._now,
            opened_unix_ns=self._now + self._unix_offset_ns,
            confirmed_ns=self._now,
        )
        self._list_lease(lease)
        self.fleet.found_dead(seats[0], 0)
        self._out.append(TellWorker(worker.id, open_message(lease.epoch, flavor.memory_bytes)))
        self._tell_granted(lease)
        self._out.append(Keep(lease))
        self._keep(session)
        self._out.append(Show(lease))
        self._show_seats(place)
        self._touch(session)

    def _tell_place(self, request: Request) -> None:
        """Tells the client where its request stands, if that is news: not yet of a group that is placed when the event ends."""
        session = request.session
        if session.group is not None and request.place is None and session.lease is None and not self.queue.has(request):
            return
        if request.place is not None:
            seat = self.fleet.seats[request.place.devices[0].id]
            self._tell_queued(request, Standing(1, *why_placing(seat, request.session)))
        elif request.session.lease is not None:
            self._tell_queued(request, Standing(1, *DRAINING))
        elif request.told is None:
            self._tell_newcomer(request)

    def _drop_request(self, session: Session, refusal: wire.Refused | None) -> None:
        """The session waits no longer; the place it had claimed goes to whose turn it is."""
        self._forget_request(session)
        self._keep(session)
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
        """Places a request anew, at its old place in the order of arrival; whoever was to start with it does not start without it."""
        group = request.session.group
        if group is not None:
            for one in group.requests:
                one.told = None
                self._leave_line(one)
                self._leave_place(one)
            self._regroup[group] = None
            return
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
        self._give_place(place, request.session)
        session = request.session
        if session.image is not None and session.worker is not None:
            self._dismiss(session.worker, drains_milli=0)  # it was to fetch the tensors: they are where they were
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
        self._out.append(TellWorker(worker.id, END))

    def _leave_line(self, request: Request) -> None:
        """Takes the request out of the queue: those behind it may need less than it did."""
        self.queue.remove(request)
        self._roused |= dict.fromkeys(self.accounts.both(request.session))
        blocked, request.blocks = request.blocks, {}
        for device in blocked:
            del self._promised[device]
        self._free_up(*blocked.values())
        for make in [make for make, keeper in self._keepers.items() if keeper is request]:
            del self._keepers[make]
            self._unsettle((make,), gone=True)
        for stopped in self._stopped.values():
            stopped.drop(request.session.id)
        if request.session.worker is not None:
            self._free_up(*(self.fleet.seats[device.id] for device in request.session.worker.devices))

    def _settle(self, seat: Seat) -> None:
        """Whatever changed on the seat: leases being opened there go on, and what is free goes to whose turn it is."""
        for session in list(seat.holders):
            request = session.request
            if request is not None and request.place is not None:
                self._advance(request, request.place)
        self._free_up(seat)

    def _settle_all(self, worker: Worker) -> None:
        """As :meth:`_settle`, of each of the worker's devices."""
        for seat in self.fleet.seats_under(worker):
            self._settle(seat)

    def _free_up(self, *seats: Seat) -> None:
        """Something of the seats may be free: they are offered to the queue at the end of the event."""
        for seat in seats:
            self._loose[seat.device.id] = seat


class Keeping:
    """What of the fleet is kept for others than the request, who it may not pass; each of them is asked once, and only where it matters."""

    __slots__ = ("_may", "_passes", "_placing", "_request")

    def __init__(self, placing: Granting, request: Request, passes: bool = True) -> None:
        self._passes = passes
        self._placing = placing
        self._request = request
        self._may: dict[Request, bool] = {}

    def has_make(self, make: Make) -> bool:
        return not self._placing.accounts.bound_parking and self._bars(self._placing.keeper_of(make))

    def has_any(self, devices: Iterable[Device]) -> bool:
        """Whether one of the devices is, by itself or with its make."""
        return any(map(self.has_device, devices)) if self._placing.keeps_any else False

    def has_device(self, device: Device) -> bool:
        if self._bars(self._placing.promised_to(device.id)):
            return True
        keeper = self._placing.keeper_of(device.make)
        return keeper is not None and self._bars(keeper) and self._placing.has_way(keeper, device)

    def _bars(self, holder: Request | None) -> bool:
        group = self._request.session.group
        if holder is None or holder is self._request or (group is not None and holder.session.group is group):
            return False
        may = self._may.get(holder)
        if may is None:
            may = self._may[holder] = self._passes and self._placing.may_pass(self._request, holder)
        return not may
