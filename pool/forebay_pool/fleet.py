"""The devices, the workers on them, and what they can serve."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from forebay_pool.errors import InvariantBroken
from forebay_pool.types import WHOLE_MILLI, Device, Equivalent, Flavor, Hold, Kind, Lane, Limits, Place, Seat, Session, Worker

NAMES_MAX = 4
"""A sentence names at most so many devices."""


class Bounds(NamedTuple):
    """What a place may not exceed, and must not touch."""

    most_milli: float = math.inf
    avoid: Collection[str] = ()
    """Ids of devices that are kept for somebody else."""

    def allow(self, place: Place) -> bool:
        return len(place.devices) * place.share_milli <= self.most_milli and not any(device.id in self.avoid for device in place.devices)


class Fleet:
    """Who sits where. Keeps an index of the seats with something free, so that placing does not look at every device."""

    def __init__(self, devices: Iterable[Device], flavors: Mapping[str, Flavor]) -> None:
        self.seats: dict[str, Seat] = {device.id: Seat(device) for device in devices}
        self.workers: dict[str, Worker] = {}
        self.flavors: dict[str, Flavor] = dict(flavors)
        self.spare: dict[Kind, int] = {seat.device.kind: 0 for seat in self.seats.values()}
        """Workers of one device without a session, starting or warm, by kind."""
        self._free: dict[str, dict[str, Seat]] = {}
        self._serves: dict[tuple[str, int], tuple[str, ...]] = {}
        self.counts = Counter(seat.device.model for seat in self.seats.values())
        """Devices by model."""
        for seat in self.seats.values():
            self._free.setdefault(seat.device.model, {})[seat.device.id] = seat
        self._index_flavors()

    def set_flavor(self, flavor: Flavor) -> None:
        self.flavors[flavor.name] = flavor
        self._index_flavors()

    def _index_flavors(self) -> None:
        self._rivals: dict[str, tuple[str, ...]] = {}
        makes = {(seat.device.model, seat.device.memory_bytes): seat.device for seat in self.seats.values()}
        for make, device in makes.items():
            self._serves[make] = tuple(f.name for f in self.flavors.values() if any(suits(device, f, e) for e in f.equivalents))

    def flavors_of(self, seat: Seat) -> tuple[str, ...]:
        """The names of the flavors that the device serves, alone or in a gang."""
        return self._serves[seat.device.model, seat.device.memory_bytes]

    def rivals_of(self, flavor: str) -> tuple[str, ...]:
        """The flavors that some device serves beside this one, itself included."""
        found = self._rivals.get(flavor)
        if found is None:
            beside = {rival: None for flavors in self._serves.values() if flavor in flavors for rival in flavors}
            found = self._rivals[flavor] = tuple(beside)
        return found

    def demand_milli(self, flavor: Flavor, devices: tuple[str, ...] = ()) -> int:
        """The least compute that serves the flavor, in thousandths of devices; on just these devices, if any are named."""
        if devices:
            fitting = equivalents_for(tuple(self.seats[device].device for device in devices), flavor)
        else:
            fitting = [e for e in flavor.equivalents if e.model in self._free]
        return min((e.count * e.share_milli for e in fitting or flavor.equivalents), default=WHOLE_MILLI)

    def slots(self, lane: Lane) -> int:
        """How many leases can be open at a time for those who wait there."""
        devices, name = lane
        flavor, slots = self.flavors[name], 0
        for equivalent in flavor.equivalents:
            if devices:
                here = equivalents_for(tuple(self.seats[device].device for device in devices), flavor)
                slots = max([slots, *(WHOLE_MILLI // e.share_milli for e in here)])
            else:
                slots += self.counts.get(equivalent.model, 0) // equivalent.count * (WHOLE_MILLI // equivalent.share_milli)
        return slots

    # Seats

    def seats_of(self, place: Place) -> list[Seat]:
        return [self.seats[device.id] for device in place.devices]

    def take(self, place: Place, session: Session, memory_bytes: int) -> None:
        """Claims the whole place for the session, with so much memory on its first device. Raises before anything is leased twice."""
        seats = self.seats_of(place)
        first = seats[0]
        for seat in seats:
            if seat.free_milli < place.share_milli or session in seat.holders:
                raise InvariantBroken(f"{seat.device.id} has {seat.free_milli}/1000 free and cannot be taken for session {session.id}")
        if first.held_bytes + memory_bytes > first.device.memory_bytes:
            raise InvariantBroken(f"{first.device.id} has not {gib(memory_bytes)} for session {session.id} beside {gib(first.held_bytes)}")
        for seat in seats:
            seat.holders[session] = hold = Hold(place.share_milli, memory_bytes if seat is first else 0)
            seat.held_bytes += hold.memory_bytes
            self._use(seat, hold.share_milli)

    def leave(self, place: Place, session: Session) -> None:
        """Gives the session's place back."""
        for seat in self.seats_of(place):
            hold = seat.holders.pop(session)
            seat.held_bytes -= hold.memory_bytes
            self._use(seat, -hold.share_milli)

    def _use(self, seat: Seat, share_milli: int) -> None:
        """Takes the share off what is free, or gives it back where it is negative."""
        seat.free_milli -= share_milli
        if seat.free_milli:
            self._free[seat.device.model][seat.device.id] = seat
        else:
            self._free[seat.device.model].pop(seat.device.id, None)

    def free_seats(self) -> Iterator[Seat]:
        """All seats with something free."""
        for seats in self._free.values():
            yield from seats.values()

    def is_free(self, seat: Seat) -> bool:
        """Whether anything of the device is free."""
        return seat.device.id in self._free[seat.device.model]

    # Places

    def find(self, session: Session, held_bytes: int, workers_max: int, bounds: Bounds) -> Place | None:
        """The best place that is free for the session now: where its tensors are if it has any, which took ``held_bytes`` there."""
        flavor = self.flavors[session.flavor]
        if session.worker is not None:
            place = self._place_of(session.worker, flavor, max(held_bytes, memory_limit(flavor, session.worker.device)))
            return place if place is not None and bounds.allow(place) else None
        return self.choose(flavor, len(self.workers) < workers_max, bounds)

    def _place_of(self, worker: Worker, flavor: Flavor, need_bytes: int) -> Place | None:
        seats = [self.seats[device.id] for device in worker.devices]
        if seats[0].held_bytes + need_bytes > worker.device.memory_bytes:
            return None
        for equivalent in equivalents_for(worker.devices, flavor):
            if all(seat.free_milli >= equivalent.share_milli for seat in seats):
                return Place(worker.devices, equivalent.share_milli)
        return None

    def choose(self, flavor: Flavor, room_for_workers: bool, bounds: Bounds) -> Place | None:
        """The best free place for a session without tensors: fewest failures, then room without eviction, then a warm worker."""
        best: Place | None = None
        best_rank: tuple[int, bool, bool, int] | None = None
        for equivalent in flavor.equivalents:
            if equivalent.count * equivalent.share_milli > bounds.most_milli:
                continue
            if equivalent.count > 1:
                place = self._gang(flavor, equivalent, bounds) if room_for_workers else None
                rank = (0, False, True, 0)
                if place is not None and (best_rank is None or rank < best_rank):
                    best, best_rank = place, rank
                continue
            for seat in self._fitting(flavor, equivalent, bounds):
                spare = spares_left(seat) > 0
                if not spare and not room_for_workers:
                    continue
                reserved = seat.reserved_bytes
                crowded = reserved + flavor.memory_bytes > seat.device.memory_bytes
                rank = (seat.failures, crowded, not spare, reserved)
                if best_rank is None or rank < best_rank:
                    best, best_rank = Place((seat.device,), equivalent.share_milli), rank
        return best

    def _fitting(self, flavor: Flavor, equivalent: Equivalent, bounds: Bounds) -> Iterator[Seat]:
        """The seats with the equivalent's share and the flavor's memory free, residents not counted."""
        for seat in self._free.get(equivalent.model, {}).values():
            roomy = seat.held_bytes + memory_limit(flavor, seat.device) <= seat.device.memory_bytes
            if seat.device.id in bounds.avoid:
                continue
            if seat.free_milli >= equivalent.share_milli and roomy and suits(seat.device, flavor, equivalent):
                yield seat

    def _gang(self, flavor: Flavor, equivalent: Equivalent, bounds: Bounds) -> Place | None:
        seats = list(self._fitting(flavor, equivalent, bounds))
        if len(seats) < equivalent.count:
            return None
        seats.sort(key=lambda seat: (seat.failures, seat.reserved_bytes))
        return Place(tuple(seat.device for seat in seats[: equivalent.count]), WHOLE_MILLI)

    def may_serve(self, flavor: Flavor) -> list[Seat]:
        """Every seat that serves the flavor, free or not."""
        return [seat for seat in self.seats.values() if flavor.name in self.flavors_of(seat)]

    # Workers

    def add(self, worker: Worker) -> None:
        self.workers[worker.id] = worker
        for device in worker.devices:
            self.seats[device.id].workers[worker.id] = worker
        self._count_spare(worker, 1)

    def remove(self, worker: Worker) -> None:
        if worker.spare:
            self._count_spare(worker, -1)
        del self.workers[worker.id]
        for device in worker.devices:
            seat = self.seats[device.id]
            del seat.workers[worker.id]
            if worker in seat.draining:
                self._use(seat, -seat.draining.pop(worker))

    def _count_spare(self, worker: Worker, change: int) -> None:
        if len(worker.devices) == 1:
            self.spare[worker.device.kind] += change

    def give(self, worker: Worker, session: Session) -> None:
        """Binds a warm worker to its one session."""
        if worker.state != "warm" or worker.session is not None or session.worker is not None:
            raise InvariantBroken(f"worker {worker.id} is {worker.state} and cannot serve session {session.id}")
        self._count_spare(worker, -1)
        worker.session, session.worker, worker.state = session, worker, "assigning"

    def retire(self, worker: Worker, drains_milli: int) -> None:
        """The worker serves nobody from here on; the share of its devices that it may still use waits until it is gone."""
        if worker.spare:
            self._count_spare(worker, -1)
        worker.state, worker.parking, worker.deadline_ns = "ending", False, None
        if worker.session is not None:
            worker.session.worker = None
            worker.session = None
        for device in worker.devices if drains_milli else ():
            seat = self.seats[device.id]
            if seat.free_milli < drains_milli:
                raise InvariantBroken(f"{device.id} has {seat.free_milli}/1000 free, and worker {worker.id} drains {drains_milli}")
            seat.draining[worker] = drains_milli
            self._use(seat, drains_milli)

    # Sentences

    def why_not(self, flavor: Flavor) -> str | None:
        """Why nothing here can ever serve the flavor; None if something can."""
        here: dict[str, list[Device]] = {}
        for seat in self.seats.values():
            here.setdefault(seat.device.model, []).append(seat.device)
        if any(sum(suits(d, flavor, e) for d in here.get(e.model, [])) >= e.count for e in flavor.equivalents):
            return None
        reasons = [_why_not_by(flavor, e, here.get(e.model, [])) for e in flavor.equivalents]
        if any(e.model in here for e in flavor.equivalents):
            return f"{flavor.name} cannot be served: " + "; ".join(reasons) + "."
        wanted = " or ".join(wants(e) for e in flavor.equivalents) or "a device that nobody named"
        found = ", ".join(f"{len(devices)} {model}" for model, devices in sorted(here.items())) or "no device"
        return f"{flavor.name} needs {wanted}; this installation has {found}."


