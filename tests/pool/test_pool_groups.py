"""Leases that are granted together: who waits for whom, who gives back what, what is refused, and what is billed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import (
    BudgetSet,
    LeaseRevoked,
    QuotaSet,
    SessionDismissed,
    SessionJoined,
    SessionLeft,
    SessionParked,
    SessionReplays,
    Tick,
    WorkerGone,
)
from forebay_pool.model.node_events import DeviceSet, NodeDrain
from forebay_pool.model.types import Device, Equivalent, Flavor, Quota
from forebay_wire import messages as wire
from pool_world import World

GIB = 2**30
SECOND = 1_000_000_000

Make = Callable[..., Any]

HALF = Flavor("half", 2 * GIB, (Equivalent("cpu-dev", 1, 500),))
WHOLE = Flavor("whole", 4 * GIB, (Equivalent("cpu-dev", 1),))
PAIR = Flavor("pair", 8 * GIB, (Equivalent("cpu-dev", 2),))


@pytest.fixture
def ranks(world: Make) -> Make:
    """A world with so many devices, and the flavors of these tests."""

    def make(count: int, **changes: Any) -> Any:
        seats = [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 8 * GIB) for index in range(count)]
        return world(seats, [HALF, WHOLE, PAIR], **changes)

    return make


def states(w: World, *names: str) -> list[str]:
    return [w.machine.sessions[name].state for name in names]


def started(w: World, *names: str, flavor: str = "whole", **more: Any) -> None:
    """All are one torchrun's processes, and have leases."""
    w.join_ranks(*names, flavor=flavor, **more)
    for name in names:
        w.acquire(name)
    w.settle()
    assert states(w, *names) == ["active"] * len(names)


def waits(w: World, name: str, idle_seconds: float = 2.0) -> None:
    """Its worker has waited in a collective for so long."""
    w.worker(w.worker_of(name), wire.Waiting(epoch=w.epoch(name), idle_ns=int(idle_seconds * SECOND)))


def closes(w: World, name: str, idle_seconds: float = 2.0) -> None:
    """Its worker does the last that it was told, which is to close."""
    worker = w.worker_of(name)
    assert w.ordered(worker)[-1] == wire.Close(epoch=w.epoch(name))
    w.worker(worker, wire.Closed(epoch=w.epoch(name), idle_ns=int(idle_seconds * SECOND)))


# Granted together


def test_nobody_has_a_lease_before_all_have_asked(ranks: Make) -> None:
    w = ranks(2)
    w.join_ranks("a", "b", flavor="whole")
    w.acquire("a")
    w.settle()
    assert states(w, "a") == ["queued"]
    assert w.last("a").code == "starting"
    assert "1 of the 2 processes" in w.last("a").reason
    w.acquire("b")
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]


def test_leases_open_at_one_moment_however_late_a_worker_is(ranks: Make) -> None:
    """Who is ready first is not billed while it waits."""
    w = ranks(2)
    w.join_ranks("a", "b", flavor="whole")
    w.acquire("a")
    w.acquire("b")
    first, second = w.launched
    w.ready(first)
    w.worker(first, wire.Assigned(session=w.machine.fleet.workers[first].session.id))
    w.wait(5)
    assert states(w, "a", "b") == ["queued", "queued"]
    w.ready(second)
    w.worker(second, wire.Assigned(session=w.machine.fleet.workers[second].session.id))
    assert states(w, "a", "b") == ["active", "active"]
    assert len({lease.opened_ns for lease in (w.machine.sessions[name].lease for name in "ab")}) == 1


def test_those_who_asked_start_without_a_process_that_does_not_ask(ranks: Make) -> None:
    w = ranks(2)
    w.join_ranks("a", "b", flavor="whole", size=3)
    w.acquire("a")
    w.acquire("b")
    w.wait(9)
    w.tick()
    w.settle()
    assert states(w, "a", "b") == ["queued", "queued"]
    w.wait(1)
    w.tick()
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]


