"""Books that an earlier version wrote are carried over to the last milliardth, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import alembic.command
import alembic.config
import pytest
from forebay_billing.errors import AlreadyCorrected, LedgerError
from forebay_billing.ledger.access import Scope
from forebay_billing.ledger.books import Books
from forebay_billing.model.money import GRAINS_PER_LAST, GRAINS_PER_UNIT
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED, Cost, Payer, UsageRecord
from forebay_billing.reads import invoices as invoices_reads
from forebay_billing.reads import usage as usage_reads
from forebay_billing.reads.invoices import Issuer
from forebay_billing.tables import budgets as tables
from forebay_billing.tables import schema
from forebay_billing.tables.engines import Engines, migrate, open_engines, reading, writing
from forebay_billing.writes import budgets, checks, invoices, spending
from forebay_billing.writes import usage as usage_writes
from forebay_billing.writes.invoices import Conditions
from forebay_billing.writes.usage import Accepted
from sqlalchemy import Connection, MetaData, Table, insert, select, text
from sqlalchemy.exc import DBAPIError

HOUR_NS = 3600 * 10**9
NOVEMBER = Month(2026, 11)
NOW_NS = Month(2026, 12).start_ns + 5 * HOUR_NS
PRICE = 555_557
MILLI = 10**15
"""Atto-units in a milli-unit, as the first version kept amounts."""


@dataclass(frozen=True)
class Old:
    """A record as an earlier version posted it: (month, atto-units) of each part."""

    record: UsageRecord
    parts: tuple[tuple[str, int], ...]
    reversed_in: str | None
    revision: str = "0001"


@pytest.fixture
def old_records(usage: Callable[..., UsageRecord]) -> list[Old]:
    across = usage("across/1", started_at_ns=NOVEMBER.end_ns - 7, duration_ns=2 * HOUR_NS + 7)
    long = usage("long/1", duration_ns=50 * HOUR_NS + 1, tenant="globex", user="globex-owner")
    empty = usage("empty/1", duration_ns=0)
    wrong = usage("wrong/1", started_at_ns=NOVEMBER.end_ns - HOUR_NS - 1, duration_ns=2 * HOUR_NS, user="acme-owner")
    shared = usage("shared/1", duration_ns=90 * 60 * 10**9, share_milli=333, device_model="gpu")
    return [
        Old(across, (("2026-11", 7 * PRICE), ("2026-12", 2 * HOUR_NS * PRICE)), None),
        Old(long, (("2026-11", (50 * HOUR_NS + 1) * PRICE),), None),
        Old(empty, (("2026-11", 0),), None),
        Old(wrong, (("2026-11", (HOUR_NS + 1) * PRICE), ("2026-12", (HOUR_NS - 1) * PRICE)), "2026-12"),
        Old(shared, (("2026-11", 90 * 60 * 10**9 * (PRICE + 2)),), None, "0002"),
    ]


def upgrade(books: Engines, revision: str) -> None:
    config = alembic.config.Config()
    config.set_main_option("script_location", "forebay_billing:migrations")
    config.set_main_option("path_separator", "os")
    with writing(books) as connection:
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, revision)


def write_old(books: Engines, olds: list[Old], revision: str) -> None:
    """What the version of ``revision`` wrote, by its own tables."""
    with writing(books) as connection:
        names = ("prices", "accounts", "transactions", "postings", "seals", "usage", "audit")
        tables = {name: Table(name, MetaData(), autoload_with=connection, resolve_fks=False) for name in names}

        def add(table: str, /, **row: Any) -> None:
            connection.execute(insert(tables[table]).values(**row))

        number: int = connection.execute(text("SELECT COALESCE(MAX(id), 0) FROM transactions")).scalar_one()
        if number == 0:
            _write_start(add)
        for old in olds:
            if old.revision != revision:
                continue
            number += 1
            _write_transaction(add, number, "usage", old, old.parts, None)
            record = old.record
            added = {"share_milli": 333, "surcharge_nano_per_second": 7, "surcharge_rate_nano": 2} if revision == "0002" else {}
            add(
                "usage", transaction_id=number, source=record.source, record_id=record.id, digest=b"d" * 32, tenant=record.tenant,
                user_name=record.user, session=record.session, lease=record.lease, span_id=record.span.id, span_kind=record.span.kind,
                span_label=record.span.label, span_cell=record.span.cell, flavor=record.flavor, device_model=record.device_model,
                devices=record.devices, started_at_ns=record.started_at_ns, duration_ns=record.duration_ns,
                close_reason=record.close_reason, price_id=1, received_at_ns=NOW_NS, **added,
            )  # fmt: skip
            if old.reversed_in is not None:
                number += 1
                whole = -sum(atto for _, atto in old.parts)
                _write_transaction(add, number, "reversal", old, ((old.reversed_in, whole),), number - 1)


def _write_start(add: Any) -> None:
    add(
        "prices", id=1, flavor="small.64gb", currency="USD", version=1, price_nano_per_second=PRICE, valid_from_ns=0,
        changed_at_ns=1, changed_by="seed",
    )  # fmt: skip
    add("audit", id=1, at_ns=1, who="seed", action="price.change", subject="small.64gb/USD", before=None, after="{}")
    for id, name in enumerate(("receivable:acme", "receivable:globex", "revenue"), 1):
        add("accounts", id=id, name=name)


def _write_transaction(add: Any, id: int, kind: str, old: Old, parts: tuple[tuple[str, int], ...], reverses: int | None) -> None:
    add("transactions", id=id, kind=kind, posted_at_ns=NOW_NS, reverses=reverses)
    tenant = 1 if old.record.tenant == "acme" else 2
    for position, (month, atto) in enumerate(parts):
        for side, (account, amount) in enumerate(((tenant, atto), (3, -atto))):
            sign = 1 if amount >= 0 else -1
            milli, rest = divmod(abs(amount), MILLI)
            add(
                "postings", transaction_id=id, position=2 * position + side, account_id=account, month=month, currency="USD",
                milli=sign * milli, atto=sign * rest,
            )  # fmt: skip
    add("seals", transaction_id=id)


@pytest.fixture
def carried_over(database_url: str, old_records: list[Old]) -> Any:
    books = open_engines(database_url, 2)
    try:
        upgrade(books, "0001")
        write_old(books, old_records, "0001")
        upgrade(books, "0002")
        write_old(books, old_records, "0002")
        migrate(books)
        yield books
    finally:
        books.dispose()


def rows(connection: Connection, table: Table) -> list[Any]:
    return list(connection.execute(select(table)))


def test_amounts_records_and_reversals_are_what_they_were(carried_over: Engines, old_records: list[Old]) -> None:
    expected: dict[tuple[str, str], int] = {}
    for old in old_records:
        for month, atto in old.parts:
            expected[old.record.tenant, month] = expected.get((old.record.tenant, month), 0) + atto
        if old.reversed_in is not None:
            expected[old.record.tenant, old.reversed_in] -= sum(atto for _, atto in old.parts)
    with reading(carried_over) as connection:
        assert checks.differences(connection) == []
        for (tenant, month), atto in expected.items():
            statement = usage_reads.statement(connection, tenant, None, Month.parse(month), NOW_NS)
            assert [total.cost_grains for total in statement.totals] == [atto * GRAINS_PER_LAST]
        charges = usage_reads.usage_page(connection, Scope(None, None), usage_reads.Window(None, None), 10, None).charges
        segments = rows(connection, schema.segments)
    assert {charge.record for charge in charges} == {old.record for old in old_records}
    corrected = {charge.record.id for charge in charges if charge.corrected_at_ns is not None}
    assert corrected == {old.record.id for old in old_records if old.reversed_in is not None}
    assert len([row for row in segments if row.usage_id == 2]) == 51
    assert all(abs(row.duration_ns) <= HOUR_NS for row in segments)


def test_what_was_known_is_known_and_new_records_go_on_from_there(
    carried_over: Engines, old_records: list[Old], usage: Callable[..., UsageRecord]
) -> None:
    with writing(carried_over) as connection:
        books = Books(connection)
        again = [*(old.record for old in old_records), usage("new/1", device_model="gpu")]
        assert usage_writes.post_usage(books, again, lambda tenant: "USD", lambda: NOW_NS) == Accepted(
            1, len(old_records), {Payer("acme", "small.64gb", "USD"): Cost(60 * 10**9, 60 * 10**9 * 3600 * (PRICE + 7))}
        )
        with pytest.raises(AlreadyCorrected):
            usage_writes.correct(books, "pool", "wrong/1", "again", lambda: NOW_NS, "operator")
        usage_writes.correct(books, "pool", "across/1", "wrong", lambda: NOW_NS, "operator")
        assert checks.differences(connection) == []
        assert [row.id for row in rows(connection, schema.transactions)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_until_when_usage_was_rated_is_told_by_what_was_rated_before(carried_over: Engines) -> None:
    """The reversed record counts too: it was rated, and its correction will not be made with another price."""
    with reading(carried_over) as connection:
        found = connection.execute(select(schema.rated).order_by(schema.rated.c.flavor))
        assert [tuple(row) for row in found] == [
            ("@model/cpu-dev", "USD", NOVEMBER.end_ns + 2 * HOUR_NS),
            ("@model/gpu", "USD", NOVEMBER.start_ns + HOUR_NS + 90 * 60 * 10**9),
            ("small.64gb", "USD", NOVEMBER.end_ns + 2 * HOUR_NS),
        ]


def test_what_records_told_of_surcharges_is_in_the_price_book_from_the_beginning(carried_over: Engines) -> None:
    with reading(carried_over) as connection:
        (version,) = connection.execute(select(schema.surcharges)).all()
    assert (version.model, version.currency, version.version) == ("gpu", "USD", 1)
    assert (version.surcharge_nano_per_hour, version.valid_from_ns, version.changed_by) == (7 * 3600, 0, "migration")


def test_budgets_begin_where_the_books_stood_and_count_all_of_them_once_they_count_what_was_parked(
    database_url: str, old_records: list[Old], usage: Callable[..., UsageRecord]
) -> None:
    """Revision 0010 marks what was there; revision 0014 makes the projection anew, since it left parked bytes out."""
    books = open_engines(database_url, 2)
    try:
        upgrade(books, "0001")
        write_old(books, old_records, "0001")
        upgrade(books, "0002")
        write_old(books, old_records, "0002")
        upgrade(books, "0010")
        with writing(books) as connection:
            heads = connection.execute(text("SELECT (SELECT MAX(id) FROM usage), (SELECT MAX(transaction_id) FROM reversals)")).one()
            assert tuple(connection.execute(text("SELECT usage_id, transaction_id FROM budget_marks")).one()) == tuple(heads)
            names = ("budgets", "budget_spending", "budget_alerts")
            tables = {name: Table(name, MetaData(), autoload_with=connection, resolve_fks=False) for name in names}
            for id, user in enumerate((None, "acme-member"), 1):
                row = {"id": id, "tenant": "acme", "user_name": user, "notebook": None, "currency": "USD", "time_window": "total"}
                row |= {"origin": "owner", "limit_milli": 5000, "limit_atto": 0, "thresholds": "50,100", "on_limit": "notify"}
                row |= {"grace_seconds": 30, "set_at_ns": 1, "set_by": "acme-owner", "removed_at_ns": None}
                connection.execute(insert(tables["budgets"]).values(**row))
            connection.execute(insert(tables["budget_spending"]).values(budget_id=1, period="2026-11", day=20758, milli=7, atto=7))
            alert = {"id": 1, "budget_id": 1, "period": "total", "threshold": 50, "limit_milli": 5000, "limit_atto": 0}
            connection.execute(insert(tables["budget_alerts"]).values(used_milli=2600, used_atto=0, at_ns=5, **alert))
        migrate(books)
        with writing(books) as connection:
            usage_writes.change_parked_price(Books(connection), "USD", 10**9, NOVEMBER.end_ns + 9 * HOUR_NS, lambda: NOW_NS, "operator")
            kept = usage("k/1", flavor=PARKED, parked_bytes=2**30, started_at_ns=NOVEMBER.end_ns + 10 * HOUR_NS, duration_ns=HOUR_NS)
            usage_writes.post_usage(Books(connection), [kept], lambda tenant: "USD", lambda: NOW_NS)
            posted = usage_reads.posted(connection, "receivable:acme", None)["USD"]
            found = budgets.active(connection)
            for _ in range(2):
                spent = spending.spent_by(connection, found, NOW_NS)
                assert sum(spent[1].by_period.values()) == posted > GRAINS_PER_UNIT
                assert 0 < sum(spent[2].by_period.values()) <= posted
                spending.catch_up(connection, found)
            assert [(budget.origin, budget.thresholds) for budget in found] == [("owner", (50, 100))] * 2
            assert connection.execute(text("SELECT COUNT(*) FROM budget_alerts")).scalar_one() == 1
    finally:
        books.dispose()


def test_what_was_carried_over_is_invoiced_to_the_last_milliardth(carried_over: Engines) -> None:
    """Months that were posted before there were invoices are drafted, finalised, and proven against the ledger."""
    after_ns = Month(2027, 1).start_ns
    with writing(carried_over) as connection:
        books, conditions = Books(connection), Conditions(Issuer("Forebay"))
        made = [
            about
            for tenant in invoices_reads.tenants_with_open_months(connection, Month(2026, 12))
            for month in invoices_reads.open_months(connection, tenant, Month(2026, 12))
            for about in invoices.finalise(books, tenant, month, conditions, "operator", after_ns)
        ]
        assert [(about.tenant, str(about.draft.month), about.name) for about in made] == [
            ("acme", "2026-11", "INV-000001"), ("acme", "2026-12", "INV-000002"), ("globex", "2026-11", "INV-000003"),
        ]  # fmt: skip
        for about in made:
            (total,) = usage_reads.statement(connection, about.tenant, None, about.draft.month, after_ns).totals
            assert sum(line.cost_grains for line in about.draft.lines) == total.cost_grains
        assert checks.differences(connection) == []


def test_the_guards_hold_on_what_was_carried_over(carried_over: Engines) -> None:
    for table in ("transactions", "postings", "seals", "usage", "segments", "reversals", "surcharges"):
        with pytest.raises(DBAPIError, match="append-only"), carried_over.writer.begin() as connection:
            connection.execute(text(f"DELETE FROM {table}"))  # noqa: S608 - our tables
    with pytest.raises(DBAPIError, match="does not sum to zero"), carried_over.writer.begin() as connection:
        connection.execute(insert(schema.transactions).values(id=100, kind="usage", posted_at_ns=1, reverses=None))
        connection.execute(insert(schema.seals).values(transaction_id=100))
    if carried_over.writer.dialect.name == "sqlite":
        with carried_over.writer.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"


def test_what_may_have_reached_stripe_before_counts_as_sent_and_nothing_else_does(database_url: str) -> None:
    books = open_engines(database_url, 2)
    try:
        upgrade(books, "0010")
        with writing(books) as connection:
            outbox = Table("payment_outbox", MetaData(), autoload_with=connection)
            for id, (state, attempts, settled_at_ns) in enumerate((("waiting", 0, None), ("waiting", 2, None), ("done", 1, 30))):
                values = {"tenant": "acme", "kind": "meter_event", "subject": f"acme/{id}", "body": "{}", "idempotency": f"key-{id}"}
                values |= {"generation": 0, "look": 0, "state": state, "attempts": attempts, "created_at_ns": 10, "next_at_ns": 20}
                connection.execute(insert(outbox).values(id=id, settled_at_ns=settled_at_ns, **values))
        migrate(books)
        with reading(books) as connection:
            sent = connection.execute(text("SELECT sent_at_ns FROM payment_outbox ORDER BY id")).scalars().all()
        assert sent == [None, 20, 30]
    finally:
        books.dispose()


def test_channels_and_what_goes_to_them_stay_when_chats_join_them(database_url: str) -> None:
    books = open_engines(database_url, 2)
    try:
        upgrade(books, "0023")
        with writing(books) as connection:
            budget = {"id": 1, "tenant": "acme", "currency": "USD", "time_window": "month", "origin": "owner", "on_limit": "notify"}
            budget |= {"limit_milli": 1, "limit_grains": 0, "thresholds": "100", "grace_seconds": 0, "set_at_ns": 1, "set_by": "ann"}
            connection.execute(insert(tables.budgets).values(**budget))
            reached = {"limit_milli": 1, "limit_grains": 0, "used_milli": 1, "used_grains": 0, "at_ns": 2}
            connection.execute(insert(tables.alerts).values(id=1, budget_id=1, period="2026-11", threshold=100, **reached))
            channel = {"id": 1, "tenant": "acme", "kind": "email", "target": "a@acme.example", "set_at_ns": 1, "set_by": "ann"}
            connection.execute(insert(tables.channels).values(**channel))
            sent = {"alert_id": 1, "channel_id": 1, "state": "done", "attempts": 1, "created_at_ns": 2, "next_at_ns": 2}
            connection.execute(insert(tables.deliveries).values(**sent))
        migrate(books)
        with writing(books) as connection:
            connection.execute(insert(tables.channels).values(**{**channel, "id": 2, "kind": "slack"}))
            assert [row.kind for row in rows(connection, tables.channels)] == ["email", "slack"]
            assert [row.state for row in rows(connection, tables.deliveries)] == ["done"]
        with pytest.raises(LedgerError), writing(books) as connection:
            connection.execute(insert(tables.deliveries).values(**{**sent, "channel_id": 3}))
        with pytest.raises(LedgerError), writing(books) as connection:
            connection.execute(insert(tables.channels).values(**{**channel, "id": 3, "kind": "pigeon"}))
    finally:
        books.dispose()