def suits(device: Device, flavor: Flavor, equivalent: Equivalent) -> bool:
    """Whether the device can be one of those that serve the flavor this way: the gang's memory together holds the flavor's."""
    return equivalent.model == device.model and flavor.memory_bytes <= equivalent.count * device.memory_bytes


def equivalents_for(devices: tuple[Device, ...], flavor: Flavor) -> list[Equivalent]:
    """The ways in which exactly these devices serve the flavor, best first."""
    return [e for e in flavor.equivalents if e.count == len(devices) and all(suits(device, flavor, e) for device in devices)]


def memory_limit(flavor: Flavor, device: Device) -> int:
    """What a session may hold on the first device of its place: the flavor's memory, or all of the device where a gang's is more."""
    return min(flavor.memory_bytes, device.memory_bytes)


def spares_for(seat: Seat, devices: tuple[Device, ...]) -> list[Worker]:
    """The workers for exactly these devices, the first of which is the seat's, that serve nobody yet."""
    return [worker for worker in seat.workers.values() if worker.spare and worker.devices == devices]


def in_want(seat: Seat, devices: tuple[Device, ...]) -> list[Session]:
    """Those who claimed exactly these devices, the first of which is the seat's, and have no worker yet."""
    placed = [(s, s.request.place) for s in seat.holders if s.worker is None and s.request is not None]
    return [session for session, place in placed if place is not None and place.devices == devices]


