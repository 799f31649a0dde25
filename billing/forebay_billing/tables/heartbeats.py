"""The table by which several billing services on one PostgreSQL tell each other what the pools said of open leases."""

from __future__ import annotations

from forebay_wire.texts import NAME_CHARS_MAX
from sqlalchemy import BigInteger, Column, Index, String, Table, Text

from forebay_billing.tables.schema import metadata

__all__ = ["heartbeats", "metadata"]

ORIGIN_CHARS_MAX = 32

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("source", String(NAME_CHARS_MAX), nullable=False),
    Column("sent_at_ns", BigInteger, nullable=False),
    Column("heard_at_ns", BigInteger, nullable=False),
    Column("origin", String(ORIGIN_CHARS_MAX), nullable=False),
    Column("leases", Text, nullable=False),
    Index(None, "source"),
)
"""The latest two heartbeats of each pool, a row for each call; ``origin`` is the service that heard it. Empty on SQLite."""
