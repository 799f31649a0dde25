"""The open leases as the pools told last, and what they have cost that no usage record tells of yet.

They are known from heartbeats alone and kept in memory: the next heartbeat says it all again. Several services on one PostgreSQL tell
each other what they heard (:mod:`forebay_billing.writes.heartbeats`). A pool with many leases sends several
calls for one heartbeat, with the same time; a lease that its next heartbeat does not name is forgotten with the one after.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, select

from forebay_billing.errors import InvalidRequest, Unpriced
from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from forebay_billing.reads import usage as usage_reads
from forebay_billing.rules.budgets import Running, Subject
from forebay_billing.rules.prices import PriceBook
from forebay_billing.rules.rating import segments_of
from forebay_billing.tables import schema

SILENCE_NS_MAX = 3600 * 10**9
"""A pool that said nothing for so long is forgotten with its leases."""
OVERTAKEN_NS_MAX = 10 * 10**9
"""A heartbeat that seems older than the last one is listened to all the same, once that one came so long ago: the pool's clock was set."""
LOOKED_UP_MAX = 500
"""Names of records in one query."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenLease:
    """A lease as the usage record that it makes if it closes now. ``fresh``: its pool's last heartbeat named it."""

    record: UsageRecord
    fresh: bool


@dataclass
class _Source:
    beat_ns: int = 0
    """When the last heartbeat was sent, by the pool's clock."""
    heard_at_ns: int = 0
    leases: dict[str, tuple[UsageRecord, int]] = field(default_factory=dict)
    """By record: with the time of the last heartbeat that named it."""


class OpenLeases:
    """What all pools said. Used by one thread."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = defaultdict(_Source)

    def hear(self, source: str, sent_at_ns: int, records: Iterable[UsageRecord], now_ns: int) -> bool:
        """Part of a heartbeat, or all of it. One that was overtaken by a later one is not listened to: False."""
        known = self._sources[source]
        if sent_at_ns < known.beat_ns and now_ns - known.heard_at_ns < OVERTAKEN_NS_MAX:
            return False
        if sent_at_ns != known.beat_ns:
            known.leases = {id: entry for id, entry in known.leases.items() if entry[1] == known.beat_ns}
            known.beat_ns = sent_at_ns
        known.heard_at_ns = now_ns
        known.leases.update((record.id, (record, sent_at_ns)) for record in records)
        for name in [name for name, other in self._sources.items() if now_ns - other.heard_at_ns > SILENCE_NS_MAX]:
            del self._sources[name]
        return True

    def all(self) -> list[OpenLease]:
        """The leases at this moment."""
        return [OpenLease(record, at == source.beat_ns) for source in self._sources.values() for record, at in source.leases.values()]


@dataclass(frozen=True)
class Accrual:
    """What an open lease has cost so far, by period, and what a second more of it costs."""

    subject: Subject
    currency: str
    by_period: dict[str, int]
    rate_nano_per_hour: int
    record: UsageRecord


def accruals(connection: Connection, leases: Sequence[OpenLease], currency_of: Callable[[str], str]) -> list[Accrual]:
    """What the leases have cost whose usage did not arrive meanwhile."""
    if not leases:
        return []
    metered = _metered(connection, [lease.record for lease in leases])
    still = [lease for lease in leases if (lease.record.source, lease.record.id) not in metered]
    book, finalised = usage_reads.price_book(connection), _finalised(connection)
    found = (_accrual(lease, book, currency_of(lease.record.tenant), finalised[lease.record.tenant]) for lease in still)
    return [accrual for accrual in found if accrual is not None]


def running_by(found: Iterable[Accrual]) -> dict[tuple[Subject, str], Running]:
    """What runs for each subject that it counts for, by currency."""
    periods: dict[tuple[Subject, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    rates: dict[tuple[Subject, str], int] = defaultdict(int)
    for accrual in found:
        for subject in accrual.subject.around:
            key = (subject, accrual.currency)
            rates[key] += accrual.rate_nano_per_hour
            for period, grains in accrual.by_period.items():
                periods[key][period] += grains
    return {key: Running(dict(by_period), rates[key]) for key, by_period in periods.items()}


def _accrual(lease: OpenLease, book: PriceBook, currency: str, finalised: frozenset[Month]) -> Accrual | None:
    """None for a lease that cannot be billed: its usage will be refused, and says why."""
    record = lease.record
    try:
        segments = segments_of(record, book, currency, finalised)
    except (Unpriced, InvalidRequest) as error:
        fields = {"action": "lease.unpriced", "source": record.source, "record": record.id, "error": str(error)}
        log.warning("a lease has no price", extra=fields)
        return None
    by_period: dict[str, int] = defaultdict(int)
    for segment in segments:
        by_period[str(segment.period)] += segment.amount_grains
    last = segments[-1]
    rate = last.price.price_nano_per_hour + last.surcharge_nano_per_hour if lease.fresh else 0
    return Accrual(Subject(record.tenant, record.user, record.span.label), currency, dict(by_period), rate, record)


def _metered(connection: Connection, records: Sequence[UsageRecord]) -> set[tuple[str, str]]:
    """Names of those that arrived as usage."""
    usage = schema.usage.c
    found: set[tuple[str, str]] = set()
    ids_by_source: dict[str, list[str]] = defaultdict(list)
    for record in records:
        ids_by_source[record.source].append(record.id)
    for source, ids in ids_by_source.items():
        for start in range(0, len(ids), LOOKED_UP_MAX):
            part = ids[start : start + LOOKED_UP_MAX]
            query = select(usage.record_id).where(usage.source == source, usage.record_id.in_(part))
            found.update((source, id) for id in connection.execute(query).scalars())
    return found


def _finalised(connection: Connection) -> dict[str, frozenset[Month]]:
    closed: dict[str, frozenset[Month]] = defaultdict(frozenset)
    for row in connection.execute(select(schema.periods.c.tenant, schema.periods.c.period)):
        closed[row.tenant] |= {Month.parse(row.period)}
    return closed
