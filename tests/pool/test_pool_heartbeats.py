"""The pool's heartbeats to billing: which leases are open, and what billing answers of budgets."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from forebay_billing import settings as books
from forebay_billing.service import Service as Billing
from forebay_billing.service import authenticator_of
from forebay_pool.billing import heartbeats
from forebay_service.identity import SERVICE
from forebay_wire import messages as wire
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

Make = Callable[..., Any]
TOKEN = "token-of-the-pool-service"


class Told:
    """What a billing service was told, and what it answers."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.bodies: list[dict[str, Any]] = []
        self.budgets: list[dict[str, Any]] = []
        self.unheard: set[str] = set()
        """Spans whose leases are refused, with all that come in one call with them."""

    def settings(self, **changes: Any) -> dict[str, Any]:
        return {"billing_url": self.url, "hub_token": TOKEN, "billing_heartbeat_seconds": 0.05, **changes}


class _Heartbeats(RequestHandler):
    def initialize(self, told: Told) -> None:
        self.told = told

    def post(self) -> None:
        body = json.loads(self.request.body)
        self.told.bodies.append(body)
        bad = any(lease["span"]["id"] in self.told.unheard for lease in body["leases"])
        self.set_status(400 if bad else self.told.status)
        self.write({"budgets": self.told.budgets})


class _Rest(RequestHandler):
    def get(self) -> None:
        self.write("[]")

    def post(self) -> None:
        self.write({"accepted": 1, "duplicates": 0})


@asynccontextmanager
async def listener() -> AsyncIterator[Told]:
    told = Told()
    server = HTTPServer(Application([("/api/heartbeats", _Heartbeats, {"told": told}), (".*", _Rest)], log_function=lambda _: None))
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    told.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/"
    try:
        yield told
    finally:
        server.stop()
        await server.close_all_connections()


