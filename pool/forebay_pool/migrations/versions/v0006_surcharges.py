"""What leases held of their devices, and the surcharge of the model. Segments from before: whole devices, and no surcharge."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

MOST = 10**12
"""What billing takes; until now a surcharge was only compared with others."""
AT_GRANT = "Of one whole device, at the grant"


def upgrade() -> None:
    share = "Of each device, in thousandths"
    op.add_column("lease_segments", sa.Column("share_milli", sa.BigInteger, nullable=False, server_default="1000", comment=share))
    for table in ("lease_segments", "open_leases"):
        column = sa.Column("surcharge_nano_per_second", sa.BigInteger, nullable=False, server_default="0", comment=AT_GRANT)
        op.add_column(table, column)
    policies = sa.table("model_policies", sa.column("surcharge_nano_per_second", sa.BigInteger))
    too_high = policies.c.surcharge_nano_per_second > MOST
    op.execute(sa.update(policies).where(too_high).values(surcharge_nano_per_second=MOST))


def downgrade() -> None:
    op.drop_column("lease_segments", "share_milli")
    for table in ("lease_segments", "open_leases"):
        op.drop_column(table, "surcharge_nano_per_second")
