"""The tables of budgets, of what was spent under them, and of the alerts that are owed."""

from __future__ import annotations

from forebay_wire.texts import LABEL_CHARS_MAX, NAME_CHARS_MAX
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from forebay_billing.tables.schema import LOGIN_CHARS_MAX, metadata

TARGET_CHARS_MAX = 1024
"""Longest address that alerts are sent to."""
_NAME = String(NAME_CHARS_MAX)

__all__ = ["alerts", "budgets", "channels", "deliveries", "marks", "metadata", "spending"]

budgets = Table(
    "budgets",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", _NAME, nullable=False),
    Column("user_name", _NAME, nullable=True),
    Column("notebook", String(LABEL_CHARS_MAX), nullable=True),
    Column("currency", String(3), nullable=False),
    Column("time_window", String(8), nullable=False),
    Column("origin", String(8), nullable=False),
    Column("own", Boolean, nullable=False, server_default=false()),
    Column("limit_milli", BigInteger, nullable=False),
    Column("limit_grains", BigInteger, nullable=False),
    Column("thresholds", String(64), nullable=False),
    Column("on_limit", String(8), nullable=False),
    Column("grace_seconds", Integer, nullable=False),
    Column("set_at_ns", BigInteger, nullable=False),
    Column("set_by", String(LOGIN_CHARS_MAX), nullable=False),
    Column("removed_at_ns", BigInteger, nullable=True),
    Index(None, "tenant"),
    CheckConstraint("time_window IN ('month', 'total')", name="time_window"),
    CheckConstraint("origin IN ('operator', 'owner')", name="origin"),
    CheckConstraint("on_limit IN ('notify', 'refuse', 'drain')", name="on_limit"),
    CheckConstraint("notebook IS NULL OR user_name IS NOT NULL", name="notebook_has_user"),
)
"""A budget that was removed stays, so that its number, which alerts carry, is never another's. ``own``: its user set it, for a label of
their own; ``origin`` is ``owner`` then, as releases before this column read it."""

spending = Table(
    "budget_spending",
    metadata,
    Column("budget_id", BigInteger, ForeignKey("budgets.id"), primary_key=True, autoincrement=False),
    Column("period", String(7), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("milli", BigInteger, nullable=False),
    Column("grains", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""What the segments up to the marks sum to under each budget, by period and UTC day of use: a projection that can be made anew."""

marks = Table(
    "budget_marks",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("usage_id", BigInteger, nullable=False),
    Column("transaction_id", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)
"""How far ``budget_spending`` has come: usage up to ``usage_id``, reversals up to ``transaction_id``."""

alerts = Table(
    "budget_alerts",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("budget_id", BigInteger, ForeignKey("budgets.id"), nullable=False),
    Column("period", String(7), nullable=False),
    Column("threshold", Integer, nullable=False),
    Column("limit_milli", BigInteger, nullable=False),
    Column("limit_grains", BigInteger, nullable=False),
    Column("used_milli", BigInteger, nullable=False),
    Column("used_grains", BigInteger, nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    UniqueConstraint("budget_id", "period", "threshold", "limit_milli", "limit_grains", name="uq_budget_alerts_once"),
)
"""Thresholds that were reached: each once for a budget, window and limit."""

channels = Table(
    "alert_channels",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", _NAME, nullable=True),
    Column("kind", String(8), nullable=False),
    Column("target", String(TARGET_CHARS_MAX), nullable=False),
    Column("secret", String(128), nullable=True),
    Column("set_at_ns", BigInteger, nullable=False),
    Column("set_by", String(LOGIN_CHARS_MAX), nullable=False),
    Column("removed_at_ns", BigInteger, nullable=True),
    Index(None, "tenant"),
    CheckConstraint("kind IN ('webhook', 'email', 'slack')", name="kind"),
)
"""Where alerts of a tenant go; without a tenant those of all, which is the operators'."""

deliveries = Table(
    "alert_deliveries",
    metadata,
    Column("alert_id", BigInteger, ForeignKey("budget_alerts.id"), primary_key=True, autoincrement=False),
    Column("channel_id", BigInteger, ForeignKey("alert_channels.id"), primary_key=True, autoincrement=False),
    Column("state", String(8), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at_ns", BigInteger, nullable=False),
    Column("next_at_ns", BigInteger, nullable=False),
    Column("settled_at_ns", BigInteger, nullable=True),
    Column("note", Text, nullable=True),
    Index(None, "state", "next_at_ns"),
    CheckConstraint("state IN ('waiting', 'done', 'dead')", name="state"),
)
"""The outbox: written with the alert, delivered after."""
