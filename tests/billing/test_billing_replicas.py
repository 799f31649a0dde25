"""Several billing services on one PostgreSQL: each record is posted once, each month closed once, one does the tasks, all know the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fork_server
import httpx
import processes
import psycopg
import pytest
from forebay_billing.ledger.books import Books
from forebay_billing.model.money import GRAINS_PER_MILLI
from forebay_billing.model.months import Month
from forebay_billing.model.types import Span, UsageRecord
from forebay_billing.service import Service
from forebay_billing.settings import Settings
from forebay_billing.tables.engines import HELD_SECONDS_MAX, open_engines, reading, writing
from forebay_billing.tasks.election import LOCK
from forebay_billing.tasks.open_leases import OpenLeases
from forebay_billing.writes import heartbeats
from forebay_billing.writes.prices import seed
from forebay_billing.writes.usage import post_usage

START_SECONDS = 60
SECOND_NS = 10**9
HOUR_NS = 3600 * SECOND_NS
PRICE = 2_000_000_000
"""Of an hour of small.64gb, in nano-units."""
POOL, OPERATOR = "token-of-the-pool-service", "token-of-the-operator"
GATE = 42
"""The advisory lock at which a test holds up one tenant's invoice."""
HOLD_UP = """
CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.tenant = '{tenant}' THEN PERFORM pg_advisory_xact_lock_shared({gate}); END IF; RETURN NEW; END $$;
CREATE TRIGGER hold_up BEFORE INSERT ON invoices FOR EACH ROW EXECUTE FUNCTION hold_up();
"""
Usage = Callable[..., UsageRecord]


@dataclass
class Replica:
    """A billing service as a process of its own."""

    process: subprocess.Popen[bytes]
    log: Path
    address: str = ""

    def said(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, self.log.read_text())

    def ask(self, method: str, path: str, token: str = POOL, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"token {token}"}
        return httpx.request(method, f"{self.address}/{path}", headers=headers, trust_env=False, timeout=60, **options)

    def post(self, records: list[UsageRecord]) -> httpx.Response:
        return self.ask("POST", "api/usage", json={"records": [asdict(record) for record in records]})


def until(condition: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
    return found


@pytest.fixture
def start(tmp_path: Path, migrated_postgres_url: str) -> Iterator[Callable[..., Replica]]:
    """Starts services on one database."""
    running: list[Replica] = []

    def go(interpreter: str | Path | None = None, **changes: object) -> Replica:
        number = len(running)
        values = {"database_url": migrated_postgres_url, "port": 0, "busy_seconds": 60, **changes}
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        for token, name, kind, scope in ((POOL, "pool", "service", "service"), (OPERATOR, "operator", "user", "operate")):
            lines.append(f'[[tokens]]\ntoken = "{token}"\nname = "{name}"\nkind = "{kind}"\nscopes = ["custom:forebay:{scope}"]')
        config, log = tmp_path / f"billing-{number}.toml", tmp_path / f"billing-{number}.log"
        config.write_text("\n".join(lines))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTERHUB_", "FOREBAY_"))}
        command = [str(interpreter or fork_server.billing()), "-m", "forebay_billing", "--config", str(config)]
        with log.open("wb") as output:
            environment = {**kept, "PYTHONPATH": os.pathsep.join(sys.path)}
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=tmp_path)
        replica = Replica(process, log)
        running.append(replica)
        found = until(lambda: replica.said(r"action=service.start host=(\S+) port=(\d+)") or process.poll() is not None)
        assert found is not True, log.read_text()
        replica.address = f"http://{found[1]}:{found[2]}"
        return replica

    yield go
    for replica in running:
        replica.process.kill()
        replica.process.wait(30)


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        return connection.execute(text).fetchall()  # type: ignore[call-overload,no-any-return]


