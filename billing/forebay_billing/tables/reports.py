"""The tables of whom monthly reports are mailed to, and how far each mailing has come."""

from __future__ import annotations

from forebay_wire.texts import NAME_CHARS_MAX
from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Index, Integer, String, Table, Text

from forebay_billing.tables.budgets import TARGET_CHARS_MAX
from forebay_billing.tables.schema import LOGIN_CHARS_MAX, metadata

__all__ = ["mailings", "metadata", "recipients"]

recipients = Table(
    "report_recipients",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", String(NAME_CHARS_MAX), nullable=False),
    Column("target", String(TARGET_CHARS_MAX), nullable=False),
    Column("set_at_ns", BigInteger, nullable=False),
    Column("set_by", String(LOGIN_CHARS_MAX), nullable=False),
    Column("removed_at_ns", BigInteger, nullable=True),
    Index(None, "tenant"),
)
"""Whom a tenant's report of each month is mailed to, from the month on in which they were set."""

mailings = Table(
    "report_mailings",
    metadata,
    Column("recipient_id", BigInteger, ForeignKey("report_recipients.id"), primary_key=True, autoincrement=False),
    Column("month", String(7), primary_key=True),
    Column("state", String(8), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at_ns", BigInteger, nullable=False),
    Column("next_at_ns", BigInteger, nullable=False),
    Column("settled_at_ns", BigInteger, nullable=True),
    Column("note", Text, nullable=True),
    Index(None, "state", "next_at_ns"),
    CheckConstraint("state IN ('waiting', 'done', 'dead')", name="state"),
)
"""The outbox: a row for each recipient and month, written once the month is over."""
