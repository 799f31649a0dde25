"""Priorities and places in the queue outlive the pool, and what was used lately is found by when it ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    waits = "JSON: {number, arrived_unix_ns, order} of its request, while it waits"
    op.add_column("sessions", sa.Column("priority", sa.Integer, nullable=False, server_default="0"))
    op.add_column("sessions", sa.Column("waits", sa.Text, nullable=True, comment=waits))
    op.create_index("lease_segments_by_end", "lease_segments", [sa.text("(started_at_unix_ns + duration_ns)")])


def downgrade() -> None:
    op.drop_index("lease_segments_by_end", "lease_segments")
    op.drop_column("sessions", "waits")
    op.drop_column("sessions", "priority")
