"""What usage was posted in each hour, for the operators' charts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_MILLI = 36 * 10**17


def upgrade() -> None:
    """One new table, which fills by itself."""
    op.create_table(
        "revenue_hours",
        sa.Column("hour_ns", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("milli", sa.BigInteger(), nullable=False),
        sa.Column("grains", sa.BigInteger(), nullable=False),
        sa.Column("through_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hour_ns", "currency", name="pk_revenue_hours"),
        sa.CheckConstraint(f"grains > -{_MILLI} AND grains < {_MILLI}", name="ck_revenue_hours_grains_below_a_milli"),
        sqlite_with_rowid=False,
    )
