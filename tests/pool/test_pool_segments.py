"""Open leases are metered hour by hour: no gap, no overlap, nothing twice, and what is not certain yet waits."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from forebay_pool.model.events import LeaseRevoked, Restored, Tick, WorkerAway
from forebay_pool.model.metering import HOUR_NS, cut_after, segments
from forebay_pool.model.snapshot import Snapshot, WorkerSnapshot, lease_snapshot, session_snapshot
from forebay_pool.model.types import UsageRecord
from forebay_pool.store.batch import Batch
from forebay_pool.store.database import Store
from forebay_wire import messages as wire
from forebay_wire import stream
from hypothesis import given
from hypothesis import strategies as st
from pool_world import World

Make = Callable[..., Any]
SECOND = 1_000_000_000
UNIX_OFFSET_NS = 1_700_000_000 * SECOND
TO_THE_HOUR = 2_800
"""Seconds from 1,700,000,000 to the next full hour; a world's first lease opens one second later."""
SPAN = wire.Span(id="s", kind="cell", label="n", cell=1)


def record(started_ns: int, duration_ns: int) -> UsageRecord:
    return UsageRecord("s.1", "acme", "ada", "s", "s.1", SPAN, "dev.1gb", "cpu-dev", 1, started_ns, duration_ns, "drained")


def beat(w: World, session: str) -> None:
    w.worker(w.worker_of(session), wire.Heartbeat(epoch=w.epoch(session), memory_bytes=0, busy_ns=0, commands=0))
    w.tick()


