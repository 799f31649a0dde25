"""What must hold after every event. A breach raises InvariantBroken with the object's story."""

from __future__ import annotations

from collections import Counter

from forebay_pool.errors import InvariantBroken
from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.types import PRIORITY_MAX, WHOLE_MILLI, Lease, Make, Seat, Session, Worker
from forebay_pool.placement.choice import spares_for, spares_left
from forebay_pool.placement.free_index import FreeIndex
from forebay_pool.placement.room import residents, tensor_bytes


def validate(machine: StateMachine, ticked: bool = False) -> None:
    """Checks everything; for tests and simulations, since it looks at every object.

    After no event is anything left free that somebody waits for and that is kept for nobody else. Time alone makes those come first whose
    share grows slower, and lets those pass who will be done before it matters (backfill): ``ticked`` says that a tick has seen to that.
    """
    for session in machine.sessions.values():
        _check_session(machine, session)
    for seat in machine.fleet.seats.values():
        _check_seat(machine, seat, ticked)
    for worker in machine.fleet.workers.values():
        _check_worker(machine, worker)
    for index in machine.fleet.indexes.values():
        _check_index(machine, index)
    _check_ends(machine)
    _check_queue(machine)
    _check_event_is_over(machine)
    _check_leases(machine)
    _check_groups(machine)
    _check_accounts(machine)
    _check_counts(machine)


def _demand(machine: StateMachine, holds: bool, what: str, *ids: str) -> None:
    if not holds:
        raise InvariantBroken(f"{what} ({', '.join(ids)})\n{machine.story.of(*ids)}")


def _check_session(machine: StateMachine, session: Session) -> None:
    name, lease, request, worker = session.id, session.lease, session.request, session.worker
    _demand(machine, session.flavor in machine.fleet.flavors, "a session has a flavor that is none", name)
    _demand(machine, session.state == session.doing, f"a session says {session.state} and is {session.doing}", name)
    if session.image is not None:
        holds = session.image.keeps is session and (worker is None or not worker.opened or lease is not None)
        _demand(machine, holds, "a session's tensors are in two places, or in none", name)
    if worker is not None:
        mutual = worker.session is session and machine.fleet.workers.get(worker.id) is worker
        _demand(machine, mutual, "a session's worker is not its own", name)
    if lease is not None:
        _check_lease(machine, session, lease)
    parking, holder = session.parking, session.parked_at
    kept = None if parking is None else (parking.holder, parking.bytes)
    parked = None if holder is None else (holder, holder.parked_bytes)
    unheard = parking is None and holder is not None and holder.away_ns is not None
    _demand(machine, kept == parked or unheard, "a session's parked bytes are metered otherwise than they are", name)
    image, stretch = session.replay.image, session.replay.stretch
    metered = (0 if image is None else image.metered_bytes) == (0 if stretch is None else stretch.bytes)
    _demand(machine, metered, "a session's image is metered otherwise than it is", name)
    if request is not None:
        waits = machine.queue.waiting.get(request.order) is request
        gathers = session.group is not None and not session.group.gathered and not waits
        places = (lease is not None, waits, request.place is not None, gathers)
        _demand(machine, sum(places) == 1, f"a request drains, waits, is placed, gathers: {places}", name)
        _demand(machine, request.session is session, "a request is somebody else's", name)
        if session.group is not None and request.place is not None:
            together = not session.group.gathered or all(one.place is not None or machine.queue.has(one) for one in session.group.requests)
            _demand(machine, together, "a lease is being opened for one of a group that gathers", name)
        served = request.place is None or machine.fleet.runtimes.serve(request.place.devices, session.runtime)
        _demand(machine, served, "a request is placed where nobody serves what it is for", name)
        if request.place is not None and session.image is not None:
            hold = machine.fleet.seats[request.place.devices[0].id].holders[session]
            _demand(machine, tensor_bytes(session) <= hold.memory_bytes, "tensors move to where less is set aside than they take", name)


