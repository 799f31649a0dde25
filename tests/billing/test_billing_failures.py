"""A database that is locked, full or gone: 503, nothing half written, and the same request works later."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from forebay_billing.errors import Forbidden, LedgerError, StoreUnavailable
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.writer import QUEUE_JOBS_MAX, Writer
from forebay_billing.model.types import Span, UsageRecord
from forebay_billing.reads import usage as usage_reads
from forebay_billing.tables.engines import Engines, reading
from running_billing import Running
from sqlalchemy import event, text


def path_of(running: Running) -> Path:
    return Path(running.settings.database_url.removeprefix("sqlite:///"))


def counted(path: Path, query: str) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute(query).fetchone()[0])


def counts(path: Path) -> list[int]:
    return [counted(path, f"SELECT count(*) FROM {table}") for table in ("usage", "transactions", "postings", "seals")]  # noqa: S608 - ours


def bound_disk(running: Running, pages: int) -> None:
    """From now on the writer's database has room for so many pages. Each of its connections has a bound of its own."""

    def bound(driver: Any, *_: Any) -> None:
        driver.execute(f"PRAGMA max_page_count = {pages}").close()

    event.listen(running.service.store._engines.writer, "checkout", bound)


def assert_unavailable(response: Any) -> None:
    assert response.status_code == 503, response.text
    error = response.json()["error"]
    assert set(error) == {"code", "message"} and error["code"] == "unavailable"
    assert "nothing was written, send the same again later." in error["message"]
    assert response.headers["retry-after"] == "1"


