"""What is refused, and the sentence that says why and what to do."""

from __future__ import annotations

from forebay_wire.messages import Refused

from forebay_pool.model.types import Flavor, Session, tensor_bytes
from forebay_pool.placement.capacity import equivalents_for, gib
from forebay_pool.placement.fleet import Fleet

SHUTTING_DOWN = "The pool is shutting down; try again in a minute."
UNWRITTEN = "Usage records cannot be written at present, so no lease is opened; try again in a minute, or tell an operator."


def shutting_down(number: int | None = None) -> Refused:
    return Refused(request=number, code="shutting_down", message=SHUTTING_DOWN)


def too_many_sessions(most: int) -> Refused:
    return Refused(code="limit", message=f"The pool has its limit of {most} sessions; end one, or try later.")


def unknown_flavor(name: str, fleet: Fleet) -> Refused:
    return Refused(code="unknown_flavor", message=f"There is no flavor {name!r}; there are {', '.join(sorted(fleet.flavors))}.")


def not_servable(why: str, number: int | None = None) -> Refused:
    return Refused(request=number, code="not_servable", message=why)


def unwritten(number: int) -> Refused:
    return Refused(request=number, code="limit", message=UNWRITTEN)


def waits_already(number: int, pending: int) -> Refused:
    message = f"This session waits for a lease already (request {pending}); cancel that first."
    return Refused(request=number, code="limit", message=message)


def queue_full(number: int, waiting: int) -> Refused:
    return Refused(request=number, code="limit", message=f"{waiting} requests wait already; try again later.")


def quota(why: str, number: int) -> Refused:
    return Refused(request=number, code="quota", message=why)


def budget(why: str, number: int) -> Refused:
    return Refused(request=number, code="budget", message=why)


def no_session(number: int) -> Refused:
    return Refused(request=number, code="no_session", message="This session is over; say hello again for a new one.")


def workers_die(number: int, attempts: int, cause: str) -> Refused:
    message = f"{attempts} workers in a row died before they could serve ({cause}); tell an operator, the pool's log says more."
    return Refused(request=number, code="not_servable", message=message)


def why_not(session: Session, flavor: Flavor, fleet: Fleet) -> str | None:
    """Why the session cannot have this flavor; None if it can. Its tensors move to where it is served, unless they cannot."""
    held_bytes = tensor_bytes(session)
    if held_bytes > flavor.memory_bytes:
        return f"This session holds {gib(held_bytes)}, and {flavor.name} has {gib(flavor.memory_bytes)}; free tensors first."
    worker = session.worker
    if worker is None or not session.pinned:
        return fleet.why_not(flavor, session.tenant) or why_not_brought(session, flavor, fleet)
    if equivalents_for(worker.devices, flavor):
        return None
    where = f"{worker.device.id} ({worker.device.model})"
    return f"This session's tensors are on {where}, which does not serve {flavor.name}; start a new process."


def why_not_brought(session: Session, flavor: Flavor, fleet: Fleet) -> str | None:
    """Why no devices can take what the session brings, although some serve the flavor: it may have had more memory before."""
    worker, held_bytes = session.worker, tensor_bytes(session)
    if not held_bytes or (worker is not None and equivalents_for(worker.devices, flavor)):
        return None
    makes = fleet.makes_of(flavor.name)
    memory_of = [(e.count * memory_bytes, model) for e in flavor.equivalents for model, memory_bytes in makes if model == e.model]
    most_bytes = max((memory_bytes for memory_bytes, model in memory_of if fleet.policy.allows(model, session.tenant)), default=held_bytes)
    if held_bytes <= most_bytes:
        return None
    where = f"This session's tensors are {gib(held_bytes)}, and the devices of {flavor.name} hold {gib(most_bytes)}"
    return f"{where}; free tensors first, or choose another flavor."
