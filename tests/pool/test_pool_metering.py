"""Usage records on their way: memory, disk, billing; with a full disk, a locked database, and a billing service that fails."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from forebay_pool.model.metering import round_half_even
from forebay_pool.store import writer as writing
from forebay_pool.store.database import Store
from forebay_wire import messages as wire
from sqlalchemy import event
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

Make = Callable[..., Any]


class Billing:
    """A billing service that remembers what it was sent, and fails when it is told to."""

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}
        self.arrived: dict[str, float] = {}
        self.batches: list[int] = []
        self.status = 200
        self.bad = ""
        self.prices = [{"flavor": "dev.1gb", "price_nano_per_hour": 7_200_000_000_000, "currency": "EUR", "valid_from_ns": 0, "version": 1}]
        self.url = ""


class _Usage(RequestHandler):
    def initialize(self, billing: Billing) -> None:
        self.billing = billing

    def post(self) -> None:
        records = json.loads(self.request.body)["records"]
        self.billing.batches.append(len(records))
        assert self.request.headers["Authorization"] == "token of-the-pool"
        if self.billing.status != 200:
            self.set_status(self.billing.status)
        elif any(record["id"] == self.billing.bad for record in records):
            self.set_status(422)
            self.write({"code": "bad_record", "message": "no such tenant"})
        else:
            for record in records:
                self.billing.records.setdefault(record["id"], record)
                self.billing.arrived.setdefault(record["id"], time.monotonic())
            self.write({"accepted": len(records), "duplicates": 0})


class _Prices(RequestHandler):
    def initialize(self, billing: Billing) -> None:
        self.billing = billing

    def get(self) -> None:
        self.write(json.dumps(self.billing.prices))


class _Surcharges(RequestHandler):
    def get(self) -> None:
        self.write("[]")


class _Currencies(RequestHandler):
    def get(self) -> None:
        self.write({"currency": "EUR", "tenants": {}})


@asynccontextmanager
async def billing_service() -> AsyncIterator[Billing]:
    billing = Billing()
    own = {"billing": billing}
    routes = [
        *(("/b/api/usage", _Usage, own), ("/b/api/prices", _Prices, own)),
        *(("/b/api/surcharges", _Surcharges), ("/b/api/parked-prices", _Surcharges), ("/b/api/currencies", _Currencies)),
    ]
    server = HTTPServer(Application(routes, log_function=lambda _: None))
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    billing.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/b/"
    try:
        yield billing
    finally:
        server.stop()
        await server.close_all_connections()


def billed(billing: Billing) -> dict[str, Any]:
    return {"billing_url": billing.url, "hub_token": "of-the-pool", "price_poll_seconds": 0.1}


async def one_lease(client: Any, number: int) -> str:
    granted = await client.acquire(number)
    client.work("mark")
    await client.hears(wire.LeaseClosed)
    return f"{granted.lease}/1"


def test_usage_reaches_billing_within_a_second_with_every_field(pool: Make) -> None:
    async def scenario() -> None:
        async with billing_service() as billing, pool(**billed(billing)) as running:
            client = await running.client()
            opened = await client.hello()
            assert (opened.flavor.price_nano_per_hour, opened.flavor.currency) == (7_200_000_000_000, "EUR")
            name = await one_lease(client, 1)
            closed = time.monotonic()
            await running.until(lambda: name in billing.records)
            assert billing.arrived[name] - closed < 1.0
            sent = billing.records[name]
            assert sent["source"] == "pool"
            assert sent["started_at_ns"] == pytest.approx(time.time_ns(), abs=60e9)
            wanted = "source id tenant user session lease span flavor device_model devices started_at_ns duration_ns"
            wanted += " close_reason share_milli"
            assert set(sent) == set(wanted.split())
            assert sent["span"] == {"id": "span-1", "kind": "cell", "label": "n.ipynb", "cell": 1, "cell_id": None, "first_line": None}

    asyncio.run(scenario())


def test_a_price_set_in_billing_is_shown_and_told_with_the_next_lease(pool: Make) -> None:
    async def scenario() -> None:
        async with billing_service() as billing, pool(**billed(billing)) as running:
            client = await running.client()
            await client.hello()
            billing.prices[0]["price_nano_per_hour"] = 5
            rows = {row["name"]: row for row in await running.get("api/flavors", "ada")}
            assert (rows["dev.1gb"]["price_nano_per_hour"], rows["dev.4gb"]["price_nano_per_hour"]) == (5, None)
            assert (await client.acquire()).flavor.price_nano_per_hour == 5

    asyncio.run(scenario())


def test_while_billing_is_down_leases_go_on_and_all_is_delivered_later_once(pool: Make) -> None:
    async def scenario() -> None:
        async with billing_service() as billing:
            billing.status = 503
            async with pool(**billed(billing)) as running:
                client = await running.client()
                await client.hello()
                names = [await one_lease(client, number) for number in range(1, 6)]
                await running.until(lambda: billing.batches)
            assert not billing.records
            billing.status = 200
            async with pool(**billed(billing)) as running:
                await running.until(lambda: set(names) <= set(billing.records))
                await running.until(lambda: not running.service.store.undelivered("pool", 10))

    asyncio.run(scenario())


def test_a_record_that_billing_refuses_is_set_aside_and_holds_up_no_other(pool: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with billing_service() as billing:
            billing.status = 503
            async with pool(**billed(billing)) as running:
                client = await running.client()
                await client.hello()
                names = [await one_lease(client, number) for number in range(1, 8)]
                await running.until(lambda: len(running.records()) == 7)
                billing.bad, billing.status = names[3], 200
                await running.until(lambda: len(billing.records) == 6)
                await running.until(lambda: not running.service.store.undelivered("pool", 10))
                assert names[3] not in billing.records
                with running.service.store.engine.connect() as connection:
                    rows = connection.exec_driver_sql("select segment, refused from usage_outbox").all()
                assert [row.segment for row in rows] == [names[3]]
                assert "no such tenant" in rows[0].refused
            billing.bad = ""
            async with pool(**billed(billing)) as running:
                await running.until(lambda: names[3] in billing.records)

    asyncio.run(scenario())
    assert any(getattr(entry, "action", "") == "record_refused" for entry in caplog.records)


def test_a_refused_record_is_sent_again_while_the_pool_runs_until_billing_takes_it(pool: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay_pool.billing.outbox.REFUSED_RETRY_SECONDS", 0.2)

    async def scenario() -> None:
        async with billing_service() as billing, pool(**billed(billing)) as running:
            client = await running.client()
            await client.hello()
            billing.bad = f"{client.session}.1/1"
            name = await one_lease(client, 1)
            await running.until(lambda: len(billing.batches) >= 3)
            assert not billing.records
            billing.bad = ""
            await running.until(lambda: name in billing.records)
            await running.until(lambda: not running.service.store.undelivered("pool", 10))
            assert not running.service.store.retry_refused()

    asyncio.run(scenario())


def test_a_full_disk_loses_nothing_and_beyond_the_bound_no_lease_opens(pool: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "RETRY_SECONDS_MAX", 0.1)

    async def scenario() -> None:
        async with pool(unwritten_records_max=3) as running:
            pages = _limit_pages(running.service.store)
            client = await running.client()
            await client.hello()
            pages["limit"] = 1
            running.service.store.engine.dispose()
            number = 0
            while running.machine.accepting:
                number += 1
                await one_lease(client, number)
                await asyncio.sleep(0.01)
            await client.ask(99)
            refused = await client.hears(wire.Refused)
            assert (refused.code, "cannot be written" in refused.message) == ("limit", True)
            text = (await running.call("GET", "metrics", None)).body.decode()
            assert "forebay_pool_accepting 0.0" in text
            pages["limit"] = 1_000_000
            running.service.store.engine.dispose()
            await running.until(lambda: running.machine.accepting and running.service.writer.backlog == 0)
            assert [row["lease"].rpartition(".")[2] for row in running.records()] == [str(n) for n in range(1, number + 1)]
            await one_lease(client, 100)

    asyncio.run(scenario())


def _limit_pages(store: Store) -> dict[str, int]:
    """Makes SQLite say "database or disk is full" beyond so many pages, in every connection opened from now on."""
    pages = {"limit": 1_000_000}

    @event.listens_for(store.engine, "connect")
    def limit(connection: Any, _record: object) -> None:
        connection.execute(f"pragma max_page_count={pages['limit']}").close()

    return pages


def test_a_locked_database_delays_records_and_the_grant_does_not_wait(
    pool: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("forebay_pool.store.database.BUSY_SECONDS", 0.1)
    monkeypatch.setattr(writing, "RETRY_SECONDS_MAX", 0.1)

    async def scenario() -> None:
        async with pool() as running:
            client = await running.client()
            await client.hello()
            await one_lease(client, 1)
            await running.until(running.records)
            other = sqlite3.connect(tmp_path / "state" / "pool.sqlite", isolation_level=None)
            other.execute("begin immediate")
            for number in (2, 3):
                await one_lease(client, number)
            await running.until(lambda: "store_failed" in {getattr(record, "action", "") for record in caplog.records})
            assert running.service.writer.backlog == 2
            assert len(running.records()) == 1
            response = await running.call("PUT", "api/choice", "ada", {"flavor": "dev.4gb"})
            assert (response.code, json.loads(response.body)["error"]["code"]) == (503, "unavailable")
            other.execute("rollback")
            other.close()
            await running.until(lambda: len(running.records()) == 3)

    asyncio.run(scenario())


@pytest.mark.parametrize(("amount", "divisor", "expected"), [(5, 10, 0), (15, 10, 2), (25, 10, 2), (26, 10, 3), (24, 10, 2), (0, 10, 0)])
def test_halves_round_to_the_even_nano(amount: int, divisor: int, expected: int) -> None:
    assert round_half_even(amount, divisor) == expected
