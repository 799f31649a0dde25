"""Parked time: metered in segments that follow one another, for as long as somebody can vouch for it, over restarts too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from forebay_pool.model.events import QuotaSet, Restored, SessionLeft, SessionMoved, WorkerAway, WorkerGone
from forebay_pool.model.instructions import Forget, MeterParked
from forebay_pool.model.metering import HOUR_NS, PARKED
from forebay_pool.model.snapshot import Snapshot, WorkerSnapshot, parking_snapshot, session_snapshot
from forebay_pool.model.types import Device, Quota, UsageRecord
from forebay_pool.store.batch import Batch
from forebay_pool.store.database import Store
from forebay_wire import messages as wire
from pool_world import World

from tests.pool.test_pool_parked_quota import REAL, needs_extensions, program

Make = Callable[..., Any]
SECOND = 1_000_000_000
GIB = 2**30
TO_THE_HOUR = 2_800
"""Seconds from 1,700,000,000 to the next full hour."""


def records(w: World) -> list[UsageRecord]:
    return [instruction.record for instruction in w.out if isinstance(instruction, MeterParked)]


def parked(world: Make, **limits: Any) -> tuple[Any, str]:
    """A world in which session ``a`` was parked just now, with 4 GiB, for ``b``; its worker."""
    w = world(**limits)
    worker = w.lease("a", flavor="dev.4gb")
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=4 * GIB, busy_ns=0, commands=0))
    w.drain("a")
    w.lease("b", flavor="dev.8gb")
    assert w.machine.sessions["a"].state == "parked"
    return w, worker


def pass_time(w: World, seconds: int, *workers: str) -> None:
    """All workers are heard, every second or two."""
    for _ in range(seconds // 2):
        w.wait(2)
        for worker in workers:
            epoch = w.epoch("b") if worker == w.worker_of("b") and w.machine.sessions["b"].lease else None
            w.worker(worker, wire.Heartbeat(epoch=epoch, memory_bytes=0, busy_ns=0, commands=0))
        w.tick()


def check_contiguous(found: list[UsageRecord], opened_ns: int) -> int:
    """That they follow one another from there on, with the stretch's name; their sum."""
    assert [one.id for one in found] == [f"{found[0].lease}/{number}" for number in range(1, len(found) + 1)]
    assert found[0].started_at_unix_ns == opened_ns
    for before, after in pairwise(found):
        assert before.started_at_unix_ns + before.duration_ns == after.started_at_unix_ns
        assert after.started_at_unix_ns % HOUR_NS == 0
    assert {(one.flavor, one.parked_bytes, one.tenant, one.user, one.session) for one in found} == {(PARKED, 4 * GIB, "acme", "ada", "a")}
    return sum(one.duration_ns for one in found)


def test_parked_time_is_metered_hour_by_hour_until_the_tensors_are_brought_back(world: Make) -> None:
    w, worker = parked(world)
    opened_ns = w.machine.sessions["a"].parking.opened_unix_ns
    pass_time(w, TO_THE_HOUR + 3_600, worker, w.worker_of("b"))
    assert [one.close_reason for one in records(w)] == ["open", "open"]
    w.drain("b")
    w.wait(5)
    w.acquire("a", 2)
    w.settle()
    assert [one.close_reason for one in records(w)] == ["open", "open", "drained"]
    assert check_contiguous(records(w), opened_ns) == (TO_THE_HOUR + 3_605) * SECOND
    assert [one.span.id for one in records(w)] == ["a-1"] * 3
    assert w.machine.sessions["a"].lease is not None  # from the moment it is restored on nothing of it is parked
    assert w.machine.sessions["a"].parking is None


def test_tensors_that_are_brought_back_at_once_make_no_row_that_costs_nothing(world: Make) -> None:
    w, _ = parked(world)
    w.drain("b")
    w.acquire("a", 2)
    w.settle()
    assert w.machine.sessions["a"].state == "active" and w.machine.sessions["a"].parking is None
    assert records(w) == [] and any(isinstance(one, Forget) for one in w.out)


def test_it_ends_when_the_session_is_released(world: Make) -> None:
    w, _worker = parked(world)
    opened_ns = w.machine.sessions["a"].parking.opened_unix_ns
    w.wait(7)
    w.do(SessionLeft("a"))
    assert [one.close_reason for one in records(w)] == ["released"]
    assert check_contiguous(records(w), opened_ns) == 7 * SECOND


