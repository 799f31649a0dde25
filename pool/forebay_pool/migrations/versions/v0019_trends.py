"""How devices were used over time, and who held each when."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "trends",
        sa.Column("step_ns", sa.BigInteger, primary_key=True, comment="A minute or an hour"),
        sa.Column("start_ns", sa.BigInteger, primary_key=True, comment="Unix time"),
        sa.Column("samples", sa.BigInteger, nullable=False, comment="What follows are sums over them"),
        sa.Column("held", sa.BigInteger, nullable=False),
        sa.Column("idle", sa.BigInteger, nullable=False),
        sa.Column("free", sa.BigInteger, nullable=False),
        sa.Column("closed", sa.BigInteger, nullable=False),
        sa.Column("waiting", sa.BigInteger, nullable=False),
        sa.Column("waiting_max", sa.BigInteger, nullable=False, comment="No sum"),
        sa.Column("asked_milli", sa.BigInteger, nullable=False),
        sa.Column("held_milli", sa.BigInteger, nullable=False),
        sa.Column("waits", sa.Text, nullable=False, comment="JSON: {bucket: how many waits ended in it}"),
    )
    op.create_table(
        "holdings",
        sa.Column("device", sa.String(255), primary_key=True),
        sa.Column("ended_ns", sa.BigInteger, primary_key=True, comment="Unix time"),
        sa.Column("segment", sa.String(255), primary_key=True, comment="Of the usage record; a gang's has a row for each device"),
        sa.Column("started_ns", sa.BigInteger, nullable=False, comment="An hour before the end at most"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("holdings")
    op.drop_table("trends")
