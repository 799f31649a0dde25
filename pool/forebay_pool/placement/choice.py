"""Which free place a session without tensors is given."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol

from forebay_pool.model.policies import Policy
from forebay_pool.model.prices import Tariff
from forebay_pool.model.types import WHOLE_MILLI, Device, Equivalent, Flavor, Kind, Make, Place, Seat, Session, Worker
from forebay_pool.placement.candidates import Bucket, Size
from forebay_pool.placement.capacity import part_of, suits
from forebay_pool.placement.fragmentation import Demand
from forebay_pool.placement.free_index import FreeIndex, Group, seat_order
from forebay_pool.placement.ranking import Candidate, ForebayRanking, Rank, Ranking, candidate

GROUPS_MAX = 64
"""Nodes of a bucket that are looked at, at a time, for one where what is free is not kept for others."""
SPARES_MAX = 16
"""Seats with a started worker that are ranked for a placement, where others would do too."""


class Kept(Protocol):
    """What is kept for others."""

    def has_make(self, make: Make) -> bool:
        """Whether all devices of the make are."""
        ...

    def has_device(self, device: Device) -> bool:
        """Whether the device is, by itself or with its make."""
        ...


class Bounds(NamedTuple):
    """What a place may not exceed, and must not touch."""

    most_milli: float = math.inf
    least_bytes: int = 0
    """Memory that its devices have together at least, each an equal part."""
    kept: Kept | None = None
    avoid: Collection[str] = ()
    """Ids of devices that it should do without."""

    def allow(self, place: Place) -> bool:
        part_bytes = part_of(self.least_bytes, len(place.devices))
        holds = all(part_bytes <= device.memory_bytes for device in place.devices)
        small = holds and len(place.devices) * place.share_milli <= self.most_milli
        return small and not ((self.avoid or self.kept is not None) and any(map(self.bar, place.devices)))

    def bar(self, device: Device) -> bool:
        return device.id in self.avoid or (self.kept is not None and self.kept.has_device(device))


class Need(NamedTuple):
    """What a place is looked for, in one of the ways that serve a flavor."""

    flavor: Flavor
    equivalent: Equivalent
    surcharge: int
    """The surcharge of the equivalent's model, for the tenant that asks."""
    bounds: Bounds

    @property
    def part_bytes(self) -> int:
        """What is set aside on each device of the place: of the flavor's memory, and of what the tensors take already."""
        return part_of(max(self.flavor.memory_bytes, self.bounds.least_bytes), self.equivalent.count)


UNBOUND = Bounds()


class Best:
    """The best place of those that were looked at."""

    def __init__(self, ranking: Ranking, demand: Demand, policy: Policy) -> None:
        self.place: Place | None = None
        self._rank: Rank | None = None
        self._ranking = ranking
        self._demand = demand
        self._policy = policy

    def meet(self, seats: list[Seat], found: Candidate) -> None:
        """Takes the candidate if it is better; ``seats`` are its place, itself first."""
        rank = (found.seat.failures, *self._ranking.rank(found, self._demand, self._policy))
        if self._rank is None or rank < self._rank:
            self._rank = rank
            self.place = Place(tuple([seat.device for seat in seats]), found.equivalent.share_milli)

    def beats(self, floor: Rank) -> bool:
        """Whether nobody with this rank or a greater one is better."""
        return self._rank is not None and self._rank <= floor