def test_all_wait_while_one_device_of_two_is_held_and_nobody_who_comes_later_takes_the_other(ranks: Make) -> None:
    w = ranks(2, backfill_seconds_max=0.0)
    w.lease("z", flavor="whole")
    w.join_ranks("a", "b", flavor="whole")
    w.acquire("a")
    w.acquire("b")
    w.settle()
    assert states(w, "a", "b") == ["queued", "queued"]
    assert w.last("b").reason.startswith("2 processes of this torchrun start together.")
    w.join("late", "whole")
    w.acquire("late")
    w.settle()
    assert states(w, "late") == ["queued"]
    w.drain("z")
    w.settle()
    assert states(w, "a", "b", "late") == ["active", "active", "queued"]


def test_two_groups_that_want_the_same_devices_start_one_after_the_other(ranks: Make) -> None:
    w = ranks(2)
    w.join_ranks("a", "b", flavor="whole", group="a")
    w.join_ranks("c", "d", flavor="whole", group="c", user="ben")
    for name in ("a", "c", "d", "b"):
        w.acquire(name)
    w.settle()
    assert states(w, "c", "d", "a", "b") == ["active", "active", "queued", "queued"]
    w.drain("c")
    w.settle()
    assert states(w, "a", "b") == ["queued", "queued"], "one device is not enough"
    w.drain("d")
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]


def test_ranks_have_parts_of_one_device_where_their_flavor_is_a_part(ranks: Make) -> None:
    w = ranks(1)
    started(w, "a", "b", flavor="half")
    assert {w.machine.sessions[name].lease.device.id for name in "ab"} == {"main/cpu:0"}


def test_room_is_made_for_all_who_start_on_a_device(ranks: Make) -> None:
    """Each alone would fit beside who rests there."""
    w = ranks(1)
    for name in "xyz":
        w.lease(name, flavor="half")
        w.worker(w.worker_of(name), wire.Heartbeat(epoch=1, memory_bytes=GIB, busy_ns=0, commands=1))
        w.drain(name)
    started(w, "a", "b", flavor="half")
    assert states(w, "x", "y", "z") == ["parked", "resident", "resident"]


def test_sessions_of_others_are_never_in_a_group_whatever_id_they_name(ranks: Make) -> None:
    w = ranks(2)
    w.join_ranks("a", flavor="whole", size=2)
    w.join_ranks("x", "y", flavor="whole", tenant="globex")
    w.acquire("y")
    w.acquire("a")
    w.settle()
    assert states(w, "a", "y") == ["queued", "queued"], "each waits for the other of its own"
    assert w.machine.sessions["a"].group is not w.machine.sessions["y"].group


def test_a_rank_that_is_taken_is_not_given_to_another_session(ranks: Make) -> None:
    w = ranks(2)
    w.join_ranks("a", flavor="whole", size=2)
    w.join_ranks("again", flavor="whole", size=2)
    assert w.machine.sessions["again"].group is None
    w.acquire("again")
    w.settle()
    assert states(w, "again") == ["active"]


def test_a_worker_that_dies_before_the_grant_puts_all_back(ranks: Make) -> None:
    w = ranks(2)
    w.join_ranks("a", "b", flavor="whole")
    w.acquire("a")
    w.acquire("b")
    w.do(WorkerGone(w.launched[0], "killed"))
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]
    assert w.records == []


def test_one_that_takes_its_request_back_does_not_keep_the_others(ranks: Make) -> None:
    w = ranks(2)
    w.lease("z", flavor="whole")
    w.join_ranks("a", "b", flavor="whole")
    w.acquire("a")
    w.acquire("b")
    w.client("b", wire.Cancel(request=1))
    w.settle()
    assert states(w, "a", "b") == ["active", "idle"]


def test_a_process_that_ends_while_its_lease_is_opened_does_not_keep_the_others(ranks: Make) -> None:
    w = ranks(2)
    w.join_ranks("a", "b", flavor="whole")
    w.acquire("a")
    w.acquire("b")
    first = w.launched[0]
    w.ready(first)
    holder = w.machine.fleet.workers[first].session.id
    w.worker(first, wire.Assigned(session=holder))
    other = {"a": "b", "b": "a"}[holder]
    w.do(SessionLeft(other))
    w.settle()
    assert states(w, holder) == ["active"]


