"""Parked bytes are billed: usage records of them, and what they were rated in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A column that is empty for all that was there, and a new table."""
    op.add_column("usage", sa.Column("parked_bytes", sa.BigInteger(), nullable=True))
    op.create_table(
        "parked_segments",
        _big("usage_id"),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        _big("transaction_id"),
        sa.Column("account_id", sa.Integer(), nullable=False),
        sa.Column("period", sa.String(7), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("parked_price_id", sa.BigInteger(), nullable=True),
        _big("started_at_ns"),
        _big("duration_ns"),
        _big("milli"),
        _big("atto"),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("reversal", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("usage_id", "position", name="pk_parked_segments"),
        sa.ForeignKeyConstraint(["usage_id"], ["usage.id"], name="fk_parked_segments_usage_id"),
        sa.ForeignKeyConstraint(["transaction_id"], ["transactions.id"], name="fk_parked_segments_transaction_id"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_parked_segments_account_id"),
        sa.ForeignKeyConstraint(["parked_price_id"], ["parked_prices.id"], name="fk_parked_segments_parked_price_id"),
        sa.CheckConstraint("atto > -1000000000000000 AND atto < 1000000000000000", name="ck_parked_segments_atto_below_a_milli"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_parked_segments_account_id_period", "parked_segments", ["account_id", "period"])
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER parked_segments_refuse_{verb.lower()} BEFORE {verb} ON parked_segments BEGIN "
                "SELECT RAISE(ABORT, 'parked_segments is append-only: add a reversal instead'); END"
            )
        return
    op.execute(
        "CREATE TRIGGER parked_segments_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON parked_segments "
        "FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()"
    )


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)
