"""Sums up by hour what usage was posted, so that a month of it is read in a few hundred rows. Runs in the writer's transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, func, insert, select, update

from forebay_billing.ledger.books import Books
from forebay_billing.ledger.postings import REVENUE
from forebay_billing.model.money import halves, whole
from forebay_billing.tables import schema

HOUR_NS = 3_600 * 10**9
KEPT_NS = 31 * 24 * HOUR_NS
"""Hours are kept for so long: 744 rows a currency."""
POSTINGS_MAX = 2_000
"""Read at once, so that nobody waits long for the writer."""

_hours, _postings, _transactions, _accounts = schema.revenue_hours.c, schema.postings.c, schema.transactions.c, schema.accounts.c


def fold(books: Books, now_ns: int) -> int:
    """Adds the postings that came since to their hours, at most POSTINGS_MAX of them, and forgets hours that are too old; how many
    postings there were. Transactions are numbered in the order in which they are committed, so none is passed by.
    """
    connection, oldest_ns = books.connection, now_ns - KEPT_NS
    through = int(connection.execute(select(func.coalesce(func.max(_hours.through_id), 0))).scalar_one())
    rows = connection.execute(
        select(_postings.transaction_id, _postings.currency, _postings.milli, _postings.grains, _transactions.posted_at_ns)
        .join(schema.transactions, _transactions.id == _postings.transaction_id)
        .join(schema.accounts, _accounts.id == _postings.account_id)
        .where(_transactions.id > through, _accounts.name == REVENUE, _transactions.kind.in_(("usage", "reversal")))
        .where(_transactions.posted_at_ns >= oldest_ns)
        .order_by(_transactions.id)
        .limit(POSTINGS_MAX)
    ).all()
    complete = _without_last(rows) if len(rows) == POSTINGS_MAX else rows
    _add(books, complete)
    connection.execute(delete(schema.revenue_hours).where(_hours.hour_ns < oldest_ns, _hours.through_id < through))
    return len(complete)


def _without_last(rows: Sequence[Any]) -> Sequence[Any]:
    """Without those of the last transaction, which may have more than were read."""
    last = rows[-1].transaction_id
    return [row for row in rows if row.transaction_id != last]


def _add(books: Books, rows: Sequence[Any]) -> None:
    sums: dict[tuple[int, str], int] = defaultdict(int)
    for row in rows:
        sums[row.posted_at_ns - row.posted_at_ns % HOUR_NS, row.currency] -= whole(row.milli, row.grains)
    for (hour_ns, currency), amount in sums.items():
        there = (_hours.hour_ns == hour_ns) & (_hours.currency == currency)
        found = books.connection.execute(select(schema.revenue_hours).where(there)).one_or_none()
        before = 0 if found is None else whole(found.milli, found.grains)
        milli, grains = halves(before + amount)
        values = {"milli": milli, "grains": grains, "through_id": rows[-1].transaction_id}
        if found is None:
            books.connection.execute(insert(schema.revenue_hours).values(hour_ns=hour_ns, currency=currency, **values))
        else:
            books.connection.execute(update(schema.revenue_hours).where(there).values(values))