# Never


def test_more_ranks_than_devices_are_refused_at_once_with_the_numbers_that_would_do(ranks: Make) -> None:
    w = ranks(2)
    w.join_ranks("a", "b", "c", flavor="whole")
    for name in "abc":
        w.acquire(name)
    for name in "abc":
        refused = w.last(name)
        assert (refused.type, refused.code, refused.request) == ("refused", "not_servable", 1)
        assert refused.message == (
            "3 processes compute together, and the devices here serve whole to 2 at a time: "
            "start 2 (torchrun --nproc-per-node 2), or choose a flavor that all can have: half."
        )
    assert w.launched == []


def test_where_no_flavor_serves_all_none_is_named(ranks: Make) -> None:
    w = ranks(1)
    w.join_ranks("a", "b", "c", flavor="half")
    for name in "abc":
        w.acquire(name)
    assert w.last("c").message.endswith("serve half to 2 at a time: start 2 (torchrun --nproc-per-node 2).")


def test_flavors_of_which_all_devices_together_are_too_few_are_refused(ranks: Make) -> None:
    w = ranks(2)
    w.join_ranks("a", flavor="whole", size=2)
    w.do(SessionJoined("b", bytes(32), "acme", "ada", "python", "pair", group=wire.GroupMember(id="a" * 64, rank=1, size=2)))
    w.acquire("a")
    w.acquire("b")
    assert w.last("a").message == (
        "2 processes compute together and need 3 devices, and the devices here that serve them come to 2 devices: "
        "start fewer, or choose smaller flavors."
    )
    assert w.last("b").code == "not_servable"


def test_a_quota_that_is_too_small_for_all_refuses_all(ranks: Make) -> None:
    w = ranks(4)
    w.do(QuotaSet("acme", None, Quota(devices_milli=1000)))
    w.join_ranks("a", "b", flavor="whole")
    w.acquire("a")
    w.acquire("b")
    assert [w.last(name).code for name in "ab"] == ["quota", "quota"]
    assert "It takes 2 devices" in w.last("a").message


# Quotas, shares


def test_a_quota_counts_what_they_need_together(ranks: Make) -> None:
    w = ranks(3)
    w.do(QuotaSet("acme", None, Quota(devices_milli=2000)))
    w.lease("z", flavor="whole")
    w.join_ranks("a", "b", flavor="whole")
    w.acquire("a")
    w.acquire("b")
    w.settle()
    assert states(w, "a", "b") == ["queued", "queued"]
    assert w.last("a").code == "quota"
    w.drain("z")
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]


def test_whom_a_quota_stops_does_not_keep_devices_from_others(ranks: Make) -> None:
    w = ranks(3)
    w.do(QuotaSet("acme", None, Quota(devices_milli=2000)))
    w.lease("z", flavor="whole")
    w.join_ranks("a", "b", flavor="whole")
    w.acquire("a")
    w.acquire("b")
    w.join("other", "whole", "olga", "globex")
    w.acquire("other")
    w.settle()
    assert states(w, "a", "b", "other") == ["queued", "queued", "active"]


def test_a_pool_without_room_for_their_workers_keeps_nothing_for_them(ranks: Make) -> None:
    w = ranks(2, workers_max=2)
    w.lease("z", flavor="whole")
    w.drain("z")
    w.join_ranks("a", "b", flavor="whole")
    w.acquire("a")
    w.acquire("b")
    w.settle()
    assert states(w, "a", "b") == ["queued", "queued"]
    w.acquire("z", 2)
    w.settle()
    assert states(w, "z") == ["active"]
    w.do(SessionLeft("z"))
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]


# In a collective


def test_who_waits_in_a_collective_keeps_its_lease_while_another_computes(ranks: Make) -> None:
    w = ranks(2)
    started(w, "a", "b")
    w.wait(30)
    waits(w, "a", 28)
    assert states(w, "a", "b") == ["active", "active"]
    assert w.machine.sessions["a"].lease.state == "open"
    w.worker(w.worker_of("a"), wire.Working(epoch=1))
    waits(w, "b")
    assert [w.machine.sessions[name].lease.state for name in "ab"] == ["open", "open"]


