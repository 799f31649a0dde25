"""What a flavor offers: calls of PyTorch, programs of JAX and TensorFlow, processes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "What it offers, with spaces between; null: all that its hosts serve"
    op.add_column("flavors", sa.Column("runtimes", sa.String(64), nullable=True, comment=comment))


def downgrade() -> None:
    op.drop_column("flavors", "runtimes")