def _check_lease(machine: StateMachine, session: Session, lease: Lease) -> None:
    ids, worker = (session.id, *(device.id for device in lease.place.devices)), session.worker
    _demand(machine, lease.state in ("open", "closing"), f"a session holds a lease that is {lease.state}", *ids)
    seats = machine.fleet.seats_of(lease.place)
    held = all(session in seat.holders and seat.holders[session].share_milli == lease.place.share_milli for seat in seats)
    _demand(machine, held, "a lease is open where its session does not hold its share", *ids)
    _demand(machine, len(seats) == 1 or lease.place.share_milli == WHOLE_MILLI, "a gang holds parts of devices", *ids)
    _demand(machine, lease.opened_ns <= lease.confirmed_ns, "a lease was confirmed before it opened", *ids)
    if worker is None:
        raise InvariantBroken(f"a lease is open without a worker\n{machine.story.of(*ids)}")
    _demand(machine, lease.state == "open" or worker.deadline_ns is not None, "a lease closes without a deadline", *ids)
    _demand(machine, worker.devices == lease.place.devices, "a lease is open on other devices than its worker", *ids)
    _demand(machine, worker.state == "bound" and not worker.parking, "a lease is open on an unready worker", *ids)
    _demand(machine, worker.reserved_bytes >= lease.flavor.memory_bytes, "a lease has less memory than its flavor", *ids)


def _check_seat(machine: StateMachine, seat: Seat, ticked: bool) -> None:
    name = seat.device.id
    fits = seat.reserved_bytes <= seat.device.memory_bytes or seat.unsure > 0
    _demand(machine, fits, "more memory is set aside than the device has", name)
    used = sum(hold.share_milli for hold in seat.holders.values()) + sum(seat.draining.values())
    _demand(machine, 0 <= seat.free_milli == WHOLE_MILLI - used, f"{used}/1000 of a device are used, {seat.free_milli} are free", name)
    held_bytes = sum(hold.part_bytes for hold in seat.holders.values())
    _demand(machine, seat.held_bytes == held_bytes <= seat.device.memory_bytes, f"{held_bytes} bytes of a device are held", name)
    _demand(machine, seat.open_milli == (seat.free_milli if seat.is_open else 0), "a closed device is leased, or an open one is not", name)
    taken = held_bytes + sum(w.part_bytes for w in seat.workers.values() if w.session is None or w.session not in seat.holders)
    _demand(machine, seat.taken_bytes == taken, f"{seat.taken_bytes} bytes of a device are counted as taken, {taken} are", name)
    _demand(machine, seat.spares == len(spares_for(seat, (seat.device,))), "the count of started workers is wrong", name)
    listed = bool(seat.open_milli) and spares_left(seat) > 0
    _demand(machine, machine.fleet.placement.lists_spares(seat) == listed, f"started workers are to be found: {not listed}", name)
    _demand(machine, not seat.empties or not residents(seat), "sessions rest on a device that is being emptied", name)
    for holder in seat.holders:
        _demand(machine, machine.sessions.get(holder.id) is holder, "a device is held by a dead session", name, holder.id)
        placed = holder.request is not None and holder.request.place is not None and seat.device in holder.request.place.devices
        leased = holder.lease is not None and seat.device in holder.lease.place.devices
        _demand(machine, placed != leased, f"a holder has a lease here: {leased}, is placed here: {placed}", name, holder.id)
        _demand(machine, leased or seat.is_open, "a lease is being opened on a closed device", name, holder.id)
    unsure = sum(worker.unsure for worker in seat.workers.values())
    _demand(machine, seat.unsure == unsure, f"{unsure} workers are in doubt, {seat.unsure} are counted", name)
    for worker in seat.draining:
        ending = worker.state == "ending" and seat.workers.get(worker.id) is worker
        _demand(machine, ending, "a device waits for a worker that does not end", name, worker.id)
    for head in [] if machine.admission.stopping else machine.scheduler.offering.heads_for(seat):
        place = machine.scheduler.places.find(head, passes=ticked)
        _demand(machine, place is None, "a device is free while somebody waits for it", name, head.session.id)