def test_where_all_wait_all_give_their_leases_back_and_are_billed_to_when_they_began(ranks: Make) -> None:
    w = ranks(2)
    started(w, "a", "b")
    w.wait(10)
    waits(w, "a", 7)
    w.wait(0.5)
    waits(w, "b", 3)
    closes(w, "a", 7.5)
    closes(w, "b", 3)
    assert [(r.session, r.duration_ns, r.close_reason) for r in w.records] == [("a", 3 * SECOND, "idle"), ("b", 15 * SECOND // 2, "idle")]


def test_whose_session_is_in_no_group_is_idle_in_a_collective_as_elsewhere(ranks: Make) -> None:
    w = ranks(1)
    w.lease("z", flavor="whole")
    w.wait(5)
    waits(w, "z")
    closes(w, "z")
    assert [r.duration_ns for r in w.records] == [3 * SECOND]


def test_who_lost_its_lease_in_a_collective_asks_with_the_first_of_its_group_that_does(ranks: Make) -> None:
    """Both are placed together, although only one has something to do yet."""
    w = ranks(2)
    started(w, "a", "b")
    w.wait(5)
    w.worker(w.worker_of("b"), wire.Idle(epoch=1, idle_ns=2 * SECOND))
    waits(w, "a")
    closes(w, "a")
    w.lease("z", flavor="whole")
    w.acquire("b", 2)
    w.settle()
    assert sorted(states(w, "a", "b")) == ["queued", "queued"]
    w.drain("z")
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]


def test_who_computes_while_one_waits_in_the_queue_is_not_interrupted_and_who_waits_gives_way(ranks: Make) -> None:
    """Otherwise it would hold, and be billed for, a device until the one in the queue has one."""
    w = ranks(3)
    started(w, "a", "b", "c")
    w.drain("b")
    w.lease("z", flavor="whole")
    w.acquire("b", 2)
    w.settle()
    assert states(w, "b") == ["queued"]
    w.wait(3)
    waits(w, "a")
    closes(w, "a")
    assert states(w, "a", "b", "c") == ["queued", "queued", "active"]
    w.drain("z")
    w.settle()
    assert states(w, "a", "b", "c") == ["active", "active", "active"]


def test_two_whose_tensors_came_to_one_device_part_so_that_they_can_compute_together(ranks: Make) -> None:
    """One asked too late, and took the device of the other, which had nothing to do at that time."""
    w = ranks(2)
    w.join_ranks("a", "b", flavor="whole")
    w.lease("z", flavor="whole")
    w.acquire("a")
    w.wait(10)
    w.worker(w.worker_of("z"), wire.Heartbeat(epoch=1, memory_bytes=GIB, busy_ns=0, commands=1))
    w.tick()
    w.settle()
    w.drain("a")
    w.acquire("b")
    w.settle()
    w.drain("b")
    homes = {w.machine.sessions[name].worker.device.id for name in "ab"}
    assert len(homes) == 1
    w.drain("z")
    w.acquire("b", 2)
    w.acquire("a", 2)
    w.settle()
    assert states(w, "a", "b") == ["queued", "active"]
    assert wire.Leave() in w.told("a")
    w.worker(w.worker_of("a"), wire.Left(bytes=GIB, address="tcp:x:1", ticket="a" * 64))
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]


def test_a_member_is_not_moved_to_a_free_device_since_it_would_leave_its_process_groups(ranks: Make) -> None:
    w = ranks(3)
    started(w, "a", "b")
    home = w.machine.sessions["a"].lease.device.id
    w.drain("a")
    w.drain("b")
    w.do(DeviceSet(next(seat.device.id for seat in w.machine.fleet.seats.values() if not seat.workers), True, "maintenance"))
    w.lease("z", flavor="whole")
    w.lease("y", flavor="whole")
    w.acquire("a", 2)
    w.acquire("b", 2)
    w.tick()
    w.settle()
    assert states(w, "a", "b") == ["queued", "queued"]
    w.drain("z")
    w.drain("y")
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]
    assert w.machine.sessions["a"].lease.device.id == home


