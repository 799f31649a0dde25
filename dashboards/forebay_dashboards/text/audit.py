"""Words of the audit: what was done, and what the values that changed are called. What is new is shown as sent. No I/O."""

from __future__ import annotations

from forebay_service.languages import Text, as_sent

from forebay_dashboards.text.fields import NAMES

REFUSED = ".refused"
_ACTIONS = {
    "alerts.channel.add": Text("Channel of alerts added"),
    "alerts.channel.remove": Text("Channel of alerts removed"),
    "alerts.channel.retry": Text("Alerts sent again"),
    "budget.remove": Text("Budget removed"),
    "budget.set": Text("Budget set"),
    "credit.grant": Text("Credit granted"),
    "credit.refund": Text("Credit refunded"),
    "device.set": Text("Device closed or opened"),
    "flavor.remove": Text("Flavor removed"),
    "flavor.set": Text("Flavor changed"),
    "heartbeat.row": Text("Open lease reported"),
    "heartbeat.stand_in": Text("Open lease named otherwise"),
    "invitation.make": Text("Invitation made"),
    "invitation.revoke": Text("Invitation revoked"),
    "invitation.take": Text("Invitation taken"),
    "invoice.credit_note": Text("Credit note made"),
    "invoice.finalise": Text("Invoice finalised"),
    "invoice.payment": Text("Payment written down"),
    "invoice.refund": Text("Payment given back"),
    "invoice.void": Text("Invoice voided"),
    "job.cancel": Text("Job cancelled"),
    "member.remove": Text("Member removed"),
    "member.set": Text("Role of a member set"),
    "model.set": Text("Policy of a model set"),
    "node.set": Text("Node drained or opened"),
    "notebook.unshare": Text("Shared notebook taken back"),
    "notices.channel.add": Text("Channel of notices added"),
    "notices.channel.confirm": Text("Channel of notices confirmed"),
    "notices.channel.remove": Text("Channel of notices removed"),
    "payments.contact": Text("Contact for payments set"),
    "payments.dead_letter": Text("Failed delivery settled"),
    "payments.webhook": Text("Webhook refused"),
    "plan.change": Text("Plan changed"),
    "price-list.apply": Text("Price list applied"),
    "price.change": Text("Price changed"),
    "profile.change": Text("Profile changed"),
    "quota.set": Text("Quota set"),
    "reports.recipient.add": Text("Recipient of reports added"),
    "reports.recipient.remove": Text("Recipient of reports removed"),
    "schedule.remove": Text("Schedule removed"),
    "session.end": Text("Session ended"),
    "session.move": Text("Session moved"),
    "session.park": Text("Session parked"),
    "session.revoke": Text("Lease taken back"),
    "usage.correct": Text("Usage corrected"),
    "usage.post": Text("Usage delivered"),
    "usage.stand_in": Text("Usage named otherwise"),
}
"""By the action's code."""
_COLUMNS = NAMES | {
    "address": Text("Address"),
    "amount_minor": Text("Amount in the smallest unit"),
    "commitment_nano": Text("Commitment each month, in nano-units"),
    "cordoned": Text("Closed"),
    "device": Text("Device"),
    "device_seconds": Text("Device seconds"),
    "devices_milli": Text("Devices at a time, in thousandths"),
    "discount_bps": Text("Discount in basis points"),
    "drain": Text("Drain"),
    "email": Text("E-mail"),
    "expires_at_ns": Text("Holds until"),
    "ended": Text("Ended"),
    "flavor": Text("Flavor"),
    "free_nano": Text("Free of charge each month, in nano-units"),
    "free_seconds": Text("Free seconds of flavors"),
    "kind": Text("Kind"),
    "legal_name": Text("Name"),
    "made_by": Text("Made by"),
    "limit_nano": Text("Limit in nano-units"),
    "memory_bytes": Text("Memory in bytes"),
    "method": Text("Method"),
    "model": Text("Model"),
    "number": Text("Number"),
    "origin": Text("Set by"),
    "parked_bytes": Text("Parked bytes"),
    "price_nano_per_gib_hour": Text("Price of parked memory in nano-units per GiB and hour"),
    "price_nano_per_hour": Text("Price in nano-units per hour"),
    "price_nano_per_second": Text("Price in nano-units per second"),
    "reference": Text("Reference"),
    "removed": Text("Removed"),
    "residents_max": Text("Resident sessions at most"),
    "images": Text("Images of sessions"),
    "runtimes": Text("Offers"),
    "egress": Text("Places that processes may reach"),
    "role": Text("Role"),
    "state": Text("State"),
    "surcharge_nano_per_hour": Text("Surcharge in nano-units per hour"),
    "surcharge_nano_per_second": Text("Surcharge in nano-units per second"),
    "taken_by": Text("Taken by"),
    "tax_bps": Text("Rate in basis points"),
    "transaction": Text("Transaction"),
    "valid_from_ns": Text("In force from"),
    "version": Text("Version"),
    "window_seconds": Text("Window in seconds"),
}
"""By what the services call a value. It is told as it is stored, so its name has its unit; prices were per second once."""


def action(code: str) -> Text:
    """What was done, or refused."""
    done = _ACTIONS.get(code.removesuffix(REFUSED)) or as_sent(code.removesuffix(REFUSED))
    return Text("%(action)s: refused", action=done) if code.endswith(REFUSED) else done


def column(name: str) -> Text:
    """A value's name: in English as the service calls it, without the unit of a moment, which is shown as one."""
    return as_sent(name.removesuffix("_ns") if name.endswith(("_at_ns", "_from_ns")) else name, _COLUMNS.get(name))
