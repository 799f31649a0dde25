"""Holds: whatever is said of a lease, in whatever order and how often, nothing stays held, and what is owed is what the records cost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import pytest
from forebay_billing import service as services
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.postings import REVENUE, receivable
from forebay_billing.model.money import whole
from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from forebay_billing.reads import checks
from forebay_billing.reads import usage as usage_reads
from forebay_billing.rules.holds import HOLDS, Heartbeat, Terms, held
from forebay_billing.tables import schema
from forebay_billing.tables.engines import Engines, open_engines, reading, writing
from forebay_billing.writes import holds
from forebay_billing.writes import prices as prices_writes
from forebay_billing.writes import usage as usage_writes
from hypothesis import given, settings
from hypothesis import strategies as st
from running_billing import Running
from sqlalchemy import select, text

SECOND = 10**9
HOUR = 3600 * SECOND
NOW_NS = Month(2026, 11).start_ns + 20 * 24 * HOUR
PERIOD_NS = 5 * SECOND
TERMS = Terms(60 * SECOND, 300 * SECOND)
PRICE = 2_000_000_000
"""What a second of small.64gb costs."""
Usage = Callable[..., UsageRecord]


class Payments:
    """The books, and what happens to them at a moment."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.now_ns = NOW_NS

    def beat(self, *leases: UsageRecord, period_ns: int = PERIOD_NS) -> holds.Reserved:
        with writing(self.engines) as connection:
            heartbeat = Heartbeat("pool", period_ns, tuple(replace(lease, close_reason="open") for lease in leases))
            return holds.beat(Books(connection), heartbeat, lambda tenant: "USD", lambda: self.now_ns, TERMS)

    def post(self, *records: UsageRecord) -> usage_writes.Accepted:
        with writing(self.engines) as connection:
            return usage_writes.post_usage(Books(connection), records, lambda tenant: "USD", lambda: self.now_ns)

    def expire(self) -> int:
        with writing(self.engines) as connection:
            return holds.expire(Books(connection), self.now_ns)

    def balance(self, account: str) -> int:
        with reading(self.engines) as connection:
            return usage_reads.posted(connection, account, None).get("USD", 0)

    def kinds(self) -> list[str]:
        with reading(self.engines) as connection:
            return list(connection.execute(select(schema.transactions.c.kind).order_by(schema.transactions.c.id)).scalars())

    def check(self) -> None:
        with reading(self.engines) as connection:
            assert checks.differences(connection) == []


@pytest.fixture
def desk(migrated_url: str) -> Any:
    engines = open_engines(migrated_url, 2)
    with writing(engines) as connection:
        prices_writes.seed(Books(connection), NOW_NS)
    yield Payments(engines)
    engines.dispose()


def test_a_lease_holds_what_it_costs_until_the_next_heartbeat_and_a_margin_beyond(desk: Payments, usage: Usage) -> None:
    lease = usage(duration_ns=10 * SECOND)
    assert desk.beat(lease) == holds.Reserved(new=1, longer=0)
    assert desk.balance(held("acme")) == -desk.balance(HOLDS) == (10 + 5 + 60) * SECOND * PRICE
    assert desk.beat(replace(lease, duration_ns=30 * SECOND)) == holds.Reserved(0, 0)
    assert desk.beat(replace(lease, duration_ns=41 * SECOND)) == holds.Reserved(new=0, longer=1)
    assert desk.balance(held("acme")) == (41 + 5 + 60) * SECOND * PRICE
    desk.post(replace(lease, duration_ns=43 * SECOND))
    assert (desk.balance(held("acme")), desk.balance(receivable("acme"))) == (0, 43 * SECOND * PRICE)
    assert desk.kinds() == ["reserve", "reserve", "usage", "post"]
    desk.check()


