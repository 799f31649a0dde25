"""What is refused, and the cause that says why and what to do."""

from __future__ import annotations

from forebay_wire.messages import Refused
from forebay_wire.remote.runtimes import Runtime

from forebay_pool.model.causes import Cause, told
from forebay_pool.model.types import Flavor, Session
from forebay_pool.placement.capacity import equivalents_for, suits
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.homes import alike
from forebay_pool.placement.room import tensor_bytes

FLAVORS_NAMED_MAX = 20
"""A refusal names at most this many flavors: a message has room for 2,048 characters."""


def shutting_down(number: int | None = None) -> Refused:
    why = Cause("shutting_down")
    return Refused(request=number, code="shutting_down", message=why, cause=told(why))


def limit(why: Cause, number: int | None = None) -> Refused:
    return Refused(request=number, code="limit", message=why, cause=told(why))


def too_many_sessions(most: int) -> Refused:
    return limit(Cause("sessions_limit", most=most))


def unknown_flavor(name: str, fleet: Fleet) -> Refused:
    known = sorted(fleet.flavors)
    flavors = ", ".join(known[:FLAVORS_NAMED_MAX]) + (", …" if len(known) > FLAVORS_NAMED_MAX else "")
    why = Cause("unknown_flavor", flavor=f"{name!r}", flavors=flavors)
    return Refused(code="unknown_flavor", message=why, cause=told(why))


def not_servable(why: Cause, number: int | None = None) -> Refused:
    return Refused(request=number, code="not_servable", message=why, cause=told(why))


def unwritten(number: int) -> Refused:
    return limit(Cause("unwritten"), number)


def waits_already(number: int, pending: int) -> Refused:
    return limit(Cause("waits_already", request=pending), number)


def queue_full(number: int, waiting: int) -> Refused:
    return limit(Cause("queue_full", waiting=waiting), number)


def quota(why: Cause, number: int) -> Refused:
    return Refused(request=number, code="quota", message=why, cause=told(why))


def too_many_ranks(count: int, most: int, flavor: str, fit: list[str]) -> Refused:
    """``most``: of how many processes each can have a device of the flavor at a time; ``fit``: flavors of which all can."""
    if fit:
        return not_servable(Cause("ranks_fit", *fit[:FLAVORS_NAMED_MAX], count=count, most=most, flavor=flavor))
    return not_servable(Cause("ranks_many", count=count, most=most, flavor=flavor))


def too_many_devices(count: int, needed_milli: int, most_milli: int) -> Refused:
    """Processes of several flavors need more together than there is."""
    return not_servable(Cause("ranks_mixed", count=count, needed_milli=needed_milli, most_milli=most_milli))


def budget(why: Cause, number: int) -> Refused:
    return Refused(request=number, code="budget", message=why, cause=told(why))


def no_session(number: int) -> Refused:
    why = Cause("session_over")
    return Refused(request=number, code="no_session", message=why, cause=told(why))


def workers_die(number: int, attempts: int, cause: str) -> Refused:
    return not_servable(Cause("workers_died", cause, attempts=attempts), number)


def why_not(session: Session, flavor: Flavor, fleet: Fleet) -> Cause | None:
    """Why the session cannot have this flavor; None if it can. Its tensors move to where it is served, unless they cannot."""
    held_bytes = tensor_bytes(session)
    if held_bytes > flavor.memory_bytes:
        return Cause("holds_too_much", held_bytes=held_bytes, flavor=flavor.name, flavor_bytes=flavor.memory_bytes)
    worker, loss, runtime = session.worker, session.replay.loss, session.client.runtime
    unserved = None if runtime is None else why_not_runtime(flavor, runtime, session.tenant, fleet)
    if unserved is not None:
        return unserved
    if worker is None and loss is not None and loss.undone and not alike(flavor, loss).equivalents:
        return Cause("bound_to_device", model=loss.model, flavor=flavor.name)
    if worker is None or not session.pinned:
        return fleet.why_not(flavor, session.tenant) or why_not_brought(session, flavor, fleet)
    if not fleet.runtimes.serve(worker.devices, session.runtime):
        return Cause("runtime_unmoved", Cause(f"runtime_{session.runtime}"), device=worker.device.id)
    if equivalents_for(worker.devices, flavor):
        return None
    return Cause("bound_to_device", device=worker.device.id, model=worker.device.model, flavor=flavor.name)


def why_not_runtime(flavor: Flavor, runtime: Runtime, tenant: str, fleet: Fleet) -> Cause | None:
    """Why the tenant cannot have the flavor for this, although it can have the flavor; None if it can."""
    if not flavor.offers(runtime):
        others = [other.name for other in fleet.flavors.values() if other.offers(runtime) and fleet.why_not(other, tenant) is None]
        if not others:
            return Cause("runtime_nowhere", Cause(f"runtime_{runtime}"), flavor=flavor.name)
        named = ", ".join(sorted(others)[:FLAVORS_NAMED_MAX]) + (", …" if len(others) > FLAVORS_NAMED_MAX else "")
        return Cause("runtime_elsewhere", Cause(f"runtime_{runtime}"), flavor=flavor.name, flavors=named)
    lacking = fleet.runtimes.lacking(runtime)
    if not lacking or fleet.grows_for(flavor, tenant):
        return None
    ways = [e for e in flavor.equivalents if e.model in fleet.indexes and fleet.policy.allows(e.model, tenant)]
    seats = [(e, seat) for e in ways for group in fleet.indexes[e.model].groups.values() for seat in group.seats]
    fit = [seat for e, seat in seats if suits(seat.device, flavor, e)]
    if any(seat.device.id not in lacking for seat in fit):
        return None
    if runtime == "exec" and any(seat.node.unconfined is not None for seat in fit):
        return Cause("process_unserved")
    return Cause("runtime_unserved", Cause(f"runtime_{runtime}"), flavor=flavor.name)


def why_not_brought(session: Session, flavor: Flavor, fleet: Fleet) -> Cause | None:
    """Why no devices can take what the session brings, although some serve the flavor: it may have had more memory before."""
    worker, held_bytes = session.worker, tensor_bytes(session)
    if not held_bytes or (worker is not None and equivalents_for(worker.devices, flavor)):
        return None
    makes = fleet.makes_of(flavor.name)
    memory_of = [(e.count * memory_bytes, model) for e in flavor.equivalents for model, memory_bytes in makes if model == e.model]
    most_bytes = max((memory_bytes for memory_bytes, model in memory_of if fleet.policy.allows(model, session.tenant)), default=held_bytes)
    if held_bytes <= most_bytes:
        return None
    return Cause("too_much_to_bring", held_bytes=held_bytes, flavor=flavor.name, devices_bytes=most_bytes)
