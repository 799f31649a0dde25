"""Surcharges of models are versions in the price book, as prices are, and no longer told by each usage record.

What a model's latest record was told becomes its first version, in force from the beginning: so usage that comes late costs what it
would have cost. Segments keep what they were rated at. Budgets count what was parked, too, so their projection is made anew.
"""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_COLUMNS = (
    "id, source, record_id, tenant, user_name, session, lease, span_id, span_kind, span_label, span_cell, flavor, device_model, devices, "
    "share_milli, started_at_ns, duration_ns, close_reason, received_at_ns, parked_bytes"
)
_ENDS = "SELECT {priced}, {currency}, MAX(s.started_at_ns + s.duration_ns) FROM {source} WHERE NOT s.reversal GROUP BY 1, 2"
_LEASED = "segments AS s JOIN prices AS p ON p.id = s.price_id JOIN usage AS u ON u.id = s.usage_id"
_TOLD = f"""
SELECT DISTINCT u.device_model, p.currency, u.surcharge_nano_per_second AS nano, u.started_at_ns + u.duration_ns AS end_ns, u.id
FROM {_LEASED} WHERE NOT s.reversal ORDER BY end_ns, u.id
"""  # noqa: S608 - names of our tables


def upgrade() -> None:
    """The new table and what was told, the projections anew, and usage without what it told."""
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    _create_surcharges(on_sqlite)
    _keep_what_was_told()
    _make_rated_anew()
    op.execute("DELETE FROM budget_spending")
    op.execute("UPDATE budget_marks SET usage_id = 0, transaction_id = 0")
    if on_sqlite:
        _make_usage_anew()
    else:
        op.execute("ALTER TABLE usage DROP COLUMN surcharge_nano_per_second")


def _create_surcharges(on_sqlite: bool) -> None:
    op.create_table(
        "surcharges",
        _big("id"),
        _text("model"),
        _text("currency", 3),
        sa.Column("version", sa.Integer(), nullable=False),
        _big("surcharge_nano_per_second"),
        _big("valid_from_ns"),
        _big("changed_at_ns"),
        _text("changed_by", 255),
        sa.PrimaryKeyConstraint("id", name="pk_surcharges"),
        sa.UniqueConstraint("model", "currency", "version", name="uq_surcharges_model_currency_version"),
        sa.CheckConstraint("surcharge_nano_per_second >= 0", name="ck_surcharges_surcharge_not_below_zero"),
    )
    if on_sqlite:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER surcharges_refuse_{verb.lower()} BEFORE {verb} ON surcharges BEGIN "
                "SELECT RAISE(ABORT, 'surcharges is append-only: add a version instead'); END"
            )
        return
    op.execute(
        "CREATE TRIGGER surcharges_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON surcharges "
        "FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()"
    )


def _keep_what_was_told() -> None:
    """Of each model and currency, what the record told that ended last; a model that cost nothing needs no version."""
    bind = op.get_bind()
    latest = {(row.device_model, row.currency): row.nano for row in bind.execute(sa.text(_TOLD))}
    now_ns = time.time_ns()
    for id, ((model, currency), nano) in enumerate(sorted((key, nano) for key, nano in latest.items() if nano), 1):
        bind.execute(
            sa.text("INSERT INTO surcharges VALUES (:id, :model, :currency, 1, :nano, 0, :now_ns, 'migration')"),
            {"id": id, "model": model, "currency": currency, "nano": nano, "now_ns": now_ns},
        )


def _make_rated_anew() -> None:
    """With models among what was rated, whose names are longer."""
    op.drop_table("rated")
    op.create_table(
        "rated",
        _text("flavor", 256),
        _text("currency", 3),
        _big("until_ns"),
        sa.PrimaryKeyConstraint("flavor", "currency", name="pk_rated"),
        sqlite_with_rowid=False,
    )
    for priced, currency, source in (
        ("p.flavor", "p.currency", _LEASED),
        ("'@model/' || u.device_model", "p.currency", _LEASED),
        ("'@parked'", "s.currency", "parked_segments AS s"),
    ):
        ends = _ENDS.format(priced=priced, currency=currency, source=source)
        op.execute(f"INSERT INTO rated (flavor, currency, until_ns) {ends}")


def _make_usage_anew() -> None:
    """SQLite drops no column that a constraint names. Until the rows are back their segments point to nothing, for which it waits."""
    op.execute("PRAGMA defer_foreign_keys = ON")
    op.execute(f"CREATE TABLE old_usage AS SELECT {_COLUMNS} FROM usage")  # noqa: S608 - names of our columns
    op.execute("DROP TABLE usage")
    names = ("source", "record_id", "tenant", "user_name", "session", "lease", "span_id")
    op.create_table(
        "usage",
        _big("id"),
        *(_text(name) for name in names),
        _text("span_kind", 16),
        _text("span_label", 2048),
        _big("span_cell", nullable=True),
        _text("flavor"),
        _text("device_model"),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("share_milli", sa.Integer(), nullable=False),
        _big("started_at_ns"),
        _big("duration_ns"),
        _text("close_reason"),
        _big("received_at_ns"),
        _big("parked_bytes", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_usage"),
        sa.UniqueConstraint("source", "record_id", name="uq_usage_source_record_id"),
        sa.CheckConstraint("duration_ns >= 0", name="ck_usage_duration_not_below_zero"),
        sa.CheckConstraint("devices >= 1 AND share_milli >= 1 AND share_milli <= 1000", name="ck_usage_devices_and_share"),
        sqlite_with_rowid=False,
    )
    op.execute(f"INSERT INTO usage ({_COLUMNS}) SELECT {_COLUMNS} FROM old_usage")  # noqa: S608 - names of our columns
    op.execute("DROP TABLE old_usage")
    for columns in (["started_at_ns"], ["tenant", "started_at_ns"], ["tenant", "user_name", "started_at_ns"]):
        op.create_index(f"ix_usage_{'_'.join(columns)}", "usage", columns)
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER usage_refuse_{verb.lower()} BEFORE {verb} ON usage BEGIN "
            "SELECT RAISE(ABORT, 'usage is append-only: post a correction instead'); END"
        )


def _big(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=nullable)


def _text(name: str, chars: int = 128) -> sa.Column[str]:
    return sa.Column(name, sa.String(chars), nullable=False)
