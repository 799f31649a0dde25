"""Holds: what is kept back for leases that are open."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0007"
branch_labels = None
depends_on = None

_CLOSED = "OLD.closed_by IS NOT NULL"
_REFUSAL = "holds are append-only: what has ended stays as it was"


def upgrade() -> None:
    """A new table; nothing that was there changes. What ended stays as it was, and nothing is removed."""
    op.create_table(
        "holds",
        _big("id"),
        _text("source"),
        _text("record_id"),
        sa.Column("account_id", sa.Integer(), nullable=False),
        _text("tenant"),
        _text("user_name"),
        _text("span_label", 2048),
        _text("currency", 3),
        _text("period", 7),
        _big("covered_ns"),
        _big("milli"),
        _big("atto"),
        _big("opened_at_ns"),
        _big("expires_at_ns"),
        sa.Column("closed_by", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_holds"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_holds_account_id"),
        sa.ForeignKeyConstraint(["closed_by"], ["transactions.id"], name="fk_holds_closed_by"),
        sa.CheckConstraint("atto > -1000000000000000 AND atto < 1000000000000000", name="ck_holds_atto_below_a_milli"),
    )
    still_open = sa.text("closed_by IS NULL")
    op.create_index("uq_holds_open", "holds", ["source", "record_id"], unique=True, sqlite_where=still_open, postgresql_where=still_open)
    op.create_index("ix_holds_open_expires_at_ns", "holds", ["expires_at_ns"], sqlite_where=still_open, postgresql_where=still_open)
    op.create_index("ix_holds_closed_by", "holds", ["closed_by"])
    op.create_index("ix_holds_account_id", "holds", ["account_id"])
    _guard()


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _text(name: str, chars: int = 128) -> sa.Column[str]:
    return sa.Column(name, sa.String(chars), nullable=False)


def _guard() -> None:
    if op.get_bind().dialect.name == "sqlite":
        refuse = f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
        op.execute(f"CREATE TRIGGER holds_refuse_delete BEFORE DELETE ON holds {refuse}")
        op.execute(f"CREATE TRIGGER holds_refuse_reopen BEFORE UPDATE ON holds WHEN {_CLOSED} {refuse}")
        return
    op.execute(
        "CREATE TRIGGER holds_refuse_change BEFORE DELETE OR TRUNCATE ON holds FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()"
    )
    op.execute(
        "CREATE FUNCTION forebay_refuse_reopen() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER holds_refuse_reopen BEFORE UPDATE ON holds FOR EACH ROW WHEN ({_CLOSED}) EXECUTE FUNCTION forebay_refuse_reopen()"
    )
