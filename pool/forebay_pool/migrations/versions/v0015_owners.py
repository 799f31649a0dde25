"""Who set a quota: an operator, or the owner of the tenant for one of its users."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("quotas", sa.Column("origin", sa.String(8), nullable=False, server_default="operator"))


def downgrade() -> None:
    op.drop_column("quotas", "origin")
