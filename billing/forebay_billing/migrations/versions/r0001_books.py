"""Price book, usage records, ledger and audit, with their guards.

The shape is written out here once and for all: later versions of ``schema.py`` do not change what this migration made.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = ("prices", "accounts", "transactions", "postings", "seals", "usage", "audit")

_UNBALANCED = """
SELECT 1 FROM (
    SELECT currency, SUM(milli) AS milli, SUM(atto) AS atto FROM postings
    WHERE transaction_id = NEW.transaction_id GROUP BY currency
) AS sums
WHERE atto % 1000000000000000 <> 0 OR milli + atto / 1000000000000000 <> 0
"""
_FEWER_THAN_TWO = "(SELECT COUNT(*) FROM postings WHERE transaction_id = NEW.transaction_id) < 2"


def upgrade() -> None:
    """Creates tables, then triggers in the dialect of the database."""
    _create_price_book()
    _create_ledger()
    _create_usage()
    _create_audit()
    if op.get_bind().dialect.name == "sqlite":
        _guard_sqlite()
    else:
        _guard_postgresql()


def _big(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _name(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(128), nullable=False)


def _create_price_book() -> None:
    op.create_table(
        "prices",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        _name("flavor"),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        _big("price_nano_per_second"),
        _big("valid_from_ns"),
        _big("changed_at_ns"),
        sa.Column("changed_by", sa.String(255), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_prices"),
        sa.UniqueConstraint("flavor", "currency", "version", name="uq_prices_flavor_currency_version"),
        sa.CheckConstraint("price_nano_per_second >= 0", name="ck_prices_price_not_below_zero"),
    )


def _create_ledger() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(160), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
        sa.UniqueConstraint("name", name="uq_accounts_name"),
    )
    seal_of_transaction = sa.ForeignKeyConstraint(
        ["id"], ["seals.transaction_id"], name="fk_transactions_id", deferrable=True, initially="DEFERRED"
    )
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    op.create_table(
        "transactions",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        _big("posted_at_ns"),
        _big("reverses", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_transactions"),
        sa.ForeignKeyConstraint(["reverses"], ["transactions.id"], name="fk_transactions_reverses"),
        sa.UniqueConstraint("reverses", name="uq_transactions_reverses"),
        sa.CheckConstraint("kind IN ('usage', 'reversal')", name="ck_transactions_kind"),
        sa.CheckConstraint("(kind = 'reversal') = (reverses IS NOT NULL)", name="ck_transactions_reversal_reverses"),
        *([seal_of_transaction] if on_sqlite else []),
    )
    op.create_index("ix_transactions_reversal_posted_at_ns", "transactions", ["kind", "posted_at_ns"])
    op.create_table(
        "postings",
        sa.Column("transaction_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("account_id", sa.Integer(), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        _big("milli"),
        _big("atto"),
        sa.PrimaryKeyConstraint("transaction_id", "position", name="pk_postings"),
        sa.ForeignKeyConstraint(["transaction_id"], ["transactions.id"], name="fk_postings_transaction_id"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_postings_account_id"),
        sa.CheckConstraint("atto > -1000000000000000 AND atto < 1000000000000000", name="ck_postings_atto_below_a_milli"),
    )
    op.create_index("ix_postings_account_id_month", "postings", ["account_id", "month"])
    op.create_table(
        "seals",
        sa.Column("transaction_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("transaction_id", name="pk_seals"),
        sa.ForeignKeyConstraint(["transaction_id"], ["transactions.id"], name="fk_seals_transaction_id"),
    )
    if not on_sqlite:
        op.create_foreign_key(
            "fk_transactions_id", "transactions", "seals", ["id"], ["transaction_id"], deferrable=True, initially="DEFERRED"
        )


def _create_usage() -> None:
    op.create_table(
        "usage",
        sa.Column("transaction_id", sa.BigInteger(), autoincrement=False, nullable=False),
        _name("source"),
        _name("record_id"),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        _name("tenant"),
        _name("user_name"),
        _name("session"),
        _name("lease"),
        _name("span_id"),
        sa.Column("span_kind", sa.String(16), nullable=False),
        sa.Column("span_label", sa.String(2048), nullable=False),
        _big("span_cell", nullable=True),
        _name("flavor"),
        _name("device_model"),
        sa.Column("devices", sa.Integer(), nullable=False),
        _big("started_at_ns"),
        _big("duration_ns"),
        _name("close_reason"),
        _big("price_id"),
        _big("received_at_ns"),
        sa.PrimaryKeyConstraint("transaction_id", name="pk_usage"),
        sa.ForeignKeyConstraint(["transaction_id"], ["transactions.id"], name="fk_usage_transaction_id"),
        sa.ForeignKeyConstraint(["price_id"], ["prices.id"], name="fk_usage_price_id"),
        sa.UniqueConstraint("source", "record_id", name="uq_usage_source_record_id"),
        sa.CheckConstraint("duration_ns >= 0", name="ck_usage_duration_not_below_zero"),
    )
    op.create_index("ix_usage_started_at_ns", "usage", ["started_at_ns"])
    op.create_index("ix_usage_tenant_started_at_ns", "usage", ["tenant", "started_at_ns"])
    op.create_index("ix_usage_tenant_user_name_started_at_ns", "usage", ["tenant", "user_name", "started_at_ns"])


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        _big("at_ns"),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(264), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )


def _guard_sqlite() -> None:
    for table in APPEND_ONLY:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_refuse_{verb.lower()} BEFORE {verb} ON {table} BEGIN "
                f"SELECT RAISE(ABORT, '{table} is append-only: post a correction instead'); END"
            )
    op.execute(
        "CREATE TRIGGER postings_refuse_after_seal BEFORE INSERT ON postings "
        "WHEN EXISTS (SELECT 1 FROM seals WHERE transaction_id = NEW.transaction_id) "
        "BEGIN SELECT RAISE(ABORT, 'the transaction is sealed: nothing can be added to it'); END"
    )
    op.execute(
        f"CREATE TRIGGER seals_refuse_unbalanced BEFORE INSERT ON seals WHEN EXISTS ({_UNBALANCED}) "
        f"OR {_FEWER_THAN_TWO} "
        "BEGIN SELECT RAISE(ABORT, 'the transaction does not sum to zero in every currency'); END"
    )


def _guard_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION forebay_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION '% is append-only: post a correction instead', TG_TABLE_NAME; END $$"
    )
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()"
        )
    op.execute(
        "CREATE FUNCTION forebay_refuse_after_seal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF EXISTS (SELECT 1 FROM seals WHERE transaction_id = NEW.transaction_id) THEN "
        "RAISE EXCEPTION 'the transaction is sealed: nothing can be added to it'; END IF; RETURN NEW; END $$"
    )
    op.execute(
        "CREATE TRIGGER postings_refuse_after_seal BEFORE INSERT ON postings FOR EACH ROW EXECUTE FUNCTION forebay_refuse_after_seal()"
    )
    op.execute(
        "CREATE FUNCTION forebay_refuse_unbalanced() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF EXISTS ({_UNBALANCED}) OR {_FEWER_THAN_TWO} THEN "
        "RAISE EXCEPTION 'the transaction does not sum to zero in every currency'; END IF; RETURN NEW; END $$"
    )
    op.execute("CREATE TRIGGER seals_refuse_unbalanced BEFORE INSERT ON seals FOR EACH ROW EXECUTE FUNCTION forebay_refuse_unbalanced()")
