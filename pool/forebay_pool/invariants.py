"""What must hold after every event. A breach raises InvariantBroken with the object's story."""

from __future__ import annotations

from collections import Counter

from forebay_pool.errors import InvariantBroken
from forebay_pool.state_machine import StateMachine
from forebay_pool.types import Lease, Seat, Session, Worker


def validate(machine: StateMachine) -> None:
    """Checks everything; for tests and simulations, since it looks at every object."""
    for session in machine.sessions.values():
        _check_session(machine, session)
    for seat in machine.fleet.seats.values():
        _check_seat(machine, seat)
    for worker in machine.fleet.workers.values():
        _check_worker(machine, worker)
    _check_line(machine)
    _check_counts(machine)


def _demand(machine: StateMachine, holds: bool, what: str, *ids: str) -> None:
    if not holds:
        raise InvariantBroken(f"{what} ({', '.join(ids)})\n{machine.story.of(*ids)}")


def _check_session(machine: StateMachine, session: Session) -> None:
    name, lease, request, worker = session.id, session.lease, session.request, session.worker
    _demand(machine, session.state == session.doing, f"a session says {session.state} and is {session.doing}", name)
    if worker is not None:
        mutual = worker.session is session and machine.fleet.workers.get(worker.id) is worker
        _demand(machine, mutual, "a session's worker is not its own", name)
    if lease is not None:
        _check_lease(machine, session, lease)
    if request is not None:
        waits = machine.line.waiting.get(request.order, (None,))[0] is request
        places = (lease is not None, waits, request.place is not None)
        _demand(machine, sum(places) == 1, f"a request drains, waits, is placed: {places}", name)
        _demand(machine, request.session is session, "a request is somebody else's", name)


def _check_lease(machine: StateMachine, session: Session, lease: Lease) -> None:
    ids, worker = (session.id, lease.device.id), session.worker
    _demand(machine, lease.state in ("open", "closing"), f"a session holds a lease that is {lease.state}", *ids)
    _demand(machine, machine.fleet.seats[lease.device.id].holder is session, "a lease is open where somebody else holds", *ids)
    _demand(machine, lease.opened_ns <= lease.confirmed_ns, "a lease was confirmed before it opened", *ids)
    if worker is None:
        raise InvariantBroken(f"a lease is open without a worker\n{machine.story.of(*ids)}")
    _demand(machine, lease.state == "open" or worker.deadline_ns is not None, "a lease closes without a deadline", *ids)
    _demand(machine, worker.device is lease.device, "a lease is open on another device than its worker", *ids)
    _demand(machine, worker.state == "bound" and not worker.parking, "a lease is open on an unready worker", *ids)
    _demand(machine, worker.reserved_bytes >= lease.flavor.memory_bytes, "a lease has less memory than its flavor", *ids)


def _check_seat(machine: StateMachine, seat: Seat) -> None:
    name, holder = seat.device.id, seat.holder
    _demand(machine, seat.reserved_bytes <= seat.device.memory_bytes, "more memory is set aside than the device has", name)
    free = holder is None and seat.draining is None
    _demand(machine, machine.fleet.is_free(seat) == free, "the index of free devices is wrong", name)
    _demand(machine, holder is None or seat.draining is None, "a device is held while a worker drains on it", name)
    if holder is not None:
        _demand(machine, machine.sessions.get(holder.id) is holder, "a device is held by a dead session", name, holder.id)
        placed = holder.request is not None and holder.request.place is seat.device
        leased = holder.lease is not None and holder.lease.device is seat.device
        _demand(machine, placed != leased, f"a holder has a lease here: {leased}, is placed here: {placed}", name, holder.id)
    if free and machine.accepting and not machine.stopping:
        idle = machine.line.first_for(seat, machine.flavors_for(seat)) is None
        _demand(machine, idle, "a device is free while somebody waits for it", name)


def _check_worker(machine: StateMachine, worker: Worker) -> None:
    name, session = worker.id, worker.session
    _demand(machine, machine.fleet.seats[worker.device.id].workers.get(name) is worker, "a worker is not on its device's list", name)
    serves = worker.state in ("assigning", "bound")
    _demand(machine, (session is not None) == serves, f"a worker is {worker.state} and its session {session and session.id}", name)
    if session is not None:
        _demand(machine, machine.sessions.get(session.id) is session and session.worker is worker, "a worker serves a dead session", name)
    _demand(machine, worker.opened or worker.reserved_bytes == 0, "memory is set aside for a worker that was never opened", name)
    _demand(machine, not worker.parking or worker.deadline_ns is not None, "a worker parks without a deadline", name)
    _demand(machine, worker.parked_bytes is None or worker.reserved_bytes == 0, "a parked worker holds device memory", name)


def _check_line(machine: StateMachine) -> None:
    for request, _lane in machine.line.waiting.values():
        session = request.session
        alive = machine.sessions.get(session.id) is session and session.request is request
        _demand(machine, alive, "a dead request waits", session.id)


def _check_counts(machine: StateMachine) -> None:
    spare = Counter(worker.device.kind for worker in machine.fleet.workers.values() if worker.state in ("starting", "warm"))
    for kind, count in machine.fleet.spare.items():
        _demand(machine, spare[kind] == count, f"{count} spare {kind} workers are counted, {spare[kind]} are there", kind)
    leased = Counter(session.lease.device.id for session in machine.sessions.values() if session.lease is not None)
    for device, count in leased.items():
        _demand(machine, count == 1, f"a device is leased {count} times", device)