class Placement:
    """Chooses places; what is free is filed by model."""

    def __init__(self, demand: Demand, ranking: Ranking | None) -> None:
        self.indexes: dict[str, FreeIndex] = {}
        self._demand = demand
        self._ranking = ranking or ForebayRanking()
        self._spares: dict[str, dict[str, Seat]] = {}
        """Seats with a spare worker, by model."""

    def add(self, seat: Seat) -> None:
        model = seat.device.model
        if model not in self.indexes:
            self.indexes[model] = FreeIndex(self._ranking, self._demand)
            self._spares[model] = {}
        self.indexes[model].add(seat)

    def remove(self, node: str, models: Iterable[str]) -> None:
        """Forgets the node, none of whose devices is open, and which has these models."""
        for model in models:
            self.indexes[model].remove(node)

    def changed(self, seat: Seat) -> None:
        """Something about the seat is not as it was."""
        self.indexes[seat.device.model].changed(seat)
        if seat.spares:
            self._file_spares(seat)

    def spares_changed(self, seat: Seat, change: int) -> None:
        """Notes ``change`` more spare workers on the seat."""
        seat.spares += change
        self._file_spares(seat)

    def _file_spares(self, seat: Seat) -> None:
        """A seat with spare workers is filed as long as something of it may be leased, and nobody waits for all of them."""
        filed = self._spares[seat.device.model]
        if seat.spares and seat.open_milli and spares_left(seat) > 0:
            filed[seat.device.id] = seat
        else:
            filed.pop(seat.device.id, None)

    def lists_spares(self, seat: Seat) -> bool:
        """Whether the seat is found by its spare workers. For checks."""
        return seat.device.id in self._spares[seat.device.model]

    def free_of(self, model: str) -> Iterator[Seat]:
        """Every device of the model of which something may be leased."""
        return iter(()) if model not in self.indexes else self.indexes[model].free_seats()

    def choose(
        self, flavor: Flavor, tenant: str, policy: Policy, tariff: Tariff, room_for_workers: bool, bounds: Bounds
    ) -> Place | None:
        """The best place: fewest failures of workers, then as the ranking says; None if there is none now."""
        best = Best(self._ranking, self._demand, policy)
        for equivalent in flavor.equivalents:
            if equivalent.model not in self.indexes or not policy.allows(equivalent.model, tenant):
                continue
            if equivalent.count * equivalent.share_milli > bounds.most_milli:
                continue
            index = self.indexes[equivalent.model]
            if not index.has_free(equivalent.share_milli, equivalent.count):
                continue
            if bounds.kept is not None and all(bounds.kept.has_make(make) for make in index.makes):
                continue
            need = Need(flavor, equivalent, tariff.surcharge_of(equivalent.model, tenant), bounds)
            if equivalent.count == 1:
                self._look_at_spares(best, index, need, room_for_workers)
            if room_for_workers and not _look_at_nodes(best, index, need, policy) and equivalent.count > 1:
                seats = _gang_apart(index, need, policy)
                if seats:
                    best.meet(seats, _candidate(seats[0], need, index))
        return best.place

    def _look_at_spares(self, best: Best, index: FreeIndex, need: Need, room_for_workers: bool) -> None:
        """Those with a started worker."""
        started = (seat for seat in self._spares[need.equivalent.model].values() if _fits(seat, need))
        for seat in islice(started, SPARES_MAX if room_for_workers else None):
            best.meet([seat], _candidate(seat, need, index))

    def is_fragmented(self, flavor: Flavor, tenant: str, policy: Policy) -> bool:
        """Whether as much is free as the flavor takes, though not together; asked where no place was found."""
        for e in flavor.equivalents:
            index = self.indexes.get(e.model)
            if index is not None and policy.allows(e.model, tenant):
                index.refresh()
                if index.whole >= e.count if e.count > 1 else index.free_milli >= e.share_milli:
                    return True
        return False

    def idle(self, kind: Kind, most: int) -> Iterator[Seat]:
        """Devices of the kind of which everything is free, those with the least set aside in the fullest nodes first, at most so many."""
        found = (
            seat
            for index in self.indexes.values()
            if kind in index.kinds
            for group in index.with_whole()
            for seat in sorted(group.seats, key=lambda seat: (seat.taken_bytes, seat.number))
            if seat.open_milli == WHOLE_MILLI
        )
        return islice(found, most)


