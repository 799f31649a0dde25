"""Open leases are metered in segments: how far that has come."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    running = "The number of the segment that runs"
    op.add_column("open_leases", sa.Column("segment", sa.BigInteger, nullable=False, server_default="1", comment=running))
    metered = "For how long the segments before were metered"
    op.add_column("open_leases", sa.Column("metered_ns", sa.BigInteger, nullable=False, server_default="0", comment=metered))
    op.create_index("lease_segments_by_lease", "lease_segments", ["lease"])


def downgrade() -> None:
    op.drop_index("lease_segments_by_lease", "lease_segments")
    op.drop_column("open_leases", "metered_ns")
    op.drop_column("open_leases", "segment")
