"""Usage is rated in segments, a batch is one transaction; balances, periods, idempotency keys.

What was posted stays as it was posted: each record keeps its transaction, its price is the one that was in force when it started,
and the months keep their sums. Its segments are made here, split at full hours. The tables that change are made anew from copies,
since SQLite changes few things in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

CHANGED = ("usage", "seals", "postings", "transactions")
"""In an order in which they can be dropped."""
APPEND_ONLY = ("transactions", "postings", "seals", "usage", "segments", "reversals", "periods", "idempotency")
ROWS_A_BATCH = 1000
HOUR_NS = 3600 * 10**9
ATTO_PER_MILLI = 10**15
KINDS = "'usage', 'reversal', 'reserve', 'void', 'expire', 'post', 'credit', 'adjustment', 'payment', 'refund', 'fee'"
ATTO_BOUND = "atto > -1000000000000000 AND atto < 1000000000000000"

_UNBALANCED = """
SELECT 1 FROM (
    SELECT currency, SUM(milli) AS milli, SUM(atto) AS atto FROM postings
    WHERE transaction_id = NEW.transaction_id GROUP BY currency
) AS sums
WHERE atto % 1000000000000000 <> 0 OR milli + atto / 1000000000000000 <> 0
"""
_FEWER_THAN_TWO = "(SELECT COUNT(*) FROM postings WHERE transaction_id = NEW.transaction_id) < 2"
_PROJECT = """
INSERT INTO balances (account_id, period, currency, milli, atto)
SELECT account_id, period, currency, milli, atto FROM postings WHERE transaction_id = NEW.transaction_id
ON CONFLICT (account_id, period, currency) DO UPDATE SET
    milli = balances.milli + excluded.milli + (balances.atto + excluded.atto) / 1000000000000000,
    atto = (balances.atto + excluded.atto) % 1000000000000000;
