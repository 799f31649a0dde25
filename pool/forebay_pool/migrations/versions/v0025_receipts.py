"""The key with which receipts of leases are signed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "receipt_key",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False, comment="1: there is one row"),
        sa.Column("private_key", sa.String(64), nullable=False, comment="Hex; Ed25519"),
    )


def downgrade() -> None:
    op.drop_table("receipt_key")
