"""Where images of each flavor's sessions are kept, and since when each is there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "Where images of its sessions are kept; null: where the pool keeps those of others"
    op.add_column("flavors", sa.Column("images", sa.String(8), nullable=True, comment=comment))
    comment = "Whether it is of the session's image, not of its tensors"
    op.add_column("parkings", sa.Column("image", sa.Boolean, nullable=False, server_default=sa.false(), comment=comment))


def downgrade() -> None:
    op.drop_column("parkings", "image")
    op.drop_column("flavors", "images")
