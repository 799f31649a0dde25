"""What stands still and goes on is not dead: the pool itself, and workers that hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.model.attention import Attention
from forebay_pool.model.events import LeaseRevoked, SessionAway, Tick, WorkerAway, WorkerGone
from forebay_wire import messages as wire
from pool_world import World

SECOND = 1_000_000_000
UNIX_OFFSET_NS = 1_700_000_000 * SECOND
CALL_SECONDS_MAX = 600.0

Make = Callable[..., World]


def beat(w: World, worker: str, epoch: int | None = 1) -> None:
    w.worker(worker, wire.Heartbeat(epoch=epoch, memory_bytes=1, busy_ns=0, commands=0))


def pause(w: World, seconds: float) -> None:
    """The pool stands still for so long; its first tick afterwards comes before anything else."""
    w.wait(seconds)
    w.do(Tick(UNIX_OFFSET_NS, int(seconds * SECOND)))
    w.tick()


def notes(w: World) -> list[str]:
    return [instruction.action for instruction in w.out if type(instruction).__name__ == "Note"]


# The pool stands still


@pytest.mark.parametrize("seconds", [1.0, 3.1, 5.0, 20.0, 90.0, 86_400.0])
def test_a_pool_that_stood_still_takes_nobody_for_gone(world: Make, seconds: float) -> None:
    """Heartbeats of 1 s, 3 s for those who are away: each of the pauses but the first is longer than one of them."""
    w = world(resume_seconds=3.0, warm_workers=1)
    worker = w.lease("computes")
    w.join("rests")
    w.do(SessionAway("rests", False))
    w.wait(2.5)
    beat(w, worker)
    pause(w, seconds)
    assert w.killed == [] and w.machine.sessions["rests"].away_ns is not None
    assert w.machine.sessions["computes"].state == "active" and "worker_silent" not in notes(w)
    w.wait(0.4)
    w.tick()
    assert "rests" in w.machine.sessions  # what was left of its three seconds before the pause is left after it
    w.wait(0.2)
    w.tick()
    assert "rests" not in w.machine.sessions


def test_a_pause_hides_nobody_who_is_truly_silent_for_longer_than_it_takes_to_see(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    beat(w, worker)
    pause(w, 90.0)
    w.wait(3.0)
    w.tick()
    assert "worker_silent" not in notes(w)
    w.wait(0.1)
    w.tick()
    assert "worker_silent" in notes(w)


def test_a_pool_that_stood_still_gives_no_lease_back_before_its_holder_had_the_grace(world: Make) -> None:
    w = world(revoke_grace_seconds=10.0, heartbeat_seconds=1e6)
    worker = w.lease("s")
    w.do(LeaseRevoked("s", "an operator"))
    w.wait(9.0)
    w.tick()
    pause(w, 60.0)
    assert not any(isinstance(order, wire.Close) for order in w.ordered(worker))
    w.wait(1.0)
    w.tick()
    assert any(isinstance(order, wire.Close) for order in w.ordered(worker))


def test_a_worker_that_was_told_to_stop_has_its_time_after_a_pause_too(world: Make) -> None:
    w = world(close_seconds=10.0, revoke_grace_seconds=0.0, heartbeat_seconds=1e6)
    worker = w.lease("s")
    w.do(LeaseRevoked("s", "an operator"))
    w.tick()
    w.wait(9.0)
    pause(w, 60.0)
    assert w.killed == []
    w.worker(worker, wire.Closed(epoch=1))
    assert w.machine.sessions["s"].state != "lost"


class Clock:
    """Nanoseconds."""

    def __init__(self) -> None:
        self.now = 5 * SECOND

    def __call__(self) -> int:
        return self.now


def test_attention_counts_no_time_in_which_nobody_looked() -> None:
    clock = Clock()
    attention = Attention(clock, period_seconds=0.25, late_seconds=1.0)
    clock.now += 100 * SECOND  # before the first look nothing is missed
    before = attention.seconds
    attention.begin()
    for late_seconds, missed_seconds in ((0.0, 0.0), (0.9, 0.0), (1.0, 1.0), (18.0, 18.0), (0.0, 0.0), (90.0, 90.0)):
        clock.now += int((0.25 + late_seconds) * SECOND)
        awake = attention.seconds  # between the awakening and the look
        now_ns, late_ns = attention.look()
        assert (now_ns, late_ns) == (clock.now, int(missed_seconds * SECOND))
        assert attention.seconds == awake
    assert attention.seconds - before == pytest.approx(6 * 0.25 + 0.9)


# A worker hangs


def test_a_worker_that_hung_and_is_heard_again_goes_on_as_if_nothing_was(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    beat(w, worker)
    w.wait(3.1)
    w.tick()
    assert notes(w).count("worker_silent") == 1 and w.killed == []
    w.wait(80.0)
    w.tick()
    assert w.machine.sessions["s"].lease is not None
    beat(w, worker)
    w.tick()
    assert notes(w).count("worker_heard_again") == 1
    w.wait(1.0)
    w.drain("s")
    assert [(record.duration_ns, record.close_reason) for record in w.records] == [(int(84.1 * SECOND), "drained")]
    w.acquire("s", 2)
    w.settle()
    assert w.worker_of("s") == worker and w.machine.sessions["s"].lease is not None
    w.wait(3.1)
    w.tick()
    assert notes(w).count("worker_silent") == 2  # it may hang again


def test_a_hung_worker_makes_way_for_who_waits_and_its_lease_is_free(world: Make) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    w.wait(1)
    beat(w, worker)
    w.wait(3.1)
    w.tick()
    w.join("t", "dev.8gb")
    w.acquire("t")
    w.wait(30.0)
    w.tick()
    assert w.killed == []
    w.wait(0.1)
    w.tick()
    assert w.killed == [worker] and w.machine.sessions.get("s") is None
    assert [(record.duration_ns, record.close_reason) for record in w.records] == [(0, "failed")]
    assert w.last("s").type == "lost"
    w.do(WorkerGone(worker, "killed"))
    w.settle()
    assert w.machine.sessions["t"].lease is not None


def test_a_hung_worker_for_whose_device_nobody_waits_is_given_up_after_the_longest_call(world: Make) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    w.wait(3.1)
    w.tick()
    w.wait(CALL_SECONDS_MAX)
    w.tick()
    assert w.killed == []
    w.wait(0.1)
    w.tick()
    assert w.killed == [worker]


def test_what_a_hung_worker_was_told_is_waited_for_from_its_awakening_on(world: Make) -> None:
    w = world(close_seconds=10.0, revoke_grace_seconds=0.0)
    worker = w.lease("s")
    w.wait(3.1)
    w.tick()
    w.do(LeaseRevoked("s", "an operator"))
    w.tick()
    assert any(isinstance(order, wire.Close) for order in w.ordered(worker))
    w.wait(60.0)
    w.tick()
    beat(w, worker)
    w.tick()
    assert w.killed == []
    w.worker(worker, wire.Closed(epoch=1))
    w.tick()
    assert w.machine.sessions["s"].state in ("resident", "queued", "active") and w.killed == []


def test_a_hung_worker_gets_no_new_lease_and_nobody_else_moves_in_with_it(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.drain("s")
    w.wait(15.1)
    w.tick()
    assert "worker_silent" in notes(w)
    w.acquire("s", 2)
    w.settle()
    assert w.machine.sessions["s"].lease is None
    beat(w, worker, None)
    w.settle()
    assert w.machine.sessions["s"].lease is not None and w.worker_of("s") == worker


def test_a_worker_that_hung_and_lost_its_link_may_come_back_by_another_one(world: Make) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    w.wait(3.1)
    w.tick()
    w.do(WorkerAway(worker))
    w.wait(29.0)
    w.tick()
    nothing: dict[str, Any] = {"ended": None, "starved": False, "client_gone": False, "parked_bytes": None}
    w.worker(worker, wire.ResumeWorker(worker=worker, address="unix:/w", session="s", epoch=1, memory_bytes=1, **nothing))
    w.tick()
    w.drain("s")
    assert [record.close_reason for record in w.records] == ["drained"] and w.killed == []


def test_a_hung_worker_without_a_sessions_tensors_is_replaced_at_once(world: Make) -> None:
    w = world(resume_seconds=30.0, warm_workers=1)
    w.tick()
    w.settle()
    (worker,) = w.launched
    w.wait(15.1)
    w.tick()
    assert w.killed == [worker]
