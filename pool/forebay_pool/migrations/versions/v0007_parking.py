"""How much may be parked for a tenant or a user, and what becomes of what may not."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("quotas", sa.Column("parked_bytes", sa.BigInteger, nullable=True))
    op.add_column("quotas", sa.Column("on_parked_full", sa.String(8), nullable=False, server_default="stay"))


def downgrade() -> None:
    op.drop_column("quotas", "on_parked_full")
    op.drop_column("quotas", "parked_bytes")
