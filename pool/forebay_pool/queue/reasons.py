"""Why somebody waits: the code that programs read, and the sentence that people read. It names devices, and nobody else's session."""

from __future__ import annotations

from typing import NamedTuple

from forebay_wire.messages import WaitCode

from forebay_pool.model.causes import Cause
from forebay_pool.model.types import Seat, Session
from forebay_pool.placement.capacity import gib, wants
from forebay_pool.placement.fleet import Fleet, why_closed


class Why(NamedTuple):
    code: WaitCode
    sentence: Cause


STORE = Why("store", Cause("store", "Usage records cannot be written at present; leases open again once they can."))
GATHERING = Why("starting", Cause("gathering", "The pool has just started; those who waited before are heard first."))
DRAINING = Why("draining", Cause("lease_drains", "The session's previous lease is still draining."))


def why_waiting(session: Session, fleet: Fleet, workers_max: int) -> Why:
    """Why a session in the queue, that no quota stops, has no lease."""
    if session.worker is not None:
        here = [fleet.seats[device.id] for device in session.worker.devices]
        worst = here[0] if len(here) == 1 else min(here, key=lambda seat: (seat.is_open, seat.free_milli))
        return _why_not_there(session, fleet, worst)
    flavor = fleet.flavors[session.flavor]
    count, free, closed, some = census = fleet.census(flavor)
    if not count:
        return Why("shortage", Cause("unserved", "No device here serves %(flavor)s at present.", flavor=session.flavor))
    if closed == count:
        sentence = "%(closed)s; all %(count)s devices that serve %(flavor)s are closed."
        return Why("draining", Cause("all_closed", sentence, closed=why_closed(some[0]) or "", count=count, flavor=session.flavor))
    if len(fleet.workers) >= workers_max:
        sentence = "The pool runs %(workers)s workers, and %(most)s are allowed: it waits for a session to end."
        return Why("shortage", Cause("workers_limit", sentence, workers=len(fleet.workers), most=workers_max))
    if free:
        wanted = " or ".join(wants(e) for e in flavor.equivalents if e.model in fleet.indexes)
        sentence = "Not enough is free for %(flavor)s, which takes %(wanted)s; %(held)s of %(count)s devices are held."
        cause = Cause("not_enough", sentence, flavor=session.flavor, wanted=wanted, held=count - free, count=count)
        return Why("fragmentation" if fleet.is_fragmented(flavor, session.tenant) else "shortage", cause)
    if count == 1:
        sentence = "%(device)s, the one device that serves %(flavor)s, is held."
        return Why("shortage", Cause("one_held", sentence, device=census.names, flavor=session.flavor))
    sentence = "All %(count)s devices that serve %(flavor)s are held: %(devices)s."
    return Why("shortage", Cause("all_held", sentence, count=count, flavor=session.flavor, devices=census.names))


def _why_not_there(session: Session, fleet: Fleet, seat: Seat) -> Why:
    closed = why_closed(seat)
    if closed is not None:
        sentence = "%(closed)s, and this session's tensors are there."
        return Why("draining", Cause("closed_there", sentence, closed=closed, device=seat.device.id))
    if seat.state == "draining":
        sentence = "A worker on %(device)s, where this session's tensors are, is ending."
        return Why("draining", Cause("ending_there", sentence, device=seat.device.id))
    others = fleet.has_free(fleet.flavors[session.flavor])
    sentence = "%(device)s, where this session's tensors are, is held by another lease."
    return Why("fragmentation" if others else "shortage", Cause("held_there", sentence, device=seat.device.id))


def why_placing(seat: Seat, session: Session) -> Why:
    """Why a lease that is being opened on the seat is not open yet."""
    moving = _why_moving(seat, session)
    if moving is not None:
        return Why("restoring", moving)
    code: WaitCode = "restoring" if session.worker is not None and session.worker.parked_bytes is not None else "starting"
    parking = [worker for worker in seat.workers.values() if worker.parking]
    if parking:
        total, need = sum(worker.part_bytes for worker in parking), seat.holders[session].part_bytes
        who = "a resident session" if len(parking) == 1 else f"{len(parking)} resident sessions"
        sentence = f"%(device)s: {who} (%(size)s) must be parked to make room for %(need)s."
        return Why(code, Cause("parking", sentence, device=seat.device.id, count=len(parking), size=gib(total), need=gib(need)))
    leaving = [worker for worker in seat.workers.values() if worker.state == "ending" and worker.reserved_bytes]
    if leaving:
        return Why(code, Cause("freeing", "%(device)s: the memory of a session that ended is being freed.", device=seat.device.id))
    if any(worker.away_ns is not None and worker.session in seat.holders for worker in seat.workers.values()):
        return Why(code, Cause("link_lost", "%(device)s: a worker lost its link to the pool, and is waited for.", device=seat.device.id))
    return Why(code, Cause("worker_starts", "A worker is starting on %(device)s.", device=seat.device.id))


def _why_moving(seat: Seat, session: Session) -> Cause | None:
    holder = session.image or session.worker
    if holder is None or (holder.device is seat.device and not holder.restoring and holder is session.worker):
        return None
    if holder.restoring:
        return Cause("brought_back", "This session's tensors are being brought back to %(device)s.", device=seat.device.id)
    sentence = "This session's tensors move from %(device)s to %(target)s."
    return Cause("moving", sentence, device=holder.device.id, target=seat.device.id)
