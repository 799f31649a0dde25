"""What reads the parked bytes in the books: what a month, an hour or a record of them cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, func, select

from forebay_billing import schema
from forebay_billing.books import parked_price_ids
from forebay_billing.ledger import receivable
from forebay_billing.money import whole
from forebay_billing.months import Month
from forebay_billing.rating import HOUR_NS
from forebay_billing.sums import halved, joined
from forebay_billing.types import ParkedPrice

_segments, _usage, _accounts = schema.parked_segments.c, schema.usage.c, schema.accounts.c


@dataclass(frozen=True)
class ParkedRate:
    """The part of a record of parked bytes that was rated at one price, in one period."""

    price: ParkedPrice | None
    currency: str
    period: Month
    late: bool
    duration_ns: int
    cost_atto: int


@dataclass(frozen=True)
class ParkedTotal:
    """What a user's parked bytes at one price sum to; all is negative in a correction. ``stretches`` counts how often it was parked."""

    user: str
    price: ParkedPrice | None
    currency: str
    correction: bool
    stretches: int
    duration_ns: int
    byte_ns: int
    cost_atto: int
    started_at_ns: int
    ended_at_ns: int


def parked_rates(connection: Connection, usage_ids: Sequence[int]) -> dict[int, list[ParkedRate]]:
    """What the records were rated at, in the order of time."""
    group = (_segments.usage_id, _segments.parked_price_id, _segments.currency, _segments.period, _segments.late)
    query = (
        select(*group, *_SUMS)
        .where(_segments.usage_id.in_(usage_ids), ~_segments.reversal)
        .group_by(*group)
        .order_by(func.min(_segments.position))
    )
    rows = connection.execute(query).all()
    prices = _prices(connection) if rows else {}
    found: dict[int, list[ParkedRate]] = defaultdict(list)
    for row in rows:
        cost = whole(joined(row, "milli"), joined(row, "atto"))
        rate = ParkedRate(
            prices.get(row.parked_price_id), row.currency, Month.parse(row.period), row.late, joined(row, "duration"), cost
        )
        found[row.usage_id].append(rate)
    return found


def parked_totals(connection: Connection, tenant: str, month: Month) -> list[ParkedTotal]:
    """A tenant's month, by user, price and correction. Bytes times time pass 64 bits, so they are multiplied here."""
    key = (_usage.user_name, _segments.parked_price_id, _segments.currency, _segments.reversal)
    query = (
        select(
            *key, _usage.parked_bytes, _usage.lease, *_SUMS, func.min(_segments.started_at_ns).label("first"),
            func.max(_segments.started_at_ns + func.abs(_segments.duration_ns)).label("last"),
        )
        .select_from(schema.parked_segments.join(schema.usage, _usage.id == _segments.usage_id))
        .where(*_of_period(tenant, month))
        .group_by(*key, _usage.parked_bytes, _usage.lease)
    )  # fmt: skip
    rows = connection.execute(query).all()
    prices = _prices(connection) if rows else {}
    groups = defaultdict(list)
    for row in rows:
        groups[row.user_name, row.parked_price_id, row.currency, bool(row.reversal)].append(row)
    return [
        ParkedTotal(
            user, prices.get(price_id), currency, correction, len({row.lease for row in some}),
            sum(joined(row, "duration") for row in some), sum(row.parked_bytes * joined(row, "duration") for row in some),
            sum(whole(joined(row, "milli"), joined(row, "atto")) for row in some),
            min(row.first for row in some), max(row.last for row in some),
        )
        for (user, price_id, currency, correction), some in groups.items()
    ]  # fmt: skip


def parked_hours(connection: Connection, tenant: str, month: Month) -> dict[str, dict[int, int]]:
    """What parked bytes cost in each UTC hour, in atto-units, by currency and start."""
    hour = (_segments.started_at_ns // HOUR_NS).label("hour")
    query = select(_segments.currency, hour, *_SUMS).where(*_of_period(tenant, month)).group_by(_segments.currency, hour)
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for row in connection.execute(query):
        found[row.currency][row.hour * HOUR_NS] = whole(joined(row, "milli"), joined(row, "atto"))
    return found


def _prices(connection: Connection) -> dict[int, ParkedPrice]:
    return {id: price for price, id in parked_price_ids(connection).items()}


def _of_period(tenant: str, month: Month) -> tuple[ColumnElement[bool], ...]:
    account = select(_accounts.id).where(_accounts.name == receivable(tenant)).scalar_subquery()
    return _segments.account_id == account, _segments.period == str(month)


_SUMS = (*halved(_segments.duration_ns, "duration"), *halved(_segments.milli, "milli"), *halved(_segments.atto, "atto"))
