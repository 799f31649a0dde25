"""Who waits because calls of the own programs ended workers: how long, for what, and who does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import ClientSaid, WorkerAway, WorkerGone
from forebay_pool.model.instructions import Note
from forebay_pool.model.types import Device
from forebay_wire import messages as wire

Make = Callable[..., Any]
SECOND = 1_000_000_000
FAULT = Cause("killed", signal="SIGSEGV")


def devices(count: int) -> list[Device]:
    return [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 8 * 2**30) for index in range(count)]


def crash(w: Any, session: str, cause: str = FAULT) -> None:
    """The session computes, and a call of it ends its worker."""
    worker = w.lease(session)
    w.do(WorkerAway(worker))
    w.do(WorkerGone(worker, cause))


def crash_often(w: Any, count: int) -> None:
    for number in range(count):
        crash(w, f"crash-{number}")


def waits(w: Any, session: str) -> wire.Queued:
    w.join(session)
    w.acquire(session)
    told = w.last(session)
    assert isinstance(told, wire.Queued), told
    return told


def test_after_three_crashes_a_user_waits_a_minute_and_is_told_why_in_one_sentence(world: Make) -> None:
    w = world(devices(4), resume_seconds=60.0)
    crash_often(w, 2)
    assert w.lease("still")
    w.drain("still")
    crash(w, "third")
    launched = len(w.launched)
    told = waits(w, "next")
    assert len(w.launched) == launched, "a worker is started for who waits"
    assert told.code == "quota"
    assert told.said() == (
        "Programs of ada of acme ended 3 workers by their calls within an hour; the next worker starts after a wait of 60 s."
    )
    assert "ada의 프로그램이 한 시간 안에 호출로 워커 3개" in told.said("ko")
    assert told.estimate is not None and told.estimate.low_seconds == told.estimate.high_seconds == 60
    w.wait(59.9)
    w.tick()
    assert not w.machine.sessions["next"].request.place
    w.wait(0.2)
    w.tick()
    assert w.machine.sessions["next"].request.place, "nobody looked at it when the wait was over"


def test_each_further_crash_within_the_hour_doubles_the_wait_up_to_ten_minutes(world: Make) -> None:
    w = world(devices(4), resume_seconds=60.0)
    crash_often(w, 3)
    for number, seconds in enumerate((120, 240, 480, 600, 600)):
        w.wait(601)
        w.tick()
        crash(w, f"more-{number}")
        told = waits(w, f"waits-{number}")
        assert told.estimate is not None and told.estimate.high_seconds == seconds, number
        w.do(ClientSaid(f"waits-{number}", wire.Cancel(request=1)))
    w.wait(3601)
    w.tick()
    crash(w, "much-later")
    assert w.lease("at-once"), "crashes of an hour ago count"


def test_who_has_tensors_goes_on_and_so_does_everybody_else(world: Make) -> None:
    w = world(devices(4), resume_seconds=60.0)
    w.lease("works")
    w.drain("works")
    crash_often(w, 3)
    waits(w, "next")
    w.acquire("works")
    assert isinstance(w.last("works"), wire.Granted), "a session with a worker needs no new one"
    for session, user, tenant in (("others", "ben", "acme"), ("namesake", "ada", "bolt")):
        w.join(session, user=user, tenant=tenant)
        assert w.lease(session)


@pytest.mark.parametrize("cause", [Cause("killed", signal="SIGKILL"), Cause("exited", status=1), Cause("ended"), "killed by SIGSEGV"])
def test_workers_that_others_ended_count_for_nobody(world: Make, cause: str) -> None:
    w = world(devices(4), resume_seconds=60.0)
    for number in range(5):
        crash(w, f"s{number}", cause)
    assert w.lease("next")


def test_calls_that_run_for_too_long_count_as_crashes_do(world: Make) -> None:
    w = world(devices(8), resume_seconds=60.0, call_seconds_max=1.0)
    for number in range(3):
        worker = w.lease(f"s{number}")
        beat = wire.Heartbeat(epoch=1, memory_bytes=1, busy_ns=0, commands=0, operator="aten::mm", operator_seconds=2.0)
        w.worker(worker, beat)
    assert waits(w, "next").cause.code == "crashes_wait"


def test_a_wait_of_nought_seconds_is_none_and_a_short_maximum_bounds_no_longer_first_wait(world: Make) -> None:
    w = world(devices(4), resume_seconds=60.0, crash_wait_seconds=0.0)
    crash_often(w, 5)
    assert w.lease("next")
    w = world(devices(4), resume_seconds=60.0, crashes_max=1, crash_wait_seconds=30.0, crash_wait_seconds_max=5.0)
    crash(w, "s")
    told = waits(w, "next")
    assert told.estimate is not None and told.estimate.high_seconds == 30
    assert "ended a worker by their calls" in told.said()


def test_ranks_of_one_program_that_crash_together_crashed_once(world: Make) -> None:
    w = world(devices(4), resume_seconds=60.0)
    names = ("r0", "r1", "r2")
    w.join_ranks(*names)
    for name in names:
        w.acquire(name)
    w.settle()
    assert all(w.machine.sessions[name].lease for name in names)
    leased = [w.worker_of(name) for name in names]
    notes = []
    for worker in leased:
        w.do(WorkerAway(worker))
        notes += [one for one in w.do(WorkerGone(worker, FAULT)) if isinstance(one, Note) and one.action == "crashes_wait"]
    assert not notes
    crash(w, "two")
    assert w.lease("still")


def test_who_waits_may_give_up_and_ask_again_without_a_shorter_wait(world: Make) -> None:
    w = world(devices(4), resume_seconds=60.0)
    crash_often(w, 3)
    waits(w, "next")
    w.do(ClientSaid("next", wire.Cancel(request=1)))
    w.wait(30)
    told = waits(w, "other")
    assert told.estimate is not None and told.estimate.high_seconds == 30
    w.wait(31)
    w.tick()
    assert w.lease("free")


def test_the_log_says_whose_calls_ended_workers_and_how_long_the_wait_is(world: Make) -> None:
    w = world(devices(4), resume_seconds=60.0)
    crash_often(w, 3)
    (note,) = [one.fields for one in w.out if isinstance(one, Note) and one.action == "crashes_wait"]
    assert (note["tenant"], note["user"], note["count"], note["seconds"]) == ("acme", "ada", 3, 60)
