"""What services say in English of single fields that they refuse, in the reader's language. What is new is shown as sent. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable

from forebay_service.languages import Text, as_sent

NAMES = {
    "tenant": Text("Tenant"),
    "user": Text("User"),
    "notebook": Text("Notebook"),
    "name": Text("Name"),
    "currency": Text("Currency"),
    "month": Text("Month"),
    "valid_from": Text("First month"),
    "devices_milli": Text("Devices at a time"),
    "device_seconds": Text("Device seconds"),
    "window_seconds": Text("Window in seconds"),
    "priority_max": Text("Highest priority"),
    "weight": Text("Weight in the fair share"),
    "parked_bytes": Text("Parked bytes"),
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
    "on_limit": Text("At the limit"),
    "on_exhausted": Text("When device seconds are used up"),
    "on_parked_full": Text("When no more may be parked"),
    "window": Text("Window"),
    "cause": Text("Cause"),
    "reason": Text("Reason"),
}
"""What pages call the fields of the services."""

_SCALED = ("_nano", "_milli", "_minor", "_bps")
"""Endings of fields whose bounds are of another unit than what is typed."""
_BOUND = re.compile(r"Input should be (?:greater|less) than .*")

Said = tuple[re.Pattern[str], Callable[[re.Match[str]], Text]]

_PROBLEMS: tuple[Said, ...] = (
    (re.compile(r"Input should be greater than or equal to (\S+)"), lambda at: Text("%(least)s is the least", least=at[1])),
    (re.compile(r"Input should be less than or equal to (\S+)"), lambda at: Text("%(most)s is the most", most=at[1])),
    (re.compile(r"Input should be greater than (\S+)"), lambda at: Text("it must be more than %(bound)s", bound=at[1])),
    (re.compile(r"Input should be less than (\S+)"), lambda at: Text("it must be less than %(bound)s", bound=at[1])),
    (re.compile(r"Input should be a valid integer.*"), lambda at: Text("it must be a whole number")),
    (re.compile(r"Input should be ('.*)"), lambda at: Text("it must be one of %(choices)s", choices=at[1].replace(" or ", ", "))),
    (re.compile(r"String should have at least (\d+) characters?"), lambda at: Text("it has at least %(least)s characters", least=at[1])),
    (re.compile(r"String should have at most (\d+) characters?"), lambda at: Text("it has at most %(most)s characters", most=at[1])),
    (re.compile(r"String should match pattern .*", re.DOTALL), lambda at: Text("it is not written as it must be")),
    (re.compile(r"(?:List|Tuple|Dictionary) should have at most (\d+) .*"), lambda at: Text("there are at most %(most)s", most=at[1])),
    (re.compile(r"a name has 1 to (\d+) characters"), lambda at: Text("a name has 1 to %(most)s characters", most=at[1])),
    (re.compile(r"(.+) is not a month; .*"), lambda at: Text("%(typed)s is no month, such as 2026-11", typed=at[1])),
    (
        re.compile(r"(-?\d+) is not from 0 to (\d+) nano-units"),
        lambda at: Text("%(given)s is not from 0 to %(most)s nano-units", given=at[1], most=at[2]),
    ),
    (
        re.compile(r"(-?\d+) of (.+) is not from 0 to (\d+) seconds"),
        lambda at: Text("%(given)s of %(flavor)s is not from 0 to %(most)s seconds", given=at[1], flavor=at[2], most=at[3]),
    ),
    (re.compile(r"a (?:discount|rate) is from 0 to 10000 basis points .*"), lambda at: Text("it is from 0 to 100 per cent")),
    (re.compile(r"name each flavor once, and at most (\d+)"), lambda at: Text("name each flavor once, and at most %(most)s", most=at[1])),
    (re.compile(r"a plan has at most (\d+); .*"), lambda at: Text("there are at most %(most)s", most=at[1])),
    (re.compile(r"each begins above the one before; .*"), lambda at: Text("each begins above the one before")),
    (
        re.compile(r"give at most (\d+) different per cents from 1 to (\d+), the lowest first"),
        lambda at: Text("give at most %(count)s different per cents from 1 to %(most)s, the lowest first", count=at[1], most=at[2]),
    ),
    (re.compile(r"a notebook's budget names its user too"), lambda at: Text("a notebook is one user's: say whose it is, too")),
    (re.compile(r"a credit is from 1 to (\d+) minor units; .*"), lambda at: Text("from 1 to %(most)s of the smallest unit", most=at[1])),
    (re.compile(r"from 0 \(used first\) to (\d+); .*"), lambda at: Text("0 is used first, %(most)s last", most=at[1])),
    (re.compile(r"a credit expires after now, and after it begins"), lambda at: Text("a credit expires after today")),
    (re.compile(r"a tax above zero needs its name, such as VAT"), lambda at: Text("a tax above zero needs its name, such as VAT")),
    (re.compile(r"give one e-mail address, .*"), lambda at: Text("give one e-mail address, such as ops@example.com")),
    (re.compile(r"this installation sends no e-mail .*"), lambda at: Text("this installation sends no e-mail")),
)
"""Of one field, without its name and the full stop."""

_SENTENCES: tuple[Said, ...] = (
    (re.compile(r"(.+) is not a currency of ISO 4217; .*"), lambda at: Text("%(code)s is no currency, such as USD.", code=at[1])),
    (re.compile(r"A price cannot be below zero; .*"), lambda at: Text("A price cannot be below zero.")),
    (re.compile(r"A price is at most .*"), lambda at: Text("A price is at most 3,600,000,000 per hour.")),
    (
        re.compile(r"The tenant .+ is billed in (\w+); a plan in (\w+) .*"),
        lambda at: Text("This tenant is billed in %(billed)s; a plan in %(other)s would change nothing.", billed=at[1], other=at[2]),
    ),
    (
        re.compile(r"The tenant .+ has usage or credits already, so its currency stays .*"),
        lambda at: Text("This tenant has usage or credits already, so its currency stays as it is."),
    ),
    (
        re.compile(r"An operator allows (\S+ \w+) for (.+); a budget of yours .*"),
        lambda at: Text("An operator allows %(amount)s for %(whom)s; a budget of yours may be that at most.", amount=at[1], whom=at[2]),
    ),
    (
        re.compile(r"Line (\d+) of the price list: (.+)"),
        lambda at: Text("Line %(line)s of the price list cannot be read: %(problem)s", line=at[1], problem=as_sent(at[2])),
    ),
    (re.compile(r"A price list has at most (\d+) prices\."), lambda at: Text("A price list has at most %(most)s prices.", most=at[1])),
)


def refused_field(message: str) -> Text | None:
    """A refusal that says what is wrong in what was typed; None for another."""
    name, _, problem = message.removesuffix(".").partition(": ")
    field = NAMES.get(name.partition(".")[0])
    said = None if field is None else _among(_PROBLEMS, problem)
    if said is not None and name.endswith(_SCALED) and _BOUND.fullmatch(problem):
        said = Text("it is too small or too large")
    if field is not None and said is not None:
        return Text("%(field)s: %(problem)s.", field=field, problem=said)
    return _among(_SENTENCES, message)


def _among(known: tuple[Said, ...], sentence: str) -> Text | None:
    return next((make(match) for pattern, make in known if (match := pattern.fullmatch(sentence))), None)
