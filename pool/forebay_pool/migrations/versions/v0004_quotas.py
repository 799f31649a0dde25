"""Quotas of tenants and users."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column("tenant", sa.String(255), primary_key=True),
        sa.Column("user", sa.String(255), primary_key=True, comment="Empty: the quota is the tenant's"),
        sa.Column("devices_milli", sa.BigInteger, nullable=True),
        sa.Column("device_seconds", sa.BigInteger, nullable=True),
        sa.Column("window_seconds", sa.BigInteger, nullable=True),
        sa.Column("on_exhausted", sa.String(8), nullable=False),
        sa.Column("priority_max", sa.Integer, nullable=True),
        sa.Column("weight", sa.Integer, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("quotas")
