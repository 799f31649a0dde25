"""What changes holds: heartbeats, usage records and silence. Every function runs in the writer's transaction.

``holds`` is the sub-ledger of the accounts ``held:TENANT``: what is open sums to their balances, and each that ended points to the
transaction that released it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from forebay_billing.ledger.books import Books
from forebay_billing.ledger.postings import balanced, transfer
from forebay_billing.model.money import halves, whole
from forebay_billing.model.months import Month
from forebay_billing.model.types import Posting, UsageRecord
from forebay_billing.rules.holds import HOLDS, Ending, Heartbeat, Hold, Terms, ending_of, held, reserved
from forebay_billing.tables import bulk, schema

EXPIRED_MAX = 1_000
"""Most holds that expire in one transaction."""
_holds = schema.holds.c
_open = _holds.closed_by.is_(None)
_HOLD = tuple(column.name for column in schema.holds.columns)


@dataclass(frozen=True)
class Reserved:
    """What became of a heartbeat: how many holds are new, and how many are longer."""

    new: int
    longer: int


def beat(books: Books, heartbeat: Heartbeat, currency_of: Callable[[str], str], clock_ns: Callable[[], int], terms: Terms) -> Reserved:
    """Makes holds for leases that have none, and those longer that are nearly used up; not for what billing has the record of."""
    known = _of_records(books.connection, ((heartbeat.source, lease.id) for lease in heartbeat.leases))
    wanting = [lease for lease in heartbeat.leases if not _suffices(known.get((lease.source, lease.id)), lease, heartbeat.period_ns, terms)]
    closed = _recorded(books.connection, heartbeat.source, [lease.id for lease in wanting if (lease.source, lease.id) not in known])
    now_ns, book = clock_ns(), books.price_book()
    news: dict[tuple[str, str], Hold] = {}
    for lease in wanting:
        currency, finalised = currency_of(lease.tenant), books.finalised(lease.tenant)
        hold = reserved(lease, heartbeat.period_ns, book, currency, finalised, terms, now_ns)
        if hold is not None and lease.id not in closed:
            news[hold.source, hold.record_id] = hold
    if news:
        _write(books, news, known, now_ns)
    longer = sum(key in known for key in news)
    return Reserved(len(news) - longer, longer)


def release(books: Books, records: Sequence[UsageRecord], now_ns: int) -> None:
    """Ends the holds of leases, or parts of leases, that ``records`` bill."""
    found = _of_records(books.connection, ((record.source, record.id) for record in records))
    if not found:
        return
    by_ending: dict[Ending, list[Row[Any]]] = defaultdict(list)
    for record in records:
        row = found.get((record.source, record.id))
        if row is not None:
            by_ending[ending_of(record)].append(row)
    for ending in sorted(by_ending):
        _end(books, ending, by_ending[ending], now_ns)


def expire(books: Books, now_ns: int) -> int:
    """Ends holds of which nothing was heard for too long; how many, EXPIRED_MAX at most."""
    due = books.connection.execute(select(schema.holds).where(_open, _holds.expires_at_ns <= now_ns).limit(EXPIRED_MAX)).all()
    if due:
        _end(books, "expire", due, now_ns)
    return len(due)


def any_due(connection: Connection, now_ns: int) -> bool:
    """Whether a hold has to expire."""
    return connection.execute(select(_holds.id).where(_open, _holds.expires_at_ns <= now_ns).limit(1)).first() is not None


def _suffices(row: Row[Any] | None, lease: UsageRecord, period_ns: int, terms: Terms) -> bool:
    return row is not None and terms.suffices(row.covered_ns, lease.duration_ns, period_ns)


def _of_records(connection: Connection, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Row[Any]]:
    """The open holds of these (source, record)."""
    by_source: dict[str, list[str]] = defaultdict(list)
    for source, record_id in names:
        by_source[source].append(record_id)
    found: dict[tuple[str, str], Row[Any]] = {}
    for source, ids in by_source.items():
        for row in bulk.named(connection, "holds", _HOLD, source, ids, "AND closed_by IS NULL"):
            found[source, row.record_id] = row
    return found


def _recorded(connection: Connection, source: str, ids: Sequence[str]) -> set[str]:
    """Which of the ids are of accepted records: a heartbeat that comes after them says nothing new."""
    if not ids:
        return set()
    usage = schema.usage.c
    return set(connection.execute(select(usage.record_id).where(usage.source == source, usage.record_id.in_(ids))).scalars())


def _write(books: Books, news: dict[tuple[str, str], Hold], known: dict[tuple[str, str], Row[Any]], now_ns: int) -> None:
    """Posts by how much the holds grow, as one transaction, and writes them. A hold stays in the period and currency that it began in."""
    postings: list[Posting] = []
    made: list[dict[str, Any]] = []
    grown: list[dict[str, Any]] = []
    accounts = books.account_ids({held(hold.tenant) for hold in news.values()})
    for key, hold in news.items():
        row, (milli, grains) = known.get(key), halves(hold.amount_grains)
        if row is None:
            made.append(_row(hold, accounts[held(hold.tenant)], now_ns))
            postings += transfer(held(hold.tenant), HOLDS, hold.period, hold.currency, hold.amount_grains)
        elif row.currency == hold.currency:
            grown.append({"of": row.id, "covered": hold.covered_ns, "expires": hold.expires_at_ns, "m": milli, "a": grains})
            more_grains = hold.amount_grains - whole(row.milli, row.grains)
            postings += transfer(held(hold.tenant), HOLDS, Month.parse(row.period), row.currency, more_grains)
    if not postings:
        return
    books.append(balanced("reserve", postings), now_ns)
    if made:
        first = books.take_ids(schema.holds, len(made))
        books.connection.execute(insert(schema.holds), [{**row, "id": id} for id, row in enumerate(made, first)])
    if grown:
        grow = update(schema.holds).where(_holds.id == bindparam("of"))
        grow = grow.values(covered_ns=bindparam("covered"), expires_at_ns=bindparam("expires"), milli=bindparam("m"), grains=bindparam("a"))
        books.connection.execute(grow, grown)


def _row(hold: Hold, account_id: int, now_ns: int) -> dict[str, Any]:
    milli, grains = halves(hold.amount_grains)
    return {
        "source": hold.source,
        "record_id": hold.record_id,
        "account_id": account_id,
        "tenant": hold.tenant,
        "user_name": hold.user,
        "span_label": hold.span_label,
        "currency": hold.currency,
        "period": str(hold.period),
        "covered_ns": hold.covered_ns,
        "milli": milli,
        "grains": grains,
        "opened_at_ns": now_ns,
        "expires_at_ns": hold.expires_at_ns,
        "closed_by": None,
    }


def _end(books: Books, ending: Ending, rows: Sequence[Row[Any]], now_ns: int) -> None:
    postings: list[Posting] = []
    for row in rows:
        postings += transfer(HOLDS, held(row.tenant), Month.parse(row.period), row.currency, whole(row.milli, row.grains))
    transaction_id = books.append(balanced(ending, postings), now_ns)
    ended = update(schema.holds).where(_holds.id == bindparam("of")).values(closed_by=transaction_id)
    books.connection.execute(ended, [{"of": row.id} for row in rows])
