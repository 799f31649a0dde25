"""What the machine does when workers die, clients go, the store fails, and the pool ends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from forebay_pool.errors import InvariantBroken
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import (
    NodeLost,
    PolicySet,
    SessionAway,
    SessionDismissed,
    SessionLeft,
    SessionOutside,
    SessionParked,
    SessionReplays,
    ShutDown,
    StoreChanged,
    WorkerAway,
    WorkerGone,
    WorkerUnlinked,
)
from forebay_pool.model.instructions import Note
from forebay_pool.model.policies import ImagePolicy, Policy
from forebay_pool.model.types import Device, Lease
from forebay_wire import messages as wire
from pool_world import World

GIB = 2**30
SECOND = 1_000_000_000

Make = Callable[..., World]


def cpus(count: int, gib: int = 8) -> list[Device]:
    return [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", gib * GIB) for index in range(count)]


# Deaths


def test_what_a_dead_worker_held_is_free(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.wait(2)
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=1, busy_ns=0, commands=0))
    w.wait(0.7)
    w.do(WorkerGone(worker, "killed by SIGKILL"))
    (record,) = w.records
    assert (record.duration_ns, record.close_reason) == (0, "failed")
    closed, lost = w.told("s")[-2:]
    assert closed.reason == "failed"
    assert isinstance(lost, wire.SessionLost)
    assert "killed by SIGKILL" in lost.message
    assert not w.machine.sessions


CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")


@pytest.mark.parametrize("signal", CRASHES)
def test_a_worker_that_its_own_call_ends_is_billed_until_its_link_ended(world: Make, signal: str) -> None:
    w = world(resume_seconds=60.0)
    worker = w.lease("s")
    w.wait(2)
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=1, busy_ns=0, commands=0))
    w.wait(0.7)
    w.do(WorkerAway(worker))
    w.wait(0.4)
    fresh = w.do(WorkerGone(worker, Cause("killed", signal=signal)))
    (record,) = w.records
    assert record.duration_ns == 2.7 * SECOND, "not until its end was noticed"
    assert record.close_reason != "failed"
    notes = [one.fields for one in fresh if isinstance(one, Note) and one.action == "worker_crashed"]
    assert [(note["tenant"], note["user"], note["signal"]) for note in notes] == [("acme", "ada", signal)]
    assert isinstance(w.last("s"), wire.SessionLost)
    assert not w.machine.sessions


def test_a_crash_without_an_end_of_the_link_is_billed_as_far_as_the_worker_confirmed(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.wait(2)
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=1, busy_ns=0, commands=0))
    w.wait(0.7)
    w.do(WorkerGone(worker, Cause("killed", signal="SIGSEGV")))
    assert [record.duration_ns for record in w.records] == [2 * SECOND]


@pytest.mark.parametrize(
    "cause",
    [Cause("killed", signal="SIGKILL"), Cause("killed", signal="SIGTERM"), Cause("exited", status=1), Cause("ended"), "killed by SIGSEGV"],
)
def test_a_worker_that_somebody_else_ended_is_free_however_long_it_computed(world: Make, cause: str) -> None:
    w = world(resume_seconds=60.0)
    worker = w.lease("s")
    w.wait(2)
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=1, busy_ns=0, commands=0))
    w.do(WorkerAway(worker))
    fresh = w.do(WorkerGone(worker, cause))
    assert [(record.duration_ns, record.close_reason) for record in w.records] == [(0, "failed")]
    assert not [one for one in fresh if isinstance(one, Note) and one.action == "worker_crashed"]


def test_a_crash_outside_a_lease_bills_nothing(world: Make) -> None:
    w = world(resume_seconds=60.0)
    worker = w.lease("s")
    w.wait(1)
    w.drain("s")
    w.wait(1)
    w.do(WorkerAway(worker))
    fresh = w.do(WorkerGone(worker, Cause("killed", signal="SIGSEGV")))
    assert [record.duration_ns for record in w.records] == [SECOND]
    assert not [one for one in fresh if isinstance(one, Note) and one.action == "worker_crashed"]


def test_how_a_worker_died_is_told_by_code_in_every_language(world: Make) -> None:
    w = world()
    w.do(WorkerGone(w.lease("s"), Cause("killed", signal="SIGKILL")))
    cause = w.last("s").cause
    assert (cause.code, [(part.code, part.values) for part in cause.parts]) == ("worker_gone", [("killed", {"signal": "SIGKILL"})])
    assert "SIGKILL 신호로 종료되었습니다" in cause.said("ko")



def test_a_worker_that_dies_while_it_restores_a_session_costs_nothing(world: Make) -> None:
    w = world(cpus(1))
    worker = w.lease("s")
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=1 << 20, busy_ns=0, commands=0))
    w.wait(2)
    w.drain("s")
    w.do(SessionParked("s"))
    w.worker(worker, wire.Parked(bytes=1 << 20))
    w.wait(1)
    w.acquire("s", 2)
    assert w.ordered(worker)[-1] == wire.Restore()
    w.wait(3)
    w.do(WorkerGone(worker, "killed by SIGKILL"))
    leases = [record for record in w.records if record.flavor != "@parked"]
    assert [(record.close_reason, record.duration_ns) for record in leases] == [("drained", 2 * SECOND)]
    assert isinstance(w.told("s")[-1], wire.SessionLost)
    assert w.machine.fleet.seats["main/cpu:0"].free_milli == 1000


def test_a_heartbeat_of_another_epoch_confirms_nothing(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.wait(2)
    for epoch in (None, 0, 2):
        w.worker(worker, wire.Heartbeat(epoch=epoch, memory_bytes=1, busy_ns=0, commands=0))
    w.do(WorkerAway(worker))
    w.do(SessionLeft("s"))
    assert w.records[0].duration_ns == 0


def test_a_worker_that_computes_on_after_its_lease_was_taken_back_is_killed_and_its_session_told_why(world: Make) -> None:
    w = world(cpus(1), close_seconds=10.0)
    worker = w.lease("s")
    w.client("s", wire.Release(epoch=1))
    for _ in range(12):
        w.wait(1)
        w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=1, busy_ns=0, commands=0))
        w.tick()
        if worker in w.killed:
            break
    assert worker in w.killed
    closed, lost = w.told("s")[-2:]
    assert (closed.reason, closed.duration_ns) == ("released", 11 * SECOND), "its program's doing, and no failure of ours"
    assert "it computed on for 10 s after its lease was taken back" in lost.message
    w.join("next")
    w.acquire("next")
    w.settle()
    assert w.machine.sessions["next"].lease is not None


def in_a_call(seconds: float) -> wire.Heartbeat:
    return wire.Heartbeat(epoch=1, memory_bytes=1, busy_ns=0, commands=0, operator="aten::svd", operator_seconds=seconds)


def test_a_worker_in_which_one_call_runs_for_too_long_is_killed_its_session_told_the_operator_and_the_time_billed(world: Make) -> None:
    w = world(cpus(1), call_seconds_max=60.0)
    worker = w.lease("s")
    w.wait(60)
    w.worker(worker, in_a_call(60.0))
    assert worker not in w.killed
    w.wait(1)
    w.worker(worker, in_a_call(61.0))
    assert worker in w.killed
    closed, lost = w.told("s")[-2:]
    assert (closed.reason, closed.duration_ns) == ("drained", 61 * SECOND)
    assert "one call of aten::svd ran for more than 60 s, and nothing interrupts it" in lost.message


def test_who_computes_on_is_told_the_operator_that_nothing_interrupts(world: Make) -> None:
    w = world(cpus(1), close_seconds=10.0)
    worker = w.lease("s")
    w.client("s", wire.Release(epoch=1))
    for second in range(12):
        w.wait(1)
        w.worker(worker, in_a_call(second + 1.0))
        w.tick()
    assert worker in w.killed
    assert "after its lease was taken back, in one call of aten::svd that has run for" in w.told("s")[-1].message


def test_a_worker_that_stopped_in_time_is_left_alone(world: Make) -> None:
    w = world(cpus(1), close_seconds=10.0, heartbeat_seconds=100.0)
    worker = w.lease("s")
    w.client("s", wire.Release(epoch=1))
    w.wait(9)
    w.worker(worker, wire.Closed(epoch=1))
    w.wait(30)
    w.tick()
    assert worker not in w.killed
    assert w.machine.sessions["s"].state == "resident"


def test_three_missed_heartbeats_fail_the_lease_where_somebody_waits_and_the_device_waits_for_the_process_to_be_gone(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.join("t", "dev.8gb")
    w.acquire("t")
    w.wait(1)
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=1, busy_ns=0, commands=0))
    w.wait(3)
    w.tick()
    assert w.machine.sessions["s"].state == "active"
    w.wait(0.1)
    w.tick()
    w.wait(0.1)
    w.tick()
    assert w.records[0].duration_ns == 0
    assert w.killed == [worker]
    assert len(w.launched) == 1
    w.do(WorkerGone(worker, "killed"))
    assert len(w.launched) == 2


def test_a_lost_worker_link_fails_the_lease_at_once(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.do(WorkerUnlinked(worker, "its link ended"))
    assert w.records[0].close_reason == "failed"
    assert w.killed == [worker]


def test_what_a_dead_worker_says_later_changes_nothing(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.do(WorkerUnlinked(worker, "its link ended"))
    w.worker(worker, wire.Drained(epoch=1))
    w.do(WorkerGone(worker, "killed"))
    w.worker(worker, wire.Drained(epoch=1))
    w.do(WorkerGone(worker, "killed"))
    assert len(w.records) == 1


def test_the_death_of_a_residents_worker_loses_the_session_and_bills_nothing_more(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.drain("s")
    w.do(WorkerGone(worker, "killed"))
    assert isinstance(w.last("s"), wire.SessionLost)
    assert len(w.records) == 1
    w.acquire("s", 2)
    assert w.last("s").code == "no_session"


@pytest.mark.parametrize("assigned", [False, True])
def test_a_worker_that_dies_before_the_grant_is_replaced_for_free(world: Make, assigned: bool) -> None:
    w = world()
    w.join("s")
    w.acquire("s")
    if assigned:
        w.ready("p-w1")
    w.do(WorkerGone("p-w1", "exited with status 1"))
    assert w.launched == ["p-w1", "p-w2"]
    w.settle()
    assert w.machine.sessions["s"].state == "active"
    assert not w.records


def test_after_so_many_dead_workers_the_request_is_refused_with_the_cause(world: Make) -> None:
    w = world(worker_attempts_max=3)
    w.join("s")
    w.acquire("s")
    for number in (1, 2, 3):
        w.do(WorkerGone(f"p-w{number}", "exited with status 1"))
    assert (w.last("s").code, "exited with status 1" in w.last("s").message) == ("not_servable", True)
    assert w.machine.sessions["s"].state == "idle"
    assert len(w.launched) == 3
    assert w.machine.fleet.seats["main/cpu:0"].state == "free"


def test_another_device_is_tried_after_a_worker_died_on_the_first(world: Make) -> None:
    w = world(cpus(2))
    w.join("s")
    w.acquire("s")
    w.do(WorkerGone("p-w1", "exited with status 1"))
    w.settle()
    assert w.machine.sessions["s"].lease.device.id == "main/cpu:1"


def test_a_worker_that_does_not_start_in_time_is_killed(world: Make) -> None:
    w = world(worker_start_seconds=10.0)
    w.join("s")
    w.acquire("s")
    w.wait(11)
    w.tick()
    assert w.killed == ["p-w1"]
    assert w.launched == ["p-w1", "p-w2"]


# Ends


def test_the_end_of_the_session_link_bills_what_was_used_up_to_then(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.wait(2)
    w.do(SessionLeft("s"))
    assert (w.records[0].duration_ns, w.records[0].close_reason) == (2 * SECOND, "released")
    assert w.ordered(worker)[-1] == wire.End()
    assert w.machine.fleet.seats["main/cpu:0"].state == "draining"
    w.do(WorkerGone(worker, "exited with status 0"))
    assert w.machine.fleet.seats["main/cpu:0"].state == "free"


def test_a_client_that_is_gone_ends_its_session(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.wait(1)
    w.worker(worker, wire.ClientGone())
    assert w.records[0].duration_ns == SECOND
    assert not w.machine.sessions


def test_a_worker_that_does_not_end_is_killed_after_its_grace(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.do(SessionLeft("s"))
    w.wait(6)
    w.tick()
    assert w.killed == [worker]


def test_a_dismissed_session_hears_who_ended_it(world: Make) -> None:
    w = world()
    w.lease("s")
    w.do(SessionDismissed("s", "revoked", Cause("ended_by_operator", operator="olga")))
    told = w.last("s")
    assert (type(told), told.message) == (wire.SessionLost, "An operator (olga) ended this session.")
    assert told.cause == wire.Cause(code="ended_by_operator", values={"operator": "olga"})
    assert w.records[0].close_reason == "revoked"


def test_a_session_that_ends_while_it_waits_leaves_the_queue(world: Make) -> None:
    w = world()
    w.lease("a")
    w.join("b")
    w.acquire("b")
    w.do(SessionLeft("b"))
    assert not len(w.machine.queue)


def test_a_session_that_ends_while_its_worker_starts_leaves_its_seat(world: Make) -> None:
    w = world()
    for name in "ab":
        w.join(name)
        w.acquire(name)
    w.do(SessionLeft("a"))
    w.settle()
    assert w.machine.sessions["b"].state == "active"


def test_shutting_down_closes_every_lease_and_ends_every_worker(world: Make) -> None:
    w = world(cpus(2), warm_workers=1)
    w.tick()
    w.settle()
    w.lease("a")
    w.wait(1)
    w.do(ShutDown())
    assert (w.records[0].duration_ns, w.records[0].close_reason) == (SECOND, "revoked")
    w.settle()
    assert not w.machine.fleet.workers
    w.join("b")
    assert w.last("b").code == "shutting_down"


# Warm workers


def test_warm_workers_are_kept_for_each_kind(world: Make) -> None:
    seats = [*cpus(2), Device("main/null:0", "main", "null", 0, "null", GIB)]
    w = world(seats, warm_workers=1)
    w.tick()
    assert len(w.launched) == 2
    w.settle()
    w.join("s")
    w.acquire("s")
    assert len(w.launched) == 2
    w.settle()
    w.tick()
    assert len(w.launched) == 3


def test_where_workers_die_prestarting_pauses_longer_each_time(world: Make) -> None:
    w = world(warm_workers=1)
    starts = []
    for _ in range(80):
        before = len(w.launched)
        w.tick()
        if len(w.launched) > before:
            starts.append(w.now)
            w.do(WorkerGone(w.launched[-1], "exited with status 1"))
        w.wait(0.25)
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert pauses == [SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND]


# The store


def test_while_usage_cannot_be_written_no_lease_opens_and_waiting_ones_go_on_afterwards(world: Make) -> None:
    w = world()
    w.lease("a")
    w.join("b")
    w.acquire("b")
    w.do(StoreChanged(False))
    w.join("c")
    w.acquire("c")
    assert (w.last("c").code, "cannot be written" in w.last("c").message) == ("limit", True)
    w.drain("a")
    w.settle()
    w.tick()
    assert w.machine.sessions["b"].state == "queued"
    assert "cannot be written" in w.last("b").reason
    w.do(StoreChanged(True))
    w.settle()
    assert w.machine.sessions["b"].state == "active"


# Guards


def test_the_clock_never_goes_back(world: Make) -> None:
    w = world()
    w.wait(-5)
    w.machine.handle(StoreChanged(True), 10)
    with pytest.raises(InvariantBroken, match="clock went back"):
        w.machine.handle(StoreChanged(True), 9)


def test_a_broken_invariant_tells_the_story_of_the_object(world: Make) -> None:
    w = world(cpus(2))
    w.lease("s")
    w.machine.fleet.seats["main/cpu:0"].holders.clear()
    with pytest.raises(InvariantBroken, match=r"(?s)does not hold its share.*SessionJoined\(session='s'.*Show\(Lease s\.1 open\)"):
        w.tick()


def replaying(world: Make, **limits: float) -> World:
    """A session whose client keeps what it sends, with an open lease since a second."""
    w = world(cpus(2), **limits)
    w.lease("s")
    w.do(SessionReplays("s"))
    w.wait(1)
    return w


def killed(w: World) -> Lease | None:
    """Its worker is killed, and another one is there for it; the new lease."""
    w.do(WorkerGone(w.machine.sessions["s"].worker.id, Cause("killed", signal="SIGKILL")))
    w.settle()
    return w.machine.sessions["s"].lease


def test_a_session_whose_client_kept_what_it_sent_goes_on_at_another_worker_and_pays_from_there_on(world: Make) -> None:
    w = replaying(world)
    lease = killed(w)
    assert [type(message) for message in w.told("s")].count(wire.WorkerLost) == 1 and lease is not None and lease.replays
    w.wait(3)
    w.client("s", wire.Arrived(epoch=lease.epoch))
    w.wait(2)
    w.drain("s")
    assert [record.duration_ns for record in w.records] == [0, 2 * SECOND]


def test_what_is_done_again_is_free_if_the_lease_ends_before_the_client_says_that_it_is_done(world: Make) -> None:
    w = replaying(world)
    killed(w)
    w.wait(3)
    w.drain("s")
    assert sum(record.duration_ns for record in w.records) == 0
    w.lease("s", 2)
    assert w.machine.sessions["s"].lease.replays, "and so is the next one"


def test_a_client_that_never_says_that_it_is_done_pays_in_the_end(world: Make) -> None:
    w = replaying(world, replay_seconds_max=5.0)
    lease = killed(w)
    w.wait(20)
    w.tick()
    assert not lease.replays


def test_a_session_that_worked_for_longer_than_is_done_again_is_lost(world: Make) -> None:
    w = replaying(world, replay_seconds_max=5.0)
    w.wait(10)
    w.worker(w.worker_of("s"), wire.Heartbeat(epoch=1, memory_bytes=1 << 20, busy_ns=0, commands=0))
    w.do(WorkerGone(w.machine.sessions["s"].worker.id, Cause("killed", signal="SIGKILL")))
    assert "s" not in w.machine.sessions and isinstance(w.last("s"), wire.SessionLost)


def test_a_session_whose_own_work_kills_its_workers_is_lost_with_the_second_that_did_it_again(world: Make) -> None:
    w = replaying(world)
    killed(w)
    killed(w)
    w.do(WorkerGone(w.machine.sessions["s"].worker.id, Cause("killed", signal="SIGKILL")))
    assert "s" not in w.machine.sessions


def test_workers_that_die_in_replays_are_counted_over_leases_that_end_meanwhile(world: Make) -> None:
    w = replaying(world)
    killed(w)
    killed(w)
    w.drain("s")
    w.lease("s", 2)
    assert w.machine.sessions["s"].lease.replays
    w.do(WorkerGone(w.machine.sessions["s"].worker.id, Cause("killed", signal="SIGKILL")))
    assert "s" not in w.machine.sessions


def test_workers_that_die_after_a_replay_are_counted_anew(world: Make) -> None:
    w = replaying(world)
    killed(w)
    lease = killed(w)
    w.client("s", wire.Arrived(epoch=lease.epoch))
    assert killed(w) is not None and killed(w) is not None


def test_a_session_whose_worker_dies_while_it_rests_goes_on_with_its_next_lease(world: Make) -> None:
    w = replaying(world)
    w.drain("s")
    w.do(WorkerGone(w.machine.sessions["s"].worker.id, Cause("killed", signal="SIGKILL")))
    session = w.machine.sessions["s"]
    assert (session.state, session.worker, session.request) == ("idle", None, None)
    assert isinstance(w.last("s"), wire.WorkerLost)


def test_a_client_whose_connection_to_its_worker_breaks_is_waited_for(world: Make) -> None:
    w = world(resume_seconds=60.0)
    worker = w.lease("s")
    w.worker(worker, wire.ClientCut(back=False))
    w.wait(30)
    w.tick()
    assert w.machine.sessions and w.machine.sessions["s"].lease is not None
    w.worker(worker, wire.ClientCut(back=True))
    w.do(SessionAway("s"))
    w.wait(30)
    w.tick()
    assert w.machine.sessions["s"].lease is not None, "its worker has a connection to it"


@pytest.mark.parametrize("worker_first", [True, False])
def test_a_client_with_neither_link_nor_connection_gives_its_lease_back_and_its_session_ends_soon(world: Make, worker_first: bool) -> None:
    w = world(resume_seconds=60.0)
    worker = w.lease("s")
    w.wait(1)
    steps = [lambda: w.worker(worker, wire.ClientCut(back=False)), lambda: w.do(SessionAway("s"))]
    for step in steps if worker_first else reversed(steps):
        step()
    assert isinstance(w.ordered(worker)[-1], wire.Close)
    w.wait(4)
    w.tick()
    assert "s" in w.machine.sessions, "both may have been cut off for a moment"
    w.wait(2)
    w.tick()
    assert not w.machine.sessions and w.ordered(worker)[-1] == wire.End()
    assert w.records[0].duration_ns <= 6 * SECOND


@pytest.mark.parametrize(("outside", "stalled"), [(True, True), (True, False), (False, True)])
def test_a_client_outside_whose_link_fell_silent_is_waited_for_while_a_laptop_sleeps(world: Make, outside: bool, stalled: bool) -> None:
    w = world(resume_seconds=60.0, outside_resume_seconds=3600.0)
    worker = w.lease("s")
    if outside:
        w.do(SessionOutside("s"))
    w.do(SessionAway("s", stalled))
    w.worker(worker, wire.ClientCut(back=False))
    assert isinstance(w.ordered(worker)[-1], wire.Close)
    w.drain("s")
    w.wait(3590)
    w.tick()
    assert ("s" in w.machine.sessions) == (outside and stalled)
    w.wait(20)
    w.tick()
    assert not w.machine.sessions
    assert sum(record.duration_ns for record in w.records if record.flavor != "@parked") <= SECOND


def test_a_worker_that_comes_back_says_that_its_client_is_away(world: Make) -> None:
    w = world(resume_seconds=60.0)
    worker = w.lease("s")
    w.do(WorkerAway(worker))
    resumed = {"address": "tcp:h:1", "session": "s", "epoch": 1, "ended": None, "starved": False, "client_gone": False, "memory_bytes": 0}
    w.worker(worker, wire.ResumeWorker(worker=worker, parked_bytes=None, client_away=True, **resumed))
    w.do(SessionAway("s"))
    assert isinstance(w.ordered(worker)[-1], wire.Close)


def on_nodes(*nodes: str) -> list[Device]:
    return [Device(f"{node}/cpu:{index}", node, "cpu", index, "cpu-dev", 8 * GIB) for index, node in enumerate(nodes)]


def test_time_before_an_image_is_not_done_again(world: Make) -> None:
    w = replaying(world, replay_seconds_max=5.0)
    w.wait(10)
    w.worker(w.worker_of("s"), wire.Kept(number=1, bytes=1 << 20))
    w.wait(4)
    w.worker(w.worker_of("s"), wire.Heartbeat(epoch=1, memory_bytes=1 << 20, busy_ns=0, commands=0))
    assert killed(w) is not None and w.machine.sessions["s"].replay.image.bytes == 1 << 20


def test_a_session_with_an_image_is_lost_with_the_host_that_alone_has_it(world: Make) -> None:
    policies: dict[ImagePolicy, bool] = {"process": False, "node": True}
    for policy, goes_on in policies.items():
        w = world(on_nodes("east", "west"))
        w.do(PolicySet(Policy(images=policy)))
        w.lease("s")
        w.do(SessionReplays("s"))
        w.worker(w.worker_of("s"), wire.Kept(number=1, bytes=1 << 20))
        w.do(NodeLost(w.machine.sessions["s"].worker.device.node, "cut off"))
        w.settle()
        assert ("s" in w.machine.sessions) == goes_on


def test_a_session_with_an_image_goes_on_at_a_worker_that_sees_it(world: Make) -> None:
    w = world(on_nodes("east", "west", "east", "west", "west"))
    w.lease("s")
    w.do(SessionReplays("s"))
    node = w.machine.sessions["s"].worker.device.node
    w.worker(w.worker_of("s"), wire.Kept(number=1, bytes=1 << 20))
    lease = killed(w)
    assert lease is not None and lease.device.node == node


def test_a_client_whose_link_was_broken_when_its_worker_died_hears_so_when_it_is_back(world: Make) -> None:
    w = replaying(world, resume_seconds=10.0)
    dead = w.worker_of("s")
    w.do(SessionAway("s"))
    killed(w)
    w.client("s", wire.ResumeSession(session="s", key="0" * 64, worker=dead, epoch=1))
    heard = [type(message) for message in w.told("s")]
    assert heard[-4:] == [wire.SessionOpened, wire.WorkerLost, wire.LeaseClosed, wire.Granted]


def test_a_replay_goes_on_over_a_lease_that_ended_in_its_middle(world: Make) -> None:
    w = replaying(world)
    lease = killed(w)
    w.drain("s")
    w.lease("s", 2)
    w.client("s", wire.Arrived(epoch=lease.epoch))
    w.wait(2)
    w.drain("s")
    assert sum(record.duration_ns for record in w.records) == 2 * SECOND


def test_a_client_that_used_its_worker_pays_although_it_says_that_it_could_not_connect(world: Make) -> None:
    w = replaying(world)
    w.worker(w.worker_of("s"), wire.Heartbeat(epoch=1, memory_bytes=1, busy_ns=1, commands=7))
    w.wait(1)
    w.client("s", wire.Unreached(epoch=1))
    assert [record.duration_ns for record in w.records] == [SECOND] and "s" not in w.machine.sessions


def test_a_client_that_could_not_connect_to_its_worker_gets_another_one_free(world: Make) -> None:
    w = replaying(world)
    w.worker(w.worker_of("s"), wire.Heartbeat(epoch=1, memory_bytes=0, busy_ns=0, commands=0))
    w.client("s", wire.Unreached(epoch=1))
    assert [record.duration_ns for record in w.records] == [0] and "s" in w.machine.sessions
