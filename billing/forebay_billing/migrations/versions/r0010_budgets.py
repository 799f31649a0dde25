"""Budgets, what was spent under them, and their alerts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """New tables only; the marks begin where the books stand, since there is no budget yet that what came before counts for."""
    _create_budgets()
    _create_spending()
    _create_alerts()
    op.execute(
        "INSERT INTO budget_marks (id, usage_id, transaction_id) SELECT 1, COALESCE((SELECT MAX(id) FROM usage), 0), "
        "COALESCE((SELECT MAX(transaction_id) FROM reversals), 0)"
    )


def _big(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=nullable)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), autoincrement=False, nullable=False)


def _text(name: str, chars: int, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(chars), nullable=nullable)


def _create_budgets() -> None:
    op.create_table(
        "budgets",
        _big("id"),
        _text("tenant", 128),
        _text("user_name", 128, nullable=True),
        _text("notebook", 2048, nullable=True),
        _text("currency", 3),
        _text("time_window", 8),
        _text("origin", 8),
        _big("limit_milli"),
        _big("limit_atto"),
        _text("thresholds", 64),
        _text("on_limit", 8),
        _number("grace_seconds"),
        _big("set_at_ns"),
        _text("set_by", 255),
        _big("removed_at_ns", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_budgets"),
        sa.CheckConstraint("time_window IN ('month', 'total')", name="ck_budgets_time_window"),
        sa.CheckConstraint("origin IN ('operator', 'owner')", name="ck_budgets_origin"),
        sa.CheckConstraint("on_limit IN ('notify', 'refuse', 'drain')", name="ck_budgets_on_limit"),
        sa.CheckConstraint("notebook IS NULL OR user_name IS NOT NULL", name="ck_budgets_notebook_has_user"),
    )
    op.create_index("ix_budgets_tenant", "budgets", ["tenant"])


def _create_spending() -> None:
    op.create_table(
        "budget_spending",
        _big("budget_id"),
        _text("period", 7),
        _number("day"),
        _big("milli"),
        _big("atto"),
        sa.PrimaryKeyConstraint("budget_id", "period", "day", name="pk_budget_spending"),
        sa.ForeignKeyConstraint(["budget_id"], ["budgets.id"], name="fk_budget_spending_budget_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "budget_marks",
        _number("id"),
        _big("usage_id"),
        _big("transaction_id"),
        sa.PrimaryKeyConstraint("id", name="pk_budget_marks"),
        sa.CheckConstraint("id = 1", name="ck_budget_marks_one_row"),
    )


def _create_alerts() -> None:
    once = ("budget_id", "period", "threshold", "limit_milli", "limit_atto")
    op.create_table(
        "budget_alerts",
        _big("id"),
        _big("budget_id"),
        _text("period", 7),
        _number("threshold"),
        _big("limit_milli"),
        _big("limit_atto"),
        _big("used_milli"),
        _big("used_atto"),
        _big("at_ns"),
        sa.PrimaryKeyConstraint("id", name="pk_budget_alerts"),
        sa.ForeignKeyConstraint(["budget_id"], ["budgets.id"], name="fk_budget_alerts_budget_id"),
        sa.UniqueConstraint(*once, name="uq_budget_alerts_once"),
    )
    op.create_table(
        "alert_channels",
        _big("id"),
        _text("tenant", 128, nullable=True),
        _text("kind", 8),
        _text("target", 1024),
        _text("secret", 128, nullable=True),
        _big("set_at_ns"),
        _text("set_by", 255),
        _big("removed_at_ns", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_alert_channels"),
        sa.CheckConstraint("kind IN ('webhook', 'email')", name="ck_alert_channels_kind"),
    )
    op.create_index("ix_alert_channels_tenant", "alert_channels", ["tenant"])
    op.create_table(
        "alert_deliveries",
        _big("alert_id"),
        _big("channel_id"),
        _text("state", 8),
        _number("attempts"),
        _big("created_at_ns"),
        _big("next_at_ns"),
        _big("settled_at_ns", nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("alert_id", "channel_id", name="pk_alert_deliveries"),
        sa.ForeignKeyConstraint(["alert_id"], ["budget_alerts.id"], name="fk_alert_deliveries_alert_id"),
        sa.ForeignKeyConstraint(["channel_id"], ["alert_channels.id"], name="fk_alert_deliveries_channel_id"),
        sa.CheckConstraint("state IN ('waiting', 'done', 'dead')", name="ck_alert_deliveries_state"),
    )
    op.create_index("ix_alert_deliveries_state_next_at_ns", "alert_deliveries", ["state", "next_at_ns"])
