"""Sums up by hour, day and month what usage was posted and taken back. Runs in the writer's transaction.

Usage ids and transaction ids only grow, and the writer is one, so marks say how far the sums have come. Ingest does nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, bindparam, delete, literal_column, select, text, update
from sqlalchemy.sql.elements import TextClause

from forebay_billing.ledger.books import Books
from forebay_billing.model.money import GRAINS_PER_MILLI, halves
from forebay_billing.reads.rated_rows import Columns
from forebay_billing.reads.rollups import (
    DAYS,
    HOURS,
    MONTHS,
    Key,
    Level,
    Sums,
    heads_of,
    marks_of,
    measures,
    original,
    sums_of,
)
from forebay_billing.rules.budgets import DAY_NS
from forebay_billing.rules.rating import HOUR_NS
from forebay_billing.tables import rollups, schema

FOLDED_MAX = 10_000
"""Usage records that one step reads, so that nobody waits long for the writer."""

_usage, _reversals = schema.usage.c, schema.reversals.c
_KEYS: tuple[tuple[Level, tuple[str, ...]], ...] = (
    (HOURS, ("start_ns", "tenant", "priced", "currency")),
    (DAYS, ("start_ns", "tenant", "day", "priced", "currency")),
    (MONTHS, ("start_ns", "tenant", "user_name", "priced", "currency")),
)


def fold(books: Books) -> int:
    """Adds what came since the marks, at most FOLDED_MAX records of it, and takes off what was taken back; how many ids that were."""
    connection = books.connection
    start, heads = marks_of(connection), heads_of(connection)
    if start == heads:
        return 0
    end = replace(heads, usage_id=min(heads.usage_id, start.usage_id + FOLDED_MAX))
    bounds = {
        "after_id": start.usage_id, "until_id": end.usage_id,
        "after_transaction": start.transaction_id, "until_transaction": end.transaction_id,
    }  # fmt: skip
    if end.usage_id > start.usage_id:
        _add(connection, connection.execute(_POSTED, bounds), 1)
    if end.transaction_id > start.transaction_id:
        _add(connection, connection.execute(_TAKEN_BACK, bounds), -1)
    connection.execute(update(rollups.marks).values(usage_id=end.usage_id, transaction_id=end.transaction_id))
    return end.usage_id - start.usage_id


def rebuild(books: Books) -> None:
    """Forgets all sums, which are made anew by :func:`fold` from then on."""
    for level, _ in _KEYS:
        books.connection.execute(delete(level.table))
    books.connection.execute(update(rollups.marks).values(usage_id=0, transaction_id=0))


def _add(connection: Connection, rows: Iterable[Any], sign: int) -> None:
    found: dict[Level, dict[Key, Sums]] = {level: {} for level, _ in _KEYS}
    for row in rows:
        values, of_row = row._mapping, sums_of(row)
        for level, keys in _KEYS:
            key = (level.start_of(row.hour * HOUR_NS), *(values[name] for name in keys[1:]))
            found[level].setdefault(key, Sums()).add(of_row, sign)
    for level, keys in _KEYS:
        values_of = [dict(zip(keys, key, strict=True)) | _measured(one) for key, one in sorted(found[level].items())]
        if values_of:
            connection.execute(_upsert(level.table.name, keys), values_of)
        if sign < 0:
            connection.execute(delete(level.table).where(level.table.c.pieces == 0))


def _measured(one: Sums) -> dict[str, int]:
    milli, grains = halves(one.grains)
    plain = {name: getattr(one, name) for name in rollups.MEASURES if name not in ("milli", "grains")}
    return plain | {"milli": milli, "grains": grains}


@cache
def _upsert(table: str, keys: tuple[str, ...]) -> TextClause:
    """Adds to a row, or makes it. A milli-unit that two rests come to is carried."""
    names = (*keys, *rollups.MEASURES)
    added = {name: f"{table}.{name} + excluded.{name}" for name in rollups.MEASURES}
    added["milli"] += f" + ({added['grains']}) / {GRAINS_PER_MILLI}"
    added["grains"] = f"({added['grains']}) % {GRAINS_PER_MILLI}"
    changes = ", ".join(f"{name} = {value}" for name, value in added.items())
    return text(
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)}) "  # noqa: S608 - names of ours
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"
    )


def _grouped(piece: Columns) -> Select[Any]:
    """By all that any of the rollups tells apart."""
    hour = (piece.usage_started_ns // literal_column(str(HOUR_NS), BigInteger)).label("hour")
    day = (piece.started_at_ns // literal_column(str(DAY_NS), BigInteger)).label("day")
    keys = (hour, day, piece.tenant, piece.user_name, piece.priced, piece.currency)
    return select(*keys, *measures(piece)).group_by(*keys)


def _bound(name: str) -> Any:
    return bindparam(name, type_=BigInteger)


_of_record = (_usage.tenant, _usage.user_name, _usage.started_at_ns.label("usage_started_ns"))
_taken_back_so_far = (
    select(_reversals.usage_id)
    .where(_reversals.usage_id == _usage.id, _reversals.transaction_id <= _bound("until_transaction"))
    .exists()
)
_POSTED = _grouped(
    original(lambda piece: (piece.usage_id > _bound("after_id"), piece.usage_id <= _bound("until_id")), _of_record, (~_taken_back_so_far,))
)
"""What was posted between the marks and is not taken back."""
_taken_back = select(_reversals.usage_id).where(
    _reversals.transaction_id > _bound("after_transaction"),
    _reversals.transaction_id <= _bound("until_transaction"),
    _reversals.usage_id <= _bound("after_id"),
)
_TAKEN_BACK = _grouped(original(lambda piece: (piece.usage_id.in_(_taken_back),), _of_record, ()))
"""What was taken back of the sums as they were."""
