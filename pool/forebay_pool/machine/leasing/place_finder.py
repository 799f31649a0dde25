"""Where a request's lease can be opened now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.eviction import eviction
from forebay_pool.machine.leasing.reservations import Reservations
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.model.limits import Limits
from forebay_pool.model.types import WHOLE_MILLI, Device, Make, Place, Request, Seat, Session, Worker
from forebay_pool.placement.capacity import equivalents_for, part_of
from forebay_pool.placement.choice import UNBOUND, Bounds, in_want, spares_for
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.room import surplus_bytes, tensor_bytes
from forebay_pool.queue.accounts import Accounts


class PlaceFinder:
    """Finds places, apart from what is reserved for requests before this one. It leaves the fleet as it was."""

    def __init__(
        self,
        admission: Admission,
        limits: Limits,
        fleet: Fleet,
        accounts: Accounts,
        processes: WorkerProcesses,
        reservations: Reservations,
    ) -> None:
        self._admission = admission
        self._limits = limits
        self._fleet = fleet
        self._accounts = accounts
        self._processes = processes
        self._reservations = reservations
        self._tried_milli = 0
        """What is taken only to see whether others who start with it have room too; 0 except within ``find_together``."""

    def find(self, request: Request, passes: bool = True) -> Place | None:
        """The place where the request's lease can be opened now. For a group: the place if all waiting members could start now."""
        if request.session.group is None:
            return self.find_alone(request, passes)
        return self.find_together(request.session.group.waiting, passes).get(request)

    def find_alone(self, request: Request, passes: bool = True) -> Place | None:
        """The place for this request alone, apart from what is reserved for requests that it may not pass; if not ``passes``, for any
        other."""
        if not self._admission.opens_leases:
            return None
        session, reserved = request.session, Reserved(self._reservations, self, request, passes)
        if session.worker is not None:
            return self._find_there(request, session.worker, reserved)
        place = self._choose_besides(request, session.avoid, reserved) if session.avoid else None
        place = place or self._choose_besides(request, (), reserved)
        if place is None:
            self._reservations.hold_back(request, (self._fleet.seats[device].device for device in self._fleet.homes.of(session)))
        return place

    def _find_there(self, request: Request, worker: Worker, reserved: Reserved) -> Place | None:
        """The place where its tensors are, if what it needs is free there."""
        session = request.session
        if not self._fleet.runtimes.serve(worker.devices, session.runtime):
            return None
        place = self._fleet.place_at(worker, self._fleet.flavors[session.flavor], self._held_bytes(session))
        if place is None or not self._bounds(request).allow(place) or not self._may_make_room(place, session):
            return None
        if not reserved.has_any(place.devices):
            return place
        self._reservations.hold_back(request, place.devices)
        return None

    def find_elsewhere(self, request: Request) -> Place | None:
        """A place to move to, for a session that cannot go on where its tensors are. It does not move while its worker has no link: the
        worker could not report what left it."""
        session = request.session
        if not self._admission.opens_leases or session.worker is None or session.worker.away_ns is not None or session.pinned:
            return None
        devices = session.worker.devices
        flavor, runtimes = self._fleet.flavors[session.flavor], self._fleet.runtimes
        still_serve = runtimes.serve(devices, session.runtime) and equivalents_for(devices, flavor)
        if session.group is not None and still_serve and self._may_stay(session):
            return None  # it would leave its process groups
        return self._choose_besides(request, devices if still_serve else (), Reserved(self._reservations, self, request))

    def _may_stay(self, session: Session) -> bool:
        """True if its devices are open and no member of its group holds one: two members on one device would wait for each other."""
        seats = [] if session.worker is None else self._fleet.seats_under(session.worker)
        own = [holder for seat in seats for holder in seat.holders if holder is not session and holder.group is session.group]
        return not own and all(seat.is_open for seat in seats)

    def find_together(self, requests: Sequence[Request], passes: bool = True, moves: bool = False) -> dict[Request, Place]:
        """Places for all of the requests at once; empty if one of them has none. With ``moves`` they may leave their devices."""
        found: dict[Request, Place] = {}
        launches = 0
        for request in sorted(requests, key=self._scope):
            place = self.find_alone(request, passes) or (self.find_elsewhere(request) if moves else None)
            if place is None:
                break
            self._fleet.take(place, request.session, self.need_bytes(request.session, place))
            self._tried_milli += len(place.devices) * place.share_milli
            found[request] = place
            seat = self._fleet.seats[place.devices[0].id]
            launches += request.session.worker is None and len(in_want(seat, place.devices)) > len(spares_for(seat, place.devices))
        for request, place in found.items():
            self._fleet.leave(place, request.session)
        self._tried_milli = 0
        enough = len(found) == len(requests) and len(self._fleet.workers) + launches <= self._limits.workers_max
        return found if enough or len(found) == len(requests) == 1 else {}

    def _scope(self, request: Request) -> tuple[bool, int, int]:
        """The order of choice: requests that fit in fewer places choose first."""
        return request.session.worker is None, -self._fleet.demand_milli(self._fleet.lane_of(request.session)), request.order

    def _choose_besides(self, request: Request, devices: tuple[Device, ...], reserved: Reserved) -> Place | None:
        """The best free place that has none of the devices."""
        session = request.session
        unfit = self._out_of_reach(session) | self._fleet.runtimes.lacking(session.runtime)
        bounds = self._bounds(request, reserved, {device.id for device in devices} | unfit)
        while (place := self.choose(session, bounds)) is not None and not self._may_make_room(place, session):
            bounds = bounds._replace(avoid={*bounds.avoid, place.devices[0].id})
        return place

    def _out_of_reach(self, session: Session) -> set[str]:
        """The devices from which its images cannot be seen, if it is to go on from one."""
        image = session.replay.image
        if image is None or image.node is None or not (session.replay.due or session.stored):
            return set()
        return {seat.device.id for name, node in self._fleet.nodes.items() if name != image.node for seat in node.seats}

    def choose(self, session: Session, bounds: Bounds = UNBOUND) -> Place | None:
        """The best free place for the session's flavor."""
        return self._fleet.choose(self._fleet.homes.flavor_of(session), session.tenant, self._processes.has_room, bounds)

    def _bounds(self, request: Request, reserved: Reserved | None = None, avoid: Collection[str] = ()) -> Bounds:
        """The bounds that quotas, tensors and reservations set."""
        return Bounds(self._accounts.room_milli(request.session) - self._tried_milli, tensor_bytes(request.session), reserved, avoid)

    def has_room_to_start(self, request: Request) -> bool:
        """True if the pool may start the worker processes that the request needs, and those that start with it."""
        group = request.session.group
        fresh = [one for one in ([request] if group is None else group.waiting) if one.session.worker is None]
        if len(fresh) <= 1:
            return not fresh or self._processes.has_room
        return len(self._fleet.workers) - sum(self._fleet.spare.values()) + len(fresh) <= self._limits.workers_max

    def can_make_room(self, request: Request, device: Device) -> bool:
        """True if the device serves what the request is for, and its residents may leave it for that. If not, the device is not reserved
        for it."""
        serves = self._fleet.runtimes.serve((device,), request.session.runtime)
        return serves and self._may_make_room(Place((device,), WHOLE_MILLI), request.session)

    def may_have_all(self, request: Request) -> bool:
        """True if no device can be one that is not reserved for the request although its make is."""
        return not self.bounds_parking and not self._fleet.runtimes.lacking(request.session.runtime)

    def _held_bytes(self, session: Session) -> int:
        """The bytes reserved for the session's tensors on their devices, or taken there before they were parked."""
        worker = session.worker
        return 0 if worker is None else max(worker.reserved_bytes, worker.parked_bytes or 0)

    def need_bytes(self, session: Session, place: Place) -> int:
        """The bytes to reserve for the session's next lease. They never shrink while its tensors are on the device."""
        stays = session.worker is not None and session.worker.devices == place.devices
        limit_bytes = self._fleet.flavors[session.flavor].memory_bytes
        return max(limit_bytes, self._held_bytes(session) if stays else tensor_bytes(session))

    def _may_make_room(self, place: Place, session: Session) -> bool:
        """True if the residents that are in the way on the place's devices may leave."""
        if not self._accounts.bound_parking:
            return True
        part_bytes = part_of(self.need_bytes(session, place), len(place.devices))
        return all([self._may_clear(seat, session, part_bytes) for seat in self._fleet.seats_of(place)])

    def _may_clear(self, seat: Seat, session: Session, need_bytes: int) -> bool:
        own = session.worker if session.worker is not None and session.worker.id in seat.workers else None
        surplus = surplus_bytes(seat) + need_bytes - (0 if own is None else own.part_bytes)
        return eviction(seat, surplus, self._fleet, self._accounts, own).enough

    @property
    def bounds_parking(self) -> bool:
        """True if some account has a bound on parked bytes."""
        return bool(self._accounts.bound_parking)


