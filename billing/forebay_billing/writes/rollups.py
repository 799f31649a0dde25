"""Sums up by hour, day and month what usage was posted and taken back, and notes whose it is. Runs in the writer's transaction.

Usage ids and transaction ids only grow, and the writer is one, so marks say how far the sums have come. Ingest does nothing for them. The
database does all of it: what lies between the marks is summed once by all that any rollup tells apart, in a table of this connection, and
from there added to each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Select,
    String,
    Table,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)

from forebay_billing.ledger.books import Books
from forebay_billing.model.money import GRAINS_PER_MILLI
from forebay_billing.model.months import Month
from forebay_billing.reads.rated_rows import Columns
from forebay_billing.reads.rollups import begins_lease, heads_of, marks_of, original
from forebay_billing.rules.budgets import DAY_NS
from forebay_billing.rules.rating import HOUR_NS
from forebay_billing.tables import rollups, schema

FOLDED_MAX = 10_000
"""Usage records that one step reads, so that nobody waits long for the writer."""
_BILLION = 10**9
_CARRY = GRAINS_PER_MILLI // _BILLION
"""Billions of grains in a milli-unit."""

_folded = Table(
    "usage_folded",
    MetaData(),
    *(Column(name, BigInteger) for name in ("hour", "day")),
    *(Column(name, String) for name in ("tenant", "user_name", "priced", "currency")),
    *(Column(name, BigInteger) for name in rollups.MEASURES),
    prefixes=["TEMPORARY"],
)
"""Of the connection that writes: what one step adds."""

_usage, _reversals = schema.usage.c, schema.reversals.c


@dataclass(frozen=True)
class _Target:
    """A rollup, its keys, the SQL of where the stretch begins that an ``hour`` is in, and what is summed."""

    table: str
    keys: tuple[str, ...]
    start: str
    measures: tuple[str, ...] = rollups.MEASURES


def fold(books: Books, most: int = FOLDED_MAX) -> int:
    """Adds what came since the marks, at most so many records of it, and takes off what was taken back; how many ids that were."""
    connection = books.connection
    start, heads = marks_of(connection), heads_of(connection)
    if start == heads:
        return 0
    end = replace(heads, usage_id=min(heads.usage_id, start.usage_id + most))
    bounds = {
        "after_id": start.usage_id, "until_id": end.usage_id,
        "after_transaction": start.transaction_id, "until_transaction": end.transaction_id,
    }  # fmt: skip
    if end.usage_id > start.usage_id:
        _add(connection, _POSTED, bounds, "+")
    if end.transaction_id > start.transaction_id:
        _add(connection, _TAKEN_BACK, bounds, "-")
    connection.execute(update(rollups.marks).values(usage_id=end.usage_id, transaction_id=end.transaction_id))
    return end.usage_id - start.usage_id


def rebuild(books: Books) -> None:
    """Forgets all sums, which are made anew by :func:`fold` from then on."""
    for table in (rollups.hours, rollups.all_hours, rollups.days, rollups.months, rollups.people):
        books.connection.execute(delete(table))
    books.connection.execute(update(rollups.marks).values(usage_id=0, transaction_id=0))


def _add(connection: Connection, found: Select[Any], bounds: dict[str, int], sign: str) -> None:
    """Adds what is found to all of them, or takes it off."""
    _folded.create(connection, checkfirst=True)
    connection.execute(delete(_folded))
    connection.execute(insert(_folded).from_select([column.name for column in _folded.c], found), bounds)
    first, last = connection.execute(select(func.min(_folded.c.hour), func.max(_folded.c.hour))).one()
    if first is None:
        return
    targets = _targets(first * HOUR_NS, last * HOUR_NS)
    for target in targets:
        connection.execute(text(_upsert(target, sign)))
        if sign == "-":
            touched = f"SELECT {target.start} FROM usage_folded"  # noqa: S608 - names of ours
            connection.execute(text(f"DELETE FROM {target.table} WHERE pieces = 0 AND start_ns IN ({touched})"))  # noqa: S608 - the same
    for statement in _people_of(targets[-1].start, sign):
        connection.execute(text(statement))


def _targets(first_ns: int, last_ns: int) -> tuple[_Target, ...]:
    """The rollups. Months are not as long as one another, so each that there is usage of is named."""
    month, ends = Month.of(first_ns), []
    while month.end_ns <= last_ns:
        ends.append(f"WHEN hour < {month.end_ns // HOUR_NS} THEN {month.start_ns}")
        month = month.next
    months = f"CASE {' '.join(ends)} ELSE {month.start_ns} END" if ends else f"CAST({month.start_ns} AS BIGINT)"
    return (
        _Target("usage_hours", ("tenant", "priced", "currency"), f"hour * {HOUR_NS}"),
        _Target("usage_all_hours", (), f"hour * {HOUR_NS}", rollups.MEASURES_OF_ALL),
        _Target("usage_days", ("tenant", "day", "priced", "currency"), f"hour / 24 * {DAY_NS}"),
        _Target("usage_months", ("tenant", "user_name", "priced", "currency"), months),
    )


def _upsert(target: _Target, sign: str) -> str:
    """Adds to rows, or takes off them, or makes them. What grains come to in milli-units is carried, as in :mod:`.tables.sums`."""
    of = target.table
    sums = {name: f"CAST(SUM({name}) AS BIGINT)" for name in target.measures}
    added = {name: f"{of}.{name} + excluded.{name}" for name in target.measures}
    if "grains" in sums:
        billions = f"CAST(SUM(grains / {_BILLION}) AS BIGINT)"
        sums["milli"] = f"({sums['milli']} + {billions} / {_CARRY})"
        sums["grains"] = f"({billions} % {_CARRY} * {_BILLION} + CAST(SUM(grains % {_BILLION}) AS BIGINT))"
        added["milli"] += f" + ({added['grains']}) / {GRAINS_PER_MILLI}"
        added["grains"] = f"({added['grains']}) % {GRAINS_PER_MILLI}"
    keys = ", ".join(("start_ns", *target.keys))
    selected = ", ".join((f"{target.start} AS start_ns", *target.keys, *(sign + one for one in sums.values())))
    return (
        f"INSERT INTO {of} ({keys}, {', '.join(sums)}) "  # noqa: S608 - names of ours
        f"SELECT {selected} FROM usage_folded WHERE true GROUP BY {', '.join(('1', *target.keys))} "
        f"ON CONFLICT ({keys}) DO UPDATE SET {', '.join(f'{name} = {one}' for name, one in added.items())}"
    )


def _people_of(months: str, sign: str) -> tuple[str, ...]:
    """Statements that note who used something, and in which month last. What was taken off may have been all that there was."""
    if sign == "+":
        return (
            f"INSERT INTO usage_people (tenant, user_name, start_ns) SELECT tenant, user_name, MAX({months}) "  # noqa: S608 - names of ours
            "FROM usage_folded WHERE true GROUP BY tenant, user_name "
            "ON CONFLICT (tenant, user_name) DO UPDATE SET start_ns = excluded.start_ns WHERE excluded.start_ns > usage_people.start_ns",
        )
    whose = "WHERE (tenant, user_name) IN (SELECT tenant, user_name FROM usage_folded)"
    last = f"SELECT tenant, user_name, MAX(start_ns) FROM usage_months {whose} GROUP BY tenant, user_name"  # noqa: S608 - names of ours
    return f"DELETE FROM usage_people {whose}", f"INSERT INTO usage_people (tenant, user_name, start_ns) {last}"  # noqa: S608 - the same


def _grouped(piece: Columns) -> Select[Any]:
    """By all that any of the rollups tells apart, as rows of ``usage_folded``."""
    hour = (piece.usage_started_ns // literal_column(str(HOUR_NS), BigInteger)).label("hour")
    day = (piece.started_at_ns // literal_column(str(DAY_NS), BigInteger)).label("day")
    keys = (hour, day, piece.tenant, piece.user_name, piece.priced, piece.currency)
    first, told = piece.position == 0, piece.energy_mj.is_not(None)
    sums = {
        "pieces": func.count(),
        "leases": _sum(case((and_(first, ~piece.is_parked, begins_lease(piece)), 1), else_=0)),
        "duration_ns": _sum(case((piece.is_parked, 0), else_=piece.duration_ns)),
        "milli": _sum(piece.milli) + _sum(piece.grains // _BILLION) // _CARRY,
        "grains": _sum(piece.grains // _BILLION) % _CARRY * _BILLION + _sum(piece.grains % _BILLION),
        "told": func.count(piece.energy_mj),
        "energy_mj": _sum(case((and_(first, told), piece.energy_mj), else_=0)),
        "energy_duration_ns": _sum(case((told, piece.duration_ns), else_=0)),
    }
    return select(*keys, *(sums[name].label(name) for name in rollups.MEASURES)).group_by(*keys)


def _sum(column: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(func.sum(column), BigInteger)


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