def test_two_services_that_take_the_same_usage_at_once_post_each_record_once(
    start: Callable[..., Replica], usage: Usage, migrated_postgres_url: str
) -> None:
    both = start(), start()
    lately_ns = time.time_ns() - HOUR_NS  # months that are over are invoiced meanwhile
    durations = (0, 1, 7, 59 * SECOND_NS + 1, 600 * SECOND_NS)
    batches = [
        [
            usage(f"{n}-{m}/1", tenant=f"tenant-{m % 3}", started_at_ns=lately_ns, duration_ns=durations[(n + m) % 5], devices=1)
            for m in range(10)
        ]
        for n in range(12)
    ]
    gate = threading.Barrier(4)

    def send(which: int) -> int:
        """Two threads to each service, all batches, each in another order; every thread sends half of them twice."""
        gate.wait()
        mine = batches[which * 3 :] + batches[: which * 3] + batches[::2]
        answers = [both[which % 2].post(batch).raise_for_status().json() for batch in mine]
        assert all(answer["accepted"] + answer["duplicates"] == 10 for answer in answers)
        return sum(answer["accepted"] for answer in answers)

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(send, range(4))) == 120

    records = [record for batch in batches for record in batch]
    expected: dict[str, Fraction] = {}
    for record in records:
        expected[record.tenant] = expected.get(record.tenant, Fraction(0)) + Fraction(record.duration_ns * PRICE, HOUR_NS)
    for replica in both:
        rows = until(lambda replica=replica: summed(replica, 120))
        assert {row["tenant"]: row["cost_nano"] for row in rows} == {tenant: round(cost) for tenant, cost in expected.items()}
        assert replica.ask("GET", "api/check", OPERATOR).json() == {"differences": []}
        assert replica.post(batches[0]).json() == {"accepted": 0, "duplicates": 10}
    assert query(migrated_postgres_url, "SELECT count(*), count(DISTINCT (source, record_id)) FROM usage") == [(120, 120)]
    assert query(migrated_postgres_url, f"SELECT sum(milli) * {GRAINS_PER_MILLI} + sum(grains) FROM postings") == [(0,)]  # noqa: S608 - a number
    other = replace(records[0], duration_ns=records[0].duration_ns + 1)
    assert [replica.post([other]).status_code for replica in both] == [409, 409]


