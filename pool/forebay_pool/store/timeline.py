"""Who held which device when, read from the usage records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from forebay_service.processes.leadership import reason
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from forebay_pool.errors import StoreUnavailable
from forebay_pool.model.timeline import NS_PER_HOUR, Holding
from forebay_pool.store.database import Store
from forebay_pool.store.tables import HOLDINGS, SEGMENTS

HOLDINGS_MAX = 20_000
"""The most that are read for one answer: the newest."""
_ASKED = 500


def holdings(store: Store, devices: Sequence[str], since_ns: int, until_ns: int) -> list[Holding]:
    """Of the devices, as far as they touch the time; at most HOLDINGS_MAX. A segment lasts for an hour at most. Raises StoreUnavailable."""
    within = (HOLDINGS.c.ended_ns > since_ns, HOLDINGS.c.ended_ns < until_ns + NS_PER_HOUR, HOLDINGS.c.started_ns < until_ns)
    wanted = select(HOLDINGS).where(HOLDINGS.c.device.in_(devices), *within).order_by(HOLDINGS.c.ended_ns.desc()).limit(HOLDINGS_MAX)
    return [_holding(row) for row in read_usage(store, wanted)]


def segments(store: Store, names: Iterable[str]) -> dict[str, Any]:
    """The usage records of that name, as rows. Raises StoreUnavailable."""
    known = list(names)
    found: dict[str, Any] = {}
    for start in range(0, len(known), _ASKED):
        found.update((row.id, row) for row in read_usage(store, select(SEGMENTS).where(SEGMENTS.c.id.in_(known[start : start + _ASKED]))))
    return found


def read_usage(store: Store, wanted: Any) -> Sequence[Any]:
    """The rows of a query for usage records. Raises StoreUnavailable."""
    try:
        with store.engine.connect() as connection:
            return connection.execute(wanted).all()
    except SQLAlchemyError as error:
        raise StoreUnavailable(f"usage records cannot be read: {reason(error)}") from error


def _holding(row: Any) -> Holding:
    return Holding(row.device, row.started_ns, row.ended_ns, row.segment.rpartition("/")[0], row.segment)
