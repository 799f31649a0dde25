"""Properties of the books, on a real SQLite database, against a slow and obvious model."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from forebay_billing import journal, queries
from forebay_billing.access import Scope
from forebay_billing.engines import Engines, reading, writing
from forebay_billing.errors import AlreadyCorrected, LedgerError, RecordConflict, UnknownRecord, UnknownTenant
from forebay_billing.ledger import REVENUE, balanced, balances, receivable, reversal_transaction, usage_transaction
from forebay_billing.months import Month
from forebay_billing.prices import seed_prices
from forebay_billing.statements import check_against_ledger, line_of, statement_of
from forebay_billing.types import Posting, PriceVersion, UsageRecord
from hypothesis import given, settings
from hypothesis import strategies as st

NOW_NS = Month(2027, 2).start_ns
MONTHS = [Month(2026, 9), Month(2026, 10), Month(2026, 11), Month(2026, 12), Month(2027, 1), Month(2027, 2), Month(2027, 3)]
TENANTS = ("acme", "globex")
CHANGE_NS = Month(2026, 11).start_ns + 14 * 86_400 * 10**9
CHANGED_PRICE = 777_777
"""What small.64gb costs from CHANGE_NS on, in its version 2."""
PRICES = {price.flavor: price.price_nano_per_second for price in seed_prices(0)}


def records_of(usage: Callable[..., UsageRecord]) -> st.SearchStrategy[list[UsageRecord]]:
    """Lists of records with distinct ids, many of them across a month's end."""
    near_a_border = st.builds(
        lambda month, offset: month.end_ns + offset, st.sampled_from(MONTHS[1:4]), st.integers(-(40 * 86_400 * 10**9), 10**9)
    )
    record = st.builds(
        lambda tenant, user, flavor, start, duration, lease: usage(
            tenant=tenant, user=user, flavor=flavor, started_at_ns=start, duration_ns=duration, lease=f"lease-{lease}"
        ),
        st.sampled_from(TENANTS),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(["dev.1gb", "small.64gb", "48xlarge.24576gb"]),
        near_a_border,
        st.one_of(st.integers(0, 10**9), st.integers(0, 70 * 86_400 * 10**9)),
        st.integers(0, 5),
    )
    return st.lists(record, max_size=12).map(lambda found: [replace(one, id=f"record-{n}") for n, one in enumerate(found)])


def change_price(engines: Engines) -> None:
    with writing(engines) as connection:
        journal.change_price(connection, "small.64gb", "USD", CHANGED_PRICE, None, lambda: CHANGE_NS, "operator")


def rate(record: UsageRecord) -> tuple[int, int]:
    """Version and price of a record."""
    changed = record.flavor == "small.64gb" and record.started_at_ns >= CHANGE_NS
    return (2, CHANGED_PRICE) if changed else (1, PRICES[record.flavor])


def post(engines: Engines, records: list[UsageRecord]) -> journal.Accepted:
    with writing(engines) as connection:
        return journal.post_usage(connection, records, lambda tenant: "USD", lambda: NOW_NS)


def statements(engines: Engines) -> dict[tuple[str, str], Any]:
    found = {}
    with reading(engines) as connection:
        for tenant in TENANTS:
            for month in MONTHS:
                statement = queries.statement(connection, tenant, None, month, NOW_NS)
                if statement.lines:
                    found[tenant, str(month)] = [
                        (line.user, line.flavor, line.price_version, line.duration_ns, line.cost_atto) for line in statement.lines
                    ]
    return found


