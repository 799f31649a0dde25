"""The projection of balances, made anew. Every function runs in the writer's transaction."""

from __future__ import annotations

from sqlalchemy import delete, insert

from forebay_billing.ledger.books import Books
from forebay_billing.model.money import halves
from forebay_billing.reads.checks import of_postings, sums_of
from forebay_billing.tables import schema


def rebuild_balances(books: Books) -> None:
    """Makes the projection anew from the postings."""
    books.connection.execute(delete(schema.balances))
    rows = [
        {"account_id": row.account_id, "period": row.period, "currency": row.currency, **_halves(grains)}
        for row, grains in sums_of(books.connection, of_postings())
    ]
    if rows:
        books.connection.execute(insert(schema.balances), rows)


def _halves(grains: int) -> dict[str, int]:
    milli, rest = halves(grains)
    return {"milli": milli, "grains": rest}
