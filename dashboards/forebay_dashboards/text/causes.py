"""Why something was refused, and why devices are closed, in the reader's language, by codes and values of pool and billing.

What is new is shown as sent. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forebay_service.causes import Cause
from forebay_service.languages import Text, as_sent

from forebay_dashboards.rows.pool import Fault
from forebay_dashboards.text.fields import faulty

_REFUSED = {
    "no_session": Text("There is no such session."),
    "no_lease": Text("This session holds no open lease."),
    "no_tensors": Text("This session has nothing on a device."),
    "not_resident": Text("This session does not rest on a device: it computes, or has nothing there."),
    "parking_full": Text("A quota bounds what may be parked for this session, and is used up."),
    "no_job": Text("There is no such job of yours."),
    "no_jobs": Text("This installation has no jobs."),
    "no_schedule": Text("There is no such schedule of yours."),
    "no_shared_notebook": Text(
        "This link opens nothing for you: the notebook is shared in another tenant, no longer, or was taken back."
    ),
    "no_tenant": Text("You belong to no tenant that would pay; ask an operator for one."),
    "no_device": Text("There is no such device any more."),
    "no_node": Text("There is no such node any more."),
    "no_flavor": Text("There is no such flavor any more."),
    "no_image_dir": Text("The pool has no folder for such images; its setting image_dirs names them."),
    "default_flavor": Text("Processes that name no flavor get this one (a setting of the pool); it cannot be removed."),
    "no_model": Text("There is no device of this model."),
    "precondition_failed": Text("Somebody else changed this in the meantime, and nothing was saved; read it again."),
    "unknown_tenant": Text("Nothing was ever recorded for this tenant."),
    "unknown_flavor": Text("There is no such flavor."),
    "known_flavor": Text("This flavor has a price already."),
    "unknown_budget": Text("There is no such budget any more."),
    "unknown_invoice": Text("There is no such invoice or credit."),
    "unknown_recipient": Text("Reports are mailed to no such address."),
    "already_rated": Text("Usage from then on was billed already: let the price begin later."),
    "finalised": Text("An invoice for that time is final: let the plan begin later, and give back by a credit what is owed for before."),
    "undelivered": Text("The mail server did not take it."),
    "payments_off": Text("This installation sends nothing to Stripe, or the tenant is not known there yet."),
}
"""By the code of a refusal that has no fault; faults are in :mod:`fields`."""
_CAUSES: Mapping[str, Callable[[Mapping[str, Any]], Text]] = {
    "hot": lambda given: Text("it is at %(celsius)s °C", celsius=given["celsius"]),
    "xid": lambda given: Text("the driver reported Xid %(number)s", number=given["number"]),
    "xid_of_programs": lambda given: Text("the driver reported Xid %(number)s, which programs cause", number=given["number"]),
    "memory_errors": lambda given: Text("%(count)s memory errors were not corrected (ECC)", count=given["count"]),
    "device_lost": lambda given: Text("the driver lost the device: %(reason)s", reason=given["reason"]),
    "workers_over_memory": lambda given: Text(
        "%(count)s workers in a row said that they hold more memory than they may", count=given["count"]
    ),
    "ray_dead": lambda given: Text("Ray counts it among the dead"),
    "other_release": lambda given: Text(
        "another release of Forebay than the pool's %(release)s is installed there", release=given["release"]
    ),
    "unconfined": lambda given: Text("processes of forebay exec cannot be confined there: %(why)s", why=given["why"]),
}
"""By the code of what the pool itself judged of a device or a node."""


def refusal(code: str, message: str, fault: Fault | None = None) -> Text:
    """Why something was refused: in English as the service says it, in other languages by its fault or its code, else as sent."""
    return as_sent(message, (None if fault is None else faulty(fault)) or _REFUSED.get(code))


def cause(causes: Sequence[Cause]) -> Text:
    """Why a device or a node is closed, or to be looked at: what the pool judged by its code, what was typed as typed."""
    told = tuple(_told(one) for one in causes)
    return Text.made("; ".join(told), lambda language: "; ".join(text.said(language) for text in told))


def _told(one: Cause) -> Text:
    make = _CAUSES.get(one.code or "")
    try:
        return as_sent(one.message, make and make(one.values))
    except KeyError:
        return as_sent(one.message)
