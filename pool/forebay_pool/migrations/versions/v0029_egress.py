"""The places that processes of a flavor may reach."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "Places that its processes may reach, with spaces between; empty: none; null: those of the installation"
    op.add_column("flavors", sa.Column("egress", sa.Text, nullable=True, comment=comment))


def downgrade() -> None:
    op.drop_column("flavors", "egress")