def test_what_is_lost_by_our_failure_is_not_metered(world: Make) -> None:
    w, worker = parked(world)
    w.wait(100)
    w.do(WorkerGone(worker, "killed by signal 9"))
    assert "a" not in w.machine.sessions
    assert records(w) == []
    assert [type(one) for one in w.fresh].count(Forget) == 1


def test_nothing_is_metered_while_nobody_can_vouch_for_it_and_all_of_it_once_somebody_does(world: Make) -> None:
    w, worker = parked(world, resume_seconds=20_000.0)
    opened_ns = w.machine.sessions["a"].parking.opened_unix_ns
    w.do(WorkerAway(worker))
    pass_time(w, TO_THE_HOUR + 10, w.worker_of("b"))
    assert records(w) == []
    says = {"session": "a", "epoch": None, "ended": None, "starved": False, "client_gone": False, "memory_bytes": 0}
    w.worker(worker, wire.ResumeWorker(worker=worker, address="unix:/x", parked_bytes=4 * GIB, **says))
    w.tick()
    pass_time(w, 10, worker, w.worker_of("b"))
    assert check_contiguous(records(w), opened_ns) == w.machine.sessions["a"].parking.metered_ns
    assert [one.close_reason for one in records(w)] == ["open"]


def test_a_session_that_ends_while_its_worker_is_away_pays_for_no_more_than_was_known(world: Make) -> None:
    w, worker = parked(world, resume_seconds=20_000.0)
    w.do(WorkerAway(worker))
    w.wait(1_000)
    w.do(SessionLeft("a"))
    assert records(w) == []


def moving(world: Make) -> tuple[Any, str, wire.Left]:
    """A session ``a`` on its way from a worker that is away to another, which is fetching its tensors; the one that is away."""
    w = world([Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 8 * GIB) for index in range(2)], resume_seconds=30.0)
    old = w.lease("a", flavor="dev.4gb")
    w.drain("a")
    w.do(SessionMoved("a"))
    w.acquire("a", 2)
    left = wire.Left(bytes=4 * GIB, address="unix:/old", ticket="a" * 64)
    w.worker(old, left)
    w.ready(w.launched[-1])
    assert [order.type for order in w.ordered(w.launched[-1])] == ["assign"]
    w.do(WorkerAway(old))
    w.wait(1)
    return w, old, left


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("why", ["the fetching worker dies", "the request is withdrawn", "a quota bars it"])
def test_a_stretch_that_would_begin_while_its_worker_is_away_begins_when_that_is_back(world: Make, why: str, returns: bool) -> None:
    w, old, left = moving(world)
    before = len(records(w))
    if why == "the fetching worker dies":
        w.do(WorkerGone(w.worker_of("a"), "killed by signal 9"))
        w.client("a", wire.Cancel(request=2))
    elif why == "the request is withdrawn":
        w.client("a", wire.Cancel(request=2))
    else:
        w.do(QuotaSet("acme", None, Quota(devices_milli=1)))
    session = w.machine.sessions["a"]
    assert (session.worker, session.image.id, session.parking) == (None, old, None)
    w.wait(3)
    if returns:
        says = {"session": "a", "epoch": None, "ended": None, "starved": False, "client_gone": False, "memory_bytes": 0}
        w.worker(old, wire.ResumeWorker(worker=old, address="unix:/old", parked_bytes=None, left=left, **says))
        assert session.parking.opened_ns == w.now
    w.wait(2)
    w.do(SessionLeft("a"))
    assert [(one.duration_ns, one.close_reason) for one in records(w)[before:]] == ([(2 * SECOND, "released")] if returns else [])


def successor_of(world: Make, w: World, worker: str, kept: Snapshot, seconds: int) -> Any:
    """Another pool that goes on with it, so much later."""
    process = WorkerSnapshot(worker, ("main/cpu:0",), "", "", 1, 1)
    successor = world(resume_seconds=60.0)
    successor.now = w.now + seconds * SECOND
    successor.do(Restored(replace(kept, workers=(process,))))
    return successor