def test_a_hold_knows_surcharges_and_prices_that_change_while_it_lasts(desk: Payments, usage: Usage) -> None:
    with writing(desk.engines) as connection:
        books = Books(connection)
        prices_writes.change_price(books, "small.64gb", "USD", 1_000_000, NOW_NS + 10 * SECOND, lambda: NOW_NS, "operator")
        prices_writes.change_surcharge(books, "gpu", "USD", 3, 0, lambda: NOW_NS, "operator")
        prices_writes.change_surcharge(books, "gpu", "USD", 5, NOW_NS + 20 * SECOND, lambda: NOW_NS, "operator")
    desk.beat(usage(started_at_ns=NOW_NS, duration_ns=0, devices=2, device_model="gpu"))
    assert desk.balance(held("acme")) == SECOND * (10 * (PRICE + 6) + 10 * (1_000_000 + 6) + 45 * (1_000_000 + 10))


def test_a_failed_lease_voids_its_hold_and_costs_what_was_confirmed(desk: Payments, usage: Usage) -> None:
    desk.beat(usage(duration_ns=100 * SECOND))
    desk.post(usage(duration_ns=7 * SECOND, close_reason="failed"))
    assert (desk.balance(held("acme")), desk.balance(receivable("acme"))) == (0, 7 * SECOND * PRICE)
    assert desk.kinds() == ["reserve", "usage", "void"]
    desk.check()


def test_a_hold_of_which_nothing_is_heard_expires_and_one_that_is_heard_of_does_not(desk: Payments, usage: Usage) -> None:
    desk.beat(usage("silent-1/1", duration_ns=0), usage("alive-1/1", tenant="globex", duration_ns=0))
    for _ in range(80):
        desk.now_ns += PERIOD_NS
        desk.beat(usage("alive-1/1", tenant="globex", duration_ns=desk.now_ns - NOW_NS))
        desk.expire()
    assert (desk.balance(held("acme")), desk.balance(held("globex"))) == (0, (385 + 5 + 60) * SECOND * PRICE)
    assert desk.kinds().count("expire") == 1
    assert desk.beat(usage("silent-1/1", duration_ns=500 * SECOND)).new == 1  # it is heard of again
    desk.post(usage("silent-1/1", duration_ns=501 * SECOND), usage("alive-1/1", tenant="globex", duration_ns=1))
    assert (desk.balance(held("acme")), desk.balance(held("globex"))) == (0, 0)
    desk.check()


def test_a_heartbeat_that_comes_after_the_record_holds_nothing(desk: Payments, usage: Usage) -> None:
    desk.post(usage())
    assert desk.beat(usage(duration_ns=SECOND)) == holds.Reserved(0, 0)
    assert desk.balance(held("acme")) == 0


def test_a_lease_that_cannot_be_priced_holds_nothing_and_does_not_stop_the_others(desk: Payments, usage: Usage) -> None:
    with writing(desk.engines) as connection:
        prices_writes.change_surcharge(Books(connection), "gpu", "USD", 10**15, 0, lambda: NOW_NS, "operator")
    absurd = usage("absurd-1/1", devices=100_000, device_model="gpu")
    assert desk.beat(usage("odd-1/1", flavor="unknown"), absurd, usage("good-1/1")) == holds.Reserved(new=1, longer=0)


def test_a_hold_that_began_in_a_month_is_released_there(desk: Payments, usage: Usage) -> None:
    end_ns = Month(2026, 11).end_ns
    desk.now_ns = end_ns
    desk.beat(usage(started_at_ns=end_ns - 10 * SECOND, duration_ns=10 * SECOND))
    desk.post(usage(started_at_ns=end_ns - 10 * SECOND, duration_ns=20 * SECOND))
    with reading(desk.engines) as connection:
        assert {**usage_reads.posted(connection, held("acme"), Month(2026, 11))} == {"USD": 0}
        assert usage_reads.posted(connection, held("acme"), Month(2026, 12)) == {}
    desk.check()


