"""The devices, the workers on them, and what they can serve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from forebay_wire import messages as wire
from forebay_wire.sentences import gib

from forebay_pool.errors import InvariantBroken
from forebay_pool.model.causes import Cause
from forebay_pool.model.elastic import Growth, NodeGroup
from forebay_pool.model.limits import Limits
from forebay_pool.model.policies import Policy
from forebay_pool.model.prices import Tariff
from forebay_pool.model.types import (
    ALONE,
    WHOLE_MILLI,
    Device,
    Flavor,
    Hold,
    Kind,
    Lane,
    Make,
    Node,
    Place,
    Seat,
    Session,
    Worker,
)
from forebay_pool.placement.capacity import Capacity, can_start, equivalents_for, part_of, suits
from forebay_pool.placement.choice import UNBOUND, Bounds, Placement
from forebay_pool.placement.expected_ends import Ends
from forebay_pool.placement.fragmentation import Demand
from forebay_pool.placement.free_index import FreeIndex
from forebay_pool.placement.homes import Homes
from forebay_pool.placement.ranking import Ranking
from forebay_pool.placement.runtimes import ServedRuntimes

NAMES_MAX = 4
"""A sentence names at most so many devices."""
DEMANDS_MAX = 1_000_000
"""Lanes whose demand, and whose slots, are remembered."""


class Census(NamedTuple):
    """How the devices that a flavor names stand."""

    total: int
    free: int
    """Those of which something may be leased."""
    closed: int
    some: list[Seat]
    """The first of them, for a sentence."""

    @property
    def names(self) -> str:
        """Some of the devices' ids for people."""
        return ", ".join(seat.device.id for seat in self.some)

    @property
    def more(self) -> int:
        """How many devices are not among those."""
        return self.total - len(self.some)


