"""Usage records say what share of a device was held, and what its model cost beside the flavor. Those from before: all of it, nothing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds columns with constant defaults, which no guard of the append-only table sees."""
    op.add_column("usage", sa.Column("share_milli", sa.Integer(), nullable=False, server_default="1000"))
    op.add_column("usage", sa.Column("surcharge_nano_per_second", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("usage", sa.Column("surcharge_rate_nano", sa.BigInteger(), nullable=False, server_default="0"))