def _look_at_nodes(best: Best, index: FreeIndex, need: Need, policy: Policy) -> bool:
    """Bucket by bucket, until none that follows can be better; whether there is a place in one node."""
    found = False
    for floor, bucket in index.best_for(Size(need.equivalent, need.flavor.memory_bytes, need.surcharge), policy):
        if best.beats(floor):
            return True
        seats = _best_seats(index, bucket, need)
        if seats:
            found = True
            best.meet(seats, _candidate(seats[0], need, index))
    return found


def _best_seats(index: FreeIndex, bucket: Bucket, need: Need) -> list[Seat]:
    """Fit devices of the first of the bucket's nodes that has them. If none of so many nodes has, the next look begins behind them."""
    begin = bucket.begin if bucket.begin < len(bucket.orders) else 0
    for group in islice(index.in_order(bucket), begin, begin + GROUPS_MAX):
        seats = _seats_of(group, bucket.share_milli, need)
        if seats:
            bucket.begin = 0
            return seats
    bucket.begin = begin + GROUPS_MAX
    return []


def _seats_of(group: Group, share_milli: int, need: Need) -> list[Seat]:
    """The best of the group's devices with so much free, as many as it takes; none if those that will do are too few."""
    count, best = need.equivalent.count, group.best[share_milli]
    if count == 1 and _fits(best, need):
        return [best]
    return _together((seat for seat in group.seats if seat.open_milli == share_milli and _fits(seat, need)), count)


def _together(seats: Iterable[Seat], count: int) -> list[Seat]:
    """As many of the seats as it takes, the best first; none if they are too few."""
    fitting = sorted(seats, key=seat_order)
    return fitting[:count] if len(fitting) >= count else []


def _fits(seat: Seat, need: Need) -> bool:
    """Whether the share and the memory are free, residents not counted."""
    if seat.open_milli < need.equivalent.share_milli or not suits(seat.device, need.flavor, need.equivalent):
        return False
    if seat.held_bytes + need.part_bytes > seat.device.memory_bytes:  # those of one model in a node need not have the same memory
        return False
    return not need.bounds.bar(seat.device)


def _candidate(seat: Seat, need: Need, index: FreeIndex) -> Candidate:
    started = need.equivalent.count == 1 and spares_left(seat) > 0
    return candidate(seat, index.groups[seat.device.node].profile, need.equivalent, need.flavor.memory_bytes, started, need.surcharge)


def _gang_apart(index: FreeIndex, need: Need, policy: Policy) -> list[Seat]:
    """A gang under the switch with the fewest devices free that has enough, else anywhere; the best of its devices first."""
    if policy.gang_spread == "node":
        return []
    count, switch = need.equivalent.count, index.switch_for(need.equivalent.count)
    near = [] if switch is None else _gather(index.fullest(switch), need)
    if len(near) < count and policy.gang_spread == "any":
        near = _gather(index.fullest(None), need)
    return _together(near, count)


def _gather(groups: Iterator[Group], need: Need) -> list[Seat]:
    """As many whole devices as the gang takes, from the nodes with most first, so that it lies in few nodes."""
    count = need.equivalent.count
    seats = (seat for group in islice(groups, count + GROUPS_MAX) for seat in _whole_seats(group, need))
    return list(islice(seats, count))


def _whole_seats(group: Group, need: Need) -> list[Seat]:
    seats = [seat for seat in group.seats if seat.open_milli == WHOLE_MILLI and _fits(seat, need)]
    return sorted(seats, key=seat_order)


def spares_for(seat: Seat, devices: tuple[Device, ...]) -> list[Worker]:
    """The workers for exactly these devices, the first of which is the seat's, that serve nobody yet."""
    return [worker for worker in seat.workers.values() if worker.spare and worker.devices == devices]


def in_want(seat: Seat, devices: tuple[Device, ...]) -> list[Session]:
    """Those who claimed exactly these devices, the first of which is the seat's, and have no worker yet."""
    return [session for session, hold in seat.holders.items() if session.worker is None and hold.devices == devices]


def spares_left(seat: Seat) -> int:
    """Spare workers that nobody waits for."""
    return seat.spares - len(in_want(seat, (seat.device,))) if seat.spares else 0
