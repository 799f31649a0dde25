"""Parked bytes: rated at ingest, in ledger, statements, usage and invoices, whatever the order in which they come."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import pytest
from forebay_billing.errors import AlreadyCorrected, RecordConflict
from forebay_billing.ledger.access import Scope
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.postings import REVENUE, receivable
from forebay_billing.model.money import GRAINS_PER_LAST, GRAINS_PER_NANO
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED, UsageRecord
from forebay_billing.reads import checks
from forebay_billing.reads import invoices as invoices_reads
from forebay_billing.reads import usage as usage_reads
from forebay_billing.reads.invoices import Cell, Issuer
from forebay_billing.rules.invoices import Draft, InvoiceLine
from forebay_billing.tables.engines import Engines, reading, writing
from forebay_billing.writes import invoices
from forebay_billing.writes import prices as prices_writes
from forebay_billing.writes import usage as usage_writes
from forebay_billing.writes.invoices import Conditions
from hypothesis import given, settings
from hypothesis import strategies as st
from running_billing import Running
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

NOVEMBER = Month(2026, 11)
NOW_NS = NOVEMBER.start_ns + 20 * 86_400 * 10**9
HOUR_NS = 3_600 * 10**9
GIB = 2**30
PRICES = ((NOVEMBER.start_ns + 2 * HOUR_NS + 7, 1_000_000_007), (NOVEMBER.start_ns + 5 * HOUR_NS + 13, 333))
"""From when, and how much a GiB costs in an hour, in nano-units; before the first it costs nothing."""


def set_prices(engines: Engines) -> None:
    with writing(engines) as connection:
        for valid_from_ns, price in PRICES:
            prices_writes.change_parked_price(Books(connection), "USD", price, valid_from_ns, lambda: 0, "operator")


def post(engines: Engines, records: list[UsageRecord]) -> usage_writes.Accepted:
    with writing(engines) as connection:
        return usage_writes.post_usage(Books(connection), records, lambda tenant: "USD", lambda: NOW_NS)


def cost_of(record: UsageRecord) -> int:
    """In grains: each piece within an hour and under a price is rounded half-even."""
    cuts = {valid_from_ns for valid_from_ns, _ in PRICES} | {NOVEMBER.start_ns + hour * HOUR_NS for hour in range(200)}
    end_ns = record.started_at_ns + record.duration_ns
    moments = [record.started_at_ns, *sorted(cut for cut in cuts if record.started_at_ns < cut < end_ns), end_ns]
    total = 0
    for start, stop in itertools.pairwise(moments):
        price = max((found for found in PRICES if found[0] <= start), default=(0, 0))[1]
        total += round(Fraction((record.parked_bytes or 0) * (stop - start) * price * 10**9, GIB * HOUR_NS)) * GRAINS_PER_LAST
    return total


@st.composite
def some_records(draw: st.DrawFn, usage: Callable[..., UsageRecord]) -> list[UsageRecord]:
    """Parked bytes, and leases among them."""
    found = []
    for number in range(draw(st.integers(0, 8))):
        start = NOVEMBER.start_ns + draw(st.integers(0, 8 * HOUR_NS))
        record = usage(f"s.p{number}/1", user=draw(st.sampled_from(["ann", "bob"])), started_at_ns=start)
        record = replace(record, duration_ns=draw(st.one_of(st.integers(0, 3), st.integers(0, 9 * HOUR_NS))))
        if draw(st.booleans()):
            record = replace(record, flavor=PARKED, parked_bytes=draw(st.one_of(st.integers(1, 3), st.integers(1, 2**44))))
        found.append(record)
    return found


def assert_sound(engines: Engines) -> None:
    with reading(engines) as connection:
        assert checks.differences(connection) == []


def told(engines: Engines) -> Any:
    """All that people see of it, whatever the order in which it came."""
    with reading(engines) as connection:
        statement = usage_reads.statement(connection, "acme", None, NOVEMBER, NOW_NS)
        drafts = invoices_reads.drafts(connection, "acme", NOVEMBER)
        page = usage_reads.usage_page(connection, Scope(None, None), usage_reads.Window(None, None), 100, None)
        charges = sorted((charge.record.id, charge.cost_grains, charge.parked) for charge in page.charges)
        return statement, drafts, charges, usage_reads.posted(connection, REVENUE, None)


@settings(settings.get_profile("costly"))
@given(data=st.data())
def test_any_order_and_repetition_gives_the_same_amounts(
    data: st.DataObject, usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    records = data.draw(some_records(usage))
    again = data.draw(st.lists(st.sampled_from(records), max_size=6)) if records else []
    seen = []
    for _ in range(2):
        with fresh_books() as engines:
            set_prices(engines)
            deliveries = data.draw(st.permutations(records + again))
            cut = data.draw(st.integers(0, len(deliveries)))
            done = [post(engines, deliveries[:cut]), post(engines, deliveries[cut:])]
            assert sum(one.accepted for one in done) == len(records)
            assert_sound(engines)
            seen.append(told(engines))
    assert seen[0] == seen[1]
    statement, _, charges, _ = seen[0]
    parked = [record for record in records if record.parked_bytes is not None]
    costs = {id: cost for id, cost, _ in charges}
    assert {record.id: costs[record.id] for record in parked} == {record.id: cost_of(record) for record in parked}
    byte_ns: dict[str, int] = defaultdict(int)
    for record in parked:
        byte_ns[record.user] += (record.parked_bytes or 0) * record.duration_ns
    lines = [line for line in statement.lines if line.flavor == PARKED]
    assert sum(line.cost_grains for line in lines) == sum(map(cost_of, parked))
    for user, amount in byte_ns.items():
        assert sum(line.byte_ns for line in lines if line.user == user) == amount


def parked(usage: Callable[..., UsageRecord], **changes: Any) -> UsageRecord:
    """20 GiB, for three hours of the first price."""
    start = NOVEMBER.start_ns + 2 * HOUR_NS + 7
    whole = {"id": "s.p1/1", "flavor": PARKED, "parked_bytes": 20 * GIB, "started_at_ns": start, "duration_ns": 3 * HOUR_NS}
    return usage(**whole | changes)


def test_an_invoice_has_a_line_for_it_that_drills_down_to_its_records(
    usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]
) -> None:
    with fresh_books() as engines:
        set_prices(engines)
        post(engines, [parked(usage), usage("lease/1")])
        with reading(engines) as connection:
            (draft,) = invoices_reads.drafts(connection, "acme", NOVEMBER)
        line = next(line for line in draft.lines if line.kind == "parked")
        assert line.label == "Parked memory for acme-member: 60.000000 GiB·h"
        assert (line.cost_grains, line.amount_minor) == (60 * 1_000_000_007 * GRAINS_PER_NANO, 6000)
        assert draft.net_minor == sum(one.amount_minor for one in draft.lines)
        with reading(engines) as connection:
            found, after = invoices_reads.cells(connection, draft, line, 10, 0)
        assert ([(cell.record_id, cell.cost_grains) for cell in found], after) == ([("s.p1/1", line.cost_grains)], None)
        with writing(engines) as connection:
            conditions, after_ns = Conditions(Issuer("Forebay")), NOVEMBER.end_ns
            (made,) = invoices.finalise(Books(connection), "acme", NOVEMBER, conditions, "operator", after_ns)
        assert made.draft.lines == draft.lines
        parked_line = next(one for one in made.draft.lines if one.kind == "parked")
        with reading(engines) as connection:
            (cell,), rest = invoices_reads.cells(connection, made.draft, parked_line, 9, 0)
        assert (cell.record_id, cell.duration_ns, cell.cost_grains) == ("s.p1/1", 3 * HOUR_NS, line.cost_grains)
        assert (cell.parked_bytes, rest) == (20 * GIB, None)
        assert_sound(engines)


def all_cells(connection: Connection, draft: Draft, line: InvoiceLine) -> list[Cell]:
    """Page by page."""
    found, after = invoices_reads.cells(connection, draft, line, 2, 0)
    while after is not None:
        more, after = invoices_reads.cells(connection, draft, line, 2, after)
        found += more
    return found


def test_its_lines_lead_to_their_cells_and_no_others(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    first_ns, second_ns = (valid_from_ns for valid_from_ns, _ in PRICES)

    def stretch(number: int, start_ns: int = first_ns, **changes: Any) -> UsageRecord:
        name = f"s.p{number}"
        return parked(usage, started_at_ns=start_ns, duration_ns=HOUR_NS, id=f"{name}/1", lease=name, **changes)

    with fresh_books() as engines:
        set_prices(engines)
        records = [stretch(1), stretch(2), stretch(3), stretch(4, user="acme-owner"), stretch(5, second_ns), stretch(6, tenant="globex")]
        post(engines, [*records, usage("lease/1")])
        with writing(engines) as connection:
            usage_writes.correct(Books(connection), "pool", "s.p3/1", "test", lambda: NOW_NS, "operator")
        with reading(engines) as connection:
            (draft,) = invoices_reads.drafts(connection, "acme", NOVEMBER)
            lines = {line.key: line for line in draft.lines if line.parked is not None}
            found = {key: all_cells(connection, draft, line) for key, line in lines.items()}
        ids = sorted(sorted(cell.record_id for cell in cells) for cells in found.values())
        assert ids == [["s.p1/1", "s.p2/1", "s.p3/1"], ["s.p3/1"], ["s.p4/1"], ["s.p5/1"]]
        for key, line in lines.items():
            assert line.parked is not None
            assert sum(cell.cost_grains for cell in found[key]) == line.cost_grains
            assert sum(cell.duration_ns * (cell.parked_bytes or 0) for cell in found[key]) == line.parked.byte_ns


def test_without_a_price_it_is_kept_and_costs_nothing(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    with fresh_books() as engines:
        done = post(engines, [parked(usage)])
        assert [(payer.tenant, cost.grains) for payer, cost in done.costs.items()] == [("acme", 0)]
        assert_sound(engines)
        statement, drafts, charges, _ = told(engines)
        (line,) = statement.lines
        assert (line.byte_ns, line.cost_grains, line.price_version) == (20 * GIB * 3 * HOUR_NS, 0, 0)
        assert drafts == []
        assert [cost for _, cost, _ in charges] == [0]


def test_no_price_changes_what_was_rated_without_one(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    with fresh_books() as engines:
        record = parked(usage)
        post(engines, [record])
        with writing(engines) as connection:
            found = prices_writes.change_parked_price(Books(connection), "USD", 5, None, lambda: 0, "operator")
        assert found.valid_from_ns == record.started_at_ns + record.duration_ns


def test_a_correction_takes_it_back_once(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    with fresh_books() as engines:
        set_prices(engines)
        post(engines, [parked(usage)])
        with writing(engines) as connection:
            usage_writes.correct(Books(connection), "pool", "s.p1/1", "wrong", lambda: NOW_NS, "operator")
        with writing(engines) as connection, pytest.raises(AlreadyCorrected):
            usage_writes.correct(Books(connection), "pool", "s.p1/1", "again", lambda: NOW_NS, "operator")
        assert_sound(engines)
        with reading(engines) as connection:
            assert usage_reads.posted(connection, receivable("acme"), None) == {"USD": 0}
            kinds = [line.kind for line in usage_reads.statement(connection, "acme", None, NOVEMBER, NOW_NS).lines]
        assert sorted(kinds) == ["correction", "usage"]


def test_the_same_name_with_other_bytes_is_refused(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    with fresh_books() as engines:
        post(engines, [parked(usage)])
        with pytest.raises(RecordConflict, match="parked_bytes"):
            post(engines, [parked(usage, parked_bytes=1)])


def test_a_segment_that_is_missing_or_changed_is_found(usage: Callable[..., UsageRecord], fresh_books: Callable[[], Any]) -> None:
    with fresh_books() as engines:
        set_prices(engines)
        post(engines, [parked(usage)])
        with writing(engines) as connection:
            with pytest.raises(DBAPIError, match="append-only"):
                connection.execute(text("UPDATE parked_segments SET milli = milli + 1"))
        with writing(engines) as connection:
            connection.execute(text("DROP TRIGGER parked_segments_refuse_delete"))
            connection.execute(text("DELETE FROM parked_segments WHERE position = 0"))
        with reading(engines) as connection:
            assert {found.between for found in checks.differences(connection)} == {"segments and postings", "usage and segments"}


def test_the_service_takes_it_and_shows_it_in_gib_hours(running: Running, usage: Callable[..., UsageRecord]) -> None:
    first = running.request("operator", "PUT", "api/parked-prices/USD", json={"price_nano_per_gib_hour": 10**9, "valid_from_ns": 0})
    assert first.status_code == 200, first.text
    assert running.post_usage(parked(usage)).json() == {"accepted": 1, "duplicates": 0}
    assert running.post_usage(parked(usage)).json() == {"accepted": 0, "duplicates": 1}
    (record,) = running.get("acme-member", "api/usage").json()["records"]
    assert (record["gib_hours"], record["cost_exact"], record["parked_bytes"]) == ("60.000000", "60." + 18 * "0", 20 * GIB)
    (line,) = running.get("acme-owner", "api/statement", month="2026-11").json()["lines"]
    assert (line["flavor"], line["gib_hours"], line["amount"]) == (PARKED, "60.000000", "60.00")
    page = running.get("acme-owner", "api/statement", month="2026-11", format="html").text
    assert "Parked memory" in page and "60.000000" in page
    assert "60.00" in running.get("acme-owner", "api/statement", month="2026-11", format="csv").text
    assert running.get("operator", "api/check").json() == {"differences": []}


PARKED_NANO = 60 * 10**9
"""What :func:`parked` costs at one unit for a GiB in an hour."""
LEASED_NANO = round(2 * 10**9 / 60)


@pytest.fixture
def billed(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> Any:
    """A lease of a minute, and parked bytes that cost far more."""
    body = {"price_nano_per_gib_hour": 10**9, "valid_from_ns": 0}
    assert running_anywhere.request("operator", "PUT", "api/parked-prices/USD", json=body).status_code == 200
    assert running_anywhere.post_usage(parked(usage), usage("lease/1")).json() == {"accepted": 2, "duplicates": 0}
    return running_anywhere


def test_summaries_count_what_it_costs_but_no_device_time(billed: Any) -> None:
    (row,) = billed.get("acme-owner", "/api/summary", by="tenant").json()
    assert (row["cost_nano"], row["parked_nano"]) == (PARKED_NANO + LEASED_NANO, PARKED_NANO)
    assert (row["duration_ns"], row["leases"]) == (60 * 10**9, 1)
    rows = {row["flavor"]: row for row in billed.get("acme-member", "/api/summary", by="flavor").json()}
    assert {flavor: (row["cost_nano"], row["leases"]) for flavor, row in rows.items()} == {
        PARKED: (PARKED_NANO, 0),
        "small.64gb": (LEASED_NANO, 1),
    }
    body = {"source": "pool", "id": "s.p1/1", "reason": "test"}
    assert billed.request("operator", "POST", "/api/corrections", json=body).status_code == 200
    (row,) = billed.get("acme-owner", "/api/summary", by="tenant").json()
    assert (row["cost_nano"], row["parked_nano"]) == (LEASED_NANO, 0)


@pytest.mark.parametrize("first", [True, False])
def test_budgets_of_tenant_user_and_notebook_count_it(billed: Any, usage: Callable[..., UsageRecord], first: bool) -> None:
    """Those that were set before it came, and those that are set after; and what is taken back is given back."""
    whose: list[dict[str, str]] = [{}, {"user": "acme-member"}, {"user": "acme-member", "notebook": "digits.ipynb"}]
    if first:
        for who in whose:
            billed.request("operator", "PUT", "/api/budgets", json={"tenant": "acme", "limit_nano": 10**12, **who})
        more = replace(parked(usage), id="s.p2/1", started_at_ns=parked(usage).started_at_ns + 3 * HOUR_NS)
        assert billed.post_usage(more).status_code == 200
    else:
        for who in whose:
            billed.request("operator", "PUT", "/api/budgets", json={"tenant": "acme", "limit_nano": 10**12, **who})
    expected = (2 if first else 1) * PARKED_NANO + LEASED_NANO
    assert [row["spent_nano"] for row in billed.get("operator", "/api/budgets").json()] == [expected] * 3
    body = {"source": "pool", "id": "s.p1/1", "reason": "test"}
    assert billed.request("operator", "POST", "/api/corrections", json=body).status_code == 200
    assert [row["spent_nano"] for row in billed.get("operator", "/api/budgets").json()] == [expected - PARKED_NANO] * 3


def test_previews_and_plans_count_it(billed: Any) -> None:
    billed.clock.now_ns = NOVEMBER.end_ns + HOUR_NS

    def ask(**body: Any) -> Any:
        (row,) = billed.request("operator", "POST", "/api/preview", json=body).json()["rows"]
        return row

    row = ask()
    assert row["present"] == row["proposed"]
    assert row["present"]["list_nano"] == PARKED_NANO + LEASED_NANO
    text = "parked: {USD: [{nano_per_gib_hour: 1500000000}]}"
    assert ask(price_list=text)["difference_nano"] == PARKED_NANO // 2
    plan = {"currency": "USD", "discount_bps": 5000, "free_nano": 20 * 10**9, "commitment_nano": 30 * 10**9}
    row = ask(plans={"acme": plan})
    made = {one["kind"]: one["amount_nano"] for one in row["proposed"]["adjustments"]}
    assert made == {"free_money": -20 * 10**9, "discount": -20_016_666_667, "commitment": 9_983_333_333}
    put = billed.request("operator", "PUT", "/api/plans/acme", json={**plan, "valid_from": "2026-11"})
    assert put.status_code == 200, put.text
    (draft,) = billed.get("operator", "/api/drafts", tenant="acme", month="2026-11").json()
    assert [line["amount"] for line in draft["lines"] if line["kind"] in ("free_money", "discount")] == ["-20.00", "-20.02"]
    body = {"tenant": "acme", "month": "2026-11"}
    (invoice,) = billed.request("operator", "POST", "/api/invoices", json=body).json()
    plan_line = next(line for line in draft["lines"] if line["kind"] == "discount")
    found = billed.get("operator", f"/api/invoices/{invoice['number']}/lines/{plan_line['key']}").json()
    assert [cell["record_id"] for cell in found["cells"]] == ["s.p1/1", "lease/1"]
    assert billed.get("operator", "/api/check").json() == {"differences": []}


@pytest.mark.parametrize("changes", [{"flavor": PARKED}, {"parked_bytes": 5}, {"flavor": PARKED, "parked_bytes": 0}])
def test_a_record_is_of_parked_bytes_or_of_a_lease(running: Running, usage: Callable[..., UsageRecord], changes: dict[str, Any]) -> None:
    body = {"records": [asdict(usage()) | changes]}
    assert running.request("pool", "POST", "api/usage", json=body).status_code == 400
    assert running.get("operator", "api/usage").json()["records"] == []
