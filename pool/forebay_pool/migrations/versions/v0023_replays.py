"""What another worker would have to do again if a session's own dies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "JSON: {worked_ns, loss, image}; its client can send what it sent to another worker"
    op.add_column("sessions", sa.Column("replay", sa.Text, nullable=True, comment=comment))


def downgrade() -> None:
    op.drop_column("sessions", "replay")
