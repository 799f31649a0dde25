"""The time for which images of sessions are there: metered as parked bytes are, exactly, and once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from forebay_pool.model.causes import Cause
from forebay_pool.model.events import Restored, SessionAway, SessionLeft, SessionMoved, SessionReplays, WorkerAway, WorkerGone
from forebay_pool.model.instructions import Forget, MeterParked
from forebay_pool.model.metering import HOUR_NS, PARKED
from forebay_pool.model.snapshot import Snapshot, WorkerSnapshot, parking_snapshot, session_snapshot
from forebay_pool.model.types import UsageRecord
from forebay_pool.store.batch import Batch
from forebay_pool.store.database import Store
from forebay_wire import messages as wire
from pool_world import World, devices

Make = Callable[..., World]
MIB = 2**20
SECOND = 1_000_000_000


def records(w: World) -> list[UsageRecord]:
    return [instruction.record for instruction in w.out if isinstance(instruction, MeterParked)]


def lengths(w: World) -> list[tuple[int | None, float]]:
    """The bytes of each record, and the seconds for which they were there."""
    return [(record.parked_bytes, record.duration_ns / SECOND) for record in records(w)]


def keep(w: World, count_bytes: int = MIB) -> None:
    w.worker(w.worker_of("s"), wire.Kept(number=1, bytes=count_bytes))


def computing(world: Make, **limits: Any) -> World:
    """A session whose client keeps what it sends, and whose worker kept an image just now."""
    w = world(devices(2), **limits)
    w.lease("s")
    w.do(SessionReplays("s"))
    keep(w)
    return w


def kill(w: World) -> None:
    w.do(WorkerGone(w.worker_of("s"), Cause("killed", signal="SIGKILL")))
    w.settle()


def test_an_image_is_metered_from_its_report_until_one_of_another_size_or_the_end(world: Make) -> None:
    w = computing(world)
    opened_ns = w.machine.sessions["s"].replay.stretch.opened_unix_ns
    w.wait(3)
    keep(w)
    assert records(w) == [], "of the same size: the stretch goes on"
    w.wait(4)
    keep(w, 3 * MIB)
    w.wait(5)
    w.do(SessionLeft("s"))
    assert lengths(w) == [(MIB, 7.0), (3 * MIB, 5.0)] and records(w)[0].started_at_unix_ns == opened_ns
    assert {(one.flavor, one.session, one.device_model, one.devices) for one in records(w)} == {(PARKED, "s", "cpu-dev", 1)}
    assert [one.close_reason for one in records(w)] == ["drained", "released"]


def test_a_session_without_images_pays_for_none(world: Make) -> None:
    w = world(devices(2))
    w.lease("s")
    w.do(SessionReplays("s"))
    w.wait(60)
    w.drain("s")
    w.do(SessionLeft("s"))
    assert records(w) == []


def test_it_is_metered_once_over_deaths_and_replays(world: Make) -> None:
    w = computing(world)
    for _ in range(2):
        w.wait(5)
        kill(w)
        w.wait(2)
        w.client("s", wire.Arrived(epoch=w.epoch("s")))
    w.wait(1)
    w.drain("s")
    w.do(SessionLeft("s"))
    assert lengths(w) == [(MIB, 15.0)]


def test_it_is_metered_beside_the_tensors_where_both_are_kept(world: Make) -> None:
    w = computing(world)
    w.worker(w.worker_of("s"), wire.Heartbeat(epoch=1, memory_bytes=MIB, busy_ns=0, commands=1))
    w.drain("s")
    w.lease("big0", flavor="dev.8gb")
    w.lease("big1", flavor="dev.8gb")
    assert w.machine.sessions["s"].state == "parked"
    w.wait(4)
    w.do(SessionLeft("s"))
    assert sorted(record.lease[:3] for record in records(w)) == ["s.i", "s.p"]
    assert [length for _, length in lengths(w)] == [4.0, 4.0]


def test_a_move_ends_it_since_the_worker_removes_it(world: Make) -> None:
    w = computing(world)
    w.wait(6)
    w.do(SessionMoved("s"))
    w.worker(w.worker_of("s"), wire.Left(bytes=MIB, spilled_bytes=0, address="tcp:h:1", ticket="0" * 64))
    assert lengths(w) == [(MIB, 6.0)] and w.machine.sessions["s"].replay.image is None


def test_what_nobody_can_vouch_for_is_free(world: Make) -> None:
    w = computing(world, resume_seconds=60.0)
    w.wait(6)
    w.do(WorkerAway(w.worker_of("s")))
    w.do(SessionAway("s"))
    w.wait(61)
    w.tick()
    w.settle()
    assert "s" not in w.machine.sessions and records(w) == [] and any(isinstance(one, Forget) for one in w.out)


def test_hours_are_metered_as_they_pass_while_the_session_rests(world: Make) -> None:
    w = computing(world)
    opened_ns = w.machine.sessions["s"].replay.stretch.opened_unix_ns
    w.drain("s")
    for _ in range(8_000 // 2):
        w.wait(2)
        w.worker(w.worker_of("s"), wire.Heartbeat(epoch=None, memory_bytes=0, busy_ns=0, commands=0))
        w.tick()
    w.do(SessionLeft("s"))
    found = records(w)
    assert len(found) == 3 and found[0].started_at_unix_ns == opened_ns
    assert sum(one.duration_ns for one in found) == 8_000 * SECOND
    for before, after in pairwise(found):
        assert before.started_at_unix_ns + before.duration_ns == after.started_at_unix_ns and not after.started_at_unix_ns % HOUR_NS


def rows_of(w: World, store: Store) -> tuple[str, Snapshot]:
    """The session's worker, and what the database has of the session once its lease has drained and five seconds have passed."""
    w.drain("s")
    w.wait(5)
    session = w.machine.sessions["s"]
    stretch = session.replay.stretch
    store.write(Batch(sessions={"s": session_snapshot(session)}, parkings={stretch.id: parking_snapshot(stretch)}), deliver=True)
    return w.worker_of("s"), Snapshot(sessions=tuple(store.kept().sessions), parkings=(parking_snapshot(stretch),))


