"""Why a session waits, in the reader's language, by what the pool tells of it beside its English sentence. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forebay_service.languages import Text

_WHOLE_MILLI = 1000

Values = Mapping[str, Any]

_DETAILS: Mapping[str, Callable[[Values], Text]] = {
    "unserved": lambda given: Text("No device here serves %(flavor)s at present.", flavor=given["flavor"]),
    "all_closed": lambda given: Text(
        "All %(count)s devices that serve %(flavor)s are closed.", count=given["count"], flavor=given["flavor"]
    ),
    "workers_limit": lambda given: Text(
        "The pool runs %(workers)s workers, and %(most)s are allowed: it waits for a session to end.",
        workers=given["workers"],
        most=given["most"],
    ),
    "not_enough": lambda given: Text(
        "Not enough is free for %(flavor)s; %(held)s of %(count)s devices are held.",
        flavor=given["flavor"],
        held=given["held"],
        count=given["count"],
    ),
    "host_starts": lambda given: Text(
        "No device is free for %(flavor)s; a host for it is being started, which takes about %(seconds)s s.",
        flavor=given["flavor"],
        seconds=given["seconds"],
    ),
    "runtime_held": lambda given: Text(
        "What is free for %(flavor)s does not serve %(runtime)s; it waits for a host that does.",
        flavor=given["flavor"],
        runtime=given["runtime"],
    ),
    "one_held": lambda given: Text("The one device that serves %(flavor)s is held.", flavor=given["flavor"]),
    "all_held": lambda given: Text("All %(count)s devices that serve %(flavor)s are held.", count=given["count"], flavor=given["flavor"]),
    "all_held_more": lambda given: Text(
        "All %(count)s devices that serve %(flavor)s are held.", count=given["count"], flavor=given["flavor"]
    ),
    "not_parkable": lambda given: Text(
        "A device is free, but the sessions that rest there may not be parked: their tenants' quotas for that are used up."
    ),
    "held_there": lambda given: Text("The device that has its tensors is held by another lease."),
    "closed_there": lambda given: Text("The device that has its tensors is closed."),
    "ending_there": lambda given: Text("A worker on the device that has its tensors is ending."),
    "lease_drains": lambda given: Text("Its previous lease is still draining."),
    "parking": lambda given: Text(
        "What rests on a device (%(count)s of %(size)s together) must be parked to make room for %(need)s.",
        count=given["count"],
        size=given["size"],
        need=given["need"],
    ),
    "freeing": lambda given: Text("The memory of a session that ended is being freed."),
    "link_lost": lambda given: Text("A worker lost its link to the pool, and is waited for."),
    "worker_starts": lambda given: Text("A worker is starting."),
    "brought_back": lambda given: Text("Its tensors are being brought back to a device."),
    "moving": lambda given: Text("Its tensors move to another device."),
    "store": lambda given: Text("Usage cannot be recorded at present; leases open again once it can."),
    "gathering": lambda given: Text("The pool has just started; those who waited before are heard first."),
    "ranks_gather": lambda given: Text(
        "%(asked)s of the %(size)s processes of its torchrun have asked for a device; they start together.",
        asked=given["asked"],
        size=given["size"],
    ),
    "ranks_wait": lambda given: Text(
        "%(count)s processes of its torchrun start together, and wait for as many devices.", count=given["count"]
    ),
    "quota_held": lambda given: Text(
        "%(whom)s holds %(held)s of the %(most)s devices of the quota.",
        whom=given["whom"],
        held=_devices(given["held_milli"]),
        most=_devices(given["most_milli"]),
    ),
    "quota_used": lambda given: Text(
        "%(whom)s has used the quota's %(seconds)s device-seconds within %(window)s s.",
        whom=given["whom"],
        seconds=given["seconds"],
        window=given["window"],
    ),
    "crashes_wait": lambda given: Text(
        "Calls of its user's programs ended %(count)s workers within an hour; the next worker starts after a wait of %(seconds)s s.",
        count=given["count"],
        seconds=given["seconds"],
    ),
}


def waiting(detail: str | None, values: Values) -> Text | None:
    """None for what is new, lacks a value, or is told by its code alone."""
    make = _DETAILS.get(detail or "")
    try:
        return make and make(values)
    except (KeyError, TypeError, ValueError):
        return None


def _devices(milli: int) -> str:
    return f"{milli / _WHOLE_MILLI:g}"
