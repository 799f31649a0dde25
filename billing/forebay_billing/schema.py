"""The tables. ``migrations/`` creates them and the triggers that keep them append-only and balanced; a test compares both.

A transaction is written in three steps inside one database transaction: its row, its postings, its *seal*. The row's deferred
foreign key wants the seal at commit; the seal's trigger wants the postings to sum to zero per currency; nothing can be added
to what is sealed. So no database that enforces its constraints ever holds an unbalanced transaction, whoever writes to it.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

NAME_CHARS_MAX = 128
LABEL_CHARS_MAX = 2048
LOGIN_CHARS_MAX = 255
"""Longest name of a login that JupyterHub keeps."""
_NAME = String(NAME_CHARS_MAX)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

prices = Table(
    "prices",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("flavor", _NAME, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("version", Integer, nullable=False),
    Column("price_nano_per_second", BigInteger, nullable=False),
    Column("valid_from_ns", BigInteger, nullable=False),
    Column("changed_at_ns", BigInteger, nullable=False),
    Column("changed_by", String(LOGIN_CHARS_MAX), nullable=False),
    UniqueConstraint("flavor", "currency", "version"),
    CheckConstraint("price_nano_per_second >= 0", name="price_not_below_zero"),
)

accounts = Table(
    "accounts",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(NAME_CHARS_MAX + 32), nullable=False, unique=True),
)

transactions = Table(
    "transactions",
    metadata,
    Column(
        "id",
        BigInteger,
        ForeignKey("seals.transaction_id", deferrable=True, initially="DEFERRED", use_alter=True),
        primary_key=True,
        autoincrement=False,
    ),
    Column("kind", String(16), nullable=False),
    Column("posted_at_ns", BigInteger, nullable=False),
    Column("reverses", BigInteger, ForeignKey("transactions.id"), nullable=True, unique=True),
    Index("ix_transactions_reversal_posted_at_ns", "kind", "posted_at_ns"),
    CheckConstraint("kind IN ('usage', 'reversal')", name="kind"),
    CheckConstraint("(kind = 'reversal') = (reverses IS NOT NULL)", name="reversal_reverses"),
)

postings = Table(
    "postings",
    metadata,
    Column("transaction_id", BigInteger, ForeignKey("transactions.id"), primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("account_id", Integer, ForeignKey("accounts.id"), nullable=False),
    Column("month", String(7), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("milli", BigInteger, nullable=False),
    Column("atto", BigInteger, nullable=False),
    Index(None, "account_id", "month"),
    CheckConstraint("atto > -1000000000000000 AND atto < 1000000000000000", name="atto_below_a_milli"),
)

seals = Table(
    "seals",
    metadata,
    Column("transaction_id", BigInteger, ForeignKey("transactions.id"), primary_key=True, autoincrement=False),
)

usage = Table(
    "usage",
    metadata,
    Column("transaction_id", BigInteger, ForeignKey("transactions.id"), primary_key=True, autoincrement=False),
    Column("source", _NAME, nullable=False),
    Column("record_id", _NAME, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("tenant", _NAME, nullable=False),
    Column("user_name", _NAME, nullable=False),
    Column("session", _NAME, nullable=False),
    Column("lease", _NAME, nullable=False),
    Column("span_id", _NAME, nullable=False),
    Column("span_kind", String(16), nullable=False),
    Column("span_label", String(LABEL_CHARS_MAX), nullable=False),
    Column("span_cell", BigInteger, nullable=True),
    Column("flavor", _NAME, nullable=False),
    Column("device_model", _NAME, nullable=False),
    Column("devices", Integer, nullable=False),
    Column("started_at_ns", BigInteger, nullable=False),
    Column("duration_ns", BigInteger, nullable=False),
    Column("close_reason", _NAME, nullable=False),
    Column("share_milli", Integer, nullable=False, server_default="1000"),
    Column("surcharge_nano_per_second", BigInteger, nullable=False, server_default="0"),
    Column("surcharge_rate_nano", BigInteger, nullable=False, server_default="0"),
    Column("price_id", BigInteger, ForeignKey("prices.id"), nullable=False),
    Column("received_at_ns", BigInteger, nullable=False),
    UniqueConstraint("source", "record_id"),
    Index(None, "started_at_ns"),
    Index(None, "tenant", "started_at_ns"),
    Index(None, "tenant", "user_name", "started_at_ns"),
    CheckConstraint("duration_ns >= 0", name="duration_not_below_zero"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("at_ns", BigInteger, nullable=False),
    Column("who", String(LOGIN_CHARS_MAX), nullable=False),
    Column("action", String(32), nullable=False),
    Column("subject", String(2 * NAME_CHARS_MAX + 8), nullable=False),
    Column("before", Text, nullable=True),
    Column("after", Text, nullable=False),
)