def _check_index(machine: StateMachine, index: FreeIndex) -> None:
    index.refresh()
    for group in index.groups.values():
        profile = tuple(sorted(seat.open_milli for seat in group.seats if seat.open_milli))
        _demand(machine, group.profile == profile, f"{profile} is free on a node, and {group.profile} is filed", group.node)
    seats = [seat for group in index.groups.values() for seat in group.seats]
    free_milli = sum(sum(group.profile) for group in index.groups.values())
    _demand(machine, index.free_milli == free_milli, f"{free_milli}/1000 are free, and {index.free_milli} counted")
    counts = (sum(bool(seat.open_milli) for seat in seats), sum(not seat.is_open for seat in seats))
    _demand(machine, (index.free, index.closed) == counts, f"{counts} devices are free and closed, and others counted")
    filed = Counter((group.node, bucket.share_milli, bucket.profile) for bucket in index.buckets() for group in index.in_order(bucket))
    right = Counter((group.node, milli, group.profile) for group in index.groups.values() for milli in set(group.profile))
    _demand(machine, filed == right, "nodes are filed twice, or wrongly, or not at all")
    for switch in {None, *(group.switch for group in index.groups.values())}:
        wholes = sum(group.whole for group in index.groups.values() if switch in (None, group.switch))
        fullest = sum(group.whole for group in index.fullest(switch))
        _demand(machine, wholes == fullest, f"{wholes} whole devices are free, and {fullest} filed", str(switch))


def _check_ends(machine: StateMachine) -> None:
    """What is expected to be free again is what is held."""
    free, held = Counter[Make](), Counter[Make]()
    for seat in machine.fleet.seats.values():
        free[seat.device.make] += seat.free_milli
        held[seat.device.make] += sum(hold.share_milli for hold in seat.holders.values())
    ends = machine.fleet.ends
    for make, milli in free.items():
        _demand(machine, ends.free_milli[make] == milli, f"{milli}/1000 are free of {make}, and others counted")
        _demand(machine, ends.held_milli(make) == held[make], f"{held[make]}/1000 of {make} are held, and others are to end")


def _check_worker(machine: StateMachine, worker: Worker) -> None:
    name, session = worker.id, worker.session
    seats = [machine.fleet.seats[device.id] for device in worker.devices]
    _demand(machine, all(seat.workers.get(name) is worker for seat in seats), "a worker is not on its device's list", name)
    serves = worker.state in ("assigning", "bound")
    _demand(machine, (session is not None) == serves, f"a worker is {worker.state} and its session {session and session.id}", name)
    if session is not None:
        _demand(machine, machine.sessions.get(session.id) is session and session.worker is worker, "a worker serves a dead session", name)
    kept = worker.keeps
    _demand(machine, (kept is not None) == (worker.state == "left"), f"a worker is {worker.state} and keeps {kept and kept.id}", name)
    if kept is not None:
        alive = machine.sessions.get(kept.id) is kept and kept.image is worker
        _demand(machine, alive and worker.source is not None, "a worker keeps what nobody comes for", name)
        _demand(machine, worker.reserved_bytes == 0 and worker.parked_bytes is not None, "a worker keeps an image on its device", name)
    fetches = worker.opened or worker.state in ("assigning", "ending") or (session is not None and session.image is not None)
    _demand(machine, fetches or worker.reserved_bytes == 0, "memory is set aside for a worker without tensors", name)
    _demand(machine, not worker.parking or worker.deadline_ns is not None, "a worker parks without a deadline", name)
    _demand(machine, worker.parked_bytes is None or worker.reserved_bytes == 0, "a parked worker holds device memory", name)


def _check_queue(machine: StateMachine) -> None:
    reservations = machine.scheduler.reservations
    for order, request in machine.queue.waiting.items():
        session = request.session
        alive = machine.sessions.get(session.id) is session and session.request is request and request.order == order
        _demand(machine, alive, "a dead request waits", session.id)
        _demand(machine, request.lane == machine.fleet.lane_of(session), "a request waits in another lane than its session's", session.id)
        _demand(machine, machine.queue.is_reachable(request), "a request waits where nobody looks", session.id)
        for name in request.blocks:
            _demand(machine, reservations.of_device(name) is request, "a device is reserved for another request", name, session.id)
    for name, holder in reservations.by_device.items():
        listed = name in holder.blocks and machine.queue.has(holder)
        _demand(machine, listed, "a device is reserved for a request that does not wait for it", name, holder.session.id)
    for (model, _), holder in reservations.by_make.items():
        waits = machine.queue.has(holder) and not holder.lane[0]
        _demand(machine, waits, f"{model} is reserved for a request that does not wait for any device", holder.session.id)


