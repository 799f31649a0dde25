"""The queue: first come, first served among those who may use the same device."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from forebay_pool.fleet import Fleet, gib, named, wants
from forebay_pool.types import Device, Request, Seat, Session

Lane = tuple[Literal["device", "gang", "flavor"], str]

GANG_SEPARATOR = "+"


class Line:
    """The waiting requests, by lane: a session with a worker waits for its device, another for any that serves its flavor.

    A device that becomes free goes to the earliest request among the heads of its lanes. Lanes are heaps; a request that left its
    lane stays in the heap until it comes up.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[Request, Lane]] = {}
        self._lanes: dict[Lane, list[tuple[int, Request]]] = {}
        self._sizes: Counter[Lane] = Counter()

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, request: Request) -> None:
        lane = lane_of(request.session)
        self.waiting[request.order] = (request, lane)
        self._sizes[lane] += 1
        heapq.heappush(self._lanes.setdefault(lane, []), (request.order, request))

    def remove(self, request: Request) -> None:
        found = self.waiting.pop(request.order, None)
        if found is not None:
            self._sizes[found[1]] -= 1
            if not self._sizes[found[1]]:
                del self._sizes[found[1]]

    def heads_for(self, seat: Seat, flavors: tuple[str, ...]) -> list[Request]:
        """The first of each lane that may use this device, in the order of arrival."""
        gangs = {lane_on(worker.devices) for worker in seat.workers.values() if len(worker.devices) > 1}
        return self._heads((lane_on((seat.device,)), *gangs, *(flavor_lane(flavor) for flavor in flavors)))

    def heads(self) -> list[Request]:
        """The first of every lane, in the order of arrival."""
        return self._heads(self._sizes)

    def _heads(self, lanes: Iterable[Lane]) -> list[Request]:
        heads = [self._head(lane) for lane in lanes if lane in self._sizes]
        return sorted((head for head in heads if head is not None), key=lambda head: head.order)

    def _head(self, lane: Lane) -> Request | None:
        heap = self._lanes.get(lane)
        while heap:
            order, request = heap[0]
            if self.waiting.get(order) == (request, lane):
                return request
            heapq.heappop(heap)
        return None

    def position_of_newest(self, request: Request, fleet: Fleet) -> int:
        """The position of the request that arrived last, without walking the line."""
        mine = lane_of(request.session)
        return sum(n for lane, n in self._sizes.items() if _compete(lane, mine, fleet))

    def positions(self, fleet: Fleet) -> Iterator[tuple[Request, int]]:
        """Each waiting request with its position: 1 + those before it who may take a device that it may take."""
        passed: Counter[Lane] = Counter()
        for order in sorted(self.waiting):
            request, mine = self.waiting[order]
            yield request, 1 + sum(n for lane, n in passed.items() if _compete(lane, mine, fleet))
            passed[mine] += 1


def _compete(one: Lane, other: Lane, fleet: Fleet) -> bool:
    """Whether some device may serve both lanes."""
    if one[0] == "flavor" and other[0] == "flavor":
        return bool(_models(one[1], fleet) & _models(other[1], fleet))
    if one[0] != "flavor" and other[0] != "flavor":
        return not _devices(one).isdisjoint(_devices(other))
    flavor, devices = (one, other) if one[0] == "flavor" else (other, one)
    return any(flavor[1] in fleet.flavors_of(fleet.seats[device]) for device in _devices(devices))


def _devices(lane: Lane) -> frozenset[str]:
    return frozenset(lane[1].split(GANG_SEPARATOR))


def _models(flavor: str, fleet: Fleet) -> frozenset[str]:
    return frozenset(e.model for e in fleet.flavors[flavor].equivalents)


def lane_of(session: Session) -> Lane:
    if session.worker is not None:
        return lane_on(session.worker.devices)
    return flavor_lane(session.flavor)


def lane_on(devices: tuple[Device, ...]) -> Lane:
    """The lane of those whose tensors are on these devices."""
    return ("gang" if len(devices) > 1 else "device", GANG_SEPARATOR.join(device.id for device in devices))


def flavor_lane(flavor: str) -> Lane:
    """The lane of those who may start wherever the flavor is served."""
    return ("flavor", flavor)


def why_waiting(session: Session, fleet: Fleet, accepting: bool, workers_max: int) -> str:
    """Why a session in the line has no lease, in words that name devices and nobody else's session."""
    if not accepting:
        return "Usage records cannot be written at present; leases open again once they can."
    if session.worker is not None:
        devices = [fleet.seats[device.id] for device in session.worker.devices]
        seat = min(devices, key=lambda seat: seat.free_milli)
        if seat.state == "draining":
            return f"A worker on {seat.device.id}, where this session's tensors are, is ending."
        return f"{seat.device.id}, where this session's tensors are, is held by another lease."
    seats = fleet.may_serve(fleet.flavors[session.flavor])
    held = [seat for seat in seats if not fleet.is_free(seat)]
    if len(fleet.workers) >= workers_max:
        return f"The pool runs {len(fleet.workers)} workers, and {workers_max} are allowed: it waits for a session to end."
    if len(held) < len(seats):
        wanted = " or ".join(wants(e) for e in fleet.flavors[session.flavor].equivalents)
        return f"Not enough is free for {session.flavor}, which takes {wanted}; {len(held)} of {len(seats)} devices are held."
    if len(held) == 1:
        return f"{named(held)}, the one device that serves {session.flavor}, is held."
    return f"All {len(held)} devices that serve {session.flavor} are held: {named(held)}."


def why_placing(seat: Seat, need_bytes: int) -> str:
    """Why a lease that is being opened on the seat is not open yet."""
    parking = [worker for worker in seat.own_workers if worker.parking]
    if parking:
        total = sum(worker.reserved_bytes for worker in parking)
        who = "a resident session" if len(parking) == 1 else f"{len(parking)} resident sessions"
        return f"{seat.device.id}: {who} ({gib(total)}) must be parked to make room for {gib(need_bytes)}."
    leaving = [worker for worker in seat.own_workers if worker.state == "ending" and worker.reserved_bytes]
    if leaving:
        return f"{seat.device.id}: the memory of a session that ended is being freed."
    if any(worker.away_ns is not None and worker.session in seat.holders for worker in seat.own_workers):
        return f"{seat.device.id}: a worker lost its link to the pool, and is waited for."
    return f"A worker is starting on {seat.device.id}."
