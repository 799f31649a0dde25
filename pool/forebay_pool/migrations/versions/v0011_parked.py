"""Parked time is metered: its segments beside the leases', and the stretches that go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    of_what = "Of a stretch of parked time, whose name is in lease; null for a lease"
    op.add_column("lease_segments", sa.Column("parked_bytes", sa.BigInteger, nullable=True, comment=of_what))
    op.create_table(
        "parkings",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("session", sa.String(255), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("span", sa.Text, nullable=False, comment="JSON of the wire's Span: what the session computed last"),
        sa.Column("boot", sa.String(64), nullable=False, comment="Whose monotonic clock opened_ns is of"),
        sa.Column("opened_ns", sa.BigInteger, nullable=False),
        sa.Column("opened_unix_ns", sa.BigInteger, nullable=False),
        sa.Column("segment", sa.BigInteger, nullable=False, comment="The number of the segment that runs"),
        sa.Column("metered_ns", sa.BigInteger, nullable=False, comment="For how long the segments before were metered"),
    )


def downgrade() -> None:
    op.drop_table("parkings")
    op.execute("DELETE FROM usage_outbox WHERE segment IN (SELECT id FROM lease_segments WHERE parked_bytes IS NOT NULL)")
    op.execute("DELETE FROM lease_segments WHERE parked_bytes IS NOT NULL")
    op.drop_column("lease_segments", "parked_bytes")
