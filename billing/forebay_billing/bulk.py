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

_AMONG = {
    "postgresql": ("%s", "= ANY(ARRAY(SELECT json_array_elements_text(%s)))"),
    "sqlite": ("?", "IN (SELECT value FROM json_each(?))"),
}
"""How each database marks a value, and looks among the elements of a JSON list."""


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
    mark, among = _AMONG[connection.dialect.name]
    statement = _select(table, columns, mark, f"{among} {condition}")
    return connection.exec_driver_sql(statement, (source, json.dumps(record_ids))).all()


@cache
def _insert(table: str, columns: tuple[str, ...], mark: str) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join([mark] * len(columns))})"  # noqa: S608 - names of ours


@cache
def _copy(table: str, columns: tuple[str, ...]) -> str:
    return f"COPY {table} ({', '.join(columns)}) FROM STDIN"


@cache
def _select(table: str, columns: tuple[str, ...], mark: str, among: str) -> str:
    return f"SELECT {', '.join(columns)} FROM {table} WHERE source = {mark} AND record_id {among}"  # noqa: S608 - names of ours