def test_the_billing_service_understands_what_the_pool_says_of_its_leases(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        caller = books.TokenSettings(token=TOKEN, name="pool", kind="service", scopes=frozenset({SERVICE}))
        settings = books.Settings(database_url=f"sqlite:///{tmp_path}/billing.sqlite3", port=0, tokens=(caller,))
        billing = Billing(settings, authenticator_of(settings), time.time_ns)
        told = Told()
        told.url = f"http://127.0.0.1:{billing.port}/"

        async def answers() -> dict[str, float]:
            """How many heartbeats were answered, by status."""
            text = (await AsyncHTTPClient().fetch(told.url + "metrics")).body.decode()
            found = re.findall(r'requests_total\{endpoint="heartbeats",method="POST",status="(\d+)"\} ([\d.]+)', text)
            return {status: float(count) for status, count in found}

        try:
            async with pool(**told.settings()) as running:
                client = await running.client()
                await client.hello()
                await client.acquire()
                before = (await answers())["200"]
                async with asyncio.timeout(20):
                    while (await answers()).get("200", 0) < before + 3:
                        await asyncio.sleep(0.01)
            assert set(await answers()) == {"200"}
        finally:
            await billing.close()

    asyncio.run(scenario())


def test_a_heartbeat_tells_of_each_open_lease_what_its_record_would_say(pool: Make) -> None:
    async def scenario() -> None:
        async with listener() as told, pool(**told.settings()) as running:
            await running.until(lambda: told.bodies)
            assert told.bodies[0]["leases"] == []
            client = await running.client()
            await client.hello()
            began_ns = time.time_ns()
            granted = await client.acquire()
            await running.until(lambda: told.bodies[-1]["leases"])
            first, seen = told.bodies[-1], len(told.bodies)
            await running.until(lambda: len(told.bodies) >= seen + 2)
            (early,), (late,) = first["leases"], told.bodies[seen + 1]["leases"]
            assert (early["record"], early["lease"], early["tenant"], early["user"]) == (f"{granted.lease}/1", granted.lease, "acme", "ada")
            assert early["span"] == {"id": "span-1", "kind": "cell", "label": "n.ipynb", "cell": 1, "cell_id": None, "first_line": None}
            assert abs(early["started_at_ns"] - began_ns) < 10**9
            assert {name: late[name] for name in late if name != "duration_ns"} == {n: early[n] for n in early if n != "duration_ns"}
            assert 0 < early["duration_ns"] < late["duration_ns"]
            client.work("mark")
            await client.hears(wire.LeaseClosed)
            seen = len(told.bodies)
            await running.until(lambda: len(told.bodies) > seen + 1)
            assert told.bodies[-1]["leases"] == []
            assert (told.bodies[-1]["source"], told.bodies[-1]["period_ns"]) == ("pool", 50_000_000)

    asyncio.run(scenario())


def test_a_budget_stops_new_leases_until_billing_says_it_no_more(pool: Make) -> None:
    async def scenario() -> None:
        async with listener() as told, pool(**told.settings()) as running:
            told.budgets = [{"tenant": "acme", "user": None, "span": None, "state": "drain", "sentence": "No money."}]
            account = running.machine.accounts.of("acme", None)
            await running.until(lambda: account.budget == "drain")
            client = await running.client()
            await client.hello()
            await client.ask()
            waiting = await client.hears(wire.Queued)
            assert (waiting.code, waiting.reason) == ("budget", "No money.")
            told.status, told.budgets = 503, []
            seen = len(told.bodies)
            await running.until(lambda: len(told.bodies) > seen + 2)
            assert account.budget == "drain"  # a billing service that fails has not said that there is money again
            told.status = 200
            await running.until(lambda: account.budget == "open")
            await client.hears(wire.Granted)

    asyncio.run(scenario())


def test_many_leases_go_in_several_calls(pool: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "LEASES_MAX", 2)

    async def scenario() -> None:
        devices = [{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 5}]
        async with listener() as told, pool(**told.settings(devices=devices)) as running:
            for _ in range(5):
                client = await running.client()
                await client.hello()
                await client.acquire()
            seen = len(told.bodies)
            await running.until(lambda: len(told.bodies) > seen + 12)
            by_beat: dict[int, list[int]] = {}
            for body in told.bodies[seen + 1 : -3]:
                by_beat.setdefault(body["sent_at_ns"], []).append(len(body["leases"]))
            assert [2, 2, 1] in by_beat.values()

    asyncio.run(scenario())


def test_a_lease_that_billing_refuses_switches_nobodys_budget_off(pool: Make) -> None:
    async def scenario() -> None:
        devices = [{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 6}]
        async with listener() as told, pool(**told.settings(devices=devices)) as running:
            for number in range(5):
                client = await running.client()
                await client.hello()
                await client.acquire(number)
            told.unheard = {"span-1", "span-3"}
            told.budgets = [{"tenant": "bolt", "user": None, "span": None, "state": "refuse", "sentence": "No money."}]
            account = running.machine.accounts.of("bolt", None)
            await running.until(lambda: account.budget == "refuse")
            seen = len(told.bodies)
            await running.until(lambda: len(told.bodies) >= seen + 3)
            spans = [sorted(lease["span"]["id"] for lease in body["leases"]) for body in told.bodies[seen + 1 :]]
            assert spans and all(found == ["span-0", "span-2", "span-4"] for found in spans), "the others are heard, in one call"
            assert running.service.metrics.heartbeat_leases_refused._value.get() == 2

    asyncio.run(scenario())


def test_heartbeats_follow_each_other_although_the_hosts_clock_is_set_back() -> None:
    class Shell:
        machine = SimpleNamespace(sessions={})

        def clock_ns(self) -> int:
            return 0

    told: list[int] = []

    class Sink:
        async def send_heartbeat(self, body: Any) -> list[Any]:
            told.append(body["sent_at_ns"])
            return []

    clock = iter([10**18, 10**18 - 3600 * 10**9, 10**18 + 5])
    beats = heartbeats.Heartbeats(cast(Any, Shell()), Sink(), "pool", 5.0, unix_ns=lambda: next(clock))
    for _ in range(3):
        asyncio.run(beats.beat())
    assert told == [10**18, 10**18 + 1, 10**18 + 5]
