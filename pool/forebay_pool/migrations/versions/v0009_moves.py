"""Which worker a session left last: a client that is between two workers as the pool ends finds the next one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    left = "That its tensors left last; its client may not have come to the next yet"
    op.add_column("sessions", sa.Column("left_worker", sa.String(255), nullable=True, comment=left))


def downgrade() -> None:
    op.drop_column("sessions", "left_worker")