# A lease of one is taken back, or its session parked


def beat(w: World, *names: str) -> None:
    for name in names:
        w.worker(w.worker_of(name), wire.Heartbeat(epoch=w.epoch(name), memory_bytes=GIB, busy_ns=0, commands=1))


def test_a_lease_that_a_person_takes_back_is_followed_by_those_of_who_waits_for_it_and_all_go_on_together(ranks: Make) -> None:
    w = ranks(2, revoke_grace_seconds=1.0)
    started(w, "a", "b")
    w.wait(4)
    waits(w, "b", 2)
    w.join("z", "whole")
    w.acquire("z")
    w.do(LeaseRevoked("a", "An operator takes it."))
    assert [m.reason for m in w.told("a") if isinstance(m, wire.Revoking)] == ["An operator takes it."]
    beat(w, "a", "b")
    w.wait(1)
    w.tick()
    closes(w, "a", 0)
    closes(w, "b", 3)
    assert {r.session: (r.duration_ns, r.close_reason) for r in w.records} == {"a": (5 * SECOND, "revoked"), "b": (2 * SECOND, "idle")}
    w.settle()
    assert states(w, "a", "b", "z") == ["queued", "queued", "active"] or states(w, "a", "b", "z") == ["active", "active", "queued"]
    if w.machine.sessions["z"].lease is not None:
        w.drain("z")
        w.settle()
    assert states(w, "a", "b") == ["active", "active"]


@pytest.mark.parametrize("way", ["budget", "maintenance"])
def test_where_a_budget_or_maintenance_ends_all_leases_none_goes_on_alone_after_it(ranks: Make, way: str) -> None:
    """Each is billed until its worker has stopped, whether it waited or not, and for nothing after."""
    w = ranks(2)
    started(w, "a", "b")
    w.wait(4)
    waits(w, "b", 2)
    w.do(BudgetSet("acme", None, "drain", cause="All is spent.", grace_seconds=1.0) if way == "budget" else NodeDrain("main", True, 1.0))
    beat(w, "a", "b")
    w.wait(1)
    w.tick()
    closes(w, "a", 0)
    w.wait(0.5)
    closes(w, "b", 3.5)
    assert {r.session: (r.duration_ns, r.close_reason) for r in w.records} == {
        "a": (5 * SECOND, "revoked"),
        "b": (11 * SECOND // 2, "revoked"),
    }
    w.settle()
    assert states(w, "a", "b") == ["queued", "queued"]
    assert w.last("b").code == ("budget" if way == "budget" else "draining")
    w.wait(60)
    w.do(BudgetSet("acme", None, "open") if way == "budget" else NodeDrain("main", False, None))
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]
    assert len(w.records) == 2


def test_parking_one_brings_it_back_with_the_others(ranks: Make) -> None:
    w = ranks(2)
    started(w, "a", "b")
    for name in "ab":
        w.worker(w.worker_of(name), wire.Heartbeat(epoch=1, memory_bytes=GIB, busy_ns=0, commands=1))
        w.drain(name)
    w.do(SessionParked("a"))
    w.settle()
    assert states(w, "a", "b") == ["parked", "resident"]
    w.acquire("b", 2)
    w.settle()
    assert states(w, "b") == ["active"], "the other has nothing to do yet"
    w.acquire("a", 2)
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]


def test_the_end_of_one_session_closes_the_others_that_wait_for_it_and_nothing_is_billed_after(ranks: Make) -> None:
    w = ranks(2)
    started(w, "a", "b")
    w.wait(5)
    waits(w, "b", 2)
    w.do(SessionDismissed("a", "revoked", "You ended this session."))
    closes(w, "b", 2)
    assert {r.session: r.duration_ns for r in w.records} == {"a": 5 * SECOND, "b": 3 * SECOND}
    w.wait(60)
    w.do(Tick(0))
    assert len(w.records) == 2


# A worker dies


