"""Who used something when last, for the operators' search."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A new table, with what the sums by month tell."""
    op.create_table(
        "usage_people",
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("user_name", sa.String(128), nullable=False),
        sa.Column("start_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "user_name", name="pk_usage_people"),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO usage_people (tenant, user_name, start_ns) "
        "SELECT tenant, user_name, MAX(start_ns) FROM usage_months GROUP BY tenant, user_name"
    )
