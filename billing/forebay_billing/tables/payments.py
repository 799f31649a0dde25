"""The tables of payments. Unlike the books these are not append-only: a row tells how far a delivery has come."""

from __future__ import annotations

from forebay_wire.texts import NAME_CHARS_MAX
from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, String, Table, Text, UniqueConstraint

from forebay_billing.tables.schema import LOGIN_CHARS_MAX, metadata

SUBJECT_CHARS_MAX = 512
STRIPE_ID_CHARS_MAX = 255
_NAME = String(NAME_CHARS_MAX)

__all__ = ["contacts", "events", "marks", "metadata", "meter_hours", "objects", "outbox"]

outbox = Table(
    "payment_outbox",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", _NAME, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("subject", String(SUBJECT_CHARS_MAX), nullable=False),
    Column("body", Text, nullable=False),
    Column("idempotency", String(64), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("look", Integer, nullable=False),
    Column("state", String(8), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at_ns", BigInteger, nullable=False),
    Column("next_at_ns", BigInteger, nullable=False),
    Column("first_tried_at_ns", BigInteger, nullable=True),
    Column("sent_at_ns", BigInteger, nullable=True),
    Column("settled_at_ns", BigInteger, nullable=True),
    Column("note", Text, nullable=True),
    UniqueConstraint("kind", "subject"),
    UniqueConstraint("idempotency"),
    Index(None, "state", "next_at_ns"),
    Index(None, "tenant", "state", "id"),
    CheckConstraint("state IN ('waiting', 'done', 'dead', 'skipped')", name="state"),
)

objects = Table(
    "payment_objects",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("subject", String(SUBJECT_CHARS_MAX), primary_key=True),
    Column("tenant", _NAME, nullable=False),
    Column("stripe_id", String(STRIPE_ID_CHARS_MAX), nullable=False),
    Column("status", String(32), nullable=False),
    Column("currency", String(3), nullable=True),
    Column("total_minor", BigInteger, nullable=True),
    Column("paid_minor", BigInteger, nullable=True),
    Column("url", Text, nullable=True),
    Column("refreshed_at_ns", BigInteger, nullable=False),
    UniqueConstraint("stripe_id"),
    Index(None, "tenant"),
)

meter_hours = Table(
    "payment_meter_hours",
    metadata,
    Column("tenant", _NAME, primary_key=True),
    Column("meter", String(100), primary_key=True),
    Column("hour_ns", BigInteger, primary_key=True, autoincrement=False),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("currency", String(3), nullable=False),
    Column("value", BigInteger, nullable=False),
    Column("late", String(SUBJECT_CHARS_MAX), nullable=True),
    Index(None, "hour_ns"),
)

marks = Table(
    "payment_marks",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""How far the books were read for the meters."""

events = Table(
    "payment_events",
    metadata,
    Column("id", String(STRIPE_ID_CHARS_MAX), primary_key=True),
    Column("type", String(128), nullable=False),
    Column("object_id", String(STRIPE_ID_CHARS_MAX), nullable=True),
    Column("received_at_ns", BigInteger, nullable=False),
    Column("state", String(8), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at_ns", BigInteger, nullable=False),
    Column("note", Text, nullable=True),
    Index(None, "state", "next_at_ns"),
    CheckConstraint("state IN ('waiting', 'done', 'ignored', 'dead')", name="state"),
)

contacts = Table(
    "payment_contacts",
    metadata,
    Column("tenant", _NAME, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("name", String(150), nullable=False),
    Column("email", String(512), nullable=True),
    Column("changed_at_ns", BigInteger, nullable=False),
    Column("changed_by", String(LOGIN_CHARS_MAX), nullable=False),
)
