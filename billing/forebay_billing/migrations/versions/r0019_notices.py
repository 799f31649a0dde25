"""Where people have notices of their own work sent, the notices, and how far each delivery has come."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Three new tables."""
    op.create_table(
        "notice_channels",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("user_name", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("target", sa.String(1024), nullable=False),
        sa.Column("secret", sa.String(128), nullable=True),
        sa.Column("code_digest", sa.String(64), nullable=True),
        sa.Column("code_tries", sa.Integer(), nullable=False),
        sa.Column("confirmed_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("set_at_ns", sa.BigInteger(), nullable=False),
        sa.Column("removed_at_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_notice_channels"),
        sa.CheckConstraint("kind IN ('email', 'webhook', 'slack')", name="ck_notice_channels_kind"),
    )
    op.create_index("ix_notice_channels_tenant_user_name", "notice_channels", ["tenant", "user_name"])
    op.create_table(
        "notices",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("user_name", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("label", sa.String(2048), nullable=False),
        sa.Column("cell", sa.Integer(), nullable=True),
        sa.Column("first_line", sa.String(300), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("why", sa.String(300), nullable=True),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_notices"),
        sa.CheckConstraint("kind IN ('ended', 'failed', 'waits', 'budget')", name="ck_notices_kind"),
    )
    op.create_index("ix_notices_tenant_user_name_at_ns", "notices", ["tenant", "user_name", "at_ns"])
    op.create_table(
        "notice_deliveries",
        sa.Column("notice_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("channel_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at_ns", sa.BigInteger(), nullable=False),
        sa.Column("next_at_ns", sa.BigInteger(), nullable=False),
        sa.Column("settled_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("notice_id", "channel_id", name="pk_notice_deliveries"),
        sa.ForeignKeyConstraint(["notice_id"], ["notices.id"], name="fk_notice_deliveries_notice_id"),
        sa.ForeignKeyConstraint(["channel_id"], ["notice_channels.id"], name="fk_notice_deliveries_channel_id"),
        sa.CheckConstraint("state IN ('waiting', 'done', 'dead')", name="ck_notice_deliveries_state"),
    )
    op.create_index("ix_notice_deliveries_state_next_at_ns", "notice_deliveries", ["state", "next_at_ns"])
