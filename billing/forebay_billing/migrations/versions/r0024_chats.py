"""Alerts go to chats, too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_KINDS = "kind IN ('webhook', 'email', 'slack')"
_COLUMNS = "id, tenant, kind, target, secret, set_at_ns, set_by, removed_at_ns"


def upgrade() -> None:
    """Another constraint; on SQLite, which changes none of a table, the table anew."""
    if op.get_bind().dialect.name == "sqlite":
        _make_channels_anew()
        return
    op.drop_constraint("ck_alert_channels_kind", "alert_channels", type_="check")
    op.create_check_constraint("ck_alert_channels_kind", "alert_channels", _KINDS)


def _make_channels_anew() -> None:
    """Until the rows are back their deliveries point to nothing, for which it waits."""
    op.execute("PRAGMA defer_foreign_keys = ON")
    op.execute(f"CREATE TABLE old_channels AS SELECT {_COLUMNS} FROM alert_channels")  # noqa: S608 - names of our columns
    op.drop_table("alert_channels")
    op.create_table(
        "alert_channels",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.String(128), nullable=True),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("target", sa.String(1024), nullable=False),
        sa.Column("secret", sa.String(128), nullable=True),
        sa.Column("set_at_ns", sa.BigInteger(), nullable=False),
        sa.Column("set_by", sa.String(255), nullable=False),
        sa.Column("removed_at_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_alert_channels"),
        sa.CheckConstraint(_KINDS, name="ck_alert_channels_kind"),
    )
    op.create_index("ix_alert_channels_tenant", "alert_channels", ["tenant"])
    op.execute(f"INSERT INTO alert_channels ({_COLUMNS}) SELECT {_COLUMNS} FROM old_channels")  # noqa: S608 - names of our columns
    op.drop_table("old_channels")
