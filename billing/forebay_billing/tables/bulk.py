"""Many rows at once, by the shortest way that each database has.

SQLAlchemy makes each row of an insert ready on its own, which takes longer than the database's part of it. Rows are tuples here, and
a statement's text is made once: it is the same for any number of rows. PostgreSQL takes them by COPY, and both all names
that are asked for as one JSON list.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row

_NAMED = {
    "sqlite": "SELECT {columns} FROM {table} WHERE record_id IN (SELECT value FROM json_each(?)) AND source = ? {condition}",
    # OFFSET 0 keeps the planner from any other way than to look each name up
    "postgresql": "SELECT found.* FROM json_array_elements_text(%s) AS wanted(name) CROSS JOIN LATERAL "
    "(SELECT {columns} FROM {table} WHERE record_id = wanted.name AND source = %s {condition} OFFSET 0) AS found",
}


def append(connection: Connection, table: str, columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> None:
    """Writes ``rows``, values of ``columns``, into ``table``."""
    if connection.dialect.name != "postgresql":
        connection.exec_driver_sql(_insert(table, columns, "?"), list(rows))
    elif len(rows) == 1:
        connection.exec_driver_sql(_insert(table, columns, "%s"), rows[0])
    else:
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(_copy(table, columns)) as copy:
            for row in rows:
                copy.write_row(row)


def named(
    connection: Connection, table: str, columns: tuple[str, ...], source: str, record_ids: Sequence[str], condition: str = ""
) -> Sequence[Row[Any]]:
    """The ``columns`` of the rows of ``table`` that are called (``source``, one of ``record_ids``), and that ``condition`` allows."""
    statement = _select(connection.dialect.name, table, columns, condition)
    return connection.exec_driver_sql(statement, (json.dumps(record_ids), source)).all()


@cache
def _insert(table: str, columns: tuple[str, ...], mark: str) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join([mark] * len(columns))})"  # noqa: S608 - names of ours


@cache
def _copy(table: str, columns: tuple[str, ...]) -> str:
    return f"COPY {table} ({', '.join(columns)}) FROM STDIN"


@cache
def _select(dialect: str, table: str, columns: tuple[str, ...], condition: str) -> str:
    return _NAMED[dialect].format(table=table, columns=", ".join(columns), condition=condition)
