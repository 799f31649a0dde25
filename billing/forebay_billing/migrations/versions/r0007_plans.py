"""Plans of tenants, the price of parked bytes, and until when usage was rated, which what was rated before tells."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

APPEND_ONLY = ("plans", "parked_prices")


def upgrade() -> None:
    """New tables only: nothing that was there changes."""
    op.create_table(
        "plans",
        _big("id"),
        _text("tenant", 128),
        sa.Column("version", sa.Integer(), nullable=False),
        _text("valid_from", 7),
        _text("currency", 3),
        sa.Column("terms", sa.Text(), nullable=False),
        _big("changed_at_ns"),
        _text("changed_by", 255),
        sa.PrimaryKeyConstraint("id", name="pk_plans"),
        sa.UniqueConstraint("tenant", "version", name="uq_plans_tenant_version"),
    )
    op.create_table(
        "parked_prices",
        _big("id"),
        _text("currency", 3),
        sa.Column("version", sa.Integer(), nullable=False),
        _big("price_nano_per_gib_hour"),
        _big("valid_from_ns"),
        _big("changed_at_ns"),
        _text("changed_by", 255),
        sa.PrimaryKeyConstraint("id", name="pk_parked_prices"),
        sa.UniqueConstraint("currency", "version", name="uq_parked_prices_currency_version"),
        sa.CheckConstraint("price_nano_per_gib_hour >= 0", name="ck_parked_prices_price_not_below_zero"),
    )
    op.create_table(
        "rated",
        _text("flavor", 128),
        _text("currency", 3),
        _big("until_ns"),
        sa.PrimaryKeyConstraint("flavor", "currency", name="pk_rated"),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO rated (flavor, currency, until_ns) SELECT p.flavor, p.currency, MAX(s.started_at_ns + s.duration_ns) "
        "FROM segments AS s JOIN prices AS p ON p.id = s.price_id WHERE NOT s.reversal GROUP BY p.flavor, p.currency"
    )
    for table in APPEND_ONLY:
        _guard(table, op.get_bind().dialect.name == "sqlite")


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)


def _text(name: str, chars: int) -> sa.Column[str]:
    return sa.Column(name, sa.String(chars), nullable=False)


def _guard(table: str, on_sqlite: bool) -> None:
    if not on_sqlite:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_refuse_{verb.lower()} BEFORE {verb} ON {table} BEGIN "
            f"SELECT RAISE(ABORT, '{table} is append-only: add a version instead'); END"
        )
