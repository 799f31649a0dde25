"""Why somebody waits: the code that programs read, and the sentence that people read. It names devices, and nobody else's session."""

from __future__ import annotations

from typing import NamedTuple

from forebay_wire.messages import WaitCode

from forebay_pool.model.types import Seat, Session
from forebay_pool.placement.capacity import gib, wants
from forebay_pool.placement.fleet import Fleet, why_closed


class Why(NamedTuple):
    code: WaitCode
    sentence: str


STORE = Why("store", "Usage records cannot be written at present; leases open again once they can.")
GATHERING = Why("starting", "The pool has just started; those who waited before are heard first.")
DRAINING = Why("draining", "The session's previous lease is still draining.")


def why_waiting(session: Session, fleet: Fleet, workers_max: int) -> Why:
    """Why a session in the line, that no quota stops, has no lease."""
    if session.worker is not None:
        here = [fleet.seats[device.id] for device in session.worker.devices]
        worst = here[0] if len(here) == 1 else min(here, key=lambda seat: (seat.is_open, seat.free_milli))
        return _why_not_there(session, fleet, worst)
    flavor = fleet.flavors[session.flavor]
    count, free, closed, some = census = fleet.census(flavor)
    if not count:
        return Why("shortage", f"No device here serves {session.flavor} at present.")
    if closed == count:
        return Why("draining", f"{why_closed(some[0])}; all {count} devices that serve {session.flavor} are closed.")
    if len(fleet.workers) >= workers_max:
        return Why("shortage", f"The pool runs {len(fleet.workers)} workers, and {workers_max} are allowed: it waits for a session to end.")
    if free:
        wanted = " or ".join(wants(e) for e in flavor.ways if e.model in fleet.indexes)
        sentence = f"Not enough is free for {session.flavor}, which takes {wanted}; {count - free} of {count} devices are held."
        return Why("fragmentation" if fleet.is_fragmented(flavor, session.tenant) else "shortage", sentence)
    if count == 1:
        return Why("shortage", f"{census.names}, the one device that serves {session.flavor}, is held.")
    return Why("shortage", f"All {count} devices that serve {session.flavor} are held: {census.names}.")


def _why_not_there(session: Session, fleet: Fleet, seat: Seat) -> Why:
    closed = why_closed(seat)
    if closed is not None:
        return Why("draining", f"{closed}, and this session's tensors are there.")
    if seat.state == "draining":
        return Why("draining", f"A worker on {seat.device.id}, where this session's tensors are, is ending.")
    others = fleet.has_free(fleet.flavors[session.flavor])
    return Why("fragmentation" if others else "shortage", f"{seat.device.id}, where this session's tensors are, is held by another lease.")


def why_placing(seat: Seat, session: Session) -> Why:
    """Why a lease that is being opened on the seat is not open yet."""
    moving = _why_moving(seat, session)
    if moving is not None:
        return Why("restoring", moving)
    code: WaitCode = "restoring" if session.worker is not None and session.worker.parked_bytes is not None else "starting"
    parking = [worker for worker in seat.own_workers if worker.parking]
    if parking:
        total, need = sum(worker.reserved_bytes for worker in parking), seat.holders[session].memory_bytes
        who = "a resident session" if len(parking) == 1 else f"{len(parking)} resident sessions"
        return Why(code, f"{seat.device.id}: {who} ({gib(total)}) must be parked to make room for {gib(need)}.")
    leaving = [worker for worker in seat.own_workers if worker.state == "ending" and worker.reserved_bytes]
    if leaving:
        return Why(code, f"{seat.device.id}: the memory of a session that ended is being freed.")
    if any(worker.away_ns is not None and worker.session in seat.holders for worker in seat.own_workers):
        return Why(code, f"{seat.device.id}: a worker lost its link to the pool, and is waited for.")
    return Why(code, f"A worker is starting on {seat.device.id}.")


def _why_moving(seat: Seat, session: Session) -> str | None:
    holder = session.image or session.worker
    if holder is None or (holder.device is seat.device and not holder.restoring and holder is session.worker):
        return None
    if holder.restoring:
        return f"This session's tensors are being brought back to {seat.device.id}."
    return f"This session's tensors move from {holder.device.id} to {seat.device.id}."
