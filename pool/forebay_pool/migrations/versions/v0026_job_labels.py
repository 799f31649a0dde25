"""What usage calls the work of jobs, where that is not their number and name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

TABLES = ("jobs", "schedules")


def upgrade() -> None:
    for table in TABLES:
        comment = "What usage calls its work; null: the job's number and name"
        op.add_column(table, sa.Column("label", sa.String(128), nullable=True, comment=comment))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "label")
