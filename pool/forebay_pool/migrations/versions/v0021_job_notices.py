"""What users are told of their jobs, and in which of their environments these run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("jobs", "schedules"):
        op.add_column(table, sa.Column("notify", sa.String(16), nullable=True, comment="none, failures or all; null: as the user prefers"))
        op.add_column(table, sa.Column("environment", sa.String(32), nullable=True, comment="null: the one in use, or a notebook's"))
    op.create_table(
        "job_notices",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("body", sa.Text, nullable=False, comment="JSON"),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_table("job_notices")
    for table in ("jobs", "schedules"):
        op.drop_column(table, "environment")
        op.drop_column(table, "notify")