def _check_event_is_over(machine: StateMachine) -> None:
    """What an event leaves to do is done when it is over."""
    work = machine.worklist
    left = (work.groups, work.accounts, work.lanes, work.seats, work.makes, machine.step.changed, machine.scheduler.parked.overfull)
    _demand(machine, not any(left) and not work.whole_queue, f"an event left something to do: {left}")


def _check_leases(machine: StateMachine) -> None:
    """The leases and stretches of parked time that are listed are those that sessions have; each lease can be taken, or is being taken."""
    leases, sessions = machine.scheduler.leases, machine.sessions.values()
    held = {session.lease.id: session.lease for session in sessions if session.lease is not None}
    _demand(machine, leases.by_id == held, f"other leases are listed than are held: {leases.by_id.keys() ^ held.keys()}")
    stretches = [stretch for session in sessions for stretch in (session.parking, session.replay.stretch) if stretch is not None]
    parked = {stretch.id: stretch for stretch in stretches}
    listed = machine.scheduler.parked.by_id
    _demand(machine, listed == parked, f"other sessions are listed as parked than are: {listed.keys() ^ parked.keys()}")
    revoked = {name: lease for name, lease in held.items() if lease.revoked_for is not None}
    _demand(machine, leases.revoked == revoked, f"other leases are taken back than are listed: {leases.revoked.keys() ^ revoked.keys()}")
    models = {lease.device.model for lease in held.values()}
    revocable = {lease.id for lease in leases.revocable.victims(models, PRIORITY_MAX)}
    free = {name for name, lease in held.items() if lease.state == "open" and name not in revoked}
    _demand(machine, revocable == free, f"other leases may be taken than are listed: {revocable ^ free}")


def _check_groups(machine: StateMachine) -> None:
    by_name = machine.scheduler.groups.by_name
    for name, group in by_name.items():
        _demand(machine, group.name == name and bool(group.members), f"group {name} is listed without members")
    for session in machine.sessions.values():
        own = session.group
        listed = own is None or (by_name.get(own.name) is own and session in own.members.values())
        _demand(machine, listed, "a session is in a group that does not have it", session.id)


def _check_accounts(machine: StateMachine) -> None:
    """What accounts hold is what their sessions hold, within the quotas; who sits on a bench is really stopped."""
    held: Counter[tuple[str, str | None]] = Counter()
    for session in machine.sessions.values():
        place = session.lease.place if session.lease is not None else session.request.place if session.request is not None else None
        if place is not None:
            for user in (None, session.user):
                held[session.tenant, user] += len(place.devices) * place.share_milli
    for account in machine.accounts:
        name = account.name
        _demand(machine, account.held_milli == held[account.tenant, account.user], f"{name} is said to hold {account.held_milli}", name)
        demand_milli = account.next_demand_milli
        stopped = demand_milli is None or account.window is not None or account.bars(demand_milli, 0) is not None
        _demand(machine, stopped, f"{name} has somebody sit out for nothing", name)


def _check_counts(machine: StateMachine) -> None:
    workers = machine.fleet.workers.values()
    served = {(owner.tenant, worker.id) for worker in workers if (owner := worker.session or worker.keeps) is not None}
    listed = {(tenant, name) for tenant, some in machine.fleet.serving.items() for name in some}
    _demand(machine, served == listed, f"workers serve other tenants than is noted: {served ^ listed}")
    spare = Counter(worker.device.kind for worker in workers if worker.spare and len(worker.devices) == 1)
    for kind, count in machine.fleet.spare.items():
        _demand(machine, spare[kind] == count, f"{count} spare {kind} workers are counted, {spare[kind]} are there", kind)
    leased: Counter[str] = Counter()
    for session in machine.sessions.values():
        if session.lease is not None:
            leased.update({device.id: session.lease.place.share_milli for device in session.lease.place.devices})
    for device, share_milli in leased.items():
        _demand(machine, share_milli <= WHOLE_MILLI, f"{share_milli}/1000 of a device are leased", device)