def hold(w: World, session: str, seconds: int) -> None:
    """The worker computes for so long, and says so every second or two."""
    for _ in range(seconds // 2):
        w.wait(2)
        beat(w, session)


def check_contiguous(records: list[UsageRecord], opened_ns: int) -> int:
    """That the segments of a lease follow one another from its start on; their sum."""
    assert [one.id.rpartition("/")[2] for one in records] == [str(number) for number in range(1, len(records) + 1)]
    assert records[0].started_at_unix_ns == opened_ns
    for before, after in pairwise(records):
        assert before.started_at_unix_ns + before.duration_ns == after.started_at_unix_ns
        assert before.started_at_unix_ns // HOUR_NS != after.started_at_unix_ns // HOUR_NS
    return sum(one.duration_ns for one in records)


@given(
    opened_ns=st.integers(0, 10 * HOUR_NS),
    held_ns=st.integers(0, 5 * HOUR_NS),
    stops=st.lists(st.integers(0, 5 * HOUR_NS), max_size=4),
    every=st.sampled_from([HOUR_NS, HOUR_NS // 7, 1_000 * SECOND]),
)
def test_segments_sum_to_the_lease_whenever_they_are_cut(opened_ns: int, held_ns: int, stops: list[int], every: int) -> None:
    found: list[UsageRecord] = []
    for stop_ns in sorted(stop for stop in stops if stop < held_ns):
        passed = [cut for cut in _cuts(opened_ns, stop_ns, every) if cut > sum(one.duration_ns for one in found)]
        if passed:
            whole = replace(record(opened_ns, passed[-1]), close_reason="open")
            found += segments(whole, len(found) + 1, sum(one.duration_ns for one in found), every)
    found += segments(record(opened_ns, held_ns), len(found) + 1, sum(one.duration_ns for one in found), every)
    assert sum(one.duration_ns for one in found) == held_ns
    if every == HOUR_NS and held_ns:
        assert check_contiguous(found, opened_ns) == held_ns
    assert [one.close_reason for one in found] == ["open"] * (len(found) - 1) + ["drained"]
    assert found == segments(record(opened_ns, held_ns), 1, 0, every)


def _cuts(opened_ns: int, held_ns: int, every: int) -> list[int]:
    cuts, at_ns = [], opened_ns
    while (at_ns := cut_after(at_ns, every)) <= opened_ns + held_ns:
        cuts.append(at_ns - opened_ns)
    return cuts


def test_a_long_lease_is_metered_while_it_runs_and_sums_to_its_time(world: Make) -> None:
    w = world()
    w.lease("a")
    opened_ns = w.machine.sessions["a"].lease.opened_unix_ns
    hold(w, "a", 2 * 3600 + TO_THE_HOUR)
    assert [(one.id, one.close_reason) for one in w.records] == [("a.1/1", "open"), ("a.1/2", "open")]
    assert w.records[1].started_at_unix_ns % HOUR_NS == 0
    w.wait(1)
    w.drain("a")
    assert w.records[-1].close_reason == "drained"
    (closed,) = [message for message in w.told("a") if isinstance(message, wire.LeaseClosed)]
    assert check_contiguous(w.records, opened_ns) == closed.duration_ns == (2 * 3600 + TO_THE_HOUR + 1) * SECOND


def test_an_idle_stretch_across_the_hour_is_not_metered(world: Make) -> None:
    w = world()
    w.lease("a")
    lease = w.machine.sessions["a"].lease
    hour_ns = cut_after(lease.opened_unix_ns, HOUR_NS) - lease.opened_unix_ns
    w.now = lease.opened_ns + hour_ns - SECOND // 2
    w.machine.sessions["a"].worker.seen_ns = w.now
    beat(w, "a")
    w.wait(1.9)
    beat(w, "a")  # 1.4 s into the hour, and idle for 1.9 s: not asked yet
    assert w.records == []
    w.wait(0.1)
    w.worker(w.worker_of("a"), wire.Idle(epoch=1, idle_ns=2 * SECOND))
    (only,) = w.records
    assert (only.id, only.duration_ns, only.close_reason) == ("a.1/1", hour_ns - SECOND // 2, "idle")


def test_what_no_worker_confirmed_is_not_metered_before_it_is_back(world: Make) -> None:
    w = world(resume_seconds=7200.0)
    worker = w.lease("a")
    hold(w, "a", 100)
    w.do(WorkerAway(worker))
    w.wait(5000)
    w.tick()
    assert w.records == []
    w.wait(5000)
    w.tick()
    assert [(one.id, one.duration_ns, one.close_reason) for one in w.records] == [("a.1/1", 0, "failed")]


@pytest.mark.parametrize("step_seconds", [-1800, -3, 3, 5400])
def test_a_step_of_the_unix_clock_moves_no_segment(world: Make, step_seconds: int) -> None:
    """Durations are the monotonic clock's, and segments lie one after the other, wherever NTP puts the clock meanwhile."""
    w = world()
    w.lease("a")
    opened_ns = w.machine.sessions["a"].lease.opened_unix_ns
    hold(w, "a", TO_THE_HOUR - 100)
    w.tick = lambda: w.do(Tick(UNIX_OFFSET_NS + step_seconds * SECOND))
    hold(w, "a", 3700)
    w.drain("a")
    assert check_contiguous(w.records, opened_ns) == (TO_THE_HOUR + 3600) * SECOND
    w.acquire("a", 2)
    w.settle()
    lease = w.machine.sessions["a"].lease
    assert lease.opened_unix_ns == w.now + UNIX_OFFSET_NS + step_seconds * SECOND  # the next one starts where the clock is now


def test_a_revoked_lease_is_metered_to_its_end_and_the_next_one_begins_anew(world: Make) -> None:
    w = world(revoke_grace_seconds=5.0)
    w.lease("a")
    first_ns = w.machine.sessions["a"].lease.opened_unix_ns
    hold(w, "a", TO_THE_HOUR + 20)
    w.do(LeaseRevoked("a", "An operator needs the device."))
    hold(w, "a", 6)
    w.settle()
    mine = [one for one in w.records if one.lease == "a.1"]
    assert [one.close_reason for one in mine] == ["open", "revoked"]
    assert check_contiguous(mine, first_ns) == (TO_THE_HOUR + 26) * SECOND


def kept_now(w: World, name: str) -> Snapshot:
    session = w.machine.sessions[name]
    return Snapshot(sessions=(session_snapshot(session),), leases=(lease_snapshot(session.lease),))


def test_the_next_pool_meters_on_from_the_segments_that_were_written(world: Make, store: Store) -> None:
    """A lease's row is as far as its records, in one transaction; whatever else the pool that died knew."""
    w = world()
    w.lease("a")
    session = w.machine.sessions["a"]
    store.write(Batch(sessions={"a": session_snapshot(session)}, leases={"a.1": lease_snapshot(session.lease)}), deliver=True)
    opened_ns = session.lease.opened_unix_ns
    hold(w, "a", TO_THE_HOUR + 10)
    (first,) = w.records
    (before,) = store.kept().leases
    assert (before.segment, before.metered_ns) == (1, 0)
    store.write(Batch(records=[first]), deliver=True)
    store.write(Batch(records=[first]), deliver=True)  # written again by a pool that did not hear of the commit
    (after,) = store.kept().leases
    assert (after.segment, after.metered_ns, after.confirmed_ns) == (2, first.duration_ns, first.duration_ns)
    rest = after.failed(HOUR_NS)
    assert [(one.id, one.duration_ns, one.close_reason) for one in rest] == [("a.1/2", 0, "failed")]
    assert check_contiguous([first, *rest], opened_ns) == first.duration_ns
    # before it was written, nobody was told of it, and what nobody comes back to is free
    again = replace(before, confirmed_ns=first.duration_ns + SECOND).failed(HOUR_NS)
    assert [(one.id, one.duration_ns, one.close_reason) for one in again] == [("a.1/1", 0, "failed")]
    store.write(Batch(records=rest), deliver=True)
    assert store.kept().leases == ()
    assert store.kept().closed["a"].duration_ns == first.duration_ns
    assert len(store.undelivered("pool", 10)) == 2


def test_a_restored_pool_goes_on_with_the_lease_and_meters_each_hour_once(world: Make) -> None:
    w = world(resume_seconds=60.0)
    worker = w.lease("a")
    hold(w, "a", TO_THE_HOUR + 10)
    kept, opened_ns = kept_now(w, "a"), w.machine.sessions["a"].lease.opened_unix_ns
    assert (kept.leases[0].segment, len(w.records)) == (2, 1)
    process = WorkerSnapshot(worker, kept.leases[0].devices, "", "", 1, 1)
    successor = world(resume_seconds=60.0)
    successor.now = w.now + 2 * SECOND
    successor.do(Restored(replace(kept, workers=(process,))))
    says = {"ended": None, "starved": False, "client_gone": False, "memory_bytes": 0, "parked_bytes": None}
    successor.worker(worker, wire.ResumeWorker(worker=worker, address="unix:/x", session="a", epoch=1, **says))
    successor.client("a", wire.ResumeSession(session="a", key="0" * 64, worker=worker, epoch=1))
    hold(successor, "a", 3600)
    successor.drain("a")
    assert [one.id for one in successor.records] == ["a.1/2", "a.1/3"]
    assert check_contiguous([*w.records, *successor.records], opened_ns) == successor.now - kept.leases[0].opened_ns


@pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built")
def test_a_real_workers_lease_is_metered_in_every_hour_that_it_computes_in(pool: Make) -> None:
    """Hours of a second."""
    from test_pool_with_real_workers import Computing, body_of  # it imports the worker's PyTorch

    real = {
        "real_workers": True,
        "heartbeat_seconds": 0.2,
        "idle_release_seconds": 3.0,
        "segment_seconds": 1.0,
    }

    more = stream.frame(body_of(stream.Write(7, 0, bytes(8))))

    async def computes(mine: Any, until: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not until():
                mine.writer.write(more)
                await asyncio.sleep(0.05)

    async def scenario() -> None:
        async with pool(**real) as running:
            mine = await Computing.begin(running, "ada")
            await computes(mine, lambda: len(running.records()) >= 3)
            assert running.leases == [mine.lease]
            assert {row["close_reason"] for row in running.records()} == {"open"}
            await mine.ends_well()
            await running.until(lambda: not running.leases and running.records()[-1]["close_reason"] == "drained")
            rows = running.records()
            assert [row["id"] for row in rows] == [f"{mine.lease}/{number}" for number in range(1, len(rows) + 1)]
            for before, after in pairwise(rows):
                assert before["started_at_unix_ns"] + before["duration_ns"] == after["started_at_unix_ns"]
                assert after["started_at_unix_ns"] % SECOND == 0
            assert sum(row["duration_ns"] for row in rows) <= mine.age_ns

    asyncio.run(scenario())


@given(whole_mj=st.integers(0, 10**12), held_ns=st.integers(1, 5 * HOUR_NS), opened_ns=st.integers(0, HOUR_NS))
def test_a_lease_s_energy_is_shared_out_among_its_segments_and_none_is_lost(whole_mj: int, held_ns: int, opened_ns: int) -> None:
    found = segments(replace(record(opened_ns, held_ns), energy_mj=whole_mj), 1, 0, HOUR_NS)
    assert sum(one.energy_mj or 0 for one in found) == whole_mj
    assert all(abs((one.energy_mj or 0) - whole_mj * one.duration_ns / held_ns) <= 1 + whole_mj / 2**50 for one in found)


def test_each_record_has_what_its_worker_drew_since_the_one_before(world: Make) -> None:
    w = world()
    worker = w.lease("a")
    w.wait(2)
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=0, busy_ns=0, commands=0, energy_mj=400))
    w.drain("a", energy_mj=500)
    w.worker(worker, wire.Heartbeat(epoch=None, memory_bytes=0, busy_ns=0, commands=0, energy_mj=520))  # the last look came too late
    w.acquire("a", 2)
    w.settle()
    w.wait(1)
    w.drain("a", energy_mj=1_000)
    w.acquire("a", 3)
    w.settle()
    w.drain("a", energy_mj=None)
    assert [one.energy_mj for one in w.records] == [500, 500, None]
