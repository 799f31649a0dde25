"""What we know of Stripe's objects that are ours: their ids, and how they stood when they were last read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from forebay_billing.tables.payments import objects

STATUS_ORDER = ("draft", "open", "uncollectible", "paid", "void", "deleted")
"""An answer that was on its way while a webhook came must not take an invoice back to where it was."""

CHANGING = ("draft", "open", "uncollectible")
"""How an invoice stands that may be paid or made void."""


@dataclass(frozen=True)
class Known:
    """One object. Amounts are minor units of ISO 4217; ``url`` is where an invoice can be seen and paid."""

    kind: str
    subject: str
    tenant: str
    stripe_id: str
    status: str
    refreshed_at_ns: int
    currency: str | None = None
    total_minor: int | None = None
    paid_minor: int | None = None
    url: str | None = None


def find(connection: Connection, kind: str, subject: str) -> Known | None:
    """The object of our name ``subject``."""
    return _known(connection.execute(select(objects).where(objects.c.kind == kind, objects.c.subject == subject)).first())


def find_stripe(connection: Connection, stripe_id: str) -> Known | None:
    """The object of Stripe's id."""
    return _known(connection.execute(select(objects).where(objects.c.stripe_id == stripe_id)).first())


def of_kind(connection: Connection, kind: str, tenant: str | None) -> list[Known]:
    """All of a kind, of one tenant where one is given."""
    query = select(objects).where(objects.c.kind == kind).order_by(objects.c.subject)
    if tenant is not None:
        query = query.where(objects.c.tenant == tenant)
    return [known for row in connection.execute(query) if (known := _known(row)) is not None]


def unread(connection: Connection, before_ns: int, limit: int) -> list[Known]:
    """Invoices that can still change at Stripe and were not read since ``before_ns``, those first that were not for longest."""
    query = select(objects).where(objects.c.kind == "invoice", objects.c.status.in_(CHANGING), objects.c.refreshed_at_ns < before_ns)
    rows = connection.execute(query.order_by(objects.c.refreshed_at_ns, objects.c.subject).limit(limit))
    return [known for row in rows if (known := _known(row)) is not None]


def save(connection: Connection, known: Known) -> Known | None:
    """Writes what was just read, and gives what was known before."""
    before = find(connection, known.kind, known.subject)
    values = {name: getattr(known, name) for name in Known.__dataclass_fields__}
    if before is None:
        connection.execute(insert(objects).values(**values))
    else:
        connection.execute(update(objects).where(objects.c.kind == known.kind, objects.c.subject == known.subject).values(**values))
    return before


def save_unless_later(connection: Connection, known: Known) -> None:
    """Writes what a delivery was answered, unless a webhook has told of a later state of the same object."""
    before = find(connection, known.kind, known.subject)
    if before is None or before.stripe_id != known.stripe_id or _rank(before.status) <= _rank(known.status):
        save(connection, known)


def _rank(status: str) -> int:
    return STATUS_ORDER.index(status) if status in STATUS_ORDER else 0


def _known(row: Any) -> Known | None:
    return None if row is None else Known(**{name: getattr(row, name) for name in Known.__dataclass_fields__})
