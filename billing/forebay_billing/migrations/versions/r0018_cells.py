"""Which cell usage is of, by the front end's id of it, and how that began. What came before has neither."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two columns, null in all rows that are there; neither database writes those anew."""
    op.add_column("usage", sa.Column("span_cell_id", sa.String(128), nullable=True))
    op.add_column("usage", sa.Column("span_first_line", sa.String(80), nullable=True))
