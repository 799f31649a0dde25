"""Flavors that an operator removed: they are remembered, since a start adds those that are not there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("flavors", sa.Column("removed", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.execute("DELETE FROM flavors WHERE removed")
    op.drop_column("flavors", "removed")
