"""Properties of the books, on a real SQLite database, against a slow and obvious model."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from forebay_billing.errors import (
    AlreadyCorrected,
    InvalidRequest,
    LedgerError,
    RecordConflict,
    TooLarge,
    UnknownRecord,
    UnknownTenant,
)
from forebay_billing.ledger.access import Scope
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.postings import REVENUE, TRANSACTION_UNITS_MAX, balanced, receivable, transfer
from forebay_billing.model.money import GRAINS_PER_UNIT, whole
from forebay_billing.model.months import Month
from forebay_billing.model.types import Cost, Payer, Posting, PriceVersion, UsageRecord
from forebay_billing.reads import checks, standings, summaries
from forebay_billing.reads import usage as usage_reads
from forebay_billing.rules.prices import seed_prices
from forebay_billing.rules.statements import check_against_ledger, line_of, statement_of
from forebay_billing.tables import schema
from forebay_billing.tables.engines import Engines, reading, writing
from forebay_billing.writes import prices as prices_writes
from forebay_billing.writes import usage as usage_writes
from forebay_billing.writes.balances import rebuild_balances
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, literal, select, text

NOW_NS = Month(2027, 2).start_ns
MONTHS = [Month(2026, 9), Month(2026, 10), Month(2026, 11), Month(2026, 12), Month(2027, 1), Month(2027, 2), Month(2027, 3)]
TENANTS = ("acme", "globex")
CHANGE_NS = Month(2026, 11).start_ns + 14 * 86_400 * 10**9 + 1_234_567_891_011
CHANGED_PRICE = 777_777
"""What small.64gb costs from CHANGE_NS on, in its version 2."""
SURCHARGES = ((0, 7), (CHANGE_NS + 987_654_321_012_345, 1_001))
"""What a second of one gpu costs beside the flavor, and from when."""
PRICES = {price.flavor: price.price_nano_per_hour for price in seed_prices(0)}


def records_of(usage: Callable[..., UsageRecord]) -> st.SearchStrategy[list[UsageRecord]]:
    """Lists of records with distinct ids, many of them across a month's end."""
    near_a_border = st.builds(
        lambda month, offset: month.end_ns + offset,
        st.sampled_from(MONTHS[1:4]),
        st.one_of(st.integers(-(10 * 86_400 * 10**9), 10**9), st.just(CHANGE_NS - MONTHS[2].end_ns)),
    )
    record = st.builds(
        lambda tenant, user, flavor, start, duration, lease, model, share: usage(
            tenant=tenant, user=user, flavor=flavor, started_at_ns=start, duration_ns=duration, lease=f"lease-{lease}",
            devices=1 if share < 1000 else 3, share_milli=share, device_model=model,
        ),
        st.sampled_from(TENANTS),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(["dev.1gb", "small.64gb", "48xlarge.24576gb"]),
        near_a_border,
        st.one_of(st.integers(0, 10**9), st.integers(0, 5 * 86_400 * 10**9)),
        st.integers(0, 5),
        st.sampled_from(["cpu-dev", "gpu"]),
        st.sampled_from([1, 333, 1000]),
    )  # fmt: skip
    return st.lists(record, max_size=12).map(numbered)


def numbered(records: list[UsageRecord]) -> list[UsageRecord]:
    """With ids as the pool gives them: the lease's name and, after it, which of its records it is."""
    count: Counter[str] = Counter()
    found = []
    for one in records:
        count[one.lease] += 1
        found.append(replace(one, id=f"{one.lease}/{count[one.lease]}"))
    return found


def change_price(engines: Engines) -> None:
    with writing(engines) as connection:
        books = Books(connection)
        prices_writes.change_price(books, "small.64gb", "USD", CHANGED_PRICE, None, lambda: CHANGE_NS, "operator")
        for start_ns, surcharge in SURCHARGES:
            prices_writes.change_surcharge(books, "gpu", "USD", surcharge, start_ns, lambda: 0, "operator")


def rate(record: UsageRecord, at_ns: int) -> tuple[int, int]:
    """Version and price of a record at a moment."""
    changed = record.flavor == "small.64gb" and at_ns >= CHANGE_NS
    return (2, CHANGED_PRICE) if changed else (1, PRICES[record.flavor])