def test_the_check_finds_holds_that_the_ledger_does_not_know(desk: Payments, usage: Usage) -> None:
    desk.beat(usage("a-1/1"), usage("b-1/1"))
    desk.post(usage("a-1/1"))
    with desk.engines.writer.begin() as connection:
        connection.execute(text("UPDATE holds SET grains = grains + 1 WHERE closed_by IS NULL"))
    with reading(desk.engines) as connection:
        (found,) = checks.differences(connection)
    assert (found.between, found.subject, found.difference) == ("open holds and postings", "held:acme 2026-11 USD", 1)
    with desk.engines.writer.begin() as connection:
        connection.execute(text("UPDATE holds SET grains = grains - 1, closed_by = 1 WHERE closed_by IS NULL"))
    with reading(desk.engines) as connection:
        assert {one.between for one in checks.differences(connection)} == {"open holds and postings", "ended holds and postings"}


# Any order

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("beat"), st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), st.integers(0, 900)),
        st.tuples(st.just("close"), st.lists(st.integers(0, 3), min_size=1, max_size=3), st.just(0)),
        st.tuples(st.just("pass"), st.just([]), st.sampled_from([1, 40, 100, 1000])),
    ),
    max_size=30,
)


@given(steps=STEPS, endings=st.lists(st.sampled_from(["drained", "failed"]), min_size=4, max_size=4))
@settings(settings.get_profile("costly"))
def test_any_order_and_repetition_ends_without_holds_and_owes_what_the_records_cost(
    fresh_books: Any, usage: Usage, steps: Any, endings: list[str]
) -> None:
    tenants = ("acme", "acme", "globex", "globex")
    lasts = (3, 59, 400, 7200)
    records = [
        usage(f"lease-{n}/1", tenant=tenants[n], duration_ns=lasts[n] * SECOND, close_reason=endings[n], started_at_ns=NOW_NS - n * SECOND)
        for n in range(4)
    ]
    with fresh_books() as engines:
        desk = Payments(engines)
        closed: set[int] = set()
        for what, which, amount in steps:
            if what == "beat":
                desk.beat(*(replace(records[n], duration_ns=amount * SECOND) for n in which))
            elif what == "close":
                desk.post(*(records[n] for n in which))
                closed |= set(which)
            else:
                desk.now_ns += amount * SECOND
                desk.expire()
            desk.check()
            with reading(engines) as connection:
                rows = connection.execute(select(schema.holds).where(schema.holds.c.closed_by.is_(None))).all()
            assert not {row.record_id for row in rows} & {records[n].id for n in closed}
            for tenant in ("acme", "globex"):
                open_grains = sum(whole(row.milli, row.grains) for row in rows if row.tenant == tenant)
                assert desk.balance(held(tenant)) == open_grains
        desk.post(*(records[n] for n in range(4) if n % 2))
        desk.now_ns += 3 * HOUR
        desk.expire()
        desk.post(*records)
        assert (desk.balance(held("acme")), desk.balance(held("globex")), desk.balance(HOLDS)) == (0, 0, 0)
        assert desk.balance(receivable("acme")) == (3 + 59) * SECOND * PRICE
        assert desk.balance(receivable("globex")) == (400 + 7200) * SECOND * PRICE
        assert desk.balance(REVENUE) == -(3 + 59 + 400 + 7200) * SECOND * PRICE
        desk.check()


