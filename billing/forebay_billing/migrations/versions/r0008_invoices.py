"""Profiles, invoices with their lines, credit notes, settlements, credits. What was there stays as it is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0009"
branch_labels = None
depends_on = None

APPEND_ONLY = ("profiles", "invoices", "credit_grants", "credit_moves", "invoice_lines", "credit_notes", "settlements")


def upgrade() -> None:
    """New tables only, and their guards."""
    _create_profiles()
    _create_invoices()
    _create_credits()
    _create_lines()
    _create_notes_and_settlements()
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    _guard_rows(on_sqlite)
    _guard_sums(on_sqlite)


def _big(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=nullable)


def _integer(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), autoincrement=False, nullable=nullable)


def _text(name: str, length: int = 128, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=nullable)


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=f"uq_{table}_{'_'.join(columns)}")


def _check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=f"ck_{table}_{name}")


def _to(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [target], name=f"fk_{table}_{column}")


def _create_profiles() -> None:
    op.create_table(
        "profiles",
        _big("id"),
        _text("tenant"),
        _integer("version"),
        _text("legal_name", 150),
        _text("address", 500),
        _text("tax_id"),
        _text("tax_label"),
        _integer("tax_bps"),
        _text("currency", 3, nullable=True),
        _text("email", 500, nullable=True),
        _big("changed_at_ns"),
        _text("changed_by", 255),
        _key("profiles", "id"),
        _unique("profiles", "tenant", "version"),
        _check("profiles", "tax_bps", "tax_bps >= 0 AND tax_bps <= 10000"),
    )


def _create_invoices() -> None:
    op.create_table(
        "invoices",
        _big("id"),
        _text("series"),
        _integer("number"),
        _text("name", 64),
        _text("tenant"),
        _text("period", 7),
        _text("currency", 3),
        *(_big(name) for name in ("issued_at_ns", "due_at_ns", "net_minor", "credit_minor", "tax_minor", "total_minor")),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        _big("transaction_id"),
        _key("invoices", "id"),
        _unique("invoices", "name"),
        _unique("invoices", "series", "number"),
        _unique("invoices", "tenant", "period", "currency"),
        _check("invoices", "total", "total_minor >= 0 AND net_minor + credit_minor + tax_minor = total_minor"),
        _to("invoices", "transaction_id", "transactions.id"),
    )


def _create_credits() -> None:
    op.create_table(
        "credit_grants",
        _big("id"),
        _text("tenant"),
        _text("kind", 16),
        _text("name"),
        _text("currency", 3),
        _big("amount_minor"),
        _integer("priority"),
        _big("effective_at_ns"),
        _big("expires_at_ns", nullable=True),
        _big("granted_at_ns"),
        _text("granted_by", 255),
        _big("transaction_id"),
        _key("credit_grants", "id"),
        _check("credit_grants", "kind", "kind IN ('prepaid', 'promotional')"),
        _check("credit_grants", "amount_above_zero", "amount_minor > 0"),
        _to("credit_grants", "transaction_id", "transactions.id"),
    )
    op.create_index("ix_credit_grants_tenant_currency", "credit_grants", ["tenant", "currency"])
    op.create_table(
        "credit_moves",
        _big("id"),
        _big("grant_id"),
        _text("kind", 8),
        _big("amount_minor"),
        _big("invoice_id", nullable=True),
        _text("reason", 500),
        _big("moved_at_ns"),
        _text("moved_by", 255),
        _big("transaction_id"),
        _key("credit_moves", "id"),
        _check("credit_moves", "kind", "kind IN ('use', 'refund', 'expire')"),
        _check("credit_moves", "amount_above_zero", "amount_minor > 0"),
        _check("credit_moves", "invoice_of_use", "(kind = 'use') = (invoice_id IS NOT NULL)"),
        _to("credit_moves", "grant_id", "credit_grants.id"),
        _to("credit_moves", "invoice_id", "invoices.id"),
        _to("credit_moves", "transaction_id", "transactions.id"),
    )
    op.create_index("ix_credit_moves_grant_id", "credit_moves", ["grant_id"])


def _create_lines() -> None:
    op.create_table(
        "invoice_lines",
        _big("invoice_id"),
        _integer("position"),
        _text("key", 32),
        _text("kind", 16),
        _text("label", 500),
        *(_big(name) for name in ("milli", "atto", "amount_minor", "started_at_ns", "ended_at_ns")),
        _big("grant_id", nullable=True),
        _text("user_name", nullable=True),
        _big("price_id", nullable=True),
        _big("surcharge_nano_per_second", nullable=True),
        sa.Column("late", sa.Boolean(), nullable=True),
        _integer("leases", nullable=True),
        _big("seconds", nullable=True),
        _big("nanoseconds", nullable=True),
        _key("invoice_lines", "invoice_id", "position"),
        _unique("invoice_lines", "invoice_id", "key"),
        _to("invoice_lines", "invoice_id", "invoices.id"),
        _to("invoice_lines", "grant_id", "credit_grants.id"),
        _to("invoice_lines", "price_id", "prices.id"),
        sqlite_with_rowid=False,
    )


def _create_notes_and_settlements() -> None:
    op.create_table(
        "credit_notes",
        _big("id"),
        _text("series"),
        _integer("number"),
        _text("name", 64),
        _big("invoice_id"),
        _big("amount_minor"),
        _big("tax_minor"),
        _text("reason", 500),
        _big("issued_at_ns"),
        _text("issued_by", 255),
        _big("transaction_id"),
        _key("credit_notes", "id"),
        _unique("credit_notes", "name"),
        _unique("credit_notes", "series", "number"),
        _check("credit_notes", "amount_above_zero", "amount_minor > 0"),
        _to("credit_notes", "invoice_id", "invoices.id"),
        _to("credit_notes", "transaction_id", "transactions.id"),
    )
    op.create_index("ix_credit_notes_invoice_id", "credit_notes", ["invoice_id"])
    op.create_table(
        "settlements",
        _big("id"),
        _big("invoice_id"),
        _text("kind", 8),
        _big("amount_minor"),
        _text("method"),
        _text("reference", 500),
        _big("settled_at_ns"),
        _text("settled_by", 255),
        _big("transaction_id"),
        _key("settlements", "id"),
        _unique("settlements", "invoice_id", "kind", "reference"),
        _check("settlements", "kind", "kind IN ('payment', 'refund', 'void')"),
        _check("settlements", "amount_above_zero", "amount_minor > 0"),
        _to("settlements", "invoice_id", "invoices.id"),
        _to("settlements", "transaction_id", "transactions.id"),
    )


def _guard_rows(on_sqlite: bool) -> None:
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


def _guard_sums(on_sqlite: bool) -> None:
    for table in ("invoices", "credit_notes"):
        largest = f"(SELECT COALESCE(MAX(number), 0) FROM {table} WHERE series = NEW.series)"  # noqa: S608 - names of our tables
        _refuse(on_sqlite, table, "gap", f"NEW.number <> 1 + {largest}", "the number would leave a gap in its series")
    noted = "(SELECT COALESCE(SUM(amount_minor), 0) FROM credit_notes WHERE invoice_id = NEW.invoice_id)"
    asked = "(SELECT total_minor FROM invoices WHERE id = NEW.invoice_id)"
    _refuse(on_sqlite, "credit_notes", "excess", f"NEW.amount_minor + {noted} > {asked}", "more would be taken back than was asked for")
    moved = "(SELECT COALESCE(SUM(amount_minor), 0) FROM credit_moves WHERE grant_id = NEW.grant_id)"
    granted = "(SELECT amount_minor FROM credit_grants WHERE id = NEW.grant_id)"
    _refuse(on_sqlite, "credit_moves", "excess", f"NEW.amount_minor + {moved} > {granted}", "more credit would be used than was granted")


def _refuse(on_sqlite: bool, table: str, name: str, condition: str, message: str) -> None:
    """Refuses rows of ``table`` on ``condition``."""
    if on_sqlite:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_{name} BEFORE INSERT ON {table} WHEN {condition} BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )
        return
    op.execute(
        f"CREATE FUNCTION forebay_{table}_refuse_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF {condition} THEN RAISE EXCEPTION '{message}'; END IF; RETURN NEW; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_refuse_{name} BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION forebay_{table}_refuse_{name}()"
    )