def keeping(w: World, *names: str) -> None:
    """Their clients keep what they send, and all have leases."""
    started(w, *names)
    for name in names:
        w.do(SessionReplays(name))
    w.wait(1)


def dies(w: World, name: str) -> None:
    w.do(WorkerGone(w.worker_of(name), Cause("killed", signal="SIGKILL")))


def lost(w: World, name: str) -> int:
    """How often its client heard that its worker is replaced."""
    return [type(message) for message in w.told(name)].count(wire.WorkerLost)


def test_all_ranks_go_on_at_other_workers_when_one_of_their_workers_dies(ranks: Make) -> None:
    w = ranks(2)
    keeping(w, "a", "b")
    before = {w.worker_of("a"), w.worker_of("b")}
    living = w.worker_of("a")
    dies(w, "b")
    assert wire.End() in w.ordered(living) and [lost(w, "a"), lost(w, "b")] == [1, 1]
    w.do(WorkerGone(living, "ended"))
    w.settle()
    assert states(w, "a", "b") == ["active", "active"] and not before & {w.worker_of("a"), w.worker_of("b")}
    again = [w.last(name) for name in ("a", "b")]
    assert again[0].meeting == again[1].meeting > 0, "they meet anew"
    w.wait(5)
    for name in ("a", "b"):
        w.client(name, wire.Arrived(epoch=w.epoch(name)))
    w.wait(2)
    for name in ("a", "b"):
        w.drain(name)
    assert sorted(record.duration_ns for record in w.records) == [0, 0, 2 * SECOND, 2 * SECOND]


def test_a_rank_that_rests_takes_part_when_the_others_do_their_work_again(ranks: Make) -> None:
    w = ranks(2)
    keeping(w, "a", "b")
    w.drain("a")
    resting = w.worker_of("a")
    dies(w, "b")
    w.do(WorkerGone(resting, "ended"))
    w.settle()
    assert [lost(w, "a"), lost(w, "b")] == [1, 1] and states(w, "a", "b") == ["active", "active"]


def test_ranks_that_all_rest_do_their_work_again_once_one_of_them_computes(ranks: Make) -> None:
    w = ranks(2)
    keeping(w, "a", "b")
    w.drain("a")
    w.drain("b")
    resting = w.worker_of("a")
    dies(w, "b")
    w.do(WorkerGone(resting, "ended"))
    w.settle()
    assert states(w, "a", "b") == ["idle", "idle"]
    w.acquire("b", 2)
    w.settle()
    assert states(w, "a", "b") == ["active", "active"]


def test_a_rank_that_keeps_nothing_is_lost_with_its_worker_and_the_others_go_on_as_they_can(ranks: Make) -> None:
    w = ranks(2)
    started(w, "a", "b")
    w.do(SessionReplays("b"))
    dies(w, "b")
    assert "b" not in w.machine.sessions and states(w, "a") == ["active"] and not lost(w, "a")
    dies(w, "a")
    assert "a" not in w.machine.sessions, "nobody can do the collectives again with it"


def test_a_rank_that_ends_before_its_work_is_done_again_ends_the_others_with_one_sentence(ranks: Make) -> None:
    w = ranks(2)
    keeping(w, "a", "b")
    living = w.worker_of("a")
    dies(w, "b")
    w.do(WorkerGone(living, "ended"))
    w.settle()
    w.do(SessionLeft("b"))
    assert not w.machine.sessions
    assert w.last("a").message == "The worker that held this session's tensors is gone (another process of its group could not go on)."
    assert sum(record.duration_ns for record in w.records) == 0
    w.settle()
    assert all(seat.free_milli == 1000 or seat.draining for seat in w.machine.fleet.seats.values())


def test_ranks_whose_work_kills_its_workers_are_lost_together(ranks: Make) -> None:
    w = ranks(2)
    keeping(w, "a", "b")
    for _ in range(2):
        living = w.worker_of("a")
        dies(w, "b")
        w.do(WorkerGone(living, "ended"))
        w.settle()
    dies(w, "b")
    assert not w.machine.sessions
    assert all(isinstance(w.last(name), wire.SessionLost) for name in ("a", "b"))
