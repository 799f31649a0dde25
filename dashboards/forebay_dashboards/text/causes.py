"""What pool and billing say in English of refusals and of devices, in the reader's language. What is new is shown as sent."""

from __future__ import annotations

import re

from forebay_service.languages import Text, as_sent

from forebay_dashboards.text.fields import refused_field

_REFUSED = {
    "no_session": Text("There is no such session."),
    "no_lease": Text("This session holds no open lease."),
    "no_tensors": Text("This session has nothing on a device."),
    "not_resident": Text("This session does not rest on a device: it computes, or has nothing there."),
    "parking_full": Text("A quota bounds what may be parked for this session, and is used up."),
    "no_device": Text("There is no such device any more."),
    "no_node": Text("There is no such node any more."),
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
    "payments_off": Text("This installation sends nothing to Stripe, or the tenant is not known there yet."),
}
"""By the code of a refusal; those that say what is wrong in a field have :mod:`fields`, as a code does not name it."""
_HOT = re.compile(r"it is at (\d+) °C")
_XID = re.compile(r"the driver reported Xid (\d+)")
_XID_OF_PROGRAMS = re.compile(r"the driver reported Xid (\d+), which programs cause")
_MEMORY = re.compile(r"(\d+) memory errors were not corrected \(ECC\)")
_LOST = re.compile(r"the driver lost the device: (.+)", re.DOTALL)


def refusal(code: str, message: str) -> Text:
    """Why something was refused: in English as the service says it, in other languages as its code says, or its sentence."""
    return as_sent(message, _REFUSED.get(code) or refused_field(message))


def cause(sentence: str) -> Text:
    """Why a device or a node is closed, or to be looked at: what the pool itself judged, by its sentence; what was typed, as typed."""
    return as_sent(sentence, _judged(sentence))


def _judged(sentence: str) -> Text | None:
    if found := _HOT.fullmatch(sentence):
        return Text("it is at %(celsius)s °C", celsius=found[1])
    if found := _XID.fullmatch(sentence):
        return Text("the driver reported Xid %(number)s", number=found[1])
    if found := _XID_OF_PROGRAMS.fullmatch(sentence):
        return Text("the driver reported Xid %(number)s, which programs cause", number=found[1])
    if found := _MEMORY.fullmatch(sentence):
        return Text("%(count)s memory errors were not corrected (ECC)", count=found[1])
    if found := _LOST.fullmatch(sentence):
        return Text("the driver lost the device: %(reason)s", reason=found[1])
    return None
