"""Prices are kept per hour, and exact amounts in grains: nano-unit·ns/h, of which 3600 are 1e-18 of a currency.

Whatever was kept per second, or in 1e-18 units, is multiplied by 3600: it is the same price, and the same amount, to the last digit.
The audit and what was answered to idempotency keys stay as they were written.
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

SECONDS_PER_HOUR = 3600
_AMOUNT = {"atto": "grains"}
_SURCHARGE = {"surcharge_nano_per_second": "surcharge_nano_per_hour"}
COLUMNS = {
    "prices": {"price_nano_per_second": "price_nano_per_hour"},
    "surcharges": _SURCHARGE,
    "balances": _AMOUNT,
    "invoice_lines": _AMOUNT | _SURCHARGE,
    "budgets": {"limit_atto": "limit_grains"},
    "budget_spending": _AMOUNT,
    "budget_alerts": {"limit_atto": "limit_grains", "used_atto": "used_grains"},
}
BOUNDED = {
    "postings": _AMOUNT,
    "segments": _AMOUNT | _SURCHARGE,
    "parked_segments": _AMOUNT,
    "holds": _AMOUNT,
}
"""Those with a constraint on the amount, which SQLite changes only with the table. Nothing points to them."""
_BOUND = "grains > -3600000000000000000 AND grains < 3600000000000000000"
_UNBALANCED = """
SELECT 1 FROM (
    SELECT currency, SUM(milli) AS milli, SUM(grains / 1000000000) AS billions, SUM(grains % 1000000000) AS rest FROM postings
    WHERE transaction_id = NEW.transaction_id GROUP BY currency
) AS sums
WHERE rest % 1000000000 <> 0 OR (billions + rest / 1000000000) % 3600000000 <> 0
OR milli + (billions + rest / 1000000000) / 3600000000 <> 0
"""
"""A milli-unit is 3.6·10^18 grains: two of them fit 64 bits, and three do not, so that billions of them and the rest are summed apart."""
_FEWER_THAN_TWO = "(SELECT COUNT(*) FROM postings WHERE transaction_id = NEW.transaction_id) < 2"
_MESSAGE = "the transaction does not sum to zero in every currency"
_PROJECT = """
INSERT INTO balances (account_id, period, currency, milli, grains)
SELECT account_id, period, currency, milli, grains FROM postings WHERE transaction_id = NEW.transaction_id
ON CONFLICT (account_id, period, currency) DO UPDATE SET
    milli = balances.milli + excluded.milli + (balances.grains + excluded.grains) / 3600000000000000000,
    grains = (balances.grains + excluded.grains) % 3600000000000000000;
"""


def upgrade() -> None:
    """Other names, 3600 times the values, and guards that know them."""
    if op.get_bind().dialect.name == "sqlite":
        _on_sqlite()
    else:
        _on_postgresql()


def _on_postgresql() -> None:
    op.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what an earlier revision wrote in this transaction is checked before tables change
    op.execute("SET CONSTRAINTS ALL DEFERRED")
    for table in BOUNDED:
        op.drop_constraint(f"ck_{table}_atto_below_a_milli", table, type_="check")
    for table, columns in (COLUMNS | BOUNDED).items():
        for old, new in columns.items():
            op.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
        # rewritten as tables, not row by row: append-only guards are of rows
        changes = ", ".join(f"ALTER COLUMN {new} TYPE bigint USING {new} * {SECONDS_PER_HOUR}" for new in columns.values())
        op.execute(f"ALTER TABLE {table} {changes}")
    for table in BOUNDED:
        op.create_check_constraint(f"ck_{table}_grains_below_a_milli", table, _BOUND)
    op.execute(
        "CREATE OR REPLACE FUNCTION forebay_refuse_unbalanced() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF EXISTS ({_UNBALANCED}) OR {_FEWER_THAN_TWO} THEN RAISE EXCEPTION '{_MESSAGE}'; END IF; RETURN NEW; END $$"
    )
    op.execute(
        "CREATE OR REPLACE FUNCTION forebay_project_balances() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {_PROJECT} RETURN NEW; END $$"
    )


def _on_sqlite() -> None:
    for trigger in ("seals_refuse_unbalanced", "seals_project_balances"):
        op.execute(f"DROP TRIGGER {trigger}")
    for table, columns in BOUNDED.items():
        _make_anew(table, columns)
    for table, columns in COLUMNS.items():
        _change(table, columns)
    op.execute(
        f"CREATE TRIGGER seals_refuse_unbalanced BEFORE INSERT ON seals WHEN EXISTS ({_UNBALANCED}) OR {_FEWER_THAN_TWO} "
        f"BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"
    )
    op.execute(f"CREATE TRIGGER seals_project_balances AFTER INSERT ON seals BEGIN {_PROJECT} END")


def _change(table: str, columns: dict[str, str]) -> None:
    """In place, while nothing guards it."""
    guards = [(name, text) for kind, name, text in _parts(table) if kind == "trigger"]
    for name, _ in guards:
        op.execute(f"DROP TRIGGER {name}")
    for old, new in columns.items():
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
    changes = ", ".join(f"{new} = {new} * {SECONDS_PER_HOUR}" for new in columns.values())
    op.execute(f"UPDATE {table} SET {changes}")  # noqa: S608 - names of our tables
    for _, text in guards:
        _run(text)


def _make_anew(table: str, columns: dict[str, str]) -> None:
    """The table as it was made, but for names and bound; its rows, and then its indexes and guards."""
    parts = _parts(table)
    op.execute(f"CREATE TABLE old_{table} AS SELECT * FROM {table}")  # noqa: S608 - names of our tables
    op.execute(f"DROP TABLE {table}")
    (made,) = (text for kind, _, text in parts if kind == "table")
    made = made.replace("atto_below_a_milli", "grains_below_a_milli").replace("1000000000000000", "3600000000000000000")
    for old, new in columns.items():
        made = re.sub(rf"\b{old}\b", new, made)
    _run(made)
    names = [str(name) for name in op.get_bind().execute(sa.text(f"SELECT name FROM pragma_table_info('old_{table}')")).scalars()]  # noqa: S608
    targets = ", ".join(f'"{columns.get(name, name)}"' for name in names)
    values = ", ".join(f"{name} * {SECONDS_PER_HOUR}" if name in columns else f'"{name}"' for name in names)
    op.execute(f"INSERT INTO {table} ({targets}) SELECT {values} FROM old_{table}")  # noqa: S608 - names of our columns
    op.execute(f"DROP TABLE old_{table}")
    for kind, _, text in parts:
        if kind != "table":
            _run(text)


def _parts(table: str) -> list[tuple[str, str, str]]:
    """The table, its indexes and its triggers: kind, name, and the statement that made it."""
    query = sa.text("SELECT type, name, sql FROM sqlite_master WHERE tbl_name = :table AND sql IS NOT NULL ORDER BY rowid")
    return [(row.type, row.name, row.sql) for row in op.get_bind().execute(query, {"table": table})]


def _run(text: str) -> None:
    """As it is: colons in it are no parameters."""
    op.get_bind().exec_driver_sql(text)
