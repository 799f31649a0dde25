"""Time and energy of all tenants by hour, for the operator's overview."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_MEASURES = ("pieces", "duration_ns", "told", "energy_mj", "energy_duration_ns")


def upgrade() -> None:
    """A new table, with what the hours of tenants come to."""
    op.create_table(
        "usage_all_hours",
        sa.Column("start_ns", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(one, sa.BigInteger(), nullable=False) for one in _MEASURES),
        sa.PrimaryKeyConstraint("start_ns", name="pk_usage_all_hours"),
    )
    sums = ", ".join(f"CAST(SUM({one}) AS BIGINT)" for one in _MEASURES)
    op.execute(
        f"INSERT INTO usage_all_hours (start_ns, {', '.join(_MEASURES)}) "  # noqa: S608 - names of our columns
        f"SELECT start_ns, {sums} FROM usage_hours GROUP BY start_ns"
    )