def surcharge_of(record: UsageRecord, at_ns: int) -> int:
    """In nano-units per hour, of all its devices, at a moment: rounded as a rate."""
    if record.device_model != "gpu":
        return 0
    nano = [surcharge for start_ns, surcharge in SURCHARGES if start_ns <= at_ns][-1]
    return round(Fraction(nano * record.devices * record.share_milli, 1000))


def post(engines: Engines, records: list[UsageRecord]) -> usage_writes.Accepted:
    with writing(engines) as connection:
        return usage_writes.post_usage(Books(connection), records, lambda tenant: "USD", lambda: NOW_NS)


def statements(engines: Engines) -> dict[tuple[str, str], Any]:
    found = {}
    with reading(engines) as connection:
        for tenant in TENANTS:
            for month in MONTHS:
                statement = usage_reads.statement(connection, tenant, None, month, NOW_NS)
                if statement.lines:
                    found[tenant, str(month)] = [
                        (line.user, line.flavor, line.price_version, line.surcharge_nano_per_hour, line.duration_ns, line.cost_grains)
                        for line in statement.lines
                    ]
    return found


def modelled(records: list[UsageRecord]) -> dict[tuple[str, str], Any]:
    """The same by walking from midnight to midnight, with a stop at the price change."""
    used: dict[tuple[str, str], dict[tuple[str, str, int, int], Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    times: dict[tuple[str, str], dict[tuple[str, str, int, int], int]] = defaultdict(lambda: defaultdict(int))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    day_ns = 86_400 * 10**9
    for record in records:
        at_ns, left_ns = record.started_at_ns, record.duration_ns
        while True:
            step_ns = min(left_ns, day_ns - at_ns % day_ns)
            for change_ns in (CHANGE_NS, SURCHARGES[1][0]):
                if at_ns < change_ns < at_ns + step_ns:
                    step_ns = change_ns - at_ns
            month = (epoch + timedelta(days=at_ns // day_ns)).strftime("%Y-%m")
            version, price = rate(record, at_ns)
            key = (record.user, record.flavor, version, surcharge_of(record, at_ns))
            times[record.tenant, month][key] += step_ns
            used[record.tenant, month][key] += Fraction(step_ns, 3600 * 10**9) * (price + key[3]) / 10**9
            at_ns, left_ns = at_ns + step_ns, left_ns - step_ns
            if left_ns == 0:
                break
    return {
        month: [(*key, times[month][key], cost * GRAINS_PER_UNIT) for key, cost in sorted(lines.items())]
        for month, lines in used.items()
    }


def owed_for(records: list[UsageRecord]) -> int:
    """What they cost, in grains."""
    return int(sum(cost for lines in modelled(records).values() for *_, cost in lines))


def segments(engines: Engines) -> list[Any]:
    """What was rated, named by the record and not by the order of arrival."""
    columns = [column for column in schema.segments.c if column.name not in ("usage_id", "transaction_id", "account_id")]
    query = select(schema.usage.c.source, schema.usage.c.record_id, *columns).join(schema.usage)
    with reading(engines) as connection:
        return sorted(tuple(row) for row in connection.execute(query))


def assert_sound(engines: Engines) -> None:
    """The books agree with themselves, and the balances are what the postings sum to."""
    with writing(engines) as connection:
        assert checks.differences(connection) == []
        query = select(schema.balances).order_by(*schema.balances.primary_key)
        projected = [(*row[:3], whole(row.milli, row.grains)) for row in connection.execute(query)]
        rebuild_balances(Books(connection))
        assert [(*row[:3], whole(row.milli, row.grains)) for row in connection.execute(query)] == projected


def ledger(engines: Engines) -> dict[str, dict[str, int]]:
    with reading(engines) as connection:
        accounts = [REVENUE, *map(receivable, TENANTS)]
        return {account: usage_reads.posted(connection, account, None) for account in accounts}


def deliver(data: st.DataObject, engines: Engines, records: list[UsageRecord], again: list[UsageRecord]) -> None:
    """In some order and some batches."""
    deliveries = data.draw(st.permutations(records + again))
    cuts = data.draw(st.lists(st.integers(0, len(deliveries)), max_size=3).map(sorted))
    accepted = duplicates = 0
    for start, end in zip([0, *cuts], [*cuts, len(deliveries)], strict=True):
        done = post(engines, list(deliveries[start:end]))
        accepted, duplicates = accepted + done.accepted, duplicates + done.duplicates
    assert (accepted, duplicates) == (len(records), len(again))


@settings(settings.get_profile("costly"))
@given(data=st.data())
def test_any_order_and_repetition_of_deliveries_gives_the_same_segments_ledger_and_statements(
    data: st.DataObject, usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    records = data.draw(records_of(usage))
    again = data.draw(st.lists(st.sampled_from(records), max_size=10)) if records else []
    seen = []
    for _ in range(2):
        with fresh_books() as engines:
            change_price(engines)
            deliver(data, engines, records, again)
            assert_sound(engines)
            assert statements(engines) == modelled(records)
            seen.append((segments(engines), ledger(engines), statements(engines)))
            owed = owed_for(records)
            assert -ledger(engines)[REVENUE].get("USD", 0) == owed
            with reading(engines) as connection:
                rows = summaries.summary(connection, Scope(None, None), usage_reads.Window(None, None), ["tenant", "user", "flavor"])
                everything = summaries.summary(connection, Scope(None, None), usage_reads.Window(None, None), [])
            assert sum(row.cost_grains for row in rows) == sum(row.cost_grains for row in everything) == owed
            assert sum(row.leases for row in everything) == len({record.lease for record in records})
    assert seen[0] == seen[1]


@settings(settings.get_profile("costly"))
@given(data=st.data())
def test_corrections_take_back_exactly_what_was_posted(
    data: st.DataObject, usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    records = data.draw(records_of(usage))
    wrong = data.draw(st.lists(st.sampled_from(records), unique=True)) if records else []
    kept = [record for record in records if record not in wrong]
    with fresh_books() as engines:
        change_price(engines)
        post(engines, records)
        before = statements(engines)
        with writing(engines) as connection:
            for record in wrong:
                usage_writes.correct(Books(connection), record.source, record.id, "test", lambda: NOW_NS, "operator")
        after = statements(engines)
        assert_sound(engines)
        present = str(Month.of(NOW_NS))
        assert {key: lines for key, lines in after.items() if key[1] != present} == {
            key: lines for key, lines in before.items() if key[1] != present
        }
        owed = owed_for(kept)
        assert -ledger(engines)[REVENUE].get("USD", 0) == owed
        assert sum(cost for lines in after.values() for *_, cost in lines) == owed
        with reading(engines) as connection:
            rows = summaries.summary(connection, Scope(None, None), usage_reads.Window(None, None), ["user"])
        assert sum(row.cost_grains for row in rows) == owed


@settings(settings.get_profile("costly"))
@given(data=st.data())
def test_what_arrives_after_a_month_was_finalised_is_billed_in_the_next_open_one(
    data: st.DataObject, usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    records = data.draw(records_of(usage))
    late = data.draw(st.lists(st.sampled_from(records), unique=True)) if records else []
    early = [record for record in records if record not in late]
    closed = MONTHS[:3]
    with fresh_books() as engines:
        change_price(engines)
        post(engines, early)
        before = statements(engines)
        with writing(engines) as connection:
            for month in closed:
                Books(connection).finalise("acme", month, NOW_NS)
        post(engines, late)
        after = statements(engines)
        assert_sound(engines)
        for key in before.keys() | after.keys():
            if key[0] == "acme" and key[1] in map(str, closed):
                assert after.get(key) == before.get(key)
            elif key[0] == "globex":
                assert after[key] == modelled(records)[key]
        assert sum(cost for lines in after.values() for *_, cost in lines) == owed_for(records)
        with reading(engines) as connection:
            query = select(schema.usage.c.record_id, schema.usage.c.tenant, schema.segments).join(schema.usage)
            for row in connection.execute(query):
                own = Month.of(row.started_at_ns)
                is_late = row.tenant == "acme" and own in closed and row.record_id in {record.id for record in late}
                assert (row.late, row.period) == (is_late, "2026-12" if is_late else str(own))


def test_a_correction_after_the_present_month_was_finalised_stands_in_the_next(
    usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    with fresh_books() as engines:
        post(engines, [usage("a/1")])
        with writing(engines) as connection:
            books = Books(connection)
            books.finalise("acme", Month.of(NOW_NS), NOW_NS)
            usage_writes.correct(books, "pool", "a/1", "device failed", lambda: NOW_NS, "operator")
        assert_sound(engines)
        found = statements(engines)
    assert [(month, [cost for *_, cost in lines]) for (_, month), lines in found.items()] == [
        ("2026-11", [60 * PRICES["small.64gb"] * 10**9]),
        ("2027-03", [-60 * PRICES["small.64gb"] * 10**9]),
    ]


def test_a_batch_is_one_transaction_with_one_posting_for_each_account_and_period(
    usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    batch = [usage(f"{n}/1", tenant=TENANTS[n % 2], started_at_ns=MONTHS[n % 3].start_ns) for n in range(60)]
    with fresh_books() as engines:
        post(engines, batch)
        with reading(engines) as connection:
            counts = [
                connection.execute(select(func.count()).select_from(table)).scalar_one()
                for table in (schema.transactions, schema.postings, schema.segments)
            ]
        assert counts == [1, 3 * 3, 60]


@pytest.mark.parametrize(
    ("statement", "between"),
    [
        ("UPDATE segments SET grains = grains + 1 WHERE usage_id = 1", "segments and postings"),
        ("UPDATE segments SET transaction_id = 2 WHERE usage_id = 1", "segments and postings"),
        ("UPDATE segments SET period = '2026-12' WHERE usage_id = 1", "segments and postings"),
        ("UPDATE segments SET duration_ns = duration_ns - 1 WHERE usage_id = 1", "usage and segments"),
        ("DELETE FROM segments WHERE usage_id = 1", "usage and segments"),
        ("UPDATE balances SET milli = milli + 1 WHERE account_id = 1", "postings and balances"),
        ("DELETE FROM balances WHERE account_id = 1", "postings and balances"),
        ("UPDATE postings SET grains = grains - 1 WHERE account_id = 1", "debits and credits"),
        ("UPDATE rated SET until_ns = until_ns - 1", "rated and segments"),
        ("UPDATE rated SET until_ns = until_ns + 1", "rated and segments"),
        ("DELETE FROM rated", "rated and segments"),
        ("DELETE FROM rated WHERE flavor = '@model/cpu-dev'", "rated and segments"),
    ],
)
def test_the_check_finds_what_was_falsified(
    usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any], statement: str, between: str
) -> None:
    with fresh_books() as engines:
        post(engines, [usage("a/1"), usage("b/1")])
        post(engines, [usage("c/1")])
        assert_sound(engines)
        with engines.writer.begin() as connection:
            for table in ("segments", "postings"):
                for verb in ("update", "delete"):
                    connection.execute(text(f"DROP TRIGGER {table}_refuse_{verb}"))
            connection.execute(text(statement))
        with reading(engines) as connection:
            assert between in {found.between for found in checks.differences(connection)}


def test_an_unbalanced_transaction_cannot_be_made() -> None:
    month = MONTHS[0]
    with pytest.raises(LedgerError, match="sums to 1 grains of USD"):
        balanced("usage", [Posting("a", month, "USD", 2), Posting("b", month, "USD", -1)])
    with pytest.raises(LedgerError, match="sums to 2 grains of USD"):
        balanced("usage", [Posting("a", month, "USD", 2), Posting("b", month, "EUR", -2)])
    with pytest.raises(LedgerError, match="two postings at least"):
        balanced("usage", [Posting("a", month, "USD", 0)])


def test_a_statement_that_differs_from_the_ledger_is_withheld() -> None:
    line = line_of("usage", "ann", PriceVersion("dev.1gb", "USD", 1, 7, 0, 0, "seed"), 2, 1, 3)
    statement = statement_of("acme", None, MONTHS[0], NOW_NS, [line])
    check_against_ledger(statement, {"USD": 27})
    for posted in ({"USD": 28}, {}, {"USD": 27, "EUR": 1}):
        with pytest.raises(LedgerError, match="withheld"):
            check_against_ledger(statement, posted)


def test_the_same_id_with_another_content_is_refused_and_nothing_of_its_batch_is_written(
    usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    with fresh_books() as engines:
        post(engines, [usage("a/1")])
        books = ledger(engines)
        with pytest.raises(RecordConflict, match=r"pool/a/1 .* duration_ns 60000000000 is stored, 5 arrived") as refusal:
            post(engines, [usage("b/1"), usage("a/1", duration_ns=5)])
        assert "user" not in str(refusal.value)
        with pytest.raises(RecordConflict, match="pool/c/1"):
            post(engines, [usage("c/1"), usage("c/1", user="eve")])
        assert ledger(engines) == books
        assert post(engines, [usage("a/1"), usage("a/1"), usage("a/1", source="other-pool")]) == usage_writes.Accepted(
            1, 2, {Payer("acme", "small.64gb", "USD"): Cost(60 * 10**9, 60 * 10**9 * PRICES["small.64gb"])}
        )


def test_a_record_can_be_corrected_once(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    with fresh_books() as engines:
        post(engines, [usage("a/1")])
        with writing(engines) as connection:
            usage_writes.correct(Books(connection), "pool", "a/1", "device failed", lambda: NOW_NS, "operator")
            with pytest.raises(AlreadyCorrected, match="pool/a/1 was reversed already"):
                usage_writes.correct(Books(connection), "pool", "a/1", "again", lambda: NOW_NS, "operator")
            with pytest.raises(UnknownRecord, match="pool/b/1"):
                usage_writes.correct(Books(connection), "pool", "b/1", "none", lambda: NOW_NS, "operator")
        with reading(engines) as connection:
            page = usage_reads.usage_page(connection, Scope(None, None), usage_reads.Window(None, None), 10, None)
            with pytest.raises(UnknownTenant, match="'umbrella'"):
                standings.check_known(connection, "umbrella")
        assert [charge.corrected_at_ns for charge in page.charges] == [NOW_NS]


def test_sums_beyond_sixty_four_bits_stay_exact(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    """Of costs in the books, and of durations of a few segments that are made absurd."""
    records = [usage(f"{n}/1", duration_ns=10**12 - 1) for n in range(60)]
    with fresh_books() as engines:
        with writing(engines) as connection:
            prices_writes.change_surcharge(Books(connection), "cpu-dev", "USD", 10**12 - 1 - PRICES["small.64gb"], 0, lambda: 0, "operator")
        post(engines, records)
        assert_sound(engines)
        with writing(engines) as connection:
            (row,) = summaries.summary(connection, Scope("acme", None), usage_reads.Window(None, None), ["flavor"])
            assert row.cost_grains == 60 * (10**12 - 1) * (10**12 - 1) > 2**64
            statement = usage_reads.statement(connection, "acme", None, Month(2026, 11), NOW_NS)
            assert statement.totals[0].cost_grains == row.cost_grains
            changed = {"duration_ns": literal(2**62), "position": schema.segments.c.position + 1}
            absurd = select(*(changed.get(column.name, column) for column in schema.segments.c))
            connection.execute(schema.segments.insert().from_select(schema.segments.c.keys(), absurd))
            (row,) = summaries.summary(connection, Scope("acme", None), usage_reads.Window(None, None), ["flavor"])
            assert row.duration_ns == 60 * (2**62 + 10**12 - 1)


def test_a_batch_of_very_long_records_is_bounded_but_one_alone_is_not(
    usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    long = [usage(f"{n}/1", duration_ns=366 * 86_400 * 10**9, started_at_ns=Month(2025, 1).start_ns) for n in range(3)]
    with fresh_books() as engines:
        with pytest.raises(TooLarge, match="20000 hourly segments"):
            post(engines, long)
        assert ledger(engines)[REVENUE] == {}
        assert post(engines, long[:1]).accepted == 1
        assert_sound(engines)


def test_a_transaction_of_absurd_amounts_cannot_be_made() -> None:
    too_much = transfer("a", "b", MONTHS[0], "USD", TRANSACTION_UNITS_MAX * GRAINS_PER_UNIT + 1)
    with pytest.raises(InvalidRequest, match="units of a currency at once"):
        balanced("usage", too_much)


def test_ten_thousand_cells_in_batches_make_one_line_that_equals_their_sum(
    usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    chance = random.Random(7)
    records = [
        usage(f"cell-{n}/1", started_at_ns=Month(2026, 11).start_ns + n * 10**9, duration_ns=chance.randrange(5_000_000, 200_000_001))
        for n in range(10_000)
    ]
    with fresh_books() as engines:
        with writing(engines) as connection:
            october_ns = Month(2026, 10).start_ns
            prices_writes.change_price(Books(connection), "small.64gb", "USD", 2_990_000_000, None, lambda: october_ns, "operator")
        for start in range(0, len(records), 1000):
            post(engines, records[start : start + 1000])
        with reading(engines) as connection:
            (line,) = usage_reads.statement(connection, "acme", None, Month(2026, 11), NOW_NS).lines
    assert line.cost_grains == sum(record.duration_ns for record in records) * 2_990_000_000
    assert (line.leases, line.price_version) == (10_000, 2)
    assert line.amount_minor == round(Fraction(line.cost_grains * 100, GRAINS_PER_UNIT)) == 84