class Reserved:
    """What of the fleet is reserved for other requests that this one may not pass. Each of them is asked once, and only if it matters."""

    __slots__ = ("_may", "_passes", "_places", "_request", "_reservations")

    def __init__(self, reservations: Reservations, places: PlaceFinder, request: Request, passes: bool = True) -> None:
        self._reservations = reservations
        self._places = places
        self._request = request
        self._passes = passes
        self._may: dict[Request, bool] = {}

    def has_make(self, make: Make) -> bool:
        holder = self._reservations.of_make(make)
        return holder is not None and self._places.may_have_all(holder) and self._excludes(holder)

    def has_any(self, devices: Iterable[Device]) -> bool:
        """True if one of the devices is reserved, by itself or with its make."""
        return any(map(self.has_device, devices)) if self._reservations.any else False

    def has_device(self, device: Device) -> bool:
        if self._excludes(self._reservations.of_device(device.id)):
            return True
        holder = self._reservations.of_make(device.make)
        return holder is not None and self._excludes(holder) and self._places.can_make_room(holder, device)

    def _excludes(self, holder: Request | None) -> bool:
        group = self._request.session.group
        if holder is None or holder is self._request or (group is not None and holder.session.group is group):
            return False
        may = self._may.get(holder)
        if may is None:
            may = self._may[holder] = self._passes and self._reservations.may_pass(self._request, holder)
        return not may
