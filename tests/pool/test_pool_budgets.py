"""What budgets do in the pool: they keep requests out, take leases back with grace, and overspend by one heartbeat at most."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forebay_billing import settings as books
from forebay_billing.rules.budgets import Budget, Running, Spent, Subject, standing
from forebay_billing.service import Service as Billing
from forebay_billing.service import authenticator_of
from forebay_pool.model.events import BudgetSet
from forebay_pool.model.types import Device, Equivalent, Flavor
from forebay_service.identity import OPERATE, SERVICE
from forebay_wire import messages as wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pool_world import World
from tornado.httpclient import AsyncHTTPClient, HTTPRequest

GIB = 2**30
SECOND = 1_000_000_000
Make = Callable[..., Any]
FLAVORS = [Flavor("one", GIB, (Equivalent("cpu-dev"),))]
USED_UP = "The budget of 2026-11 for ada of acme is used up; the tenant's owner can raise it."


def cpus(count: int) -> list[Device]:
    return [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 64 * GIB) for index in range(count)]


def make(world: Make, count: int = 4) -> Any:
    return world(cpus(count), FLAVORS, heartbeat_seconds=1e6)


def ask(w: World, session: str, notebook: str = "n.ipynb", user: str = "ada") -> None:
    if session not in w.machine.sessions:
        w.join(session, "one", user)
    span = wire.Span(id=f"{session}-{w.now}", kind="cell", label=notebook, cell=1)
    w.client(session, wire.Acquire(request=1, span=span))
    w.settle()


def holders(w: World) -> set[str]:
    return {name for name, session in w.machine.sessions.items() if session.lease is not None}


def passes(w: World, seconds: float) -> None:
    w.wait(seconds)
    w.tick()
    w.settle()


def test_a_drain_takes_leases_back_with_grace_and_their_work_goes_on_once_there_is_money(world: Make) -> None:
    w = make(world)
    ask(w, "a")
    ask(w, "b", user="ben")
    w.do(BudgetSet("acme", "ada", "drain", None, USED_UP, 5.0))
    assert [(m.seconds, m.reason) for m in w.told("a") if isinstance(m, wire.Revoking)] == [(5.0, USED_UP)]
    passes(w, 4.75)
    assert holders(w) == {"a", "b"}
    passes(w, 0.25)
    assert holders(w) == {"b"}
    assert [(record.session, record.duration_ns, record.close_reason) for record in w.records] == [("a", 5 * SECOND, "revoked")]
    assert (w.last("a").code, w.last("a").reason) == ("budget", USED_UP)
    ask(w, "c")
    assert (type(w.last("c")), w.last("c").code) == (wire.Queued, "budget")
    passes(w, 3600)
    assert holders(w) == {"b"}
    w.do(BudgetSet("acme", "ada", "open"))
    w.settle()
    assert holders(w) == {"a", "b", "c"}


def test_a_drain_without_grace_takes_leases_back_at_once_and_one_may_be_shortened(world: Make) -> None:
    w = make(world)
    ask(w, "a")
    w.do(BudgetSet("acme", None, "drain", None, USED_UP, 60.0))
    w.do(BudgetSet("acme", None, "drain", None, USED_UP, 59.5))
    assert len([m for m in w.told("a") if isinstance(m, wire.Revoking)]) == 1
    w.do(BudgetSet("acme", None, "drain", None, USED_UP, 0.0))
    w.settle()
    assert holders(w) == set()
    assert [record.duration_ns for record in w.records] == [0]


def test_a_notebooks_budget_keeps_that_notebook_out_and_nothing_else(world: Make) -> None:
    w = make(world)
    ask(w, "a", "a.ipynb")
    ask(w, "b", "b.ipynb")
    w.do(BudgetSet("acme", "ada", "drain", "a.ipynb", "No money for a.ipynb.", 0.0))
    w.settle()
    assert holders(w) == {"b"}
    ask(w, "c", "a.ipynb")
    assert (w.last("c").code, w.last("c").reason) == ("budget", "No money for a.ipynb.")
    ask(w, "d", "d.ipynb")
    ask(w, "e", "a.ipynb", user="ben")
    passes(w, 60)
    assert holders(w) == {"b", "d", "e"}, "who waits for money is in nobody's way"
    w.do(BudgetSet("acme", "ada", "open", "a.ipynb"))
    w.drain("e")
    w.settle()
    assert holders(w) >= {"b", "d"} and len(holders(w)) == 4


def test_a_notebooks_budget_that_refuses_answers_at_once(world: Make) -> None:
    w = make(world)
    w.do(BudgetSet("acme", "ada", "wait", "a.ipynb", "Wait for money."))
    ask(w, "a", "a.ipynb")
    assert (type(w.last("a")), w.last("a").code) == (wire.Queued, "budget")
    w.do(BudgetSet("acme", "ada", "refuse", "a.ipynb", "No money."))
    assert (type(w.last("a")), w.last("a").code, w.last("a").message) == (wire.Refused, "budget", "No money.")
    ask(w, "b", "a.ipynb")
    assert (type(w.last("b")), w.last("b").message) == (wire.Refused, "No money.")
    ask(w, "c", "c.ipynb")
    assert holders(w) == {"c"}


def test_a_request_that_is_asked_again_for_another_notebook_is_looked_at_anew(world: Make) -> None:
    w = make(world)
    w.do(BudgetSet("acme", "ada", "drain", "a.ipynb", "No money.", 0.0))
    ask(w, "a", "a.ipynb")
    assert holders(w) == set()
    ask(w, "a", "b.ipynb")
    assert holders(w) == {"a"}


# Overspend, in virtual time: the pool's state machine and billing's budgets, a heartbeat every few seconds between them


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture only makes worlds
@given(
    heartbeat=st.integers(2, 30),
    grace=st.integers(0, 60),
    limit_seconds=st.integers(0, 400),
    starts=st.lists(st.integers(0, 240), min_size=1, max_size=4),
    ends=st.lists(st.integers(1, 200), min_size=4, max_size=4),
)
def test_overspend_is_one_heartbeat_of_what_runs_at_most(
    world: Make, heartbeat: int, grace: int, limit_seconds: int, starts: list[int], ends: list[int]
) -> None:
    w = make(world)
    rate = 7
    limit = limit_seconds * SECOND * rate
    budget = Budget(1, Subject("acme"), "USD", "total", "operator", limit, (), "drain", grace, 0, "operator")
    begun_ns, last_rate, most = w.now, 0, 0

    def spent() -> int:
        return sum(record.duration_ns for record in w.records) * rate

    def accrued() -> int:
        return sum(w.now - s.lease.opened_ns for s in w.machine.sessions.values() if s.lease is not None) * rate

    def beat() -> None:
        nonlocal last_rate
        runs = rate * len(holders(w))
        now = standing(budget, Spent({"total": spent()}, {}), Running({"total": accrued()}, runs), last_rate, w.now)
        last_rate = runs or last_rate
        w.do(BudgetSet("acme", None, now.state, None, now.sentence or "", now.grace_ns / SECOND))
        w.settle()

    ended: set[str] = set()
    for quarter in range(4 * 360):
        w.wait(0.25)
        w.tick()
        w.settle()
        for index, start in enumerate(starts):
            if quarter == 4 * start + 1:  # right after a heartbeat is the worst moment
                ask(w, f"s{index}")
        for name in sorted(holders(w) - ended):
            if w.now - begun_ns > (starts[int(name[1:])] + ends[int(name[1:])]) * SECOND and w.machine.sessions[name].lease.state == "open":
                ended.add(name)
                w.drain(name)
                w.settle()
        if quarter % (4 * heartbeat) == 0:
            beat()
        most = max(most, spent() + accrued())
    assert most <= limit + heartbeat * SECOND * rate * len(starts)


# With real services


def test_a_pool_and_a_billing_service_keep_a_tenant_within_a_heartbeat_of_its_budget(pool: Make, tmp_path: Path) -> None:
    period, rate = 0.5, 1_000_000_000  # a unit a second

    async def scenario() -> None:
        callers = (
            books.TokenSettings(token="token-of-the-pool-service", name="pool", kind="service", scopes=frozenset({SERVICE})),
            books.TokenSettings(token="token-of-the-operator", name="operator", kind="user", scopes=frozenset({OPERATE})),
        )
        own = books.Settings(database_url=f"sqlite:///{tmp_path}/billing.sqlite3", port=0, tokens=callers)
        billing = Billing(own, authenticator_of(own), time.time_ns)
        url = f"http://127.0.0.1:{billing.port}/"

        async def call(method: str, path: str, body: str | None = None) -> Any:
            headers = {"Authorization": "token token-of-the-operator"}
            answer = await AsyncHTTPClient().fetch(HTTPRequest(url + path, method=method, body=body, headers=headers))
            return json.loads(answer.body)

        try:
            connection = {"billing_url": url, "hub_token": callers[0].token, "billing_heartbeat_seconds": period}
            async with pool(**connection) as running:
                client = await running.client()
                opened = await client.hello()
                price = f'{{"price_nano_per_hour": {3600 * rate}, "currency": "USD"}}'
                await call("PUT", f"api/prices/{opened.flavor.name}", price)
                limit = 3 * rate
                drains = '"tenant": "acme", "new": true, "on_limit": "drain", "grace_seconds": 1, "limit_nano"'
                await call("PUT", "api/budgets", f"{{{drains}: {limit}}}")
                await client.acquire()
                revoking = await client.hears(wire.Revoking)
                assert revoking.seconds <= 1
                assert "budget" in revoking.reason
                closed = await client.hears(wire.LeaseClosed)
                assert closed.reason == "revoked"

                async def stands() -> tuple[str, int, int]:
                    row = (await call("GET", "api/budgets"))[0]
                    return row["state"], row["spent_nano"], row["running_nano"]

                def metered() -> int:
                    return sum(record["duration_ns"] for record in running.records())

                async with asyncio.timeout(60):  # on a slow machine it is drained early, and goes on for what is left
                    session = running.machine.sessions[client.session]
                    while session.lease or metered() < closed.duration_ns or await stands() != ("drain", metered(), 0):
                        await asyncio.sleep(0.05)
                used = metered()
                assert limit - 1.05 * rate <= used <= limit + period * rate
                await client.ask(2)
                assert (await client.hears(wire.Queued)).code == "budget"
                await call("PUT", "api/budgets", f"{{{drains}: {100 * rate}}}")
                await client.hears(wire.Granted)
        finally:
            await billing.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("state", ["wait", "refuse", "drain"])
def test_billing_decides_again_after_each_change_of_state(world: Make, state: Any) -> None:
    w = make(world)
    for _ in range(3):
        w.do(BudgetSet("acme", None, state))
        ask(w, "a")
        w.settle()
        assert holders(w) == set()
        w.do(BudgetSet("acme", None, "open"))
        if state == "refuse":
            ask(w, "a")
        w.settle()
        assert holders(w) == {"a"}
        w.drain("a")
        w.settle()
