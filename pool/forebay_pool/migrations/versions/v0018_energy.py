"""What leases' devices drew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Null for all that was there: nobody asked the drivers."""
    op.add_column("lease_segments", sa.Column("energy_mj", sa.BigInteger, nullable=True))


def downgrade() -> None:
    op.drop_column("lease_segments", "energy_mj")
