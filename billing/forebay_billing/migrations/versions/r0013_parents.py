"""On PostgreSQL, what segments point to is looked up once for each statement that writes them, no longer row by row.

A foreign key looks each row up on its own and locks what it finds, which took longer than writing the segments. What they point to is
append-only, so that a look at the time of writing says as much: nothing of it can go away or change its number later.
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

PARENTS = {
    "segments": {"usage_id": "usage", "transaction_id": "transactions", "account_id": "accounts", "price_id": "prices"},
    "parked_segments": {
        "usage_id": "usage",
        "transaction_id": "transactions",
        "account_id": "accounts",
        "parked_price_id": "parked_prices",
    },
}
"""What a column of each table points to."""


def upgrade() -> None:
    """Other guards in the place of foreign keys; SQLite's cost little and stay."""
    if op.get_bind().dialect.name == "sqlite":
        return
    op.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what an earlier revision wrote in this transaction is checked before tables change
    op.execute("SET CONSTRAINTS ALL DEFERRED")
    for table, parents in PARENTS.items():
        for column in parents:
            op.drop_constraint(f"fk_{table}_{column}", table, type_="foreignkey")
        checks = " ".join(_check(table, column, parent) for column, parent in parents.items())
        # an index is right however small the tables were when the plan was made, since a session keeps its plan while they grow
        op.execute(
            f"CREATE FUNCTION forebay_refuse_orphaned_{table}() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off "
            f"AS $$ BEGIN {checks} RETURN NULL; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {table}_refuse_orphaned AFTER INSERT ON {table} REFERENCING NEW TABLE AS fresh "
            f"FOR EACH STATEMENT EXECUTE FUNCTION forebay_refuse_orphaned_{table}()"
        )


def _check(table: str, column: str, parent: str) -> str:
    """Refuses a statement with rows whose ``column`` is in no row of ``parent``."""
    values = f"SELECT DISTINCT {column} AS value FROM fresh WHERE {column} IS NOT NULL"  # noqa: S608 - names of our columns
    known = f"(SELECT 1 FROM {parent} WHERE id = value)"  # noqa: S608 - names of our tables
    message = f"a row of {table} points to a row of {parent} that does not exist"
    return f"IF EXISTS (SELECT 1 FROM ({values}) AS given WHERE {known} IS NULL) THEN RAISE EXCEPTION '{message}'; END IF;"  # noqa: S608
