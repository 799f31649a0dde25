"""What reads the parked bytes in the books: what a month or a record of them cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, func, select

from forebay_billing.ledger.books import parked_price_ids
from forebay_billing.model.money import whole
from forebay_billing.model.months import Month
from forebay_billing.model.types import ParkedPrice
from forebay_billing.reads.rated_rows import KEPT, Columns, in_month, pieces
from forebay_billing.rules.parked import ParkedTotal
from forebay_billing.tables import schema
from forebay_billing.tables.sums import halved, joined

_usage = schema.usage.c


@dataclass(frozen=True)
class ParkedRate:
    """The part of a record of parked bytes that was rated at one price, in one period."""

    price: ParkedPrice | None
    currency: str
    period: Month
    late: bool
    duration_ns: int
    cost_grains: int


def parked_rates(connection: Connection, usage_ids: Sequence[int]) -> dict[int, list[ParkedRate]]:
    """What the records were rated at, in the order of time."""
    piece = pieces(lambda segment: (segment.usage_id.in_(usage_ids), ~segment.reversal), kinds=(KEPT,))
    group = (piece.usage_id, piece.parked_price_id, piece.currency, piece.period, piece.late)
    query = select(*group, *_sums(piece)).group_by(*group).order_by(func.min(piece.position))
    rows = connection.execute(query).all()
    prices = _prices(connection) if rows else {}
    found: dict[int, list[ParkedRate]] = defaultdict(list)
    for row in rows:
        cost = whole(joined(row, "milli"), joined(row, "grains"))
        rate = ParkedRate(
            prices.get(row.parked_price_id), row.currency, Month.parse(row.period), row.late, joined(row, "duration"), cost
        )
        found[row.usage_id].append(rate)
    return found


def parked_totals(connection: Connection, tenant: str, month: Month) -> list[ParkedTotal]:
    """A tenant's month, by user, price and correction. Bytes times time pass 64 bits, so they are multiplied here."""
    piece = pieces(in_month(tenant, month), (_usage.user_name, _usage.parked_bytes, _usage.lease), kinds=(KEPT,))
    key = (piece.user_name, piece.parked_price_id, piece.currency, piece.reversal, piece.parked_bytes, piece.lease)
    first, last = func.min(piece.started_at_ns), func.max(piece.started_at_ns + func.abs(piece.duration_ns))
    query = select(*key, *_sums(piece), first.label("first"), last.label("last")).group_by(*key)
    rows = connection.execute(query).all()
    prices = _prices(connection) if rows else {}
    groups = defaultdict(list)
    for row in rows:
        groups[row.user_name, row.parked_price_id, row.currency, bool(row.reversal)].append(row)
    return [
        ParkedTotal(
            user, prices.get(price_id), currency, correction, len({row.lease for row in some}),
            sum(joined(row, "duration") for row in some), sum(row.parked_bytes * joined(row, "duration") for row in some),
            sum(whole(joined(row, "milli"), joined(row, "grains")) for row in some),
            min(row.first for row in some), max(row.last for row in some),
        )
        for (user, price_id, currency, correction), some in groups.items()
    ]  # fmt: skip


def _prices(connection: Connection) -> dict[int, ParkedPrice]:
    return {id: price for price, id in parked_price_ids(connection).items()}


def _sums(piece: Columns) -> tuple[ColumnElement[int], ...]:
    return (*halved(piece.duration_ns, "duration"), *halved(piece.milli, "milli"), *halved(piece.grains, "grains"))
