"""What is wrong in fields that services refuse, in the reader's language, by the faults that they tell. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forebay_service.languages import Text, as_sent, plural

from forebay_dashboards.rows.pool import Fault

NAMES = {
    "tenant": Text("Tenant"),
    "user": Text("User"),
    "notebook": Text("Notebook"),
    "name": Text("Name"),
    "currency": Text("Currency"),
    "month": Text("Month"),
    "valid_from": Text("First month"),
    "devices_milli": Text("Devices at a time"),
    "device_seconds": Text("Device hours"),
    "window_seconds": Text("Window in days"),
    "priority_max": Text("Highest priority"),
    "weight": Text("Weight in the fair share"),
    "parked_bytes": Text("Parked memory in GiB"),
    "tenants": Text("Tenants"),
    "memory_bytes": Text("Memory"),
    "equivalents": Text("Served by any one of"),
    "limit_nano": Text("Limit"),
    "thresholds": Text("Warn at, in per cent"),
    "grace_seconds": Text("Grace in seconds"),
    "discount_bps": Text("Discount in per cent"),
    "free_nano": Text("Free of charge each month"),
    "free_seconds": Text("Free hours of flavors"),
    "tiers": Text("Tiers, from an amount on"),
    "commitment_nano": Text("Commitment each month"),
    "tax_label": Text("Name of the tax"),
    "tax_bps": Text("Rate in per cent"),
    "amount_minor": Text("Amount"),
    "priority": Text("Order of use"),
    "expires_at_ns": Text("Expires on (UTC)"),
    "target": Text("Address"),
    "to": Text("Address"),
    "address": Text("Address"),
    "legal_name": Text("Name"),
    "tax_id": Text("Tax number"),
    "email": Text("E-mail"),
    "role": Text("Role"),
    "code": Text("Code"),
    "days": Text("The link holds for"),
    "on_limit": Text("At the limit"),
    "on_exhausted": Text("When device hours are used up"),
    "on_parked_full": Text("When no more may be parked"),
    "window": Text("Window"),
    "cause": Text("Cause"),
    "reason": Text("Reason"),
}
"""What pages call the fields of the services."""

_SCALED = ("_nano", "_milli", "_minor", "_bps", "device_seconds", "window_seconds", "parked_bytes")
"""Endings of fields whose bounds are of another unit than what is typed."""
_BOUNDS = ("greater_than_equal", "less_than_equal", "greater_than", "less_than")

Values = Mapping[str, Any]

_PROBLEMS: Mapping[str, Callable[[Values], Text]] = {
    "greater_than_equal": lambda given: Text("%(least)s is the least", least=given["ge"]),
    "less_than_equal": lambda given: Text("%(most)s is the most", most=given["le"]),
    "greater_than": lambda given: Text("it must be more than %(bound)s", bound=given["gt"]),
    "less_than": lambda given: Text("it must be less than %(bound)s", bound=given["lt"]),
    "int_type": lambda given: Text("it must be a whole number"),
    "int_parsing": lambda given: Text("it must be a whole number"),
    "int_parsing_size": lambda given: Text("it must be a whole number"),
    "int_from_float": lambda given: Text("it must be a whole number"),
    "literal_error": lambda given: Text("it must be one of %(choices)s", choices=", ".join(f"'{one}'" for one in given["choices"])),
    "string_too_short": lambda given: Text("it has at least %(least)s characters", least=given["min_length"]),
    "string_too_long": lambda given: Text("it has at most %(most)s characters", most=given["max_length"]),
    "string_pattern_mismatch": lambda given: Text("it is not written as it must be"),
    "too_long": lambda given: Text("there are at most %(most)s", most=given["max_length"]),
    "name_length": lambda given: Text("a name has 1 to %(most)s characters", most=given["most"]),
    "no_month": lambda given: Text("%(typed)s is no month, such as 2026-11", typed=given["given"]),
    "nano_range": lambda given: Text("%(given)s is not from 0 to %(most)s nano-units", given=given["given"], most=given["most"]),
    "seconds_range": lambda given: Text(
        "%(given)s of %(flavor)s is not from 0 to %(most)s seconds", given=given["given"], flavor=given["flavor"], most=given["most"]
    ),
    "per_cent_range": lambda given: Text("it is from 0 to 100 per cent"),
    "flavors_once": lambda given: Text("name each flavor once, and at most %(most)s", most=given["most"]),
    "too_many": lambda given: Text("there are at most %(most)s", most=given["most"]),
    "not_rising": lambda given: Text("each begins above the one before"),
    "thresholds": lambda given: Text(
        "give at most %(count)s different per cents from 1 to %(most)s, the lowest first", count=given["count"], most=given["most"]
    ),
    "user_needed": lambda given: Text("a notebook is one user's: say whose it is, too"),
    "amount_range": lambda given: Text("from 1 to %(most)s of the smallest unit", most=given["most"]),
    "priority_range": lambda given: Text("0 is used first, %(most)s last", most=given["most"]),
    "expires_early": lambda given: Text("a credit expires after today"),
    "tax_name_needed": lambda given: Text("a tax above zero needs its name, such as VAT"),
    "no_address": lambda given: Text("give one e-mail address, such as ops@example.com"),
    "code_wrong": lambda given: Text("this is not the code that was mailed"),
    "code_spent": lambda given: Text("it is spent; remove the address, and add it anew"),
    "mail_off": lambda given: Text("this installation sends no e-mail"),
}
"""Of one field, by the code of the fault; the first ones are pydantic's."""