def spares_left(seat: Seat) -> int:
    """Spare workers that nobody waits for."""
    return len(spares_for(seat, (seat.device,))) - len(in_want(seat, (seat.device,)))


def wants(equivalent: Equivalent) -> str:
    """The equivalent for people."""
    if equivalent.share_milli < WHOLE_MILLI:
        return f"{equivalent.share_milli / 10:g} % of a {equivalent.model}"
    return f"{equivalent.count} {equivalent.model}"


def _why_not_by(flavor: Flavor, equivalent: Equivalent, devices: list[Device]) -> str:
    model, count = equivalent.model, equivalent.count
    if not devices:
        return f"there is no {model} here"
    fitting = [device for device in devices if suits(device, flavor, equivalent)]
    if len(devices) < count or 0 < len(fitting) < count:
        return f"it takes {count} {model} together, and there are {len(fitting) or len(devices)}"
    most = max(device.memory_bytes for device in devices)
    if count > 1:
        return f"{count} {model} together have {gib(count * most)}, the flavor {gib(flavor.memory_bytes)}"
    return f"a {model} here has {gib(most)}, the flavor {gib(flavor.memory_bytes)}"


def lateness(worker: Worker, limits: Limits) -> str:
    """What a worker whose deadline passed did not do in time."""
    if worker.session is not None and worker.session.lease is not None:
        return f"it computed on for {limits.close_seconds:g} s after its lease was taken back"
    if worker.parking:
        return f"it did not move its tensors to host memory within {limits.park_seconds:g} s"
    return f"it was not ready within {limits.worker_start_seconds:g} s"


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB"


def named(seats: list[Seat]) -> str:
    """The devices' ids for people, bounded."""
    names = [seat.device.id for seat in seats[:NAMES_MAX]]
    rest = len(seats) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")
