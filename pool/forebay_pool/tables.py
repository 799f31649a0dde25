"""The pool's tables."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, MetaData, String, Table, Text

METADATA = MetaData()

FLAVORS = Table(
    "flavors",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("equivalents", Text, nullable=False, comment="JSON: [[model, count] or [model, count, share_milli], ...]"),
)

CHOICES = Table(
    "choices",
    METADATA,
    Column("tenant", String(255), primary_key=True),
    Column("user", String(255), primary_key=True),
    Column("flavor", String(64), nullable=False),
)

SEGMENTS = Table(
    "lease_segments",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("lease", String(255), nullable=False),
    Column("session", String(255), nullable=False),
    Column("tenant", String(255), nullable=False),
    Column("user", String(255), nullable=False),
    Column("flavor", String(64), nullable=False),
    Column("device_model", String(128), nullable=False),
    Column("devices", Integer, nullable=False),
    Column("started_at_unix_ns", BigInteger, nullable=False),
    Column("duration_ns", BigInteger, nullable=False),
    Column("close_reason", String(16), nullable=False),
    Column("span", Text, nullable=False, comment="JSON of the wire's Span"),
)
Index("lease_segments_by_tenant", SEGMENTS.c.tenant, SEGMENTS.c.started_at_unix_ns)

OUTBOX = Table(
    "usage_outbox",
    METADATA,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("segment", String(255), ForeignKey("lease_segments.id"), nullable=False, unique=True),
    Column("refused", Text, nullable=True, comment="What billing said when it refused the record"),
)
