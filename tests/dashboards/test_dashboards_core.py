"""The parts without I/O: reading events, mirroring the pool, awaiting records, telling browsers; time is given."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from forebay_dashboards.access import Owner
from forebay_dashboards.http.templating import open_environment
from forebay_dashboards.live.browsers import AudienceFull, Browsers
from forebay_dashboards.live.deliveries import AWAITED_MAX, PATIENCE_NS, Deliveries
from forebay_dashboards.live.event_stream import BUFFER_BYTES_MAX, EventParser, EventTooLong, ServerEvent, encode
from forebay_dashboards.live.pool_copy import PoolCopy, Seen, Snapshot
from forebay_dashboards.rows.billing import SummaryRow, UsageRecord
from forebay_dashboards.rows.pool import Device, Lease
from forebay_dashboards.settings import Settings
from forebay_dashboards.tables.spend import Energy, by_tenant, energy, sums
from forebay_dashboards.tables.visible import running
from forebay_service.identity import OPERATE, TENANT, Identity
from hypothesis import given
from hypothesis import strategies as st

MEMBER = Identity("acme-member", "user", "acme", frozenset())
OWNER = Identity("acme-owner", "user", "acme", frozenset({TENANT}))
OPERATOR = Identity("operator", "user", None, frozenset({OPERATE}))
SECOND = 10**9


def lease_row(name: str = "l1", **fields: Any) -> dict[str, Any]:
    return {
        "lease": name, "session": "s1", "tenant": "acme", "user": "acme-member", "flavor": "dev.1gb", "device_model": "null",
        "node": "main", "devices": 1, "span": {"id": "x", "kind": "cell", "label": "digits.ipynb", "cell": 3}, "opened_at_ns": 100 * SECOND,
        "duration_ns": 2 * SECOND, "price_nano_per_hour": 3_600_000, "currency": "USD", **fields,
    }  # fmt: skip


def lease(name: str = "l1", **fields: Any) -> Lease:
    return Lease.model_validate(lease_row(name, **fields))


def record(lease_name: str) -> UsageRecord:
    row = lease_row(lease_name, source="pool", id=lease_name, started_at_ns=0, cost_nano=1)
    return UsageRecord.model_validate(row)


def event(name: str, row: dict[str, Any]) -> ServerEvent:
    return ServerEvent(name, json.dumps(row))


@given(
    st.lists(st.tuples(st.sampled_from(["lease", "session"]), st.text("abc{}:é", min_size=1, max_size=20)), max_size=6), st.integers(1, 7)
)
def test_events_are_read_the_same_however_the_stream_is_cut(events: list[tuple[str, str]], size: int) -> None:
    stream = b": hello\n\n" + b"".join(encode(name, data) for name, data in events)
    parser = EventParser()
    found = [event for start in range(0, len(stream), size) for event in parser.feed(stream[start : start + size])]
    assert [(event.name, event.data) for event in found] == events


def test_lines_may_end_with_carriage_returns_and_data_may_span_lines() -> None:
    assert EventParser().feed(b"data: a\r\ndata: b\r\n\r\n") == [ServerEvent("message", "a\nb")]


def test_a_stream_that_never_ends_an_event_is_given_up() -> None:
    parser = EventParser()
    with pytest.raises(EventTooLong):
        for _ in range(BUFFER_BYTES_MAX // 1000 + 2):
            parser.feed(b"x" * 1000)


def test_the_mirror_follows_a_lease_from_grant_to_close() -> None:
    pool_copy = PoolCopy()
    opened = pool_copy.apply(event("lease", lease_row()), now_ns=5 * SECOND)
    assert opened is not None
    assert (opened.topic, opened.owner, opened.removed) == ("leases", Owner("acme", "acme-member"), False)
    assert [seen.row.lease for seen in pool_copy.leases()] == ["l1"]
    closed = pool_copy.apply(event("lease", lease_row(removed=True)), now_ns=6 * SECOND)
    assert closed is not None
    assert closed.removed
    assert pool_copy.leases() == []


def test_a_lease_grows_older_while_it_is_looked_at() -> None:
    pool_copy = PoolCopy()
    pool_copy.apply(event("lease", lease_row()), now_ns=5 * SECOND)
    shown = running(pool_copy.leases()[0], now_ns=8 * SECOND)
    assert (shown.duration_ns, shown.cost_nano) == (5 * SECOND, 5000)


def test_a_lease_that_nobody_bills_has_no_cost() -> None:
    pool_copy = PoolCopy()
    pool_copy.apply(event("lease", lease_row(price_nano_per_hour=None, currency=None)), now_ns=0)
    assert running(pool_copy.leases()[0], now_ns=SECOND).cost_nano is None


def test_a_snapshot_replaces_everything_and_tells_which_leases_ended_unseen() -> None:
    pool_copy = PoolCopy()
    pool_copy.apply(event("lease", lease_row("gone")), now_ns=0)
    pool_copy.apply(event("lease", lease_row("kept")), now_ns=0)
    ended = pool_copy.replace(Snapshot((lease("kept"), lease("new")), (), ()), now_ns=SECOND)
    assert [row.lease for row in ended] == ["gone"]
    assert [seen.row.lease for seen in pool_copy.leases()] == ["kept", "new"]


def test_what_is_not_about_rows_is_passed_over_and_what_is_garbled_is_an_error() -> None:
    pool_copy = PoolCopy()
    assert pool_copy.apply(ServerEvent("weather", "{}"), 0) is None
    for data in ("{}", "[]", "null", "not json", json.dumps(lease_row(duration_ns=-1))):
        with pytest.raises(ValueError):
            pool_copy.apply(ServerEvent("lease", data), 0)


def test_a_device_belongs_to_nobody() -> None:
    device = Device.model_validate(
        {
            "device": "main/null:0",
            "node": "main",
            "kind": "null",
            "model": "null",
            "memory_bytes": 1,
            "state": "free",
            "residents": ["a", "b"],
        }
    )
    assert device.owner == Owner(None, None)
    assert len(device.residents) == 2


def test_a_record_that_reached_billing_ends_the_wait_for_it_alone() -> None:
    deliveries = Deliveries()
    deliveries.ended(lease("l1"), now_ns=0)
    deliveries.ended(lease("l2", opened_at_ns=50 * SECOND), now_ns=SECOND)
    assert deliveries.since_ns == 50 * SECOND
    arrivals = deliveries.found([record("l2"), record("foreign")], now_ns=3 * SECOND)
    assert [(arrival.waited_ns, arrival.late) for arrival in arrivals] == [(2 * SECOND, False)]
    assert deliveries.since_ns == 100 * SECOND


def test_a_record_that_does_not_come_is_given_up_and_the_page_is_told_all_the_same() -> None:
    deliveries = Deliveries()
    deliveries.ended(lease("l1"), now_ns=0)
    assert deliveries.expired(PATIENCE_NS) == []
    assert [arrival.late for arrival in deliveries.expired(PATIENCE_NS + 1)] == [True]
    assert deliveries.since_ns is None


def test_no_more_leases_are_awaited_than_the_bound() -> None:
    deliveries = Deliveries()
    arrivals = [arrival for number in range(AWAITED_MAX + 3) for arrival in deliveries.ended(lease(f"l{number}"), now_ns=number)]
    assert len(arrivals) == 3
    assert all(arrival.late for arrival in arrivals)


def test_a_change_is_told_to_those_who_may_see_it_and_to_nobody_else() -> None:
    async def scenario() -> None:
        browsers = Browsers(10)
        mine, tenant, operator = browsers.join("usage", MEMBER), browsers.join("tenant", OWNER), browsers.join("operator", OPERATOR)
        elsewhere = browsers.join("usage", OWNER)
        browsers.tell("leases", Owner("acme", "acme-member"))
        browsers.tell("usage", Owner("globex", "globex-owner"))
        assert await mine.changes(0.01) == ["leases"]
        assert await tenant.changes(0.01) == ["leases"]
        assert await operator.changes(0.01) == ["leases", "usage"]
        assert await elsewhere.changes(0.01) == []

    asyncio.run(scenario())


def test_a_browser_that_does_not_read_is_owed_each_topic_once() -> None:
    async def scenario() -> None:
        browsers = Browsers(10)
        listener = browsers.join("operator", OPERATOR)
        for _ in range(10_000):
            browsers.tell("leases", Owner("acme", "acme-member"))
        browsers.tell_all("prices")
        assert await listener.changes(0.01) == ["leases", "prices"]
        assert await listener.changes(0.01) == []

    asyncio.run(scenario())


def test_the_audience_has_a_bound_and_a_place_that_is_left_is_free() -> None:
    async def scenario() -> None:
        browsers = Browsers(1)
        listener = browsers.join("usage", MEMBER)
        with pytest.raises(AudienceFull):
            browsers.join("usage", MEMBER)
        browsers.leave(listener)
        browsers.join("usage", MEMBER)

    asyncio.run(scenario())


def summary(tenant: str, user: str, currency: str, cost_nano: int) -> SummaryRow:
    return SummaryRow(tenant=tenant, user=user, flavor="dev.1gb", currency=currency, duration_ns=10, cost_nano=cost_nano, leases=1)


def test_different_currencies_are_never_added() -> None:
    rows = [summary("acme", "a", "USD", 1), summary("acme", "b", "EUR", 2), summary("acme", "c", "USD", 3)]
    assert [(row.currency, row.cost_nano, row.leases) for row in sums(rows)] == [("EUR", 2, 1), ("USD", 4, 2)]


def test_energy_says_of_which_part_of_the_time_it_is_and_co2_is_not_half_told() -> None:
    row = summary("acme", "a", "USD", 1)
    told = row.model_copy(update={"energy_mj": 500, "energy_duration_ns": 10, "co2_mg": 3})
    assert energy([row]) is energy([]) is None
    assert energy([told, told, row, row]) == Energy(1_000, 6, 500)
    assert energy([told, told.model_copy(update={"co2_mg": None})]) == Energy(1_000, None, 1_000)


def test_spend_is_grouped_by_tenant() -> None:
    groups = by_tenant([summary("globex", "b", "USD", 5), summary("acme", "z", "USD", 1), summary("acme", "a", "USD", 2)])
    assert [(group.tenant, [row.cost_nano for row in group.rows], group.sums[0].cost_nano) for group in groups] == [
        ("acme", [1, 2], 3),
        ("globex", [5], 5),
    ]


@pytest.mark.parametrize(
    ("price", "currency", "said"), [(None, None, "not billed"), (None, "KRW", "no price in KRW"), (3600 * 10**9, "KRW", "at 3600.00 KRW/h")]
)
def test_a_lease_says_what_it_costs_or_why_it_does_not(price: int | None, currency: str | None, said: str) -> None:
    page = open_environment(Settings(prefix="/", hub_token="x", pool_url="http://pool", billing_url="http://billing")).get_template("macros.html").module
    run = running(Seen(lease(price_nano_per_hour=price, currency=currency), 0), 0)
    assert said in page.ticking_cost(run)  # type: ignore[attr-defined] # a macro
