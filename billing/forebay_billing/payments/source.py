"""The books as payments read them: what was handed over, and for the meters the usage itself."""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy import Connection, select

from forebay_billing import schema
from forebay_billing.money import nano_of, whole
from forebay_billing.payments.metering import HOUR_NS
from forebay_billing.payments.orders import CreditGrant, CreditNote, Customer, Invoice, MeterHour, Order, order_of
from forebay_billing.payments.tables import outbox
from forebay_billing.queries import halved, joined

Kind = TypeVar("Kind", bound=Order)


class BooksSource:
    """An :class:`~forebay_billing.payments.orders.ExportSource`.

    Every order was written with its cause, so the outbox's rows are what Stripe ought to hold; those that an operator gave up are among
    them. Hours are summed up from the segments, which never cross one, and rounded half-even once.
    """

    def customers(self, connection: Connection) -> list[Customer]:
        latest: dict[str, Customer] = {}
        for customer in _orders(connection, Customer, "customer", 0, 2**63 - 1):
            latest[customer.tenant] = customer
        return list(latest.values())

    def invoices(self, connection: Connection, since_ns: int, until_ns: int) -> list[Invoice]:
        return _orders(connection, Invoice, "invoice", since_ns, until_ns)

    def credit_notes(self, connection: Connection, since_ns: int, until_ns: int) -> list[CreditNote]:
        return _orders(connection, CreditNote, "credit_note", since_ns, until_ns)

    def credit_grants(self, connection: Connection, since_ns: int, until_ns: int) -> list[CreditGrant]:
        return _orders(connection, CreditGrant, "credit_grant", since_ns, until_ns)

    def meter_hours(self, connection: Connection, since_ns: int, until_ns: int) -> list[MeterHour]:
        usage, segments, currency = schema.usage.c, schema.segments.c, schema.prices.c.currency
        hour = (segments.started_at_ns // HOUR_NS).label("hour")
        query = (
            select(usage.tenant, currency, hour, *halved(segments.milli, "milli"), *halved(segments.atto, "atto"))
            .select_from(schema.segments.join(schema.usage).join(schema.prices, schema.prices.c.id == segments.price_id))
            .where(segments.started_at_ns >= since_ns, segments.started_at_ns < until_ns)
            .group_by(usage.tenant, currency, hour)
        )
        return [
            MeterHour(
                row.tenant, f"forebay_usage_{row.currency.lower()}", row.currency, row.hour * HOUR_NS,
                nano_of(whole(joined(row, "milli"), joined(row, "atto"))),
            )
            for row in connection.execute(query)
        ]  # fmt: skip


def _orders(connection: Connection, kind: type[Kind], name: str, since_ns: int, until_ns: int) -> list[Kind]:
    query = (
        select(outbox.c.body)
        .where(outbox.c.kind == name, outbox.c.created_at_ns >= since_ns, outbox.c.created_at_ns < until_ns)
        .order_by(outbox.c.id)
    )
    orders = (order_of(body) for body in connection.execute(query).scalars())
    return [order for order in orders if isinstance(order, kind)]