"""


def upgrade() -> None:
    """Copies, makes the tables anew, fills them, and guards them."""
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for table in CHANGED:
        op.execute(f"CREATE TABLE old_{table} AS SELECT * FROM {table}")  # noqa: S608 - names of our tables
    _drop(on_sqlite)
    _create_ledger(on_sqlite)
    _create_usage()
    _create_rest()
    _guard(on_sqlite)
    _fill()
    for table in CHANGED:
        op.execute(f"DROP TABLE old_{table}")


def _drop(on_sqlite: bool) -> None:
    if on_sqlite:  # a dropped table must be empty, or its references count as broken; triggers go with their tables
        for table in CHANGED:
            op.execute(f"DROP TRIGGER {table}_refuse_delete")
            op.execute(f"DELETE FROM {table}")  # noqa: S608 - names of our tables
    for table in CHANGED:
        op.execute(f"DROP TABLE {table}" + ("" if on_sqlite else " CASCADE"))
    if not on_sqlite:
        op.execute("DROP FUNCTION forebay_refuse_after_seal(), forebay_refuse_unbalanced()")


def _big(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=nullable)


def _text(name: str, length: int = 128) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=False)


def _integer(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), autoincrement=False, nullable=False)


def _create_ledger(on_sqlite: bool) -> None:
    to_seal = sa.ForeignKeyConstraint(["id"], ["seals.transaction_id"], name="fk_transactions_id", deferrable=True, initially="DEFERRED")
    op.create_table(
        "transactions",
        _big("id"),
        _text("kind", 16),
        _big("posted_at_ns"),
        _big("reverses", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_transactions"),
        sa.ForeignKeyConstraint(["reverses"], ["transactions.id"], name="fk_transactions_reverses"),
        sa.CheckConstraint(f"kind IN ({KINDS})", name="ck_transactions_kind"),
        sa.CheckConstraint("(kind = 'reversal') = (reverses IS NOT NULL)", name="ck_transactions_reversal_reverses"),
        *([to_seal] if on_sqlite else []),
    )
    op.create_index("ix_transactions_reverses", "transactions", ["reverses"])
    for table, bound in (("postings", ATTO_BOUND), ("balances", "milli > -9000000000000000000 AND milli < 9000000000000000000")):
        of_postings = table == "postings"
        op.create_table(
            table,
            *([_big("transaction_id")] if of_postings else []),
            _integer("account_id"),
            _text("period", 7),
            _text("currency", 3),
            _big("milli"),
            _big("atto"),
            sa.PrimaryKeyConstraint(*(["transaction_id"] if of_postings else []), "account_id", "period", "currency", name=f"pk_{table}"),
            sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=f"fk_{table}_account_id"),
            *([sa.ForeignKeyConstraint(["transaction_id"], ["transactions.id"], name="fk_postings_transaction_id")] if of_postings else []),
            sa.CheckConstraint(bound, name=f"ck_{table}_{'atto_below_a_milli' if of_postings else 'milli_within_64_bits'}"),
            sqlite_with_rowid=False,
        )
    op.create_index("ix_postings_account_id_period", "postings", ["account_id", "period"])
    op.create_table(
        "seals",
        _big("transaction_id"),
        sa.PrimaryKeyConstraint("transaction_id", name="pk_seals"),
        sa.ForeignKeyConstraint(["transaction_id"], ["transactions.id"], name="fk_seals_transaction_id"),
        sqlite_with_rowid=False,
    )
    if not on_sqlite:
        op.create_foreign_key(
            "fk_transactions_id", "transactions", "seals", ["id"], ["transaction_id"], deferrable=True, initially="DEFERRED"
        )


def _create_usage() -> None:
    op.create_table(
        "usage",
        _big("id"),
        *(_text(name) for name in ("source", "record_id", "tenant", "user_name", "session", "lease", "span_id")),
        _text("span_kind", 16),
        _text("span_label", 2048),
        _big("span_cell", nullable=True),
        _text("flavor"),
        _text("device_model"),
        _integer("devices"),
        _integer("share_milli"),
        _big("surcharge_nano_per_second"),
        _big("started_at_ns"),
        _big("duration_ns"),
        _text("close_reason"),
        _big("received_at_ns"),
        sa.PrimaryKeyConstraint("id", name="pk_usage"),
        sa.UniqueConstraint("source", "record_id", name="uq_usage_source_record_id"),
        sa.CheckConstraint("duration_ns >= 0", name="ck_usage_duration_not_below_zero"),
        sa.CheckConstraint("devices >= 1 AND share_milli >= 1 AND share_milli <= 1000", name="ck_usage_devices_and_share"),
        sa.CheckConstraint("surcharge_nano_per_second >= 0", name="ck_usage_surcharge_not_below_zero"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_usage_started_at_ns", "usage", ["started_at_ns"])
    op.create_index("ix_usage_tenant_started_at_ns", "usage", ["tenant", "started_at_ns"])
    op.create_index("ix_usage_tenant_user_name_started_at_ns", "usage", ["tenant", "user_name", "started_at_ns"])
    op.create_table(
        "segments",
        _big("usage_id"),
        _integer("position"),
        _big("transaction_id"),
        _integer("account_id"),
        _text("period", 7),
        *(_big(name) for name in ("price_id", "surcharge_nano_per_second", "started_at_ns", "duration_ns", "milli", "atto")),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("reversal", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("usage_id", "position", name="pk_segments"),
        sa.ForeignKeyConstraint(["usage_id"], ["usage.id"], name="fk_segments_usage_id"),
        sa.ForeignKeyConstraint(["transaction_id"], ["transactions.id"], name="fk_segments_transaction_id"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_segments_account_id"),
        sa.ForeignKeyConstraint(["price_id"], ["prices.id"], name="fk_segments_price_id"),
        sa.CheckConstraint(ATTO_BOUND, name="ck_segments_atto_below_a_milli"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_segments_account_id_period", "segments", ["account_id", "period"])
    op.create_table(
        "reversals",
        _big("usage_id"),
        _big("transaction_id"),
        sa.PrimaryKeyConstraint("usage_id", name="pk_reversals"),
        sa.ForeignKeyConstraint(["usage_id"], ["usage.id"], name="fk_reversals_usage_id"),
        sa.ForeignKeyConstraint(["transaction_id"], ["transactions.id"], name="fk_reversals_transaction_id"),
        sa.UniqueConstraint("transaction_id", name="uq_reversals_transaction_id"),
        sqlite_with_rowid=False,
    )


def _create_rest() -> None:
    op.create_table(
        "periods",
        _big("id"),
        _text("tenant"),
        _text("period", 7),
        _big("finalised_at_ns"),
        sa.PrimaryKeyConstraint("id", name="pk_periods"),
        sa.UniqueConstraint("tenant", "period", name="uq_periods_tenant_period"),
    )
    op.create_table(
        "idempotency",
        _text("caller", 255),
        _text("key", 255),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        _big("at_ns"),
        sa.PrimaryKeyConstraint("caller", "key", name="pk_idempotency"),
        sqlite_with_rowid=False,
    )


def _guard(on_sqlite: bool) -> None:
    for table in APPEND_ONLY:
        if on_sqlite:
            for verb in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_refuse_{verb.lower()} BEFORE {verb} ON {table} BEGIN "
                    f"SELECT RAISE(ABORT, '{table} is append-only: post a correction instead'); END"
                )
        else:
            op.execute(
                f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()"
            )
    sealed = "EXISTS (SELECT 1 FROM seals WHERE transaction_id = NEW.transaction_id)"
    _refuse(on_sqlite, "postings", "after_seal", sealed, "the transaction is sealed: nothing can be added to it")
    unbalanced = f"EXISTS ({_UNBALANCED}) OR {_FEWER_THAN_TWO}"
    _refuse(on_sqlite, "seals", "unbalanced", unbalanced, "the transaction does not sum to zero in every currency")
    if on_sqlite:
        op.execute(f"CREATE TRIGGER seals_project_balances AFTER INSERT ON seals BEGIN {_PROJECT} END")
    else:
        op.execute(
            f"CREATE FUNCTION forebay_project_balances() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {_PROJECT} RETURN NEW; END $$"
        )
        op.execute("CREATE TRIGGER seals_project_balances AFTER INSERT ON seals FOR EACH ROW EXECUTE FUNCTION forebay_project_balances()")


def _refuse(on_sqlite: bool, table: str, name: str, condition: str, message: str) -> None:
    """Refuses rows of ``table`` on ``condition``."""
    if on_sqlite:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_{name} BEFORE INSERT ON {table} WHEN {condition} BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )
        return
    op.execute(
        f"CREATE FUNCTION forebay_refuse_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF {condition} THEN RAISE EXCEPTION '{message}'; END IF; RETURN NEW; END $$"
    )
    op.execute(f"CREATE TRIGGER {table}_refuse_{name} BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION forebay_refuse_{name}()")


def _fill() -> None:
    op.execute("INSERT INTO transactions (id, kind, posted_at_ns, reverses) SELECT id, kind, posted_at_ns, reverses FROM old_transactions")
    op.execute(
        "INSERT INTO postings (transaction_id, account_id, period, currency, milli, atto) "
        "SELECT transaction_id, account_id, month, currency, SUM(milli), SUM(atto) FROM old_postings "
        "GROUP BY transaction_id, account_id, month, currency"
    )
    columns = (
        "source, record_id, tenant, user_name, session, lease, span_id, span_kind, span_label, span_cell, flavor, device_model, devices, "
        "share_milli, surcharge_nano_per_second, started_at_ns, duration_ns, close_reason, received_at_ns"
    )
    op.execute(
        f"INSERT INTO usage (id, {columns}) SELECT transaction_id, {columns} FROM old_usage"  # noqa: S608 - names of our columns
    )
    op.execute(
        "INSERT INTO reversals (usage_id, transaction_id) "
        "SELECT reverses, id FROM old_transactions WHERE kind = 'reversal'"
    )
    _fill_segments()
    op.execute("INSERT INTO seals (transaction_id) SELECT transaction_id FROM old_seals ORDER BY transaction_id")


def _fill_segments() -> None:
    """Each record's hours, and for what was reversed the same taken back."""
    bind = op.get_bind()
    segments = sa.Table("segments", sa.MetaData(), autoload_with=bind)
    query = sa.text(
        "SELECT u.transaction_id, u.price_id, u.started_at_ns, u.duration_ns, u.surcharge_rate_nano, p.price_nano_per_second, "
        "a.id AS account_id, r.id AS reversal_id, (SELECT MIN(month) FROM old_postings WHERE transaction_id = r.id) AS reversal_period "
        "FROM old_usage AS u JOIN prices AS p ON p.id = u.price_id "
        "JOIN accounts AS a ON a.name = 'receivable:' || u.tenant "
        "LEFT JOIN old_transactions AS r ON r.reverses = u.transaction_id "
        "WHERE u.transaction_id > :after ORDER BY u.transaction_id LIMIT :limit"
    )
    after = 0
    while found := bind.execute(query, {"after": after, "limit": ROWS_A_BATCH}).all():
        for row in found:
            bind.execute(segments.insert(), list(_segments(row)))
        after = found[-1].transaction_id