def modelled(records: list[UsageRecord]) -> dict[tuple[str, str], Any]:
    """The same by walking from midnight to midnight."""
    used: dict[tuple[str, str], dict[tuple[str, str, int, int], int]] = defaultdict(lambda: defaultdict(int))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    day_ns = 86_400 * 10**9
    for record in records:
        at_ns, left_ns = record.started_at_ns, record.duration_ns
        while True:
            step_ns = min(left_ns, day_ns - at_ns % day_ns)
            month = (epoch + timedelta(days=at_ns // day_ns)).strftime("%Y-%m")
            used[record.tenant, month][record.user, record.flavor, *rate(record)] += step_ns
            at_ns, left_ns = at_ns + step_ns, left_ns - step_ns
            if left_ns == 0:
                break
    return {
        key: [(user, flavor, version, used_ns, used_ns * price) for (user, flavor, version, price), used_ns in sorted(lines.items())]
        for key, lines in used.items()
    }


def ledger(engines: Engines) -> dict[str, dict[str, int]]:
    with reading(engines) as connection:
        accounts = [REVENUE, *map(receivable, TENANTS)]
        return {account: queries.posted(connection, account, None) for account in accounts}


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_order_and_repetition_of_deliveries_gives_the_same_books(
    data: st.DataObject, usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    records = data.draw(records_of(usage))
    again = data.draw(st.lists(st.sampled_from(records), max_size=10)) if records else []
    deliveries = data.draw(st.permutations(records + again))
    cuts = data.draw(st.lists(st.integers(0, len(deliveries)), max_size=3).map(sorted))
    with fresh_books() as engines:
        change_price(engines)
        accepted = duplicates = 0
        for start, end in zip([0, *cuts], [*cuts, len(deliveries)], strict=True):
            done = post(engines, list(deliveries[start:end]))
            accepted, duplicates = accepted + done.accepted, duplicates + done.duplicates
        assert (accepted, duplicates) == (len(records), len(again))
        assert statements(engines) == modelled(records)
        books = ledger(engines)
        assert sum(sums.get("USD", 0) for sums in books.values()) == 0
        owed = sum(record.duration_ns * rate(record)[1] for record in records)
        assert -books[REVENUE].get("USD", 0) == owed
        with reading(engines) as connection:
            rows = queries.summary(connection, Scope(None, None), queries.Window(None, None), ["tenant", "user", "flavor"])
            everything = queries.summary(connection, Scope(None, None), queries.Window(None, None), [])
        assert sum(row.cost_atto for row in rows) == sum(row.cost_atto for row in everything) == owed
        assert sum(row.leases for row in everything) == len({record.lease for record in records})


@settings(max_examples=20, deadline=None)
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
                journal.correct(connection, record.source, record.id, "test", lambda: NOW_NS, "operator")
        after = statements(engines)
        present = str(Month.of(NOW_NS))
        assert {key: lines for key, lines in after.items() if key[1] != present} == {
            key: lines for key, lines in before.items() if key[1] != present
        }
        owed = sum(record.duration_ns * rate(record)[1] for record in kept)
        assert -ledger(engines)[REVENUE].get("USD", 0) == owed
        assert sum(cost for lines in after.values() for *_, cost in lines) == owed
        with reading(engines) as connection:
            rows = queries.summary(connection, Scope(None, None), queries.Window(None, None), ["user"])
        assert sum(row.cost_atto for row in rows) == owed


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_transaction_sums_to_zero_in_the_whole_and_in_each_month(data: st.DataObject, usage: Callable[..., UsageRecord]) -> None:
    for record in data.draw(records_of(usage)):
        price = PriceVersion(record.flavor, "USD", 1, PRICES[record.flavor], 0, 0, "seed")
        entry = usage_transaction(record, price)
        assert balances(entry.postings) == {"USD": 0}
        for month in {posting.month for posting in entry.postings}:
            assert balances(posting for posting in entry.postings if posting.month == month) == {"USD": 0}
        undone = reversal_transaction(record, price, MONTHS[-1])
        assert balances(posting for posting in (*entry.postings, *undone.postings) if posting.account != REVENUE) == {"USD": 0}


def test_an_unbalanced_transaction_cannot_be_made() -> None:
    month = MONTHS[0]
    with pytest.raises(LedgerError, match="sums to 1 atto-units of USD"):
        balanced("usage", [Posting("a", month, "USD", 2), Posting("b", month, "USD", -1)])
    with pytest.raises(LedgerError, match="sums to 2 atto-units of USD"):
        balanced("usage", [Posting("a", month, "USD", 2), Posting("b", month, "EUR", -2)])
    with pytest.raises(LedgerError, match="two postings at least"):
        balanced("usage", [Posting("a", month, "USD", 0)])


def test_a_statement_that_differs_from_the_ledger_is_withheld() -> None:
    line = line_of("usage", "ann", PriceVersion("dev.1gb", "USD", 1, 7, 0, 0, "seed"), 0, 1, 3)
    statement = statement_of("acme", None, MONTHS[0], NOW_NS, [line])
    check_against_ledger(statement, {"USD": 21})
    for posted in ({"USD": 22}, {}, {"USD": 21, "EUR": 1}):
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
        assert post(engines, [usage("a/1"), usage("a/1"), usage("a/1", source="other-pool")]) == journal.Accepted(
            1, 2, {"USD": 60 * 10**9 * PRICES["small.64gb"]}
        )


def test_a_record_can_be_corrected_once(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    with fresh_books() as engines:
        post(engines, [usage("a/1")])
        with writing(engines) as connection:
            journal.correct(connection, "pool", "a/1", "device failed", lambda: NOW_NS, "operator")
            with pytest.raises(AlreadyCorrected, match="pool/a/1 was reversed already"):
                journal.correct(connection, "pool", "a/1", "again", lambda: NOW_NS, "operator")
            with pytest.raises(UnknownRecord, match="pool/b/1"):
                journal.correct(connection, "pool", "b/1", "none", lambda: NOW_NS, "operator")
        with reading(engines) as connection:
            page = queries.usage_page(connection, Scope(None, None), queries.Window(None, None), 10, None)
            with pytest.raises(UnknownTenant, match="'umbrella'"):
                queries.check_tenant(connection, "umbrella")
        assert [charge.corrected_at_ns for charge in page.charges] == [NOW_NS]


def test_sums_beyond_sixty_four_bits_stay_exact(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    longest = queries.USAGE_DURATION_NS_MAX
    records = [usage(f"{n}/1", duration_ns=longest, started_at_ns=Month(2025, 1).start_ns, flavor="48xlarge.24576gb") for n in range(600)]
    assert 600 * longest > 2**64
    with fresh_books() as engines:
        post(engines, records)
        with reading(engines) as connection:
            (row,) = queries.summary(connection, Scope("acme", None), queries.Window(None, None), ["flavor"])
            statement = queries.statement(connection, "acme", None, Month(2025, 6), NOW_NS)
        assert row.duration_ns == 600 * longest
        assert row.cost_atto == 600 * longest * PRICES["48xlarge.24576gb"]
        assert statement.totals[0].cost_atto == 600 * 30 * 86_400 * 10**9 * PRICES["48xlarge.24576gb"]


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
            journal.change_price(connection, "small.64gb", "USD", 830_556, None, lambda: Month(2026, 10).start_ns, "operator")
        for start in range(0, len(records), 1000):
            post(engines, records[start : start + 1000])
        with reading(engines) as connection:
            (line,) = queries.statement(connection, "acme", None, Month(2026, 11), NOW_NS).lines
    assert line.cost_atto == sum(record.duration_ns for record in records) * 830_556
    assert (line.leases, line.price_version) == (10_000, 2)
    assert line.amount_minor == round(Fraction(line.cost_atto, 10**16)) == 84
