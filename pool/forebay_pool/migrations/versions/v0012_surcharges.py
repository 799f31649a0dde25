"""Surcharges are billing's: a record names the model, and billing's price book knows what that costs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TABLES = ("lease_segments", "open_leases", "model_policies")


def upgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "surcharge_nano_per_second")


def downgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("surcharge_nano_per_second", sa.BigInteger, nullable=False, server_default="0"))
