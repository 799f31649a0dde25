"""Whom monthly reports are mailed to, and how far each mailing has come."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two new tables."""
    op.create_table(
        "report_recipients",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("target", sa.String(1024), nullable=False),
        sa.Column("set_at_ns", sa.BigInteger(), nullable=False),
        sa.Column("set_by", sa.String(255), nullable=False),
        sa.Column("removed_at_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_report_recipients"),
    )
    op.create_index("ix_report_recipients_tenant", "report_recipients", ["tenant"])
    op.create_table(
        "report_mailings",
        sa.Column("recipient_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at_ns", sa.BigInteger(), nullable=False),
        sa.Column("next_at_ns", sa.BigInteger(), nullable=False),
        sa.Column("settled_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("recipient_id", "month", name="pk_report_mailings"),
        sa.ForeignKeyConstraint(["recipient_id"], ["report_recipients.id"], name="fk_report_mailings_recipient_id"),
        sa.CheckConstraint("state IN ('waiting', 'done', 'dead')", name="ck_report_mailings_state"),
    )
    op.create_index("ix_report_mailings_state_next_at_ns", "report_mailings", ["state", "next_at_ns"])
