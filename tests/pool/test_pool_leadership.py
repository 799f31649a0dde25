"""Who may lead on one PostgreSQL: the lock that a pool holds, and how sure it is of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from forebay_pool.model.instructions import Kill
from forebay_pool.store.database import Store
from forebay_pool.store.leadership import LOCK, Leadership
from forebay_service.processes import leadership
from forebay_service.processes.leadership import SILENCE_SECONDS, SURE_SECONDS

PATIENCE_SECONDS = 20.0


@pytest.fixture
def database_url(postgres_url: str) -> str:
    """Only there is a lock to be had."""
    return postgres_url


@pytest.fixture
def first(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leadership]:
    """It leads, and asks often after its lock."""
    monkeypatch.setattr(leadership, "PING_SECONDS", 0.05)
    claim = Leadership(postgres_url)
    assert claim.take()
    yield claim
    claim.release()


def holders(server: str, end: bool = False) -> list[int]:
    """The connections that have the lock, which are ended if so wished."""
    with psycopg.connect(host=server, user="postgres", dbname="forebay", autocommit=True) as connection:
        high, low = LOCK >> 32, LOCK & 0xFFFFFFFF
        query = "select pid from pg_locks where locktype = 'advisory' and granted and classid = %s and objid = %s"
        pids = [int(pid) for (pid,) in connection.execute(query, (high, low))]
        for pid in pids if end else []:
            connection.execute("select pg_terminate_backend(%s)", (pid,))
    return pids


def test_one_leads_until_it_lets_go(first: Leadership, postgres_url: str) -> None:
    second = Leadership(postgres_url)
    assert not second.take() and not second.sure
    first.release()
    until = time.monotonic() + SILENCE_SECONDS - 1  # sooner than the server itself frees the lock of who is silent
    while not second.take():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert second.sure and not first.sure
    second.release()


def test_who_has_heard_nothing_of_its_lock_for_a_while_is_not_sure_to_lead(first: Leadership, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    assert first.sure
    monkeypatch.setattr(leadership, "time", SimpleNamespace(monotonic=lambda: now + SURE_SECONDS))
    assert not first.sure


def test_who_lost_the_lock_takes_it_again_unless_another_led_meanwhile(
    first: Leadership, store: Store, postgres_url: str, postgres_server: str
) -> None:
    lost = threading.Event()
    first.hold(store.still_leads, lost.set)
    (before,) = holders(postgres_server, end=True)
    until = time.monotonic() + PATIENCE_SECONDS
    while before in (now := holders(postgres_server)) or not now:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert not lost.is_set()
    another = Store(postgres_url)
    another.lead("http://second/")
    another.close()
    assert not lost.is_set()
    holders(postgres_server, end=True)
    assert lost.wait(PATIENCE_SECONDS)


def test_who_is_not_sure_to_lead_ends_no_worker(pool: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=1) as running:
            await running.until(lambda: running.service.shell.workers)
            shell, (worker,) = running.service.shell, running.service.shell.workers
            killed: list[str] = []
            kill, shell.launcher.kill = shell.launcher.kill, killed.append
            for leads in (False, True):
                shell.leads = lambda leads=leads: leads
                shell._kill(Kill(worker))
                assert killed == [worker] * leads
            shell.launcher.kill = kill

    asyncio.run(scenario())
