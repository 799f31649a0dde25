"""Usage summed up by hour, day and month, for pages that show all tenants."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_MEASURES = ("pieces", "leases", "duration_ns", "milli", "grains", "told", "energy_mj", "energy_duration_ns")


def upgrade() -> None:
    """New tables, which fill by themselves while the service runs."""
    _create("usage_hours")
    _create("usage_days", sa.Column("day", sa.Integer(), autoincrement=False, nullable=False))
    _create("usage_months", sa.Column("user_name", sa.String(128), nullable=False))
    op.create_index("ix_usage_days_tenant_currency_start_ns", "usage_days", ["tenant", "currency", "start_ns"])
    op.create_index("ix_usage_months_tenant_user_name_start_ns", "usage_months", ["tenant", "user_name", "start_ns"])
    op.create_table(
        "usage_marks",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("usage_id", sa.BigInteger(), nullable=False),
        sa.Column("transaction_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_usage_marks"),
        sa.CheckConstraint("id = 1", name="ck_usage_marks_one_row"),
    )
    op.execute("INSERT INTO usage_marks (id, usage_id, transaction_id) VALUES (1, 0, 0)")


def _create(name: str, *more: sa.Column[int] | sa.Column[str]) -> None:
    keys = (
        sa.Column("start_ns", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.String(128), nullable=False),
        *more,
        sa.Column("priced", sa.String(128), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
    )
    op.create_table(
        name,
        *keys,
        *(sa.Column(one, sa.BigInteger(), nullable=False) for one in _MEASURES),
        sa.PrimaryKeyConstraint(*(one.name for one in keys), name=f"pk_{name}"),
        sqlite_with_rowid=False,
    )
