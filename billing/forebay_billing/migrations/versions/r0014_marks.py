"""How far the meters' exporter has read the books: what comes to hours long past is noticed by that, without a look at all of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A table, empty: the first look notes where it stands."""
    op.create_table(
        "payment_marks",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("value", sa.BigInteger(), nullable=False),
    )
