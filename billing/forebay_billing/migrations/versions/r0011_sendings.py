"""When orders for Stripe were sent last, which tells since when Stripe's sums prove something."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A column. What was tried counts as sent when it was settled, or, if it waits, when it is tried next: later than it was."""
    op.add_column("payment_outbox", sa.Column("sent_at_ns", sa.BigInteger(), nullable=True))
    op.execute(
        "UPDATE payment_outbox SET sent_at_ns = CASE WHEN state = 'waiting' THEN next_at_ns ELSE COALESCE(settled_at_ns, created_at_ns) END"
        " WHERE attempts > 0"
    )
