"""The database itself refuses what would falsify the books, whoever writes to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import alembic.command
import alembic.config
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from forebay_billing import journal, migrations, queries, schema
from forebay_billing.engines import Engines, migrate, open_engines, reading, writing
from forebay_billing.errors import ConfigurationError, LedgerError
from forebay_billing.ledger import REVENUE, receivable
from forebay_billing.money import halves
from forebay_billing.months import Month
from forebay_billing.queries import statement
from forebay_billing.types import UsageRecord
from sqlalchemy import Connection, insert, select, text
from sqlalchemy.exc import DBAPIError

NOW_NS = Month(2026, 12).start_ns


FIRST_USAGE = """
INSERT INTO usage (transaction_id, source, record_id, digest, tenant, user_name, session, lease, span_id, span_kind, span_label, span_cell,
    flavor, device_model, devices, started_at_ns, duration_ns, close_reason, price_id, received_at_ns)
VALUES (1, :source, :id, :digest, :tenant, :user, :session, :lease, 'span-1', 'cell', 'digits.ipynb', 3,
    :flavor, :device_model, :devices, :started_at_ns, :duration_ns, :close_reason, :price, 5)
"""
FIRST_DIGEST = bytes.fromhex("b78d5f8f216e97ac66d1943fc9b55e89f039c15620e81296a25a02955b6cfbbb")
"""Of the conftest's record, as the first version of this service made it."""


def upgrade_to(connection: Connection, revision: str) -> None:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, revision)


@pytest.fixture
def engines(database_url: str, usage: Callable[..., UsageRecord]) -> Iterator[Engines]:
    """Books with one record and its reversal."""
    engines = open_engines(database_url, 2)
    migrate(engines)
    with writing(engines) as connection:
        journal.seed(connection, NOW_NS)
        journal.post_usage(connection, [usage()], lambda tenant: "USD", lambda: NOW_NS)
        journal.correct(connection, "pool", "lease-1/1", "test", lambda: NOW_NS, "operator")
    yield engines
    engines.dispose()


def write_transaction(connection: Connection, id: int, amounts: list[tuple[str, int, int]], seal: bool = True) -> None:
    connection.execute(insert(schema.transactions).values(id=id, kind="usage", posted_at_ns=1, reverses=None))
    for position, (currency, milli, atto) in enumerate(amounts):
        connection.execute(
            insert(schema.postings).values(
                transaction_id=id,
                position=position,
                account_id=1 + position % 2,
                month="2026-11",
                currency=currency,
                milli=milli,
                atto=atto,
            )
        )
    if seal:
        connection.execute(insert(schema.seals).values(transaction_id=id))


@pytest.mark.parametrize("table", ["prices", "accounts", "transactions", "postings", "seals", "usage", "audit"])
@pytest.mark.parametrize("verb", ["UPDATE", "DELETE"])
def test_no_row_can_be_changed_or_deleted(engines: Engines, table: str, verb: str) -> None:
    column = schema.metadata.tables[table].columns.keys()[0]
    statement = f"DELETE FROM {table}" if verb == "DELETE" else f"UPDATE {table} SET {column} = {column}"  # noqa: S608 - names of our tables
    with pytest.raises(DBAPIError, match="append-only"), engines.writer.begin() as connection:
        connection.execute(text(statement))


def test_a_row_cannot_be_replaced(engines: Engines) -> None:
    if engines.writer.dialect.name != "sqlite":
        with pytest.raises(DBAPIError, match="append-only"), engines.writer.begin() as connection:
            connection.execute(text("TRUNCATE postings"))
        return
    with pytest.raises(DBAPIError, match="append-only"), engines.writer.begin() as connection:
        connection.execute(text("INSERT OR REPLACE INTO prices SELECT id, flavor, currency, version, 1, 0, 0, 'eve' FROM prices"))


@pytest.mark.parametrize(
    "amounts",
    [
        [("USD", 5, 0), ("USD", -4, 0)],
        [("USD", 5, 1), ("USD", -5, 0)],
        [("USD", 5, 0), ("EUR", -5, 0)],
        [("USD", 0, 0)],
        [],
    ],
)
def test_an_unbalanced_transaction_cannot_be_sealed(engines: Engines, amounts: list[tuple[str, int, int]]) -> None:
    with pytest.raises(DBAPIError, match="does not sum to zero"), engines.writer.begin() as connection:
        write_transaction(connection, 100, amounts)


def test_a_balanced_transaction_can_be_sealed_also_where_halves_carry(engines: Engines) -> None:
    with engines.writer.begin() as connection:
        write_transaction(connection, 100, [("USD", 1, 0), ("USD", 0, -400_000_000_000_000), ("USD", 0, -600_000_000_000_000)])
        write_transaction(connection, 101, [("USD", 5, 7), ("USD", -5, -7), ("EUR", 1, 0), ("EUR", -1, 0)])
    with reading(engines) as connection:
        assert connection.execute(text("SELECT count(*) FROM seals WHERE transaction_id >= 100")).scalar_one() == 2


