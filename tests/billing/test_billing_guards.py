"""The database itself refuses what would falsify the books, whoever writes to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from forebay_billing.errors import LedgerError
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.idempotency import Key, once
from forebay_billing.model.money import GRAINS_PER_MILLI
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED, Span, UsageRecord
from forebay_billing.reads import plans, profiles
from forebay_billing.reads import usage as usage_reads
from forebay_billing.reads.invoices import Issuer
from forebay_billing.rules import holds
from forebay_billing.rules.holds import Heartbeat
from forebay_billing.rules.invoices import Profile
from forebay_billing.rules.plans import Terms
from forebay_billing.tables import schema
from forebay_billing.tables.engines import Engines, migrate, open_engines, reading, writing
from forebay_billing.writes import credits, invoices
from forebay_billing.writes import holds as holds_writes
from forebay_billing.writes import prices as prices_writes
from forebay_billing.writes import usage as usage_writes
from forebay_billing.writes.invoices import Conditions
from forebay_service.errors import SettingsError
from sqlalchemy import Connection, insert, select, text
from sqlalchemy.exc import DBAPIError

NOW_NS = Month(2026, 12).start_ns
CHANGING = ("heartbeats", "payment_", "budget", "alert_", "report_", "notice", "preferences", "usage_")
GUARDED = sorted(name for name in schema.metadata.tables.keys() - {"balances", "rated", "revenue_hours"} if not name.startswith(CHANGING))
"""All but what is a projection of the others, a limit that people change, a notice, the present, or says how far a delivery has come."""


def fill_invoices(connection: Connection) -> None:
    """A row in each of the tables of invoices and credits, and a surcharge."""
    surcharge = {"id": 1, "model": "T4", "currency": "USD", "version": 1, "surcharge_nano_per_hour": 7, "valid_from_ns": 0}
    connection.execute(insert(schema.surcharges).values(**surcharge, changed_at_ns=NOW_NS, changed_by="operator"))
    books, conditions = Books(connection), Conditions(Issuer("Forebay"))
    profiles.change(books, Profile("acme", "Acme Ltd"), "operator", NOW_NS)
    credit = credits.grant(books, "umbrella", "prepaid", "Paid", "USD", 5, 0, None, None, "operator", NOW_NS, False)
    credits.refund(books, credit.grant.id, 1, "test", "operator", NOW_NS)
    record = UsageRecord(
        "pool", "invoiced/1", "initech", "ann", "session", "lease", Span("span", "cell", "x.ipynb", 1), "small.64gb", "cpu-dev", 1,
        Month(2026, 11).start_ns, 3600 * 10**9, "drained",
    )  # fmt: skip
    usage_writes.post_usage(books, [record], lambda tenant: "USD", lambda: NOW_NS)
    (made,) = invoices.finalise(books, "initech", Month(2026, 11), conditions, "operator", NOW_NS)
    invoices.pay(books, made.name, 1, "bank", "1", "operator", NOW_NS)
    invoices.take_back(books, made.name, 1, "test", conditions, "operator", NOW_NS)


@pytest.fixture
def engines(migrated_url: str, usage: Callable[..., UsageRecord]) -> Iterator[Engines]:
    """Books with one record of a lease, its reversal, one of parked bytes, and a hold that has ended."""
    engines = open_engines(migrated_url, 2)
    with writing(engines) as connection:
        prices_writes.seed(Books(connection), NOW_NS)
        parked = replace(usage("s.p1/1"), flavor=PARKED, parked_bytes=2**30)
        usage_writes.post_usage(Books(connection), [usage(), parked], lambda tenant: "USD", lambda: NOW_NS)
        usage_writes.correct(Books(connection), "pool", "lease-1/1", "test", lambda: NOW_NS, "operator")
        Books(connection).finalise("globex", Month(2026, 11), NOW_NS)
        row = {"id": 1, "currency": "USD", "version": 1, "price_nano_per_gib_hour": 0, "valid_from_ns": 0, "changed_at_ns": 0}
        connection.execute(insert(schema.parked_prices).values(**row, changed_by="operator"))
        plans.change_plan(Books(connection), "acme", Terms("USD"), Month(2026, 12), "USD", NOW_NS, "operator")
        held = replace(usage("lease-2/1"), close_reason="open")
        holds_writes.beat(Books(connection), Heartbeat("pool", 1, (held,)), lambda tenant: "USD", lambda: NOW_NS, holds.Terms(1, 1))
        holds_writes.expire(Books(connection), NOW_NS + 100)
        once(Books(connection), Key("operator", "key", b"x" * 32), lambda books: 1, lambda one: one, NOW_NS)
    yield engines
    engines.dispose()


def write_transaction(connection: Connection, id: int, amounts: list[tuple[str, int, int]], seal: bool = True) -> None:
    connection.execute(insert(schema.transactions).values(id=id, kind="usage", posted_at_ns=1, reverses=None))
    for position, (currency, milli, grains) in enumerate(amounts):
        connection.execute(
            insert(schema.postings).values(
                transaction_id=id,
                account_id=1 + position % 2,
                period=f"2026-{11 - position // 2}",
                currency=currency,
                milli=milli,
                grains=grains,
            )
        )
    if seal:
        connection.execute(insert(schema.seals).values(transaction_id=id))


def test_no_row_can_be_changed_or_deleted(engines: Engines) -> None:
    with writing(engines) as connection:
        fill_invoices(connection)
    for table in GUARDED:
        column = schema.metadata.tables[table].columns.keys()[0]
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET {column} = {column}"):  # noqa: S608 - names of our tables
            with pytest.raises(DBAPIError, match="append-only"), engines.writer.begin() as connection:
                connection.execute(text(statement))
                pytest.fail(f"{statement} was carried out")


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
        write_transaction(connection, 100, [("USD", 1, 0), ("USD", 0, -GRAINS_PER_MILLI * 2 // 5), ("USD", 0, -GRAINS_PER_MILLI * 3 // 5)])
        most = GRAINS_PER_MILLI - 1
        write_transaction(connection, 102, [("USD", -3, 0), ("USD", -1, 4), *(("USD", 0, most) for _ in range(4))])
        write_transaction(connection, 101, [("USD", 5, 7), ("USD", -5, -7), ("EUR", 1, 0), ("EUR", -1, 0)])
    with reading(engines) as connection:
        assert connection.execute(text("SELECT count(*) FROM seals WHERE transaction_id >= 100")).scalar_one() == 3


def test_a_transaction_without_its_seal_cannot_be_committed(engines: Engines) -> None:
    with pytest.raises(DBAPIError, match=r"(?i)foreign key"), engines.writer.begin() as connection:
        write_transaction(connection, 100, [("USD", 5, 0), ("USD", -4, 0)], seal=False)


def test_nothing_can_be_added_to_a_sealed_transaction(engines: Engines) -> None:
    with pytest.raises(DBAPIError, match="sealed"), engines.writer.begin() as connection:
        connection.execute(
            insert(schema.postings).values(transaction_id=1, account_id=1, period="2026-01", currency="USD", milli=0, grains=0)
        )


def test_a_record_is_reversed_once(engines: Engines) -> None:
    with pytest.raises(DBAPIError, match=r"(?i)unique"), engines.writer.begin() as connection:
        connection.execute(insert(schema.reversals).values(usage_id=1, transaction_id=1))


def test_a_balanced_entry_without_usage_makes_the_statement_withheld(engines: Engines) -> None:
    with engines.writer.begin() as connection:
        write_transaction(connection, 100, [("USD", 5, 7), ("USD", -5, -7)])
    with pytest.raises(LedgerError, match="withheld"), reading(engines) as connection:
        usage_reads.statement(connection, "acme", None, Month(2026, 11), NOW_NS)


def test_changes_leave_who_when_before_and_after_in_the_audit(engines: Engines) -> None:
    with writing(engines) as connection:
        prices_writes.change_price(Books(connection), "dev.1gb", "USD", 9, None, lambda: NOW_NS, "ann")
    with reading(engines) as connection:
        rows = connection.execute(select(schema.audit).order_by(schema.audit.c.id)).all()
    assert [row.action for row in rows] == ["price.change"] * 15 + ["usage.correct", "plan.change", "price.change"]
    correction, _, change = rows[-3:]
    assert (correction.who, correction.subject, correction.at_ns) == ("operator", "pool/lease-1/1", NOW_NS)
    assert json.loads(correction.before)["duration_ns"] == 60 * 10**9
    assert json.loads(correction.after) == {"transaction": 2, "reason": "test"}
    assert (change.who, change.subject, change.at_ns) == ("ann", "dev.1gb/USD", NOW_NS)
    assert json.loads(change.before)["price_nano_per_hour"] == 30_000_000
    assert json.loads(change.after)["price_nano_per_hour"] == 9


def test_migrations_make_what_the_schema_says_and_run_twice(engines: Engines) -> None:
    migrate(engines)
    with engines.writer.begin() as connection:
        difference = compare_metadata(MigrationContext.configure(connection), schema.metadata)
        seeded_again = prices_writes.seed(Books(connection), NOW_NS)
    if engines.writer.dialect.name == "postgresql":  # what segments point to is guarded there as the next test says
        added = [key for change, key in difference if change == "add_fk" and key.parent.name in ("segments", "parked_segments")]
        assert len(added) == len(difference) == 8
    else:
        assert difference == []
    assert seeded_again == 0


@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("segments", column) for column in ("usage_id", "transaction_id", "account_id", "price_id")),
        *(("parked_segments", column) for column in ("usage_id", "transaction_id", "account_id", "parked_price_id")),
    ],
)
def test_no_segment_points_to_what_does_not_exist(engines: Engines, table: str, column: str) -> None:
    rows = schema.metadata.tables[table]
    with engines.writer.connect() as connection:
        known = dict(connection.execute(select(rows).limit(1)).one()._mapping) | {"position": 100}
    with engines.writer.begin() as connection:
        connection.execute(insert(rows), [known])
    more = [known | {"position": 101}, known | {"position": 102, column: 999}]
    with pytest.raises(DBAPIError, match=r"(?i)foreign key|does not exist"), engines.writer.begin() as connection:
        connection.execute(insert(rows), more)


def test_a_database_of_a_later_version_is_refused_with_one_sentence(engines: Engines) -> None:
    with engines.writer.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SettingsError, match=r"^The database of billing is of another release"):
        migrate(engines)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [("nonsense", "not a database URL"), ("sqlite://", "need a file"), ("mysql://host/name", "'mysql' is not supported")],
)
def test_a_database_that_cannot_keep_books_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        open_engines(url, 1)