class Fleet:
    """Who sits where. What is free is indexed, so that no decision looks at every device."""

    def __init__(
        self,
        devices: Iterable[Device],
        flavors: Mapping[str, Flavor],
        policy: Policy | None = None,
        ranking: Ranking | None = None,
        groups: Iterable[NodeGroup] = (),
    ) -> None:
        self.nodes: dict[str, Node] = {}
        self.seats: dict[str, Seat] = {}
        self.workers: dict[str, Worker] = {}
        self.policy = policy or Policy()
        self.flavors: dict[str, Flavor] = dict(flavors)
        self.tariff = Tariff()
        self.growth = {group.model: Growth(group) for group in groups}
        """Of each elastic group, by its model."""
        self.serving: dict[str, dict[str, Worker]] = {}
        """Workers with a session, or with the tensors of one that left, by tenant."""
        self.demand = Demand(self.flavors)
        self.spare: dict[Kind, int] = {}
        """Workers of one device without a session, starting or warm, by kind."""
        self.placement = Placement(self.demand, ranking)
        self.capacity = Capacity(self)
        self.ends = Ends()
        self.homes = Homes(self.flavors, self.nodes)
        self.runtimes = ServedRuntimes()
        self.rates: dict[tuple[str, int], str] = {}
        """What so many devices of one model can do, as the first worker on such devices measured it."""
        self._seats_joined = 0
        self._serves: dict[Make, tuple[str, ...]] = {}
        self._makes: dict[str, tuple[Make, ...]] = {}
        self._rivals: dict[str, tuple[str, ...]] = {}
        self._demands: dict[tuple[tuple[str, ...], str], int] = {}
        self.join(devices)

    def join(self, devices: Iterable[Device]) -> list[Seat]:
        """Adds devices, with their nodes; those that are there already stay as they are. The new seats."""
        new = []
        for device in devices:
            if device.id in self.seats:
                continue
            node = self.nodes.setdefault(device.node, Node(device.node, device.switch))
            seat = self.seats[device.id] = Seat(device, node, self._seats_joined)
            self._seats_joined += 1
            node.seats.append(seat)
            self.spare.setdefault(device.kind, 0)
            self.placement.add(seat)
            self.ends.free_milli[device.make] += seat.free_milli
            new.append(seat)
        self._index_flavors()
        return new

    def forget(self, node: Node) -> None:
        """Takes a lost node off the lists, on which no worker is left and of which nothing is held."""
        node.is_forgotten = True
        del self.nodes[node.name]
        self.placement.remove(node.name, {seat.device.model for seat in node.seats})
        self.runtimes.forget([seat.device for seat in node.seats])
        for seat in node.seats:
            del self.seats[seat.device.id]
            self.ends.free_milli[seat.device.make] -= seat.free_milli
        self._index_flavors()

    def set_flavor(self, flavor: Flavor) -> None:
        self.flavors[flavor.name] = flavor
        self.demand.refresh()
        self._index_flavors()

    def remove_flavor(self, name: str) -> None:
        """Of one that no session has."""
        self.flavors.pop(name, None)
        self.demand.refresh()
        self._index_flavors()

    def set_policy(self, policy: Policy) -> None:
        self.policy = policy
        self.capacity.forget()

    def set_tariff(self, tariff: Tariff) -> None:
        if tariff.surcharges != self.tariff.surcharges:
            for index in self.indexes.values():
                index.forget_candidates()
        self.tariff = tariff

    def _index_flavors(self) -> None:
        self.capacity.forget()
        self._rivals.clear()
        self._demands.clear()
        for make, device in {seat.device.make: seat.device for seat in self.seats.values()}.items():
            self._serves[make] = tuple(f.name for f in self.flavors.values() if any(suits(device, f, e) for e in f.equivalents))
        self._makes = {name: tuple(make for make, served in self._serves.items() if name in served) for name in self.flavors}

    @property
    def makes(self) -> Iterable[Make]:
        """All makes of devices that were ever here."""
        return self._serves

    def makes_of(self, flavor: str) -> tuple[Make, ...]:
        """The makes that serve the flavor, alone or in a gang."""
        return self._makes.get(flavor, ())

    def served_by(self, make: Make) -> tuple[str, ...]:
        """The names of the flavors that devices of the make serve, alone or in a gang."""
        return self._serves[make]

    def flavors_of(self, seat: Seat) -> tuple[str, ...]:
        """The names of the flavors that the device serves, alone or in a gang."""
        return self._serves[seat.device.make]

    def rivals_of(self, flavor: str) -> tuple[str, ...]:
        """The flavors that some device serves beside this one, itself included."""
        found = self._rivals.get(flavor)
        if found is None:
            beside = {rival: None for flavors in self._serves.values() if flavor in flavors for rival in flavors}
            found = self._rivals[flavor] = tuple(beside)
        return found

    def lane_of(self, session: Session) -> Lane:
        """Where in the queue the session waits."""
        ranks, home = ALONE if session.group is None else session.group.ranks, self.homes.of(session)
        if home:
            return home, session.flavor, (), ranks, session.runtime
        if not self.policy.models and not session.replay.due:
            return (), session.flavor, (), ranks, session.runtime
        models = {equivalent.model for equivalent in self.flavors[session.flavor].equivalents}
        served = {way.model for way in self.homes.flavor_of(session).equivalents if self.policy.allows(way.model, session.tenant)}
        return (), session.flavor, tuple(sorted(models - served)), ranks, session.runtime

    def demand_milli(self, lane: Lane) -> int:
        """The least compute that serves the lane's flavor, in thousandths of devices; on just its devices, if it names any."""
        needed = lane[:2]
        found = self._demands.get(needed)
        if found is None:
            if len(self._demands) >= DEMANDS_MAX:
                self._demands.clear()
            found = self._demands[needed] = self._demand_milli(*needed)
        return found

    def _demand_milli(self, devices: tuple[str, ...], name: str) -> int:
        flavor = self.flavors[name]
        if devices:
            there = tuple(self.seats[device].device for device in devices)
            models = {device.model for device in there}
            fitting = equivalents_for(there, flavor) or [e for e in flavor.equivalents if e.model in models]
        else:
            fitting = [e for e in flavor.equivalents if e.model in self.indexes]
        return min((e.count * e.share_milli for e in fitting or flavor.equivalents), default=WHOLE_MILLI)

    def most_together(self, flavor: Flavor, tenant: str) -> int:
        """How many leases of the flavor the tenant could have open at a time, if nobody else had any. Closed hosts count, but
        for those that an operator drained and that are lost: they do not come back."""
        most: dict[str, int] = {}
        for e in flavor.equivalents:
            if e.model in self.indexes and self.policy.allows(e.model, tenant):
                groups = self.indexes[e.model].groups.values()
                seats = [seat for group in groups for seat in group.seats if seat.node.lost is None or not seat.node.drains]
                devices = [seat.device for seat in seats if suits(seat.device, flavor, e)]
                shares = sum(min(WHOLE_MILLI // e.share_milli, device.memory_bytes // flavor.memory_bytes) for device in devices)
                most[e.model] = max(most.get(e.model, 0), shares if e.count == 1 else len(devices) // e.count)
        for group in [one.group for one in self.grows_for(flavor, tenant)]:
            count, share_milli = min((e.count, e.share_milli) for e in flavor.equivalents if suits(group, flavor, e))
            most[group.model] = group.nodes_max * group.devices // count * (WHOLE_MILLI // share_milli)
        return sum(most.values())

    def most_milli(self, flavors: Iterable[str]) -> int:
        """All that there is, in thousandths of devices, of what serves any of the flavors."""
        names = list(flavors)
        groups = {group.make: group for one in self.growth.values() for group in [one.group]}
        grown = [group for group in groups.values() if any(can_start(group, self.flavors[name]) for name in names)]
        makes = {make: None for flavor in names for make in self.makes_of(flavor) if make not in groups}
        there = WHOLE_MILLI * sum(seat.device.make in makes for seat in self.seats.values())
        return there + sum(group.nodes_max * group.node_milli for group in grown)

    def starting(self, flavor: Flavor, tenant: str, now_ns: int) -> Iterator[tuple[Growth, int]]:
        """The nodes on their way that will serve the flavor to the tenant, and what is left until each is there, in nanoseconds."""
        for growth in self.growth.values():
            if growth.asked_ns and can_start(growth.group, flavor) and self.policy.allows(growth.group.model, tenant):
                yield from ((growth, left_ns) for left_ns in growth.starts_left_ns(now_ns))

    def grows_for(self, flavor: Flavor, tenant: str) -> list[Growth]:
        """The groups of which nodes could be started that serve the flavor to the tenant."""
        return [one for one in self.growth.values() if can_start(one.group, flavor) and self.policy.allows(one.group.model, tenant)]

    # Seats

    def seats_of(self, place: Place) -> list[Seat]:
        devices = place.devices
        return [self.seats[devices[0].id]] if len(devices) == 1 else [self.seats[device.id] for device in devices]

    def take(self, place: Place, session: Session, memory_bytes: int) -> None:
        """Claims the whole place for the session, with so much memory of all its devices. Raises before anything is leased twice."""
        seats = self.seats_of(place)
        part_bytes = part_of(memory_bytes, len(seats))
        for seat in seats:
            if seat.free_milli < place.share_milli or session in seat.holders:
                raise InvariantBroken(f"{seat.device.id} has {seat.free_milli}/1000 free and cannot be taken for session {session.id}")
            if seat.held_bytes + part_bytes > seat.device.memory_bytes:
                raise InvariantBroken(f"{seat.device.id} has not {gib(part_bytes)} for session {session.id} beside {gib(seat.held_bytes)}")
        for seat in seats:
            seat.holders[session] = hold = Hold(place.share_milli, part_bytes, place.devices)
            seat.held_bytes += hold.part_bytes
            self._give_free(seat, -hold.share_milli)
            self.changed(seat)
        self.ends.hold(session, place)

    def _give_free(self, seat: Seat, change_milli: int) -> None:
        seat.free_milli += change_milli
        self.ends.free_milli[seat.device.make] += change_milli

    def leave(self, place: Place, session: Session) -> None:
        """Gives the session's place back."""
        for seat in self.seats_of(place):
            hold = seat.holders.pop(session)
            seat.held_bytes -= hold.part_bytes
            self._give_free(seat, hold.share_milli)
            self.changed(seat)
        self.ends.leave(session)

    def reserve(self, worker: Worker, memory_bytes: int) -> None:
        """Sets memory aside for the worker, in place of what was."""
        if worker.reserved_bytes != memory_bytes:
            worker.reserved_bytes = memory_bytes
            for device in worker.devices:
                self.changed(self.seats[device.id])

    def changed(self, seat: Seat) -> None:
        """Takes note of whatever was done to the seat."""
        seat.open_milli = seat.free_milli if seat.is_open else 0
        taken_bytes, holders = seat.held_bytes, seat.holders
        for worker in seat.workers.values():
            if worker.session is None or worker.session not in holders:
                taken_bytes += worker.part_bytes
        seat.taken_bytes = taken_bytes
        self.placement.changed(seat)

    def found_dead(self, seat: Seat, failures: int) -> None:
        """So many workers in a row died here before they served anybody."""
        if seat.failures != failures:
            seat.failures = failures
            self.placement.changed(seat)

    def free_for(self, session: Session) -> list[Seat]:
        """The seats with something free of which the session's lease could have a part."""
        home = self.homes.of(session)
        if home:
            return [seat for seat in map(self.seats.__getitem__, home) if seat.free_milli]
        models = {equivalent.model: None for equivalent in self.homes.flavor_of(session).equivalents}
        return [seat for model in models for seat in self.placement.free_of(model)]

    # Places

    def choose(self, flavor: Flavor, tenant: str, room_for_workers: bool, bounds: Bounds = UNBOUND) -> Place | None:
        """The best free place for a session without tensors."""
        return self.placement.choose(flavor, tenant, self.policy, self.tariff, room_for_workers, bounds)

    def is_fragmented(self, flavor: Flavor, tenant: str) -> bool:
        """Whether as much is free as the flavor takes, though not together; asked where no place was found."""
        return self.placement.is_fragmented(flavor, tenant, self.policy)

    def place_at(self, worker: Worker, flavor: Flavor, held_bytes: int) -> Place | None:
        """The worker's devices, if they are free for a session of its now, which took ``held_bytes`` there."""
        seats = [self.seats[device.id] for device in worker.devices]
        open_milli = min([seat.open_milli for seat in seats])
        part_bytes = part_of(max(held_bytes, flavor.memory_bytes), len(seats))
        if not open_milli or any([seat.held_bytes + part_bytes > seat.device.memory_bytes for seat in seats]):
            return None
        for equivalent in equivalents_for(worker.devices, flavor):
            if open_milli >= equivalent.share_milli:
                return Place(worker.devices, equivalent.share_milli)
        return None

    def seats_to_start(self, kind: Kind, most: int) -> Iterator[Seat]:
        """Free devices of the kind where it would be good to have a worker started, at most so many."""
        return self.placement.idle(kind, most)

    @property
    def indexes(self) -> Mapping[str, FreeIndex]:
        """What there is, by model."""
        return self.placement.indexes

    def census(self, flavor: Flavor) -> Census:
        """How the devices of the flavor's models stand, without looking at each."""
        models = dict.fromkeys(e.model for e in flavor.equivalents if e.model in self.indexes)
        indexes = [self.indexes[model] for model in models]
        for index in indexes:
            index.refresh()
        some = islice((seat for index in indexes for group in index.groups.values() for seat in group.seats), NAMES_MAX)
        return Census(sum(s.count for s in indexes), sum(s.free for s in indexes), sum(s.closed for s in indexes), list(some))

    def has_free(self, flavor: Flavor) -> bool:
        """Whether something may be leased of any device of the flavor's models."""
        for model in {e.model: None for e in flavor.equivalents if e.model in self.indexes}:
            self.indexes[model].refresh()
            if self.indexes[model].free:
                return True
        return False

    def is_free(self, seat: Seat) -> bool:
        """Whether anything of the device may be leased now."""
        return seat.open_milli > 0

    def nearest_flavor(self, worker: Worker) -> Flavor | None:
        """The smallest flavor that the worker's devices serve, and that holds what is set aside for it there; None if there is none."""
        served = [flavor for flavor in self.flavors.values() if equivalents_for(worker.devices, flavor)]
        enough = [flavor for flavor in served if flavor.memory_bytes >= worker.reserved_bytes]
        return min(enough, key=lambda flavor: (flavor.memory_bytes, flavor.name), default=None)

    # Workers

    def add(self, worker: Worker) -> None:
        self.workers[worker.id] = worker
        for seat in self.seats_under(worker):
            seat.workers[worker.id] = worker
        if worker.spare:
            self._count_spare(worker, 1)

    def seats_under(self, worker: Worker) -> list[Seat]:
        """The worker's devices, its first one first."""
        return [self.seats[device.id] for device in worker.devices]

    def doubt(self, worker: Worker, unsure: bool) -> None:
        """Whether the worker may execute what this pool does not know of."""
        if worker.unsure != unsure:
            worker.unsure = unsure
            for seat in self.seats_under(worker):
                seat.unsure += 1 if unsure else -1
                self.changed(seat)

    def remove(self, worker: Worker) -> None:
        self.doubt(worker, False)
        if worker.spare:
            self._count_spare(worker, -1)
        del self.workers[worker.id]
        for seat in self.seats_under(worker):
            del seat.workers[worker.id]
            self._give_free(seat, seat.draining.pop(worker, 0))
            self.changed(seat)

    def _count_spare(self, worker: Worker, change: int) -> None:
        if len(worker.devices) == 1:
            self.spare[worker.device.kind] += change
            self.placement.spares_changed(self.seats[worker.device.id], change)

    def give(self, worker: Worker, session: Session) -> None:
        """Binds a warm worker to its one session."""
        if worker.state != "warm" or worker.session is not None or session.worker is not None:
            raise InvariantBroken(f"worker {worker.id} is {worker.state} and cannot serve session {session.id}")
        self._count_spare(worker, -1)
        worker.session, session.worker, worker.state = session, worker, "assigning"
        session.replay.nodes.add(worker.device.node)
        self.serving.setdefault(session.tenant, {})[worker.id] = worker
        self.placement.changed(self.seats[worker.device.id])

    def let_go(self, worker: Worker, session: Session, image_bytes: int, source: wire.Source) -> None:
        """The session left the worker, which holds its tensors off the device from here on, and nothing else."""
        session.worker, session.image, session.left = None, worker, worker.id
        worker.session, worker.keeps, worker.state = None, session, "left"
        worker.parking = worker.restoring = False
        worker.deadline_ns = worker.leave_by_ns = None
        worker.memory_bytes, worker.parked_bytes, worker.source = 0, image_bytes, source
        self.reserve(worker, 0)
        self._wants_worker(session)

    def hand_over(self, worker: Worker, session: Session, image_bytes: int, source: wire.Source) -> None:
        """The worker keeps the tensors from here on that another one kept; that one has them still, and nobody comes for them."""
        before, session.image = session.image, worker
        worker.carries, worker.keeps, worker.state, worker.opened = None, session, "left", True
        worker.parked_bytes, worker.source, worker.deadline_ns = image_bytes, source, None
        self.serving[session.tenant][worker.id] = worker
        if before is not None:
            before.keeps = before.parked_bytes = None
            del self.serving[session.tenant][before.id]

    def _wants_worker(self, session: Session) -> None:
        """The session has no worker from here on: it waits for one where it has claimed a place."""
        if session.request is not None and session.request.place is not None:
            self.placement.changed(self.seats[session.request.place.devices[0].id])

    def retire(self, worker: Worker, drains_milli: int) -> None:
        """The worker serves nobody from here on; the share of its devices that it may still use waits until it is gone."""
        if worker.spare:
            self._count_spare(worker, -1)
        worker.state, worker.parking, worker.restoring, worker.deadline_ns, worker.leave_by_ns = "ending", False, False, None, None
        worker.carries = None
        owner = worker.session or worker.keeps
        if owner is not None:
            del self.serving[owner.tenant][worker.id]
        if worker.keeps is not None:
            worker.keeps.image, worker.keeps = None, None
        session, worker.session = worker.session, None
        if session is not None:
            session.worker = None
            self._wants_worker(session)
        for device in worker.devices:
            seat = self.seats[device.id]
            if seat.free_milli < drains_milli:
                raise InvariantBroken(f"{device.id} has {seat.free_milli}/1000 free, and worker {worker.id} drains {drains_milli}")
            if drains_milli:
                seat.draining[worker] = drains_milli
                self._give_free(seat, -drains_milli)
            self.changed(seat)

    def why_not(self, flavor: Flavor, tenant: str | None = None) -> Cause | None:
        """Why nothing here can ever serve the flavor, to this tenant if one is named; None if something can."""
        return self.capacity.why_not(flavor, tenant)


def computes_on(worker: Worker) -> bool:
    """Whether it holds a lease that was taken back."""
    return worker.session is not None and worker.session.lease is not None and worker.session.lease.state == "closing"


def lateness(worker: Worker, limits: Limits) -> Cause:
    """What a worker whose deadline passed did not do in time."""
    if worker.session is not None and worker.session.lease is not None:
        seconds = f"{limits.close_seconds:g}"
        return Cause("late_closing_in", seconds=seconds, operator=worker.call) if worker.call else Cause("late_closing", seconds=seconds)
    if worker.parking:
        return Cause("late_parking", seconds=f"{limits.park_seconds:g}")
    if worker.restoring:
        return Cause("late_restoring", seconds=f"{limits.park_seconds:g}")
    return Cause("late_starting", seconds=f"{limits.worker_start_seconds:g}")


def why_closed(seat: Seat) -> Cause | None:
    """Why no lease opens on the device; None if they do."""
    if seat.node.lost is not None:
        return Cause("node_lost", seat.node.lost, node=seat.node.name)
    if seat.node.drains:
        return Cause("node_emptied", node=seat.node.name)
    if seat.unsure:
        return Cause("relinking", device=seat.device.id)
    return None if seat.cordon is None else Cause("device_closed", *seat.cordon.causes, device=seat.device.id)