def test_a_locked_database_is_a_503_until_it_is_free(running: Running, usage: Callable[..., UsageRecord]) -> None:
    lock = sqlite3.connect(path_of(running), isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        assert_unavailable(running.post_usage(usage("a/1"), usage("b/1")))
        assert_unavailable(running.set_price("dev.1gb", price_nano_per_hour=1, currency="USD"))
        assert running.get("pool", "/api/usage").json()["records"] == []
        assert running.get(None, "/health").status_code == 200
    finally:
        lock.execute("ROLLBACK")
        lock.close()
    assert counts(path_of(running)) == [0, 0, 0, 0]
    assert running.post_usage(usage("a/1"), usage("b/1")).json() == {"accepted": 2, "duplicates": 0}
    assert "forebay_billing_store_unavailable_total 2.0" in running.get(None, "/metrics").text


def test_a_full_disk_is_a_503_and_nothing_is_half_written(running: Running, usage: Callable[..., UsageRecord]) -> None:
    assert running.post_usage(usage("a/1")).status_code == 200
    bound_disk(running, counted(path_of(running), "PRAGMA page_count"))
    long = [usage(f"long-{n}/1", span=Span("s", "cell", "x" * 2000, n)) for n in range(200)]
    response = running.post_usage(*long)
    assert_unavailable(response)
    assert "full" in response.json()["error"]["message"]
    assert counts(path_of(running)) == [1, 1, 2, 1]
    bound_disk(running, 1_000_000)
    assert running.post_usage(*long).json() == {"accepted": 200, "duplicates": 0}
    assert running.get("acme-owner", "/api/statement", month="2026-11").status_code == 200


def test_a_service_that_stops_answers_503_to_reads_and_writes_alike(running: Running, usage: Callable[..., UsageRecord]) -> None:
    running.service.store.close()
    for response in (running.get("operator", "/api/prices"), running.get(None, "/health"), running.post_usage(usage("a/1"))):
        assert_unavailable(response)
        assert "shutting down" in response.json()["error"]["message"]
    assert counts(path_of(running)) == [0, 0, 0, 0]


@pytest.fixture
def running_postgresql(settings: Any, clock: Any, migrated_postgres_url: str, running_service: Any) -> Any:
    service = running_service(settings.model_copy(update={"database_url": migrated_postgres_url, "busy_seconds": 2.0}), clock)
    try:
        yield service
    finally:
        service.stop()


def test_a_lost_postgresql_connection_is_a_503_once_and_then_works_again(
    running_postgresql: Any, usage: Callable[..., UsageRecord], postgres_server: str
) -> None:
    assert running_postgresql.post_usage(usage("a/1")).status_code == 200
    with psycopg.connect(host=postgres_server, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'forebay'")
    answers = [running_postgresql.post_usage(usage("b/1")) for _ in range(2)]
    assert answers[-1].json() in ({"accepted": 1, "duplicates": 0}, {"accepted": 0, "duplicates": 1})
    assert {record["id"] for record in running_postgresql.get("pool", "/api/usage").json()["records"]} == {"a/1", "b/1"}


def test_a_locked_postgresql_is_a_503_until_it_is_free(
    running_postgresql: Any, usage: Callable[..., UsageRecord], postgres_server: str
) -> None:
    with psycopg.connect(host=postgres_server, user="postgres", dbname="forebay") as connection:
        connection.execute("LOCK TABLE usage IN ACCESS EXCLUSIVE MODE")
        assert_unavailable(running_postgresql.post_usage(usage("a/1")))
        connection.rollback()
    assert running_postgresql.post_usage(usage("a/1")).json() == {"accepted": 1, "duplicates": 0}


def test_two_services_on_one_postgresql_never_bill_a_record_twice(
    running_postgresql: Any, clock: Any, running_service: Any, usage: Callable[..., UsageRecord]
) -> None:
    other = running_service(running_postgresql.settings, clock)
    try:
        records = [usage(f"{n}/1") for n in range(50)]
        with ThreadPoolExecutor(8) as threads:
            posts = [threads.submit(service.post_usage, *records) for service in (running_postgresql, other) * 4]
            answers = [post.result() for post in posts]
        assert {answer.status_code for answer in answers} == {200}
        assert sum(answer.json()["accepted"] for answer in answers) == 50
        (row,) = other.get("pool", "/api/summary", by="tenant").json()
        assert (row["leases"], row["cost_nano"]) == (50, round(50 * 60 * 2_000_000_000 / 3600))
    finally:
        other.stop()


class Gate:
    """A job that holds the writer until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, books: Books) -> str:
        self.entered.set()
        assert self.opened.wait(30)
        return "gate"


@pytest.fixture
def held_writer(fresh_books: Callable[[], Any]) -> Any:
    with fresh_books() as engines:
        groups: list[int] = []
        writer = Writer(engines, lambda jobs, seconds: groups.append(jobs))
        gate = Gate()
        first = writer.submit(gate)
        assert gate.entered.wait(30)
        yield engines, writer, gate, groups, first
        gate.opened.set()
        writer.close()


def insert_account(id: int) -> Callable[[Books], int]:
    def job(books: Books) -> int:
        books.connection.execute(text(f"INSERT INTO accounts (id, name) VALUES ({id}, 'account-{id}')"))  # noqa: S608 - a number
        return id

    return job


def accounts(engines: Engines) -> int:
    with reading(engines) as connection:
        return int(connection.execute(text("SELECT count(*) FROM accounts")).scalar_one())


def refuse(books: Books) -> None:
    insert_account(99)(books)
    raise Forbidden("no")


def test_writes_that_wait_share_a_commit_and_a_refused_one_takes_only_itself_back(held_writer: Any) -> None:
    engines, writer, gate, groups, first = held_writer
    jobs: list[Future[Any]] = [writer.submit(job) for job in (insert_account(1), refuse, insert_account(2))]
    gate.opened.set()
    assert (first.result(30), jobs[0].result(30), jobs[2].result(30)) == ("gate", 1, 2)
    assert isinstance(jobs[1].exception(30), Forbidden)
    assert groups == [1, 3]
    assert accounts(engines) == 2


def test_a_database_error_takes_the_whole_group_back(held_writer: Any) -> None:
    engines, writer, gate, groups, first = held_writer
    jobs: list[Future[Any]] = [writer.submit(insert_account(id)) for id in (1, 2, 1)]
    gate.opened.set()
    assert first.result(30) == "gate"
    assert all(isinstance(job.exception(30), LedgerError) for job in jobs)
    assert accounts(engines) == 0
    assert groups == [1]
    assert writer.submit(insert_account(1)).result(30) == 1


def test_the_queue_of_writes_is_bounded_and_closing_finishes_it(held_writer: Any) -> None:
    engines, writer, gate, _, _ = held_writer
    jobs = [writer.submit(insert_account(id)) for id in range(QUEUE_JOBS_MAX)]
    assert writer.waiting == QUEUE_JOBS_MAX
    with pytest.raises(StoreUnavailable, match=f"{QUEUE_JOBS_MAX} writes are waiting"):
        writer.submit(insert_account(9999))
    gate.opened.set()
    writer.close()
    assert [job.result(0) for job in jobs] == list(range(QUEUE_JOBS_MAX))
    with pytest.raises(StoreUnavailable, match="shutting down"):
        writer.submit(insert_account(9999))
    assert accounts(engines) == QUEUE_JOBS_MAX


def test_a_statement_is_one_snapshot(fresh_books: Callable[[], Any]) -> None:
    with fresh_books() as engines, reading(engines) as connection:
        before = usage_reads.price_book(connection).history(None)
        with engines.writer.begin() as writer:
            writer.execute(text("INSERT INTO prices SELECT id + 100, flavor, currency, version + 1, 1, 0, 0, 'x' FROM prices"))
        assert usage_reads.price_book(connection).history(None) == before


def test_a_tiny_real_disk_that_fills_is_a_503(
    settings: Any, clock: Any, running_service: Any, usage: Callable[..., UsageRecord], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    service = running_service(settings.model_copy(update={"database_url": f"sqlite:///{disk}/billing.sqlite3"}), clock)
    try:
        answers = [service.post_usage(*(usage(f"{n}-{m}/1") for m in range(100))) for n in range(40)]
        accepted = [answer for answer in answers if answer.status_code == 200]
        assert 0 < len(accepted) < 40
        for answer in answers:
            if answer.status_code != 200:
                assert_unavailable(answer)
        (row,) = service.get("pool", "/api/summary", by="tenant").json()
        assert row["leases"] == 100 * len(accepted)
    finally:
        service.stop()
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("mode", ["immediate", pytest.param("fast", marks=pytest.mark.full_sweep)])
def test_a_postgresql_that_starts_anew_is_a_503_and_each_record_is_billed_once(
    settings: Any, clock: Any, running_service: Any, usage: Callable[..., UsageRecord], own_postgres: Any, mode: str
) -> None:
    url = own_postgres.new_database("billing")
    service = running_service(settings.model_copy(update={"database_url": url, "busy_seconds": 2.0}), clock)
    try:
        assert service.post_usage(usage("a/1")).status_code == 200
        own_postgres.stop(mode)
        for _ in range(2):
            assert_unavailable(service.post_usage(usage("b/1"), usage("c/1")))
        assert service.get("pool", "/api/usage").status_code == 503
        assert_unavailable(service.get(None, "/health"))
        own_postgres.start()
        first = next(answer for _ in range(5) if (answer := service.post_usage(usage("b/1"), usage("c/1"))).status_code == 200)
        assert first.json() == {"accepted": 2, "duplicates": 0}
        assert service.get(None, "/health").status_code == 200
        assert service.post_usage(usage("a/1"), usage("b/1"), usage("d/1")).json() == {"accepted": 1, "duplicates": 2}
        assert sorted(record["id"] for record in service.get("pool", "/api/usage").json()["records"]) == ["a/1", "b/1", "c/1", "d/1"]
    finally:
        service.stop()
