"""What the devices of usage drew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A column that is empty for all that was there: nobody asked the drivers."""
    op.add_column("usage", sa.Column("energy_mj", sa.BigInteger(), nullable=True))
