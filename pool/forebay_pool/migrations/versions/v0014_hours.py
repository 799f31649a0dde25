"""The price of an open lease is kept per hour, as billing keeps prices."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE open_leases RENAME COLUMN price_nano_per_second TO price_nano_per_hour")
    op.execute("UPDATE open_leases SET price_nano_per_hour = price_nano_per_hour * 3600")


def downgrade() -> None:
    op.execute("UPDATE open_leases SET price_nano_per_hour = price_nano_per_hour / 3600")
    op.execute("ALTER TABLE open_leases RENAME COLUMN price_nano_per_hour TO price_nano_per_second")
