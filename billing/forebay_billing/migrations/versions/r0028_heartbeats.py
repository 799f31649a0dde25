"""The heartbeats of pools, by which several billing services on one PostgreSQL know the same open leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "heartbeats",
        sa.Column("id", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("source", sa.String(128), nullable=False),
        sa.Column("sent_at_ns", sa.BigInteger, nullable=False),
        sa.Column("heard_at_ns", sa.BigInteger, nullable=False),
        sa.Column("origin", sa.String(32), nullable=False),
        sa.Column("leases", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_heartbeats"),
    )
    op.create_index("ix_heartbeats_source", "heartbeats", ["source"])


def downgrade() -> None:
    op.drop_table("heartbeats")
