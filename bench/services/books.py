"""Books of any size for the benchmarks of pages: a year of usage records with their ledger, and the invoices of its months.

The records are made and written here, many times as fast as billing takes them, through billing's own tables, prices and transactions:
each lies within one hour, as the pool's do, and so has one segment. Billing's own check finds no difference in them. The same size makes
the same records, but that the last of them ends now. The first tenth of the year is made here, and the database repeats it for the others.
Secondary indexes are made last, and PostgreSQL checks that no record is there twice when all are.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any

from forebay_billing.ledger.books import Books
from forebay_billing.ledger.postings import REVENUE, balanced, receivable, transfer
from forebay_billing.model.money import cost_grains, halves, whole
from forebay_billing.model.months import Month
from forebay_billing.model.types import Posting, priced_model
from forebay_billing.reads.invoices import Issuer, open_months
from forebay_billing.tables import bulk, schema
from forebay_billing.tables.engines import Engines, migrate, open_engines, reading, writing
from forebay_billing.writes import invoices, rollups
from forebay_billing.writes.prices import seed
from sqlalchemy import Connection, UniqueConstraint, event, text
from sqlalchemy.schema import AddConstraint, DropConstraint

TENANTS = 200
NOTEBOOKS = 5
"""Of each user."""
PARTS = 10
"""Of the year, each of whole hours."""
BATCH = 20_000
IN_A_HURRY = (
    *("fsync=off", "synchronous_commit=off", "full_page_writes=off", "wal_level=minimal", "max_wal_senders=0", "max_wal_size=8GB"),
    *("checkpoint_timeout=1h", "autovacuum=off", "shared_buffers=2GB", "work_mem=256MB", "maintenance_work_mem=1GB"),
    "max_parallel_workers_per_gather=0",
)
"""How PostgreSQL runs while books are filled: what is there after a crash is of no use to anybody."""
FOLDED = 500_000
"""Records that are summed up at a time."""
BILLION = 10**9
HOUR_NS = 3_600 * BILLION
YEAR_NS = 365 * 24 * HOUR_NS
MEAN_SECONDS = 60.0
FLAVORS = ("dev.1gb", "dev.4gb", "small.64gb")
CURRENCY = "USD"
MODEL = "null"
USAGE = (
    "id", "source", "record_id", "tenant", "user_name", "session", "lease", "span_id", "span_kind", "span_label", "span_cell",
    "span_cell_id", "span_first_line", "flavor", "device_model", "devices", "share_milli", "started_at_ns", "duration_ns", "close_reason",
    "received_at_ns", "energy_mj",
)  # fmt: skip
SEGMENTS = (
    "usage_id", "position", "transaction_id", "account_id", "period", "price_id", "surcharge_nano_per_hour", "started_at_ns",
    "duration_ns", "milli", "grains", "late", "reversal",
)  # fmt: skip

Row = tuple[Any, ...]


def tenant_of(user: int) -> str:
    return f"tenant-{user % TENANTS}"


def fill(url: str, users: int, records: int) -> None:
    """Brings the database up to this version, and fills it where it is empty; what is there already stays as it is."""
    engines = _open_in_a_hurry(url)
    try:
        migrate(engines)
        with writing(engines) as connection:
            seed(Books(connection), 0)
            known = int(connection.execute(text("SELECT COUNT(*) FROM (SELECT 1 FROM usage LIMIT 1) AS one")).scalar_one())
        if not known:
            with _without_indexes(engines):
                _write_usage(engines, users, records)
        _write_invoices(engines)
        if _sum_up(engines):
            _tidy(engines)
    finally:
        engines.dispose()


def _write_usage(engines: Engines, users: int, records: int) -> None:
    """The records of each part begin so many hours after those of the part before."""
    now_ns, count = time.time_ns(), max(1, records // PARTS)
    begin_ns = now_ns - YEAR_NS
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        with writing(engines) as connection:
            _write_batch(Books(connection), numbers, users, count, begin_ns)
        _tell("records", numbers[-1] + 1, records)
    for part in range(1, PARTS):
        with writing(engines) as connection:
            _repeat(Books(connection), part, count, begin_ns)
        _tell("records", count * (part + 1), records)


def _write_batch(books: Books, numbers: range, users: int, count: int, begin_ns: int) -> None:
    prices = {price.flavor: (id, price.price_nano_per_hour) for price, id in books.prices().items() if price.currency == CURRENCY}
    accounts = books.account_ids(receivable(f"tenant-{number}") for number in range(TENANTS))
    sums: dict[tuple[str, str], int] = defaultdict(int)
    ends_ns: dict[tuple[str, str], int] = defaultdict(int)
    usage, segments = [], []
    first_id = books.take_ids(schema.usage, len(numbers))
    for id, row in enumerate(_usage_rows(numbers, users, count, begin_ns), first_id):
        _, _, tenant, _, _, _, _, _, _, _, _, _, flavor, _, _, _, started_ns, lasts_ns, *_ = row
        price_id, rate = prices[flavor]
        grains, period = cost_grains(lasts_ns, rate), str(Month.of(started_ns))
        sums[tenant, period] += grains
        ends_ns[flavor, CURRENCY] = max(ends_ns[flavor, CURRENCY], started_ns + lasts_ns)
        usage.append((id, *row))
        segments.append((id, 0, accounts[receivable(tenant)], period, price_id, 0, started_ns, lasts_ns, *halves(grains), False, False))
    transaction_id = books.append(balanced("usage", _postings(sums)), begin_ns + YEAR_NS)
    books.note_rated(ends_ns | {(priced_model(MODEL), CURRENCY): max(ends_ns.values())})
    _hurry(books.connection)
    bulk.append(books.connection, "usage", USAGE, usage)
    bulk.append(books.connection, "segments", SEGMENTS, [(*row[:2], transaction_id, *row[2:]) for row in segments])


def _repeat(books: Books, part: int, count: int, begin_ns: int) -> None:
    """The first part's records once more, at another time and under other names."""
    connection, later_ns = books.connection, part * (YEAR_NS // PARTS)
    added = books.take_ids(schema.usage, count) - 1
    lease = f"lease || '-{part}'"
    renamed = {
        "id": f"id + {added}", "lease": lease, "record_id": f"{lease} || SUBSTR(record_id, LENGTH(lease) + 1)",
        "span_id": f"span_id || '-{part}'", "started_at_ns": f"started_at_ns + {later_ns}",
    }  # fmt: skip
    months, month = [], Month.of(begin_ns)
    while month.end_ns < begin_ns + YEAR_NS:
        months.append(f"WHEN started_at_ns < {month.end_ns - later_ns} THEN '{month}'")
        month = month.next
    period = f"CASE {' '.join(months)} ELSE '{month}' END"
    totals = text(
        f"SELECT accounts.name, {period} AS month, SUM(milli), SUM(grains / {BILLION}), SUM(grains % {BILLION}) "  # noqa: S608 - ours
        f"FROM segments JOIN accounts ON accounts.id = account_id WHERE usage_id <= {count} GROUP BY 1, 2"
    )
    of_tenant = {receivable(f"tenant-{number}"): f"tenant-{number}" for number in range(TENANTS)}
    sums = {
        (of_tenant[name], month): whole(int(milli), int(billions) * BILLION + int(rest))
        for name, month, milli, billions, rest in connection.execute(totals)
    }
    transaction_id = books.append(balanced("usage", _postings(sums)), begin_ns + YEAR_NS)
    ends = text(f"SELECT flavor, MAX(started_at_ns + duration_ns) FROM usage WHERE id <= {count} GROUP BY flavor")  # noqa: S608 - ours
    ends_ns = {(flavor, CURRENCY): end_ns + later_ns for flavor, end_ns in connection.execute(ends)}
    books.note_rated(ends_ns | {(priced_model(MODEL), CURRENCY): max(ends_ns.values())})
    changed = {"usage_id": f"usage_id + {added}", "transaction_id": str(transaction_id), "period": period}
    _hurry(connection)
    _copy(connection, "usage", USAGE, renamed, f"id <= {count}")
    _copy(connection, "segments", SEGMENTS, changed | {"started_at_ns": f"started_at_ns + {later_ns}"}, f"usage_id <= {count}")


def _copy(connection: Connection, table: str, columns: Sequence[str], changed: Mapping[str, str], where: str) -> None:
    values = ", ".join(changed.get(name, name) for name in columns)
    connection.execute(text(f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table} WHERE {where}"))  # noqa: S608 - ours


def _postings(sums: dict[tuple[str, str], int]) -> Iterator[Posting]:
    for (tenant, period), grains in sums.items():
        yield from transfer(receivable(tenant), REVENUE, Month.parse(period), CURRENCY, grains)


def _usage_rows(numbers: range, users: int, count: int, begin_ns: int) -> Iterator[Row]:
    """Of the first part, in the order of time. Few people use most: the first of 10,000 has one record of a hundred; every tenth lease is
    in two records."""
    chance = random.Random(numbers[0])
    end_ns = begin_ns + YEAR_NS // PARTS
    for number in numbers:
        user = int(users * chance.random() ** 2)
        started_ns = begin_ns + YEAR_NS // PARTS * number // count
        most_ns = min(HOUR_NS - started_ns % HOUR_NS, end_ns - started_ns)
        lasts_ns = min(int(chance.expovariate(1 / (MEAN_SECONDS * 1e9))) + 10**6, most_ns)
        cell, name = number % 50, f"{number:08}"
        lease, part = (f"{number - 1:08}", 2) if number % 20 == 19 else (name, 1)
        yield (
            "bench", f"{lease}/{part}", tenant_of(user), f"user-{user}", f"s-{user}", lease, name, "cell",
            f"work-{chance.randrange(NOTEBOOKS)}.ipynb", cell, f"cell-{cell}", "train(model)", chance.choice(FLAVORS), MODEL, 1, 1000,
            started_ns, lasts_ns, "goes_on" if number % 20 == 18 else "drained", begin_ns + YEAR_NS, lasts_ns // 10**5,
        )  # fmt: skip


def _write_invoices(engines: Engines) -> None:
    """Of all months that are over, one after another, as billing's own month end would while pages are measured; nine of ten are paid."""
    now_ns, conditions = time.time_ns(), invoices.Conditions(Issuer("Forebay"))
    last, tenants = Month.of(Month.of(now_ns).start_ns - 1), [f"tenant-{number}" for number in range(TENANTS)]
    with reading(engines) as connection:
        months = sorted((month, tenant) for tenant in tenants for month in open_months(connection, tenant, last))
    for month, of_month in groupby(months, itemgetter(0)):
        with writing(engines) as connection:
            books = Books(connection)
            for _, tenant in of_month:
                for made in invoices.finalise(books, tenant, month, conditions, "operator", now_ns):
                    if made.open_minor and made.id % 10:
                        invoices.pay(books, made.name, made.open_minor, "bank", made.name, "operator", now_ns)
        print(f"{month} is invoiced", file=sys.stderr, flush=True)


def _sum_up(engines: Engines) -> int:
    """In larger steps than the service's; on books of a release before this is what an upgrade does. How many records that were."""
    began, count = time.monotonic(), 0
    while True:
        with writing(engines) as connection:
            found = rollups.fold(Books(connection), FOLDED)
        if not found:
            break
        count += found
        print(f"{count:,} records are summed up after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return count


@contextmanager
def _without_indexes(engines: Engines) -> Iterator[None]:
    """Drops the indexes of usage and segments, and makes them again."""
    tables = (schema.usage, schema.segments)
    indexes = [index for table in tables for index in sorted(table.indexes, key=lambda index: str(index.name))]
    unique = [one for table in tables for one in table.constraints if isinstance(one, UniqueConstraint)]
    if engines.writer.dialect.name == "sqlite":  # which cannot drop a constraint
        unique = []
    with writing(engines) as connection:
        for index in indexes:
            index.drop(connection, checkfirst=True)
        for constraint in unique:
            connection.execute(DropConstraint(constraint, isolate_from_table=False))
    yield
    for place, index in enumerate(indexes, 1):
        with writing(engines) as connection:
            index.create(connection)
        _tell("indexes", place, len(indexes))
    for constraint in unique:
        with writing(engines) as connection:
            connection.execute(AddConstraint(constraint, isolate_from_table=False))
    with writing(engines) as connection:
        connection.execute(text("ANALYZE"))


def _tidy(engines: Engines) -> None:
    """What PostgreSQL's autovacuum does, of which nothing is to run beside the pages."""
    if engines.writer.dialect.name == "postgresql":
        with engines.writer.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM (ANALYZE)"))


def _hurry(connection: Connection) -> None:
    """Until the end of this transaction PostgreSQL does not look up what rows point to: all of it is there. What else its triggers do, as
    adding up balances, is to be done before."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL session_replication_role = replica"))


def _open_in_a_hurry(url: str) -> Engines:
    """The same on SQLite, for as long as the engines live."""
    engines = open_engines(url, 60.0)
    if engines.writer.dialect.name == "sqlite":

        @event.listens_for(engines.writer, "connect")
        def configure(connection: Any, _record: Any) -> None:
            for pragma in ("synchronous = OFF", "foreign_keys = OFF", "cache_size = -500000", "temp_store = MEMORY"):
                connection.execute(f"PRAGMA {pragma}").close()

    return engines


def _tell(what: str, done: int, of: int) -> None:
    if done == of or done % max(1, of // 50) == 0:
        print(f"{done:,} of {of:,} {what}", file=sys.stderr, flush=True)