def test_a_transaction_without_its_seal_cannot_be_committed(engines: Engines) -> None:
    with pytest.raises(DBAPIError, match=r"(?i)foreign key"), engines.writer.begin() as connection:
        write_transaction(connection, 100, [("USD", 5, 0), ("USD", -4, 0)], seal=False)


def test_nothing_can_be_added_to_a_sealed_transaction(engines: Engines) -> None:
    with pytest.raises(DBAPIError, match="sealed"), engines.writer.begin() as connection:
        connection.execute(
            insert(schema.postings).values(transaction_id=1, position=9, account_id=1, month="2026-11", currency="USD", milli=0, atto=0)
        )


def test_usage_and_its_reversal_are_unique(engines: Engines) -> None:
    with pytest.raises(DBAPIError, match=r"(?i)unique"), engines.writer.begin() as connection:
        connection.execute(insert(schema.transactions).values(id=100, kind="reversal", posted_at_ns=1, reverses=1))


def test_a_balanced_entry_without_usage_makes_the_statement_withheld(engines: Engines) -> None:
    with engines.writer.begin() as connection:
        write_transaction(connection, 100, [("USD", 5, 7), ("USD", -5, -7)])
    with pytest.raises(LedgerError, match="withheld"), reading(engines) as connection:
        queries.statement(connection, "acme", None, Month(2026, 11), NOW_NS)


def test_changes_leave_who_when_before_and_after_in_the_audit(engines: Engines) -> None:
    with writing(engines) as connection:
        journal.change_price(connection, "dev.1gb", "USD", 9, None, lambda: NOW_NS, "ann")
    with reading(engines) as connection:
        rows = connection.execute(select(schema.audit).order_by(schema.audit.c.id)).all()
    assert [row.action for row in rows] == ["price.change"] * 15 + ["usage.correct", "price.change"]
    correction, change = rows[-2:]
    assert (correction.who, correction.subject, correction.at_ns) == ("operator", "pool/lease-1/1", NOW_NS)
    assert json.loads(correction.before)["duration_ns"] == 60 * 10**9
    assert json.loads(correction.after) == {"transaction": 2, "reason": "test"}
    assert (change.who, change.subject, change.at_ns) == ("ann", "dev.1gb/USD", NOW_NS)
    assert json.loads(change.before)["price_nano_per_second"] == 8_681
    assert json.loads(change.after)["price_nano_per_second"] == 9


def test_migrations_make_what_the_schema_says_and_run_twice(engines: Engines) -> None:
    migrate(engines)
    with engines.writer.begin() as connection:
        difference = compare_metadata(MigrationContext.configure(connection), schema.metadata)
        seeded_again = journal.seed(connection, NOW_NS)
    assert difference == []
    assert seeded_again == 0


def test_books_of_the_first_version_are_brought_up_to_date_and_still_add_up(database_url: str, usage: Callable[..., UsageRecord]) -> None:
    record = usage()
    engines = open_engines(database_url, 2)
    with engines.writer.begin() as connection:
        upgrade_to(connection, "0001")
        journal.seed(connection, NOW_NS)
        price = connection.execute(text("SELECT id, price_nano_per_second FROM prices WHERE flavor = 'small.64gb'")).one()
        connection.execute(insert(schema.accounts), [{"id": 1, "name": receivable("acme")}, {"id": 2, "name": REVENUE}])
        milli, atto = halves(record.duration_ns * price.price_nano_per_second)
        write_transaction(connection, 1, [("USD", milli, atto), ("USD", -milli, -atto)])
        connection.execute(text(FIRST_USAGE), {**asdict(record), "price": price.id, "digest": FIRST_DIGEST})
    migrate(engines)
    with writing(engines) as connection:
        again = journal.post_usage(connection, [record], lambda tenant: "USD", lambda: NOW_NS)
    assert (again.accepted, again.duplicates) == (0, 1)
    with reading(engines) as connection:
        (line,) = statement(connection, "acme", None, Month(2026, 11), NOW_NS).lines
    assert (line.duration_ns, line.surcharge_nano_per_second) == (record.duration_ns, 0)
    engines.dispose()


def test_a_database_of_a_later_version_is_refused_with_one_sentence(engines: Engines) -> None:
    with engines.writer.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match="another version of this service"):
        migrate(engines)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [("nonsense", "not a database URL"), ("sqlite://", "need a file"), ("mysql://host/name", "'mysql' is not supported")],
)
def test_a_database_that_cannot_keep_books_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        open_engines(url, 1)
