"""Indexes of the records of parked bytes alone, so that who sums up usage need not look through all records for them once more."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two indexes, as those of all records; each reads the table once."""
    parked = sa.text("parked_bytes IS NOT NULL")
    for whose, columns in (("tenant", ["tenant", "started_at_ns"]), ("user", ["tenant", "user_name", "started_at_ns"])):
        op.create_index(f"ix_usage_parked_of_{whose}", "usage", columns, sqlite_where=parked, postgresql_where=parked)