def back(successor: Any, worker: str, parked_bytes: int | None) -> None:
    says = {"session": "a", "epoch": None, "ended": None, "starved": False, "client_gone": False, "memory_bytes": 0}
    successor.worker(worker, wire.ResumeWorker(worker=worker, address="unix:/x", parked_bytes=parked_bytes, **says))


def test_the_next_pool_goes_on_where_the_last_segment_ended(world: Make, store: Store) -> None:
    """A stretch's row is as far as its records, in one transaction; whatever else the pool that died knew."""
    w, worker = parked(world)
    session = w.machine.sessions["a"]
    opened_ns = session.parking.opened_unix_ns
    parkings = {session.parking.id: parking_snapshot(session.parking)}
    store.write(Batch(sessions={"a": session_snapshot(session)}, parkings=parkings), deliver=True)
    pass_time(w, TO_THE_HOUR + 20, worker, w.worker_of("b"))
    (first,) = records(w)
    store.write(Batch(records=[first]), deliver=True)
    store.write(Batch(records=[first]), deliver=True)  # written again by a pool that did not hear of the commit
    with store.engine.connect() as connection:
        (row,) = connection.exec_driver_sql("select segment, metered_ns, opened_ns from parkings").all()
    assert (row.segment, row.metered_ns) == (2, first.duration_ns)
    kept_now = replace(parking_snapshot(session.parking), segment=row.segment, metered_ns=row.metered_ns)
    successor = successor_of(world, w, worker, Snapshot(sessions=(session_snapshot(session),), parkings=(kept_now,)), 3)
    back(successor, worker, 4 * GIB)
    successor.wait(4)
    successor.do(SessionLeft("a"))
    assert check_contiguous([first, *records(successor)], opened_ns) == successor.now + 1_700_000_000 * SECOND - opened_ns
    store.write(Batch(records=records(successor)), deliver=True)
    assert store.kept().parkings == ()
    sent = store.undelivered("pool", 10)
    assert [one.payload["id"] for one in sent] == [one.id for one in (first, *records(successor))]
    assert [one.payload["parked_bytes"] for one in sent] == [4 * GIB, 4 * GIB]
    assert store.kept(half_life_seconds=3600.0).history.shares == ()  # it is no use of devices


@pytest.mark.parametrize("parked_bytes", [None, 3 * GIB])
def test_what_happened_while_no_pool_looked_is_free(world: Make, parked_bytes: int | None) -> None:
    w, worker = parked(world)
    session = w.machine.sessions["a"]
    kept = Snapshot(sessions=(session_snapshot(session),), parkings=(parking_snapshot(session.parking),))
    successor = successor_of(world, w, worker, kept, 30)
    back(successor, worker, parked_bytes)
    assert records(successor) == []
    parking = successor.machine.sessions["a"].parking
    assert (None if parking is None else (parking.bytes, parking.opened_ns)) == (parked_bytes and (parked_bytes, successor.now))


def test_a_stretch_whose_session_is_gone_is_forgotten(world: Make) -> None:
    w, worker = parked(world)
    kept = Snapshot(parkings=(parking_snapshot(w.machine.sessions["a"].parking),))
    successor = successor_of(world, w, worker, kept, 30)
    assert [one.parking for one in successor.fresh if isinstance(one, Forget)] == [kept.parkings[0].id]
    assert records(successor) == []


@needs_extensions
def test_a_real_session_that_was_parked_is_metered_by_its_bytes(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            async with program(running, "ada", 64) as first:
                await first.rests()
                async with program(running, "ben", 1000) as second:
                    await second.rests()  # the first was parked for it
                    await running.until(lambda: running.machine.sessions[first_of(running)].parking is not None)
                    session = first_of(running)
                    opened_ns = running.machine.sessions[session].parking.opened_unix_ns
                    assert await first.goes_on() == f"{64 * 2**20 // 4 - 1} 7"
                    await running.until(lambda: bool(running.parked_records()))
                    (record,) = running.parked_records()
                    assert (record["session"], record["started_at_unix_ns"], record["user"]) == (session, opened_ns, "ada")
                    assert 64 * 2**20 <= record["parked_bytes"] <= 66 * 2**20
                    assert record["duration_ns"] > 0

    asyncio.run(scenario())


def first_of(running: Any) -> str:
    return next(session.id for session in running.machine.sessions.values() if session.user == "ada")
