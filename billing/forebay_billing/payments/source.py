"""The books as payments read them: what Stripe ought to hold, whether or not it was sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, bindparam, func, or_, select

from forebay_billing.model.money import nano_of, whole
from forebay_billing.payments import contacts
from forebay_billing.payments.metering import HOUR_NS
from forebay_billing.reads import invoices as invoices_reads
from forebay_billing.reads.rated_rows import Where, costly, pieces
from forebay_billing.tables import schema
from forebay_billing.tables.payments import outbox
from forebay_billing.tables.sums import halved, joined
from forebay_billing.writes import credits
from forebay_billing.writes import invoices as invoices_writes
from forebay_billing.writes.payment_orders import ChangedHour, CreditGrant, CreditNote, Customer, Invoice, Mark, MeterHour, order_of


class BooksSource:
    """An :class:`~forebay_billing.writes.payment_orders.ExportSource`, read from the tables of the rooms that cause the orders.

    Hours are summed up from the segments, which never cross one, and rounded half-even once; what was parked for nothing makes no hour.
    """

    def customers(self, connection: Connection) -> list[Customer]:
        """Everybody for whom something was handed over, as the contacts have them now."""
        bodies = connection.execute(select(outbox.c.body).where(outbox.c.kind == "customer").order_by(outbox.c.id)).scalars()
        latest = {order.tenant: order for order in map(order_of, bodies) if isinstance(order, Customer)}
        for contact in contacts.all_of(connection):
            if contact.tenant in latest:
                kept = latest[contact.tenant]
                latest[contact.tenant] = replace(kept, name=contact.name, email=contact.email, version=contact.version)
        return list(latest.values())

    def invoices(self, connection: Connection, since_ns: int, until_ns: int) -> list[Invoice]:
        found = invoices_reads.invoices_of(connection, None, issued=(since_ns, until_ns))
        return [invoices_writes.order_of(about) for about in reversed(found)]

    def credit_notes(self, connection: Connection, since_ns: int, until_ns: int) -> list[CreditNote]:
        found = reversed(invoices_reads.invoices_of(connection, None))
        return [
            invoices_writes.note_order(about, note) for about in found for note in about.notes if since_ns <= note.issued_at_ns < until_ns
        ]

    def credit_grants(self, connection: Connection, since_ns: int, until_ns: int) -> list[CreditGrant]:
        found = invoices_reads.credits_of(connection, None)
        return [credits.order_of(credit) for credit in found if since_ns <= credit.granted_at_ns < until_ns]

    def meter_hours(self, connection: Connection, since_ns: int, until_ns: int) -> list[MeterHour]:
        found = _sums(connection, _BETWEEN, {"since_ns": since_ns, "until_ns": until_ns})
        return [_hour(key, grains) for key, grains in found.items()]

    def mark(self, connection: Connection) -> Mark:
        return Mark(*connection.execute(_MARK).one())

    def changed_hours(self, connection: Connection, until_ns: int, mark: Mark) -> list[ChangedHour]:
        marked = {"until_ns": until_ns, "usage_id": mark.usage_id}
        more = _sums(connection, _MORE, marked)
        less = _sums(connection, _LESS, {**marked, "transaction_id": mark.transaction_id})
        changes = {key: more.get(key, 0) + less.get(key, 0) for key in more.keys() | less.keys()}
        if not changes:
            return []
        since_ns, end_ns = min(key[2] for key in changes) * HOUR_NS, (max(key[2] for key in changes) + 1) * HOUR_NS
        now = _sums(connection, _BETWEEN, {"since_ns": since_ns, "until_ns": end_ns})
        return [ChangedHour(_hour(key, now[key]), nano_of(now[key] - grains)) for key, grains in changes.items()]


Key = tuple[str, str, int]
"""Tenant, currency, and hours since the epoch."""


def _hour(key: Key, grains: int) -> MeterHour:
    tenant, currency, hour = key
    return MeterHour(tenant, f"forebay_usage_{currency.lower()}", currency, hour * HOUR_NS, nano_of(grains))


def _rows(where: Where) -> Select[Any]:
    """What the segments that ``where`` chooses cost in each hour."""
    piece = pieces(where, (schema.usage.c.tenant,))
    hour = (piece.started_at_ns // HOUR_NS).label("hour")
    key = (piece.tenant, piece.currency, hour)
    sums = (*halved(piece.milli, "milli"), *halved(piece.grains, "grains"))
    return select(*key, *sums).where(or_(~piece.is_parked, costly(piece))).group_by(*key)


def _sums(connection: Connection, rows: Select[Any], values: Mapping[str, int]) -> dict[Key, int]:
    """The same in grains."""
    found = connection.execute(rows, values)
    return {(row.tenant, row.currency, row.hour): whole(joined(row, "milli"), joined(row, "grains")) for row in found}


# Statements of every round: they are made once

_since_ns, _until_ns, _usage_id, _transaction_id = (
    bindparam(name, type_=BigInteger) for name in ("since_ns", "until_ns", "usage_id", "transaction_id")
)
_taken_back = select(schema.reversals.c.usage_id).where(schema.reversals.c.transaction_id > _transaction_id)
_BETWEEN = _rows(lambda segment: (segment.started_at_ns >= _since_ns, segment.started_at_ns < _until_ns))
_MORE = _rows(lambda segment: (segment.usage_id > _usage_id, segment.started_at_ns < _until_ns))
_LESS = _rows(
    lambda segment: (segment.usage_id.in_(_taken_back), segment.usage_id <= _usage_id, segment.reversal, segment.started_at_ns < _until_ns)
)
_MARK = select(
    select(func.coalesce(func.max(schema.usage.c.id), 0)).scalar_subquery(),
    select(func.coalesce(func.max(schema.reversals.c.transaction_id), 0)).scalar_subquery(),
)
