"""Why somebody waits: the code that programs read, and the cause that people are told. It names devices, and nobody else's session."""

from __future__ import annotations

from typing import NamedTuple

from forebay_wire.messages import WaitCode
from forebay_wire.sentences import gib

from forebay_pool.model.causes import Cause
from forebay_pool.model.types import Group, Seat, Session
from forebay_pool.placement.capacity import way
from forebay_pool.placement.fleet import Fleet, why_closed


class Why(NamedTuple):
    code: WaitCode
    cause: Cause


STORE = Why("store", Cause("store"))
GATHERING = Why("starting", Cause("gathering"))
DRAINING = Why("draining", Cause("lease_drains"))


def why_gathering(group: Group) -> Why:
    """Why those of a group who have asked have no lease yet."""
    return Why("starting", Cause("ranks_gather", asked=len(group.asked), size=group.size))


def why_waiting(session: Session, fleet: Fleet, workers_max: int) -> Why:
    """Why a session in the queue, that no quota stops, has no lease."""
    if _lacks_runtime(session, fleet):
        return Why("shortage", Cause("runtime_held", flavor=session.flavor, runtime=session.runtime))
    here = sorted((fleet.seats[device] for device in fleet.homes.of(session)), key=lambda seat: (seat.is_open, seat.free_milli))
    if session.worker is not None:
        return _why_not_there(session, fleet, here[0])
    if here and not (here[-1].is_open and here[-1].free_milli):
        return _why_not_there(session, fleet, here[-1])
    flavor = fleet.homes.flavor_of(session)
    count, free, closed, some = census = fleet.census(flavor)
    starting = [] if free else [growth.group for growth in fleet.grows_for(flavor, session.tenant) if growth.asked_ns]
    if starting:
        seconds = min(group.start_seconds for group in starting)
        return Why("shortage", Cause("host_starts", flavor=session.flavor, seconds=f"{seconds:g}"))
    if not count:
        return Why("shortage", Cause("unserved", flavor=session.flavor))
    if closed == count:
        return Why("draining", Cause("all_closed", why_closed(some[0]) or "", count=count, flavor=session.flavor))
    if len(fleet.workers) >= workers_max:
        return Why("shortage", Cause("workers_limit", workers=len(fleet.workers), most=workers_max))
    if free:
        ways = [way(e) for e in flavor.equivalents if e.model in fleet.indexes]
        cause = Cause("not_enough", *ways, flavor=session.flavor, held=count - free, count=count)
        return Why("fragmentation" if fleet.is_fragmented(flavor, session.tenant) else "shortage", cause)
    if count == 1:
        return Why("shortage", Cause("one_held", device=census.names, flavor=session.flavor))
    if census.more:
        return Why("shortage", Cause("all_held_more", count=count, flavor=session.flavor, devices=census.names, more=census.more))
    return Why("shortage", Cause("all_held", count=count, flavor=session.flavor, devices=census.names))


def _lacks_runtime(session: Session, fleet: Fleet) -> bool:
    """Whether what is free for the session does not serve what it has done."""
    lacking = fleet.runtimes.lacking(session.runtime)
    if not lacking:
        return False
    names = [seat.device.id for seat in fleet.free_for(session)] if session.worker is None else session.worker.names
    return bool(names) and all(name in lacking for name in names)


def _why_not_there(session: Session, fleet: Fleet, seat: Seat) -> Why:
    closed = why_closed(seat)
    if closed is not None:
        return Why("draining", Cause("closed_there", closed, device=seat.device.id))
    if seat.state == "draining":
        return Why("draining", Cause("ending_there", device=seat.device.id))
    others = fleet.has_free(fleet.flavors[session.flavor])
    return Why("fragmentation" if others else "shortage", Cause("held_there", device=seat.device.id))


def why_placing(seat: Seat, session: Session) -> Why:
    """Why a lease that is being opened on the seat is not open yet."""
    moving = _why_moving(seat, session)
    if moving is not None:
        return Why("restoring", moving)
    code: WaitCode = "restoring" if session.worker is not None and session.worker.parked_bytes is not None else "starting"
    parking = [worker for worker in seat.workers.values() if worker.parking]
    if parking:
        total, need = sum(worker.part_bytes for worker in parking), seat.holders[session].part_bytes
        return Why(code, Cause("parking", device=seat.device.id, count=len(parking), size=gib(total), need=gib(need)))
    leaving = [worker for worker in seat.workers.values() if worker.state == "ending" and worker.reserved_bytes]
    if leaving:
        return Why(code, Cause("freeing", device=seat.device.id))
    if any(worker.away_ns is not None and worker.session in seat.holders for worker in seat.workers.values()):
        return Why(code, Cause("link_lost", device=seat.device.id))
    return Why(code, Cause("worker_starts", device=seat.device.id))


def _why_moving(seat: Seat, session: Session) -> Cause | None:
    holder = session.image or session.worker
    if holder is None or (holder.device is seat.device and not holder.restoring and holder is session.worker):
        return None
    if holder.restoring:
        return Cause("brought_back", device=seat.device.id)
    return Cause("moving", device=holder.device.id, target=seat.device.id)
