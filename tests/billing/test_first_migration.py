"""The first migration of pool and billing, SQL for each kind of database: it makes what the tables say, and later ones build on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from forebay_billing.ledger.books import Books
from forebay_billing.model.types import UsageRecord
from forebay_billing.reads import checks
from forebay_billing.reads import usage as usage_reads
from forebay_billing.tables.engines import migrate, open_engines, reading, writing
from forebay_billing.writes import prices as prices_writes
from forebay_billing.writes import usage as usage_writes
from forebay_pool.store.database import Store
from forebay_pool.store.tables import METADATA
from sqlalchemy import Connection, create_engine, inspect, text

NOW_NS = 1_800_000_000 * 10**9
LATER = '''"""Made up: what a later release may do to a table that refuses changes."""

import sqlalchemy as sa
from alembic import op

revision = "{after}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade():
    op.create_table("later", sa.Column("id", sa.Integer, primary_key=True))
    op.execute("INSERT INTO later (id) SELECT id FROM usage")
    op.add_column("usage", sa.Column("later", sa.String(8), nullable=False, server_default="then"))
'''


def shape(connection: Connection, table: str) -> Any:
    """What both kinds of database say of a table in the same words."""
    found = inspect(connection)
    columns = {column["name"]: column["nullable"] for column in found.get_columns(table)}
    keys = tuple(found.get_pk_constraint(table)["constrained_columns"])
    unique = sorted(tuple(one["column_names"]) for one in found.get_unique_constraints(table))
    return columns, keys, unique


def make_billing(url: str) -> None:
    books = open_engines(url, 1)
    migrate(books)
    books.dispose()


def make_pool(url: str) -> None:
    store = Store(url)
    store.migrate()
    store.close()


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")
@pytest.mark.parametrize("make", [make_pool, make_billing])
def test_both_kinds_of_database_have_the_same_tables(make: Callable[[str], None], database_url: str, tmp_path: Path) -> None:
    made: list[dict[str, Any]] = []
    for url in (database_url, f"sqlite:///{tmp_path}/other.sqlite"):
        make(url)
        engine = create_engine(url)
        with engine.connect() as connection:
            made.append({table: shape(connection, table) for table in inspect(connection).get_table_names()})
        engine.dispose()
    assert made[0].keys() == made[1].keys() and len(made[0]) > 10
    assert {name for name in made[0] if made[0][name] != made[1][name]} == set()


@pytest.mark.filterwarnings("ignore:.*expression-based index")
def test_the_pool_s_tables_are_those_that_it_reads_and_writes(database_url: str) -> None:
    make_pool(database_url)
    engine = create_engine(database_url)
    with engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), METADATA)
        told = [each for one in found for each in (one if isinstance(one, list) else [one])]  # a list: of one column
        assert [each for each in told if each[0] != "modify_comment"] == []
    engine.dispose()


def test_a_later_migration_takes_the_books_along(database_url: str, usage: Callable[..., UsageRecord], tmp_path: Path) -> None:
    """With the chain of a later release: today's migrations, and one more."""
    chain = tmp_path / "migrations"
    shutil.copytree(str(files("forebay_billing.migrations")), chain, ignore=shutil.ignore_patterns("__pycache__"))
    before = str(ScriptDirectory(str(chain)).get_current_head())
    after = f"{int(before) + 1:04}"
    (chain / "versions" / f"r{after}_later.py").write_text(LATER.format(before=before, after=after))
    books = open_engines(database_url, 2)
    try:
        migrate(books)
        with writing(books) as connection:
            prices_writes.change_price(Books(connection), "small.64gb", "USD", 36 * 10**9, 0, lambda: NOW_NS, "operator", new=True)
            usage_writes.post_usage(Books(connection), [usage("a/1"), usage("b/1")], lambda tenant: "USD", lambda: NOW_NS)
            posted = usage_reads.posted(connection, "receivable:acme", None)
        config = Config()
        config.set_main_option("script_location", str(chain))
        config.set_main_option("path_separator", "os")
        with writing(books) as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        with reading(books) as connection:
            assert usage_reads.posted(connection, "receivable:acme", None) == posted and posted["USD"] > 0
            assert checks.differences(connection) == []
            assert connection.execute(text("SELECT COUNT(*) FROM later")).scalar_one() == 2
            assert connection.execute(text("SELECT DISTINCT later FROM usage")).scalar_one() == "then"
            assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == after
    finally:
        books.dispose()


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")
def test_a_new_sqlite_database_of_a_pool_is_as_all_migrations_together_make_it(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.sqlite" for name in ("new", "migrated")]
    make_pool(urls[0])
    config = Config()
    config.set_main_option("script_location", "forebay_pool:migrations")
    config.set_main_option("path_separator", "os")
    made: list[dict[str, Any]] = []
    for url in urls:
        engine = create_engine(url)
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")  # which of a new one says that there is nothing to do
        with engine.connect() as connection:
            rows = {name: connection.exec_driver_sql(f"select * from {name}").all() for name in ("alembic_version", "leadership")}  # noqa: S608
            made.append({"rows": rows} | {table: shape(connection, table) for table in inspect(connection).get_table_names()})
        engine.dispose()
    assert made[0] == made[1] and len(made[0]["rows"]["leadership"]) == 1
