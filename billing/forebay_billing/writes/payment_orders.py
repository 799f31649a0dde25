"""What other rooms hand over to be sent: facts without any of Stripe's words. Amounts are minor units of the currency (ISO 4217).

Whoever causes one writes it with :func:`forebay_billing.writes.payment_outbox.put` in the transaction that causes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from sqlalchemy import Connection

Kind = Literal["customer", "invoice", "credit_note", "credit_grant", "meter_event", "late_usage"]


@dataclass(frozen=True)
class Customer:
    """Who pays for a tenant. ``version`` counts the changes of the contact from 1."""

    tenant: str
    name: str
    email: str | None
    currency: str
    version: int

    kind: Kind = "customer"

    @property
    def subject(self) -> str:
        return f"{self.tenant}/{self.version}"


@dataclass(frozen=True)
class InvoiceLine:
    """One rounded line. ``role``: ``usage`` is what a meter counts too, ``credit`` what a credit grant pays, ``other`` the rest."""

    key: str
    """Unique within the invoice, and the same whenever the line is sent."""
    description: str
    amount_minor: int
    role: Literal["usage", "credit", "other"]
    started_at_ns: int
    ended_at_ns: int


@dataclass(frozen=True)
class Invoice:
    """A finalised invoice under our number. It does not change any more."""

    number: str
    tenant: str
    currency: str
    lines: tuple[InvoiceLine, ...]

    kind: Kind = "invoice"

    @property
    def subject(self) -> str:
        return self.number

    @property
    def total_minor(self) -> int:
        """What the invoice asks for: the sum of its rounded lines."""
        return sum(line.amount_minor for line in self.lines)


@dataclass(frozen=True)
class CreditNote:
    """Takes ``amount_minor`` (above zero) of a finalised invoice back."""

    number: str
    tenant: str
    invoice: str
    currency: str
    amount_minor: int
    reason: str

    kind: Kind = "credit_note"

    @property
    def subject(self) -> str:
        return self.number


@dataclass(frozen=True)
class CreditGrant:
    """Prepaid or promotional credit as it was granted. ``priority`` 0 is used first, 100 last."""

    id: str
    tenant: str
    name: str
    category: Literal["paid", "promotional"]
    currency: str
    amount_minor: int
    priority: int
    valid_from_ns: int
    expires_at_ns: int | None

    kind: Kind = "credit_grant"

    @property
    def subject(self) -> str:
        return self.id


@dataclass(frozen=True)
class MeterEvent:
    """A part of what a tenant used in the full UTC hour from ``hour_ns`` on: ``value`` nano-units of ``currency``, below zero where usage
    was taken back. ``sequence`` counts the parts of the hour from 1, since records may come late."""

    tenant: str
    meter: str
    currency: str
    hour_ns: int
    sequence: int
    value: int

    kind: Kind = "meter_event"

    @property
    def subject(self) -> str:
        return f"{self.tenant}/{self.meter}/{self.hour_ns}/{self.sequence}"


@dataclass(frozen=True)
class LateUsage:
    """Usage of hours that a meter no longer takes, as one item of the next invoice; rounded half-even once."""

    id: str
    tenant: str
    currency: str
    amount_minor: int
    description: str
    started_at_ns: int
    ended_at_ns: int

    kind: Kind = "late_usage"

    @property
    def subject(self) -> str:
        return self.id


Order = Customer | Invoice | CreditNote | CreditGrant | MeterEvent | LateUsage
_KINDS: Mapping[str, type[Any]] = {
    "customer": Customer,
    "invoice": Invoice,
    "credit_note": CreditNote,
    "credit_grant": CreditGrant,
    "meter_event": MeterEvent,
    "late_usage": LateUsage,
}


@dataclass(frozen=True)
class MeterHour:
    """All that ``tenant`` used in the full UTC hour from ``hour_ns`` on, as the books have it now: ``value`` nano-units of ``currency``."""

    tenant: str
    meter: str
    currency: str
    hour_ns: int
    value: int


@dataclass(frozen=True)
class Mark:
    """How far the books were read: the largest ids of usage and of transactions then."""

    usage_id: int
    transaction_id: int


@dataclass(frozen=True)
class ChangedHour:
    """An hour to which something came after a mark; ``before`` is the value that it had then."""

    hour: MeterHour
    before: int


class ExportSource(Protocol):
    """The books as reconciliation and the meters read them, each method in one snapshot. Times are Unix time in nanoseconds."""

    def customers(self, connection: Connection) -> list[Customer]:
        """The latest version of each customer."""

    def invoices(self, connection: Connection, since_ns: int, until_ns: int) -> list[Invoice]:
        """The invoices that were finalised from ``since_ns`` until before ``until_ns``."""

    def credit_notes(self, connection: Connection, since_ns: int, until_ns: int) -> list[CreditNote]:
        """The credit notes that were issued in that time."""

    def credit_grants(self, connection: Connection, since_ns: int, until_ns: int) -> list[CreditGrant]:
        """The credits that were granted in that time."""

    def meter_hours(self, connection: Connection, since_ns: int, until_ns: int) -> list[MeterHour]:
        """The hours that begin from ``since_ns`` until before ``until_ns`` and in which something was used or taken back."""

    def mark(self, connection: Connection) -> Mark:
        """How far the books go now."""

    def changed_hours(self, connection: Connection, until_ns: int, mark: Mark) -> list[ChangedHour]:
        """The hours that begin before ``until_ns`` and to which usage, or a correction, came after ``mark``."""


def text_of(order: Order) -> str:
    """The order as JSON; equal orders have equal texts."""
    return json.dumps(asdict(order), sort_keys=True, ensure_ascii=False)


def order_of(text: str) -> Order:
    """The order that :func:`text_of` wrote."""
    fields = json.loads(text)
    if fields["kind"] == "invoice":
        fields["lines"] = tuple(InvoiceLine(**line) for line in fields["lines"])
    order: Order = _KINDS[fields["kind"]](**fields)
    return order
