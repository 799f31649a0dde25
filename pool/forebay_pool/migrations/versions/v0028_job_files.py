"""The lists of files that jobs begin with, where they do not run in their user's home."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

TABLES = ("jobs", "schedules")


def upgrade() -> None:
    for table in TABLES:
        comment = "The list of files that it begins with; null: those of the user's home"
        op.add_column(table, sa.Column("files", sa.String(64), nullable=True, comment=comment))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "files")