def successor_of(world: Make, w: World, worker: str, kept: Snapshot, seconds: int) -> World:
    """Another pool that goes on so much later."""
    after = world(devices(2), resume_seconds=60.0)
    after.now = w.now + seconds * SECOND
    after.do(Restored(replace(kept, workers=(WorkerSnapshot(worker, ("main/cpu:0",), "", "", 1, 1),))))
    return after


def back(w: World, worker: str) -> None:
    says = {"session": "s", "epoch": None, "ended": None, "starved": False, "client_gone": False, "memory_bytes": 0}
    w.worker(worker, wire.ResumeWorker(worker=worker, address="unix:/x", parked_bytes=None, **says))


def test_the_next_pool_goes_on_to_the_nanosecond_once_somebody_vouches_for_it(world: Make, store: Store) -> None:
    w = computing(world, resume_seconds=60.0)
    opened_ns = w.machine.sessions["s"].replay.stretch.opened_ns
    worker, kept = rows_of(w, store)
    assert [(one.image, one.bytes) for one in kept.parkings] == [(True, MIB)] == [(one.image, one.bytes) for one in store.kept().parkings]
    for returns in (True, False):
        after = successor_of(world, w, worker, kept, 7)
        if returns:
            back(after, worker)
        after.wait(1)
        after.do(SessionLeft("s"))
        assert [record.duration_ns for record in records(after)] == ([after.now - opened_ns] if returns else [])


def test_a_stretch_of_another_image_than_the_one_that_is_there_is_free(world: Make, store: Store) -> None:
    w = computing(world, resume_seconds=60.0)
    worker, kept = rows_of(w, store)
    stale = replace(kept, parkings=tuple(replace(one, bytes=2 * MIB) for one in kept.parkings))
    after = successor_of(world, w, worker, stale, 7)
    assert [one.parking for one in after.out if isinstance(one, Forget)] == [kept.parkings[0].id]
    back(after, worker)
    after.wait(2)
    after.do(SessionLeft("s"))
    assert sum(record.duration_ns for record in records(after)) <= 9 * SECOND
