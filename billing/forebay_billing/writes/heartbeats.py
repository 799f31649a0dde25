"""Heartbeats that one of several billing services heard, for the others. On SQLite there are no others, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from forebay_billing.model.types import Span, UsageRecord
from forebay_billing.tables.heartbeats import heartbeats

KEPT_NS = 3600 * 10**9
"""What was heard so long ago is of a pool that is forgotten."""
_rows = heartbeats.c


@dataclass(frozen=True)
class HeartbeatCall:
    """A call of a heartbeat. ``origin`` is the service that it came to."""

    id: int
    source: str
    sent_at_ns: int
    origin: str
    leases: tuple[UsageRecord, ...]


def shared(connection: Connection) -> bool:
    """Whether other services may use this database."""
    return connection.dialect.name == "postgresql"


def tell(connection: Connection, source: str, sent_at_ns: int, leases: Sequence[UsageRecord], origin: str, now_ns: int) -> None:
    """Writes a call down for the others; of the pool's earlier heartbeats only the latest stays."""
    if not shared(connection):
        return
    before = select(_rows.sent_at_ns).where(_rows.source == source).order_by(_rows.id.desc()).limit(1)
    latest_ns = connection.execute(before).scalar_one_or_none()
    if latest_ns is not None and latest_ns != sent_at_ns:
        connection.execute(delete(heartbeats).where(_rows.source == source, _rows.sent_at_ns != latest_ns))
    connection.execute(delete(heartbeats).where(_rows.heard_at_ns < now_ns - KEPT_NS))
    largest = connection.execute(select(func.max(_rows.id))).scalar_one()
    text = json.dumps([asdict(lease) for lease in leases], separators=(",", ":"))
    row = {"id": (largest or 0) + 1, "source": source, "sent_at_ns": sent_at_ns, "heard_at_ns": now_ns, "origin": origin, "leases": text}
    connection.execute(insert(heartbeats), [row])


def heard_since(connection: Connection, id: int, now_ns: int) -> list[HeartbeatCall]:
    """What was written after the row ``id``, the oldest first."""
    if not shared(connection):
        return []
    query = select(heartbeats).where(_rows.id > id, _rows.heard_at_ns >= now_ns - KEPT_NS).order_by(_rows.id)
    return [HeartbeatCall(row.id, row.source, row.sent_at_ns, row.origin, _leases_of(row.leases)) for row in connection.execute(query)]


def _leases_of(text: str) -> tuple[UsageRecord, ...]:
    return tuple(_lease_of(fields) for fields in json.loads(text))


def _lease_of(fields: dict[str, Any]) -> UsageRecord:
    return UsageRecord(**{**fields, "span": Span(**fields["span"])})
