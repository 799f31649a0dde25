"""Notices of jobs, and how people want to be told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_NOTICES = "id, tenant, user_name, kind, label, cell, first_line, seconds, why, at_ns"
_DELIVERIES = "notice_id, channel_id, state, attempts, created_at_ns, next_at_ns, settled_at_ns, note"


def upgrade() -> None:
    """A new table; and notices and their deliveries anew, since SQLite changes no constraint of a table."""
    op.create_table(
        "preferences",
        sa.Column("user_name", sa.String(128), nullable=False),
        sa.Column("language", sa.String(16), nullable=True),
        sa.Column("jobs", sa.String(8), nullable=True),
        sa.Column("set_at_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("user_name", name="pk_preferences"),
        sa.CheckConstraint("jobs IN ('none', 'failures', 'all')", name="ck_preferences_jobs"),
    )
    op.execute("CREATE TABLE notices_before AS SELECT * FROM notices")
    op.execute("CREATE TABLE deliveries_before AS SELECT * FROM notice_deliveries")
    op.drop_table("notice_deliveries")
    op.drop_table("notices")
    _create_notices()
    _create_deliveries()
    op.execute(f"INSERT INTO notices ({_NOTICES}) SELECT {_NOTICES} FROM notices_before")  # noqa: S608 - names of ours
    op.execute(f"INSERT INTO notice_deliveries ({_DELIVERIES}) SELECT {_DELIVERIES} FROM deliveries_before")  # noqa: S608
    op.drop_table("deliveries_before")
    op.drop_table("notices_before")


def _create_notices() -> None:
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
        sa.Column("job", sa.BigInteger(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("key", sa.String(128), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_notices"),
        sa.CheckConstraint("kind IN ('ended', 'failed', 'waits', 'budget', 'retried')", name="ck_notices_kind"),
    )
    op.create_index("ix_notices_tenant_user_name_at_ns", "notices", ["tenant", "user_name", "at_ns"])
    op.create_index("uq_notices_key", "notices", ["key"], unique=True)


def _create_deliveries() -> None:
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