def _segments(row: sa.Row[Any]) -> Iterator[dict[str, Any]]:
    hours = list(_hours(row.started_at_ns, row.duration_ns))
    for position, (started_at_ns, duration_ns) in enumerate(hours):
        cost_atto = duration_ns * (row.price_nano_per_second + row.surcharge_rate_nano)
        posted = {
            "usage_id": row.transaction_id,
            "position": position,
            "transaction_id": row.transaction_id,
            "account_id": row.account_id,
            "period": f"{datetime.fromtimestamp(started_at_ns // 10**9, UTC):%Y-%m}",
            "price_id": row.price_id,
            "surcharge_nano_per_second": row.surcharge_rate_nano,
            "started_at_ns": started_at_ns,
            "duration_ns": duration_ns,
            "milli": cost_atto // ATTO_PER_MILLI,
            "atto": cost_atto % ATTO_PER_MILLI,
            "late": False,
            "reversal": False,
        }
        yield posted
        if row.reversal_id is not None:
            yield posted | {
                "position": len(hours) + position,
                "transaction_id": row.reversal_id,
                "period": row.reversal_period,
                "duration_ns": -duration_ns,
                "milli": -posted["milli"],
                "atto": -posted["atto"],
                "reversal": True,
            }


def _hours(started_at_ns: int, duration_ns: int) -> Iterator[tuple[int, int]]:
    """A stretch of time split at full hours, in UTC, where months end too."""
    ended_at_ns = started_at_ns + duration_ns
    while True:
        end_ns = min(ended_at_ns, started_at_ns - started_at_ns % HOUR_NS + HOUR_NS)
        yield started_at_ns, end_ns - started_at_ns
        started_at_ns = end_ns
        if started_at_ns == ended_at_ns:
            return
