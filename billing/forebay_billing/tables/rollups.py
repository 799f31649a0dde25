"""The tables of usage summed up: by hour and by day for each tenant, by month for each user, and time and energy by hour for all; and who
used anything. Projections that can be made anew.

A record counts where it started, in UTC, with all that it was rated in; what was taken back does not count. ``usage_days`` tells apart the
days on which the pieces began too, for records that last over midnight.
"""

from __future__ import annotations

from typing import Any

from forebay_wire.texts import NAME_CHARS_MAX
from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, String, Table
from sqlalchemy.schema import SchemaItem

from forebay_billing.tables.schema import metadata

MEASURES = ("pieces", "leases", "duration_ns", "milli", "grains", "told", "energy_mj", "energy_duration_ns")
"""What is summed: pieces, of them those that told energy, leases that began, the time of leases, and energy with the time it is of."""
MEASURES_OF_ALL = ("pieces", "duration_ns", "told", "energy_mj", "energy_duration_ns")
"""Of them those that are summed over all tenants, whatever they pay in."""
_NAME = String(NAME_CHARS_MAX)

__all__ = ["MEASURES", "MEASURES_OF_ALL", "all_hours", "days", "hours", "marks", "metadata", "months", "people"]


def _rollup(name: str, more: tuple[Column[Any], ...] = (), index: tuple[str, ...] = ()) -> Table:
    columns: list[SchemaItem] = [
        Column("start_ns", BigInteger, primary_key=True, autoincrement=False),
        Column("tenant", _NAME, primary_key=True),
        *more,
        Column("priced", _NAME, primary_key=True),
        Column("currency", String(3), primary_key=True),
        *(Column(one, BigInteger, nullable=False) for one in MEASURES),
    ]
    if index:
        columns.append(Index(None, *index))
    return Table(name, metadata, *columns, sqlite_with_rowid=False)


hours = _rollup("usage_hours")
days = _rollup("usage_days", (Column("day", Integer, primary_key=True, autoincrement=False),), ("tenant", "currency", "start_ns"))
all_hours = Table(
    "usage_all_hours",
    metadata,
    Column("start_ns", BigInteger, primary_key=True, autoincrement=False),
    *(Column(one, BigInteger, nullable=False) for one in MEASURES_OF_ALL),
)
months = _rollup("usage_months", (Column("user_name", _NAME, primary_key=True),), ("tenant", "user_name", "start_ns"))

people = Table(
    "usage_people",
    metadata,
    Column("tenant", _NAME, primary_key=True),
    Column("user_name", _NAME, primary_key=True),
    Column("start_ns", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Everybody in ``usage_months``, and where the latest month of theirs begins."""

marks = Table(
    "usage_marks",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("usage_id", BigInteger, nullable=False),
    Column("transaction_id", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)
"""How far all of them have come: usage up to ``usage_id``, reversals up to ``transaction_id``."""
