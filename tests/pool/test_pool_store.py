"""The pool's store and the pool on it, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from forebay_pool.model.types import Equivalent, Flavor, UsageRecord
from forebay_pool.store import writer as writing
from forebay_pool.store.batch import Batch
from forebay_pool.store.database import Store
from forebay_service.errors import SettingsError
from forebay_wire import messages as wire

GIB = 2**30
Make = Callable[..., Any]


def record(number: int) -> UsageRecord:
    span = wire.Span(id="s", kind="cell", label="a\u0000b", cell=1)
    return UsageRecord(f"l{number}/1", "acme", "ada", "s", f"l{number}", span, "dev.1gb", "cpu-dev", 1, 5, 7, "drained")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    opened.migrate()
    opened.migrate()
    yield opened
    opened.close()


def test_a_database_of_a_later_release_is_refused_in_a_sentence_and_stays_as_it_is(store: Store, database_url: str) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    again = Store(database_url)
    told = r"^The database of pool is of another release \(Can't locate revision identified by '9999'\): start"
    with pytest.raises(SettingsError, match=told):
        again.migrate()
    again.close()
    with store.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == "9999"


def test_writing_a_record_again_changes_nothing(store: Store) -> None:
    store.write(Batch([record(1), record(2)]), deliver=True)
    store.write(Batch([record(2), record(3)]), deliver=True)
    rows = store.undelivered("pool", 10)
    assert [row.payload["id"] for row in rows] == ["l1/1", "l2/1", "l3/1"]
    assert rows[0].payload["span"]["label"] == "a\ufffdb", "the span made it fit"


def test_what_billing_took_or_refused_leaves_the_line_and_what_it_refused_comes_back(store: Store) -> None:
    store.write(Batch([record(1), record(2), record(3)]), deliver=True)
    first, second, third = store.undelivered("pool", 10)
    store.delivered([first.seq])
    store.refused(second.seq, "no")
    assert store.undelivered("pool", 10) == [third]
    assert store.retry_refused() == 1
    assert store.undelivered("pool", 10) == [second, third]
    assert store.retry_refused() == 0


def test_seeds_do_not_undo_what_an_operator_set(store: Store) -> None:
    seed = Flavor("dev.1gb", GIB, (Equivalent("cpu-dev", 1),))
    changed = Flavor("dev.1gb", 2 * GIB, (Equivalent("MI250", 16), Equivalent("cpu-dev", 1)), runtimes=("torch", "exec"))
    store.seed_flavors([seed])
    store.set_flavor(changed, "operator")
    store.seed_flavors([seed])
    assert store.flavors() == {"dev.1gb": changed}


def test_the_last_choice_counts_and_each_tenant_has_its_own(store: Store) -> None:
    for tenant, flavor in [("acme", "a"), ("globex", "b"), ("acme", "c")]:
        store.set_choice(tenant, "ada", flavor)
    assert store.choices() == {("acme", "ada"): "c", ("globex", "ada"): "b"}


def test_a_pool_on_postgresql_meters_and_remembers(pool: Make, postgres_url: str) -> None:
    async def scenario() -> None:
        async with pool(database_url=postgres_url) as running:
            assert (await running.call("PUT", "api/choice", "ada", {"flavor": "dev.4gb"})).code == 200
            client = await running.client()
            assert (await client.hello()).flavor.name == "dev.4gb"
            granted = await client.acquire()
            client.work("mark")
            closed = await client.hears(wire.LeaseClosed)
            await running.until(running.records)
        async with pool(database_url=postgres_url) as running:
            (row,) = running.records()
            assert (row["id"], row["duration_ns"]) == (f"{granted.lease}/1", closed.duration_ns)
            assert await running.get("api/choice", "ada") == {"flavor": "dev.4gb"}

    asyncio.run(scenario())


def test_a_locked_postgresql_delays_records_and_answers_other_writes_with_a_sentence(
    pool: Make, postgres_url: str, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay_pool.store.database.BUSY_SECONDS", 0.1)
    monkeypatch.setattr(writing, "RETRY_SECONDS_MAX", 0.1)

    async def scenario() -> None:
        async with pool(database_url=postgres_url) as running:
            with psycopg.connect(host=postgres_server, user="postgres", dbname="forebay") as other:
                other.execute("lock table lease_segments, choices in exclusive mode")
                client = await running.client()
                await client.hello()
                await client.acquire()
                client.work("mark")
                await client.hears(wire.LeaseClosed)
                response = await running.call("PUT", "api/choice", "ada", {"flavor": "dev.4gb"})
                assert (response.code, json.loads(response.body)["error"]["code"]) == (503, "unavailable")
                assert (running.service.writer.backlog, running.records()) == (1, [])
                other.rollback()
            await running.until(running.records)

    asyncio.run(scenario())


def test_a_lost_postgresql_connection_loses_no_record(pool: Make, postgres_url: str, postgres_server: str) -> None:
    async def scenario() -> None:
        async with pool(database_url=postgres_url) as running:
            client = await running.client()
            await client.hello()
            for number in (1, 2):
                await client.acquire(number)
                client.work("mark")
                await client.hears(wire.LeaseClosed)
                await running.until(lambda wanted=number: len(running.records()) == wanted)
                with psycopg.connect(host=postgres_server, user="postgres", dbname="postgres", autocommit=True) as other:
                    other.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = 'forebay'")
            assert [row["lease"].rpartition(".")[2] for row in running.records()] == ["1", "2"]

    asyncio.run(scenario())
