"""Flavors, choices, lease segments and the usage outbox."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "flavors",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("equivalents", sa.Text, nullable=False, comment="JSON: [[model, count], ...]"),
    )
    op.create_table(
        "choices",
        sa.Column("tenant", sa.String(255), primary_key=True),
        sa.Column("user", sa.String(255), primary_key=True),
        sa.Column("flavor", sa.String(64), nullable=False),
    )
    op.create_table(
        "lease_segments",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("lease", sa.String(255), nullable=False),
        sa.Column("session", sa.String(255), nullable=False),
        sa.Column("tenant", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("flavor", sa.String(64), nullable=False),
        sa.Column("device_model", sa.String(128), nullable=False),
        sa.Column("devices", sa.Integer, nullable=False),
        sa.Column("started_at_unix_ns", sa.BigInteger, nullable=False),
        sa.Column("duration_ns", sa.BigInteger, nullable=False),
        sa.Column("close_reason", sa.String(16), nullable=False),
        sa.Column("span", sa.Text, nullable=False, comment="JSON of the wire's Span"),
    )
    op.create_index("lease_segments_by_tenant", "lease_segments", ["tenant", "started_at_unix_ns"])
    op.create_table(
        "usage_outbox",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("segment", sa.String(255), sa.ForeignKey("lease_segments.id"), nullable=False, unique=True),
        sa.Column("refused", sa.Text, nullable=True, comment="What billing said when it refused the record"),
    )


def downgrade() -> None:
    for table in ("usage_outbox", "lease_segments", "choices", "flavors"):
        op.drop_table(table)
