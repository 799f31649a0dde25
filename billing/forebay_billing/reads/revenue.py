"""Revenue by hour, as far as :mod:`forebay_billing.writes.revenue` has come."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from forebay_billing.model.money import whole
from forebay_billing.tables import schema

_hours = schema.revenue_hours.c


@dataclass(frozen=True)
class RevenueHour:
    """What usage was posted in the hour from ``hour_ns`` (Unix time) on, less what was taken back, in grains; at list prices."""

    hour_ns: int
    currency: str
    grains: int


def revenue(connection: Connection, since_ns: int) -> list[RevenueHour]:
    """The hours that begin from then on, oldest first; those without any are left out."""
    wanted = select(schema.revenue_hours).where(_hours.hour_ns >= since_ns).order_by(_hours.hour_ns, _hours.currency)
    return [RevenueHour(row.hour_ns, row.currency, whole(row.milli, row.grains)) for row in connection.execute(wanted)]