def test_many_callers_at_once_leave_nothing_held(
    running_anywhere: Running, usage: Usage, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats, records and their repetitions from six threads while the service expires what it does not hear of."""
    records = [usage(f"lease-{n}/1", duration_ns=(n % 7) * SECOND, tenant=("acme", "globex")[n % 2]) for n in range(40)]
    going = threading.Event()
    going.set()

    def time_flies() -> None:
        while going.is_set():
            clock.now_ns += 37 * SECOND
            going_on.wait(0.005)

    going_on = threading.Event()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(30):
            some = chance.sample(records, 5)
            if chance.random() < 0.6:
                body = beat_body(*(replace(one, duration_ns=chance.randrange(600) * SECOND) for one in some))
                answer = running_anywhere.request("pool", "POST", "/api/heartbeats", json=body)
            else:
                answer = running_anywhere.post_usage(*some)
            assert answer.status_code == 200, answer.text

    flies = threading.Thread(target=time_flies)
    flies.start()
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    going.clear()
    flies.join()
    running_anywhere.post_usage(*records)
    (acme,) = running_anywhere.get("operator", "/api/balance?tenant=acme").json()["balances"]
    expected_nano = sum(one.duration_ns for one in records if one.tenant == "acme") * PRICE // (3600 * SECOND)
    assert (acme["held_nano"], acme["owed_nano"], acme["available_nano"]) == (0, expected_nano, -expected_nano)
    assert running_anywhere.get("operator", "/api/check").json() == {"differences": []}


def beat_body(*leases: UsageRecord) -> dict[str, Any]:
    rows = [asdict(lease) for lease in leases]
    for row in rows:
        row["record"] = row.pop("id")
        del row["source"], row["close_reason"], row["parked_bytes"], row["energy_mj"]
    return {"source": "pool", "sent_at_ns": NOW_NS, "period_ns": PERIOD_NS, "leases": rows}


def test_the_service_expires_by_itself_what_it_does_not_hear_of(
    settings: Any, clock: Any, running_service: Any, usage: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "EXPIRY_SECONDS", 0.01)
    running = running_service(settings.model_copy(update={"hold_margin_seconds": 10.0, "hold_silence_seconds": 20.0}), clock)
    try:
        assert running.request("pool", "POST", "/api/heartbeats", json=beat_body(usage(duration_ns=0))).json() == {"budgets": []}
        (row,) = running.get("acme-owner", "/api/balance").json()["balances"]
        assert (row["held_nano"], row["available_nano"]) == (15 * PRICE // 3600, -(15 * PRICE // 3600))
        clock.now_ns += 34 * SECOND
        assert held_now(running) == 15 * PRICE // 3600
        clock.now_ns += SECOND
        for _ in range(500):
            if held_now(running) == 0:
                return
        raise AssertionError("the hold never expired")
    finally:
        running.stop()


def held_now(running: Running) -> int:
    (row,) = running.get("acme-owner", "/api/balance").json()["balances"]
    return int(row["held_nano"])


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"duration_ns": -1}, "duration_ns"),
        ({"duration_ns": 400 * 24 * HOUR}, "duration_ns"),
        ({"devices": 0}, "devices"),
        ({"share_milli": 1001}, "share_milli"),
        ({"started_at_ns": NOW_NS + 2 * HOUR}, "beyond its heartbeat"),
    ],
)
def test_a_lease_that_cannot_be_keeps_no_other_from_being_heard(running: Running, usage: Usage, changes: Any, where: str) -> None:
    body = beat_body(usage("good-1/1"), usage("bad-1/1", **changes))
    for _ in range(2):
        answer = running.request("pool", "POST", "/api/heartbeats", json=body)
        assert answer.status_code == 200
        (refused,) = answer.json()["refused"]
        assert refused["record"].endswith("bad-1/1") and where in refused["message"]
    assert held_now(running) > 0
    assert 'rows_set_aside_total{kind="heartbeat",outcome="refused"} 2.0' in running.get(None, "/metrics").text
    (entry,) = running.get("operator", "/api/audit", action="heartbeat.row.refused").json()["entries"]
    assert entry["subject"].endswith("bad-1/1") and where in entry["after"]["message"]


def test_a_heartbeat_whose_clock_is_an_hour_ahead_is_refused_as_a_whole(running: Running, usage: Usage) -> None:
    body = beat_body(usage("good-1/1"))
    answer = running.request("pool", "POST", "/api/heartbeats", json={**body, "sent_at_ns": NOW_NS + 2 * HOUR})
    assert answer.status_code == 400 and "compare the clocks" in answer.json()["error"]["message"]
    assert running.get("acme-owner", "/api/balance").json()["balances"] == []


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"leases": 1}', b'{"source": "pool", "leases": []}'])
def test_a_heartbeat_that_is_none_is_refused(running: Running, body: bytes) -> None:
    assert running.request("pool", "POST", "/api/heartbeats", content=body).status_code == 400