_SENTENCES: Mapping[str, Callable[[Values], Text]] = {
    "no_currency": lambda given: Text("%(code)s is no currency, such as USD.", code=given["given"]),
    "price_below_zero": lambda given: Text("A price cannot be below zero."),
    "price_too_high": lambda given: Text("A price is at most 3,600,000,000 per hour."),
    "other_currency": lambda given: Text(
        "This tenant is billed in %(billed)s; a plan in %(other)s would change nothing.", billed=given["billed"], other=given["given"]
    ),
    "currency_fixed": lambda given: Text("This tenant has usage or credits already, so its currency stays as it is."),
    "operators_limit": lambda given: Text(
        "An operator allows %(amount)s for %(whom)s; a budget of yours may be that at most.", amount=given["amount"], whom=given["whom"]
    ),
    "operators_quota": lambda given: Text(
        "An operator set what %(user)s is held to; ask an operator to change it.", user=given["user"]
    ),
    "flavor_in_use": lambda given: plural(
        "%(count)s session has this flavor; remove it when it has ended.",
        "%(count)s sessions have this flavor; remove it when they have ended.",
        int(given["count"]),
    ),
    "no_member": lambda given: Text("This person does not belong to the tenant any more."),
    "role_by_group": lambda given: Text(
        "%(name)s has this role by a group of the identity provider; change it there.", name=given["name"]
    ),
    "last_owner": lambda given: Text("%(name)s is the only owner; make somebody else an owner first.", name=given["name"]),
    "no_invitation": lambda given: Text("There is no such invitation any more: it was used, revoked, or has expired."),
    "invitations_open": lambda given: Text("%(most)s invitations are open; revoke one first.", most=given["most"]),
    "invitations_hourly": lambda given: Text("%(most)s invitations were made within an hour; go on in an hour.", most=given["most"]),
    "invitations_daily": lambda given: Text("%(most)s invitations were made within a day; go on tomorrow.", most=given["most"]),
    "list_line": lambda given: Text(
        "Line %(line)s of the price list cannot be read: %(problem)s", line=given["line"], problem=as_sent(given["problem"])
    ),
    "list_length": lambda given: Text("A price list has at most %(most)s prices.", most=given["most"]),
}
"""Of what is no single field."""


def faulty(fault: Fault) -> Text | None:
    """What is wrong in what was typed; None for a fault that is new, or of a field that pages do not show."""
    try:
        return _sentence(fault)
    except KeyError:
        return None


def _sentence(fault: Fault) -> Text | None:
    """Raises KeyError where a value is missing."""
    if fault.field is None:
        whole = _SENTENCES.get(fault.code)
        return whole and whole(fault.values)
    name, problem = NAMES.get(fault.field.partition(".")[0]), _PROBLEMS.get(fault.code)
    if name is None or problem is None:
        return None
    scaled = fault.code in _BOUNDS and fault.field.endswith(_SCALED)
    said = Text("it is too small or too large") if scaled else problem(fault.values)
    return Text("%(field)s: %(problem)s.", field=name, problem=said)
