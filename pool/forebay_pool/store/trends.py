"""How devices were used over time, in the database: minutes, and hours that they are added to, each kept for a bounded time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from forebay_service.processes.leadership import reason
from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from forebay_pool.errors import StoreUnavailable
from forebay_pool.model.trends import KEPT, REACHES, Over, Trend, folded
from forebay_pool.store.database import Store
from forebay_pool.store.tables import TRENDS


class TrendStore:
    """Plain synchronous calls, each one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, trends: Sequence[Trend], now_ns: int) -> None:
        """Adds them to the minutes and hours that they begin in, and forgets what is too old; made on the writer's thread."""
        with self._store.writing() as connection:
            for step_ns, kept_ns in KEPT.items():
                for trend in folded(trends, step_ns):
                    _add(connection, step_ns, trend)
                connection.execute(delete(TRENDS).where(TRENDS.c.step_ns == step_ns, TRENDS.c.start_ns < now_ns - kept_ns))

    def over(self, over: Over, now_ns: int) -> list[Trend]:
        """The last day, week or month, in its steps, oldest first. Raises StoreUnavailable."""
        reach = REACHES[over]
        since_ns = (now_ns - reach.length_ns) // reach.step_ns * reach.step_ns + reach.step_ns
        wanted = select(TRENDS).where(TRENDS.c.step_ns == reach.kept_ns, TRENDS.c.start_ns >= since_ns, TRENDS.c.start_ns <= now_ns)
        try:
            with self._store.engine.connect() as connection:
                rows = connection.execute(wanted).all()
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"trends cannot be read: {reason(error)}") from error
        return folded((_trend(row) for row in rows), reach.step_ns)


def _add(connection: Connection, step_ns: int, trend: Trend) -> None:
    """Nobody writes between the look and the write: the leader's writes come one after another."""
    there = (TRENDS.c.step_ns == step_ns) & (TRENDS.c.start_ns == trend.start_ns)
    found = connection.execute(select(TRENDS).where(there)).one_or_none()
    if found is None:
        connection.execute(insert(TRENDS).values(step_ns=step_ns, **_row(trend)))
    else:
        connection.execute(update(TRENDS).where(there).values(_row(_trend(found).with_all(trend))))


def _row(trend: Trend) -> dict[str, Any]:
    return asdict(replace(trend, waits={})) | {"waits": json.dumps(trend.waits)}


def _trend(row: Any) -> Trend:
    columns = {name: value for name, value in row._mapping.items() if name not in ("step_ns", "waits")}
    return Trend(**columns, waits={int(bucket): count for bucket, count in json.loads(row.waits).items()})