def summed(replica: Replica, leases: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = replica.ask("GET", "api/summary?by=tenant").raise_for_status().json()
    return rows if sum(row["leases"] for row in rows) == leases else []


def fill(url: str, tenants: list[str], month: Month) -> dict[str, int]:
    """Usage of a month that is over; what each tenant owes, in cents."""
    span = Span("span-1", "cell", "digits.ipynb", 3)
    engines = open_engines(url, 5)
    owed = {}
    with writing(engines) as connection:
        books = Books(connection)
        seed(books, month.start_ns)
        for number, tenant in enumerate(tenants, 1):
            record = UsageRecord(
                "pool", f"{tenant}/1", tenant, "ann", "session", "lease", span, "small.64gb", "cpu-dev", 1,
                month.start_ns + HOUR_NS, number * HOUR_NS, "drained",
            )  # fmt: skip
            post_usage(books, [record], lambda _: "USD", lambda: month.end_ns)
            owed[tenant] = number * PRICE * 100 // 10**9
    engines.dispose()
    return owed


def invoices(url: str) -> list[tuple[Any, ...]]:
    return query(url, "SELECT tenant, number, total_minor FROM invoices ORDER BY number")


def last_month() -> Month:
    now = datetime.now(UTC)
    return Month(now.year, now.month).previous


@dataclass
class MonthEnd:
    """Two services of which one stands in the middle of the fifth tenant's transaction."""

    busy: Replica
    other: Replica
    owed: dict[str, int]
    go_on: Callable[[], None]


@pytest.fixture
def month_end(request: pytest.FixtureRequest, start: Callable[..., Replica], migrated_postgres_url: str) -> Iterator[MonthEnd]:
    """Neither service does the tasks until the usage and the gate are there. What is stopped is no fork of a server."""
    interpreter = sys.executable if request.node.get_closest_marker("full_sweep") else None
    url = migrated_postgres_url.replace("+psycopg", "")
    with closing(psycopg.connect(url, autocommit=True)) as gate, closing(psycopg.connect(url, autocommit=True)) as election:
        election.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        both = [start(interpreter, invoice_grace_days=0) for _ in range(2)]
        tenants = [f"tenant-{number:02}" for number in range(12)]
        owed = fill(migrated_postgres_url, tenants, last_month())
        gate.execute(HOLD_UP.format(tenant=tenants[4], gate=GATE))  # type: ignore[arg-type]
        gate.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        assert invoices(url) == [] and not any(one.said("election.won") for one in both)
        election.execute("SELECT pg_advisory_unlock(%s)", (LOCK,))
        until(lambda: query(url, f"SELECT 1 FROM pg_locks WHERE objid = {GATE} AND NOT granted"))  # noqa: S608 - a number
        (busy,) = [one for one in both if one.said("election.won")]
        (other,) = [one for one in both if one is not busy]
        yield MonthEnd(busy, other, owed, lambda: gate.execute("SELECT pg_advisory_unlock(%s)", (GATE,)) and None)


def test_a_service_that_is_killed_in_the_middle_of_a_months_end_is_followed_by_one_that_finishes_it_once(
    month_end: MonthEnd, migrated_postgres_url: str
) -> None:
    url, other = migrated_postgres_url, month_end.other
    before = invoices(url)
    assert len(before) == 4
    month_end.busy.process.kill()
    until(lambda: other.said("election.won"))
    month_end.go_on()
    made = until(lambda: (found := invoices(url))[11:] and found)
    assert made[:4] == before and [number for _, number, _ in made] == list(range(1, 13))
    assert {tenant: total for tenant, _, total in made} == month_end.owed
    assert other.ask("GET", "api/check", OPERATOR).json() == {"differences": []}
    for tenant in month_end.owed:
        assert other.ask("POST", "api/invoices", OPERATOR, json={"tenant": tenant, "month": str(last_month())}).is_success
    assert invoices(url) == made, "whoever asks for a month that is closed gets the invoices that it has"


@pytest.mark.full_sweep
def test_a_service_that_stands_still_in_the_middle_of_a_write_holds_up_the_others_for_some_seconds(
    month_end: MonthEnd, migrated_postgres_url: str, usage: Usage
) -> None:
    url, busy, other = migrated_postgres_url, month_end.busy, month_end.other
    processes.suspend(busy.process.pid)
    month_end.go_on()
    began = time.monotonic()
    answer = other.post([usage(started_at_ns=time.time_ns() - HOUR_NS)])
    assert answer.json() == {"accepted": 1, "duplicates": 0} and time.monotonic() - began < HELD_SECONDS_MAX + 10
    made = until(lambda: (found := invoices(url))[11:] and found)
    assert {tenant: total for tenant, _, total in made} == month_end.owed
    busy.process.send_signal(signal.SIGCONT)  # it finds its transaction gone, and that another service does the tasks
    until(lambda: busy.ask("GET", "health").is_success and busy.said("election.lost"))
    assert invoices(url) == made and busy.ask("GET", "api/check", OPERATOR).json() == {"differences": []}


@pytest.fixture
def pair(
    settings: Settings, clock: Any, migrated_postgres_url: str, running_service: Any, tmp_path: Path
) -> Iterator[tuple[Any, Any]]:
    """Two services in this process; the first one does the tasks."""
    shared = settings.model_copy(
        update={"database_url": migrated_postgres_url, "busy_seconds": 5.0, "alert_private_addresses": True}
    )
    first = running_service(shared, clock)
    leads = first.service.election.leads
    until(leads)
    second = running_service(shared, clock)
    stopped: list[Any] = []
    for one in (first, second):
        one.stop_once = lambda one=one: stopped.append(one) or one.stop() if one not in stopped else None
    try:
        yield first, second
    finally:
        first.stop_once()
        second.stop_once()


def beat(running: Any, *records: UsageRecord, sent_at_ns: int) -> list[dict[str, Any]]:
    left_out = ("source", "id", "close_reason", "parked_bytes", "energy_mj")
    leases = [{**{k: v for k, v in asdict(one).items() if k not in left_out}, "record": one.id} for one in records]
    body = {"source": "pool", "sent_at_ns": sent_at_ns, "period_ns": 5 * SECOND_NS, "leases": leases}
    answer = running.request("pool", "POST", "/api/heartbeats", json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["budgets"]
    return found


def used(running: Any) -> int:
    (row,) = running.get("operator", "/api/budgets").json()
    return int(row["spent_nano"]) + int(row["running_nano"])


def test_what_a_pool_tells_one_service_of_open_leases_every_service_knows(pair: tuple[Any, Any], usage: Usage) -> None:
    first, second = pair
    body = {"tenant": "acme", "limit_nano": 2 * PRICE, "on_limit": "refuse", "new": True}
    assert first.request("operator", "PUT", "/api/budgets", json=body).status_code == 200
    now_ns = first.clock()
    one = usage("one/1", started_at_ns=now_ns - HOUR_NS, duration_ns=HOUR_NS)
    two = replace(one, id="two/1", lease="two")
    assert [row["state"] for row in beat(first, one, sent_at_ns=now_ns)] == ["open"]
    assert (used(first), used(second)) == (PRICE, PRICE)
    assert [row["state"] for row in beat(second, one, two, sent_at_ns=now_ns + 1)] == ["refuse"], "two leases use up the budget"
    assert (used(first), used(second)) == (2 * PRICE, 2 * PRICE)
    beat(first, two, sent_at_ns=now_ns + 2)
    beat(second, two, sent_at_ns=now_ns + 3)
    assert (used(first), used(second)) == (PRICE, PRICE), "a lease that two heartbeats do not name is forgotten everywhere"
    second.post_usage(replace(two, close_reason="drained"))
    assert (used(first), used(second)) == (PRICE, PRICE), "a record takes its lease's place, and counts once"


def test_a_service_that_starts_knows_the_leases_that_were_told_before(pair: tuple[Any, Any], usage: Usage, running_service: Any) -> None:
    first, second = pair
    now_ns = first.clock()
    body = {"tenant": "acme", "limit_nano": 2 * PRICE, "new": True}
    assert first.request("operator", "PUT", "/api/budgets", json=body).status_code == 200
    lease = usage("one/1", started_at_ns=now_ns - HOUR_NS, duration_ns=HOUR_NS)
    for later in range(5):
        beat(first, lease, sent_at_ns=now_ns + later)
    beat(first, sent_at_ns=now_ns + 3)  # overtaken: nobody listens to it
    third = running_service(second.settings, second.clock)
    try:
        assert used(third) == PRICE
    finally:
        third.stop()
    second.clock.now_ns += heartbeats.KEPT_NS + 1
    third = running_service(second.settings, second.clock)
    try:
        third_knows = used(third)
    finally:
        third.stop()
    assert third_knows == 0, "a pool that was silent for so long is forgotten"


def test_of_each_pool_two_heartbeats_are_kept_and_whole_ones(migrated_postgres_url: str, usage: Usage) -> None:
    engines = open_engines(migrated_postgres_url, 5)
    mine, read_anew = OpenLeases(), OpenLeases()
    for number, sent_at_ns in enumerate((5, 5, 9, 9, 9, 3, 12, 12)):
        leases = [usage(f"{number}-{part}/1") for part in range(2)]
        with writing(engines) as connection:
            if mine.hear("pool", sent_at_ns, leases, number):
                heartbeats.tell(connection, "pool", sent_at_ns, leases, "a", number)
                heartbeats.tell(connection, f"other-{number}", sent_at_ns, [], "a", number)
    with reading(engines) as connection:
        rows = heartbeats.heard_since(connection, 0, 10)
        assert heartbeats.heard_since(connection, rows[-1].id, 10) == []
    for row in rows:
        read_anew.hear(row.source, row.sent_at_ns, row.leases, 10)
    engines.dispose()
    assert [row.sent_at_ns for row in rows if row.source == "pool"] == [9, 9, 9, 12, 12]
    assert read_anew.all() == mine.all() != []


class Receiver(BaseHTTPRequestHandler):
    """Takes webhooks."""

    received: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).received.append(self.headers["webhook-id"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Tests print what matters themselves."""


def test_one_service_delivers_and_the_other_goes_on_when_it_ends(pair: tuple[Any, Any], usage: Usage) -> None:
    first, second = pair
    handler = type("Of", (Receiver,), {"received": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        channel = {"kind": "webhook", "target": f"http://127.0.0.1:{server.server_port}/"}
        assert second.request("acme-owner", "POST", "/api/alerts/channels", json=channel).is_success
        services: tuple[Service, Service] = first.service, second.service
        assert [one.election.leads() for one in services] == [True, False]
        body = {"tenant": "acme", "limit_nano": 2 * PRICE, "thresholds": [50, 100], "new": True}
        assert second.request("operator", "PUT", "/api/budgets", json=body).status_code == 200
        for number, running in enumerate((second, first)):
            running.post_usage(usage(f"{number}/1", duration_ns=HOUR_NS, started_at_ns=first.clock() - 2 * HOUR_NS))
            until(lambda number=number: len(handler.received) == number + 1)
        told = [running.get(None, "/metrics").text for running in (first, second)]
        assert ["forebay_billing_leader 1.0" in text for text in told] == [True, False]
        assert ["forebay_billing_month_revenue_units" in text for text in told] == [True, False], "a sum counts the books once"
        first.stop_once()
        until(second.service.election.leads)
        second.request("operator", "PUT", "/api/budgets", json={**body, "limit_nano": 3 * PRICE, "thresholds": [60], "new": False})
        until(lambda: len(handler.received) == 3)
        assert len(set(handler.received)) == 3, "each alert came once"
        server.shutdown()
