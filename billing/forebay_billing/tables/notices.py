"""The tables of notices of a person's own work, of where each person has them sent, and how."""

from __future__ import annotations

from forebay_wire.texts import LABEL_CHARS_MAX, NAME_CHARS_MAX
from sqlalchemy import BigInteger, CheckConstraint, Column, Float, ForeignKey, Index, Integer, String, Table, Text

from forebay_billing.tables.budgets import TARGET_CHARS_MAX
from forebay_billing.tables.schema import metadata

WORDS_CHARS_MAX = 300
"""Of a cell's first line, and of why it ended so."""

__all__ = ["metadata", "notice_channels", "notice_deliveries", "notices", "preferences"]

notice_channels = Table(
    "notice_channels",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", String(NAME_CHARS_MAX), nullable=False),
    Column("user_name", String(NAME_CHARS_MAX), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("target", String(TARGET_CHARS_MAX), nullable=False),
    Column("secret", String(128), nullable=True),
    Column("code_digest", String(64), nullable=True),
    Column("code_tries", Integer, nullable=False),
    Column("confirmed_at_ns", BigInteger, nullable=True),
    Column("set_at_ns", BigInteger, nullable=False),
    Column("removed_at_ns", BigInteger, nullable=True),
    Index(None, "tenant", "user_name"),
    CheckConstraint("kind IN ('email', 'webhook', 'slack')", name="kind"),
)
"""What is not confirmed gets nothing: an e-mail address is, by the code that was mailed there; what answers at a URL is at once."""

notices = Table(
    "notices",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", String(NAME_CHARS_MAX), nullable=False),
    Column("user_name", String(NAME_CHARS_MAX), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("label", String(LABEL_CHARS_MAX), nullable=False),
    Column("cell", Integer, nullable=True),
    Column("first_line", String(WORDS_CHARS_MAX), nullable=True),
    Column("seconds", Float, nullable=False),
    Column("why", String(WORDS_CHARS_MAX), nullable=True),
    Column("at_ns", BigInteger, nullable=False),
    Column("job", BigInteger, nullable=True),
    Column("cause", Text, nullable=True),
    Column("key", String(NAME_CHARS_MAX), nullable=True),
    Index(None, "tenant", "user_name", "at_ns"),
    Index("uq_notices_key", "key", unique=True),
    CheckConstraint("kind IN ('ended', 'failed', 'waits', 'budget', 'retried')", name="kind"),
)
"""Of cells, and of jobs, which have ``job``; ``cause`` is JSON, and ``key`` names what the pool may tell twice."""

notice_deliveries = Table(
    "notice_deliveries",
    metadata,
    Column("notice_id", BigInteger, ForeignKey("notices.id"), primary_key=True, autoincrement=False),
    Column("channel_id", BigInteger, ForeignKey("notice_channels.id"), primary_key=True, autoincrement=False),
    Column("state", String(8), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at_ns", BigInteger, nullable=False),
    Column("next_at_ns", BigInteger, nullable=False),
    Column("settled_at_ns", BigInteger, nullable=True),
    Column("note", Text, nullable=True),
    Index(None, "state", "next_at_ns"),
    CheckConstraint("state IN ('waiting', 'done', 'dead')", name="state"),
)
"""The outbox: written with the notice, delivered after."""

preferences = Table(
    "preferences",
    metadata,
    Column("user_name", String(NAME_CHARS_MAX), primary_key=True),
    Column("language", String(16), nullable=True),
    Column("jobs", String(8), nullable=True),
    Column("set_at_ns", BigInteger, nullable=False),
    CheckConstraint("jobs IN ('none', 'failures', 'all')", name="jobs"),
)
"""What people chose themselves."""
