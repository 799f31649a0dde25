"""Nodes and devices: lost, back, drained, cordoned, too hot, broken; and what becomes of who is there."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
from forebay_pool.model.causes import Cause, told
from forebay_pool.model.events import WorkerGone
from forebay_pool.model.health import Reading, judge
from forebay_pool.model.instructions import Note
from forebay_pool.model.node_events import DeviceHealth, DeviceSet, NodeDrain, NodeJoined, NodeLost, PolicySet
from forebay_pool.model.policies import ModelPolicy, Policy
from forebay_pool.model.types import Device, Equivalent, Flavor
from forebay_pool.views.rows import device_row, node_row, queue_row, session_row
from forebay_wire import messages as wire
from pool_world import World

GIB = 2**30
SECOND = 1_000_000_000

Make = Callable[..., World]


def cpus(*nodes: str, gib: int = 8) -> list[Device]:
    return [Device(f"{node}/cpu:0", node, "cpu", 0, "cpu-dev", gib * GIB) for node in nodes]


def beat(memory_bytes: int) -> wire.Heartbeat:
    return wire.Heartbeat(epoch=1, memory_bytes=memory_bytes, busy_ns=0, commands=0)


def alerts(w: World) -> list[str]:
    return [str(i.fields["cause"]) for i in w.out if isinstance(i, Note) and i.action == "device_alert"]


# Nodes


def test_the_sessions_of_a_lost_node_are_lost_with_a_sentence_and_what_they_held_is_free(world: Make) -> None:
    w = world(cpus("a", "b"))
    worker = w.lease("s")
    node = w.machine.fleet.workers[worker].device.node
    w.wait(2)
    w.worker(worker, beat(GIB))
    w.wait(2)
    w.do(NodeLost(node, "it does not answer"))
    assert (w.records[0].duration_ns, w.records[0].close_reason) == (0, "failed")
    assert f"node {node} was lost: it does not answer" in w.last("s").message
    w.do(NodeLost(node, "it does not answer"))
    assert len(w.records) == 1


def test_who_computes_on_a_node_that_drains_goes_on_elsewhere_if_there_is_room(world: Make) -> None:
    w = world(cpus("a", "b"))
    worker = w.lease("s")
    node = w.machine.fleet.workers[worker].device.node
    w.wait(1)
    w.do(NodeDrain(node, True))
    assert w.last("s") == wire.Leave()
    w.worker(worker, wire.Left(bytes=GIB, address="unix:/old", ticket="a" * 64))
    w.settle()
    lease = w.machine.sessions["s"].lease
    assert lease is not None and lease.device.node != node
    assert [(record.duration_ns, record.close_reason) for record in w.records] == [(SECOND, "moved")]
    w.do(NodeDrain(lease.device.node, True))
    assert w.last("s") != wire.Leave()


def test_tensors_that_take_more_than_was_known_do_not_move_where_too_little_is_set_aside(world: Make) -> None:
    sizes = {"small": (1, 500), "big": (4, 500), "bigger": (6, 500), "whole": (1, 1000)}
    w = world(cpus("a", "b"), [Flavor(name, gib * GIB, (Equivalent("cpu-dev", 1, milli),)) for name, (gib, milli) in sizes.items()])
    w.lease("t", flavor="bigger")
    w.lease("s", flavor="big")
    home = w.machine.sessions["s"].lease.device
    assert home != w.machine.sessions["t"].lease.device
    w.drain("s")
    w.client("s", wire.ChooseFlavor(flavor="small"))
    w.lease("u", flavor="whole")
    worker = w.worker_of("s")
    w.acquire("s", 2)
    assert wire.Leave() in w.told("s")
    w.worker(worker, wire.Left(bytes=3 * GIB, address="unix:/old", ticket="a" * 64))
    w.settle()
    assert (w.machine.sessions["s"].lease, w.last("s").type) == (None, "queued")
    w.drain("u")
    w.settle()
    assert w.machine.sessions["s"].lease.device == home


def test_requests_that_were_placed_on_a_lost_node_are_placed_elsewhere(world: Make) -> None:
    w = world(cpus("a", "b"))
    w.join("s")
    w.acquire("s")
    first = w.machine.sessions["s"].request.place.devices[0].node
    w.do(NodeLost(first, "its power is off"))
    w.settle()
    assert w.machine.sessions["s"].lease.device.node != first


def test_who_only_a_lost_node_can_serve_waits_for_it_and_is_told(world: Make) -> None:
    w = world(cpus("a"))
    w.do(NodeLost("a", "its power is off"))
    w.join("s")
    w.acquire("s")
    assert "A node is lost (its power is off)" in w.last("s").reason
    w.do(NodeJoined("a", ()))
    w.settle()
    assert w.machine.sessions["s"].state == "active"


def test_the_old_workers_of_a_node_that_returns_are_ended_and_its_devices_wait_for_them(world: Make) -> None:
    w = world(cpus("a"))
    worker = w.lease("s")
    w.do(NodeLost("a", "it does not answer"))
    w.do(NodeJoined("a", tuple(cpus("a"))))
    assert w.ordered(worker)[-1] == wire.End()
    assert w.killed.count(worker) == 2
    w.join("next")
    w.acquire("next")
    w.worker(worker, wire.Drained(epoch=1))
    assert w.machine.sessions["next"].lease is None
    w.do(WorkerGone(worker, "killed"))
    w.settle()
    assert w.machine.sessions["next"].state == "active"


def test_a_node_that_joins_serves_who_waits_and_makes_servable_what_was_not(world: Make) -> None:
    big = Flavor("big", 8 * GIB, (Equivalent("MI210"),))
    w = world(cpus("a"), [Flavor("dev.1gb", GIB, (Equivalent("cpu-dev"),)), big])
    w.join("s", "big")
    assert w.last("s").code == "not_servable"
    w.do(NodeJoined("b", (Device("b/null:0", "b", "null", 0, "MI210", 64 * GIB),)))
    w.lease("s", flavor="big")
    assert w.machine.sessions["s"].lease.device.node == "b"


def test_a_draining_node_takes_no_lease_parks_residents_and_lets_open_leases_end(world: Make) -> None:
    w = world(cpus("a"))
    worker = w.lease("rests")
    w.drain("rests")
    w.lease("computes")
    w.do(NodeDrain("a", True))
    w.settle()
    assert w.ordered(worker)[-1] == wire.Park()
    assert [w.machine.sessions[name].state for name in ("rests", "computes")] == ["parked", "active"]
    assert node_row(w.machine.fleet.nodes["a"])["parked"] == 1
    w.drain("computes")
    w.settle()
    assert w.machine.sessions["computes"].state == "parked"
    assert node_row(w.machine.fleet.nodes["a"])["parked"] == 2
    w.join("new")
    w.acquire("new")
    assert "A node is being emptied" in w.last("new").reason
    w.do(NodeDrain("a", False))
    w.settle()
    assert w.machine.sessions["new"].state == "active"


def test_leases_that_are_open_when_a_drains_grace_is_over_are_taken_back_and_their_sessions_parked(world: Make) -> None:
    w = world(cpus("a"))
    worker = w.lease("s")
    w.do(NodeDrain("a", True, grace_seconds=2.0))
    w.wait(1)
    w.tick()
    assert w.machine.sessions["s"].state == "active"
    w.wait(1)
    w.tick()
    assert w.ordered(worker)[-1] == wire.Close(epoch=1)
    w.settle()
    assert w.records[0].close_reason == "revoked"
    session = w.machine.sessions["s"]
    assert (session.state, session.worker.parked_bytes is not None) == ("queued", True)


# Devices


def test_a_cordoned_device_takes_no_lease_until_it_is_opened(world: Make) -> None:
    w = world(cpus("a"))
    w.do(DeviceSet("a/cpu:0", True, "a fan is loud"))
    w.join("s")
    w.acquire("s")
    assert "A device is closed (a fan is loud)" in w.last("s").reason
    assert w.machine.fleet.seats["a/cpu:0"].state == "cordoned"
    w.do(DeviceSet("a/cpu:0", False))
    w.settle()
    assert w.machine.sessions["s"].state == "active"


@pytest.mark.parametrize(
    ("reading", "level", "cause"),
    [
        (Reading("d", 85), "good", ""),
        (Reading("d", 86), "warning", "it is at 86 °C"),
        (Reading("d", 93), "warning", "it is at 93 °C"),
        (Reading("d", 94), "cordon", "it is at 94 °C"),
        (Reading("d", 97), "cordon", "it is at 97 °C"),
        (Reading("d", 98), "drain", "it is at 98 °C"),
        (Reading("d", 40, uncorrectable_errors=3), "drain", "1 memory errors were not corrected (ECC)"),
        (Reading("d", 40, uncorrectable_errors=2), "good", ""),
        (Reading("d", 40, xid=79), "drain", "the driver reported Xid 79"),
        (Reading("d", 40, xid=31), "warning", "the driver reported Xid 31, which programs cause"),
        (Reading("d", lost="GPU is lost"), "drain", "the driver lost the device: GPU is lost"),
    ],
)
def test_each_reading_means_what_its_band_says(reading: Reading, level: str, cause: str) -> None:
    verdict = judge(reading, errors_known=2)
    assert (verdict.level, verdict.cause) == (level, cause or None)


def test_a_hot_device_finishes_what_it_computes_and_serves_again_when_it_has_cooled(world: Make) -> None:
    w = world(cpus("a"))
    w.lease("s")
    w.do(DeviceHealth(Reading("a/cpu:0", 95)))
    assert w.machine.sessions["s"].state == "active"
    w.drain("s")
    w.acquire("s", 2)
    assert "A device is closed (it is at 95 °C), and this session's tensors are there." in w.last("s").reason
    w.do(DeviceHealth(Reading("a/cpu:0", 90)))
    assert w.machine.sessions["s"].lease is None
    w.do(DeviceHealth(Reading("a/cpu:0", 80)))
    assert w.machine.sessions["s"].lease.epoch == 2
    assert alerts(w) == ["it is at 95 °C"]


def test_a_device_that_is_about_to_shut_down_is_emptied_at_once(world: Make) -> None:
    w = world(cpus("a"))
    worker = w.lease("s")
    w.do(DeviceHealth(Reading("a/cpu:0", 98)))
    assert w.ordered(worker)[-1] == wire.Close(epoch=1)
    w.settle()
    session = w.machine.sessions["s"]
    assert (session.state, session.worker.parked_bytes is not None) == ("queued", True)
    assert w.records[0].close_reason == "revoked"


def test_a_device_with_memory_errors_stays_closed_until_an_operator_opens_it(world: Make) -> None:
    w = world(cpus("a"))
    w.do(DeviceHealth(Reading("a/cpu:0", 50, uncorrectable_errors=1)))
    w.do(DeviceHealth(Reading("a/cpu:0", 50, uncorrectable_errors=1)))
    seat = w.machine.fleet.seats["a/cpu:0"]
    assert (seat.is_open, alerts(w)) == (False, ["1 memory errors were not corrected (ECC)"])
    w.do(DeviceSet("a/cpu:0", False))
    w.do(DeviceHealth(Reading("a/cpu:0", 50, uncorrectable_errors=1)))
    assert seat.is_open
    w.do(DeviceHealth(Reading("a/cpu:0", 50, uncorrectable_errors=2)))
    assert not seat.is_open


def test_what_an_operator_closed_stays_closed_when_it_has_cooled(world: Make) -> None:
    w = world(cpus("a"))
    w.do(DeviceSet("a/cpu:0", True, "a fan is loud"))
    w.do(DeviceHealth(Reading("a/cpu:0", 99)))
    w.do(DeviceHealth(Reading("a/cpu:0", 40)))
    cordon = w.machine.fleet.seats["a/cpu:0"].cordon
    assert (cordon.by, cordon.cause) == ("operator", "a fan is loud; it is at 99 °C")


def test_rows_tell_causes_by_codes_and_values_and_what_was_typed_without(world: Make) -> None:
    w = world(cpus("a"))
    seat = w.machine.fleet.seats["a/cpu:0"]
    assert device_row(seat)["causes"] == []
    w.do(DeviceHealth(Reading("a/cpu:0", 87)))
    hot = {"message": "it is at 87 °C", "code": "hot", "values": {"celsius": 87}, "parts": []}
    assert (device_row(seat)["cause"], device_row(seat)["causes"]) == ("it is at 87 °C", [hot])
    w.do(DeviceSet("a/cpu:0", True, "it is at 5 °C"))
    w.do(DeviceHealth(Reading("a/cpu:0", 99)))
    typed = {"message": "it is at 5 °C", "code": None, "values": {}, "parts": []}
    hotter = {"message": "it is at 99 °C", "code": "hot", "values": {"celsius": 99}, "parts": []}
    assert (device_row(seat)["cause"], device_row(seat)["causes"]) == ("it is at 5 °C; it is at 99 °C", [typed, hotter])
    w.do(NodeLost("a", Cause("ray_dead")))
    assert node_row(seat.node)["causes"] == [{"message": "Ray counts it among the dead", "code": "ray_dead", "values": {}, "parts": []}]


@pytest.mark.parametrize("another", [copy.deepcopy, lambda cause: pickle.loads(pickle.dumps(cause))], ids=["copied", "sent"])  # noqa: S301 - our own
def test_a_cause_keeps_its_code_and_values(another: Callable[[Cause], Cause]) -> None:
    cause = Cause("device_closed", Cause("hot", celsius=99), "100 % {broken}", device="a/cpu:0")
    same = another(cause)
    assert (same, same.code, same.values) == ("A device is closed (it is at 99 °C; 100 % {broken})", "device_closed", {"device": "a/cpu:0"})
    assert same.parts == cause.parts and told(same) == told(cause)


def test_a_cause_without_a_sentence_in_the_catalogue_cannot_be_made() -> None:
    for code, values in (("made_up", {}), ("hot", {}), ("hot", {"fahrenheit": 99})):
        with pytest.raises(LookupError, match=code):
            Cause(code, **values)


def test_a_closed_device_is_told_with_what_it_is_closed_for(world: Make) -> None:
    w = world(cpus("a"))
    w.do(DeviceSet("a/cpu:0", True, "a fan is loud"))
    w.do(DeviceHealth(Reading("a/cpu:0", 99)))
    w.join("s")
    w.acquire("s")
    fan, hot = wire.Cause(code="text", values={"text": "a fan is loud"}), wire.Cause(code="hot", values={"celsius": 99})
    closed = wire.Cause(code="device_closed", values={"device": "a/cpu:0"}, parts=(fan, hot))
    assert w.last("s").cause == wire.Cause(code="all_closed", values={"count": 1, "flavor": "dev.1gb"}, parts=(closed,))
    assert "a fan is loud; 현재 99 °C입니다" in w.last("s").cause.said("ko")
    row = session_row(w.machine.sessions["s"])
    assert [part["code"] for part in row["parts"]] == ["device_closed"]
    assert [part["code"] for part in row["parts"][0]["parts"]] == [None, "hot"]


def test_rows_tell_waits_by_details_and_values(world: Make) -> None:
    w = world(cpus("a"))
    w.lease("s")
    w.join("t")
    w.acquire("t")
    waiting = w.machine.sessions["t"]
    held = {"device": "a/cpu:0", "flavor": "dev.1gb"}
    for row in (session_row(waiting), queue_row(waiting)):
        assert (row["code"], row["detail"], row["values"]) == ("shortage", "one_held", held)
        assert row["reason"] == "The one device that serves dev.1gb is held."
    assert (session_row(w.machine.sessions["s"])["detail"], session_row(w.machine.sessions["s"])["values"]) == (None, {})
    assert type(w.last("t").reason) is str and w.last("t").reason == session_row(waiting)["reason"]


# Workers that lie


def test_a_worker_that_says_it_holds_more_than_it_may_fails_and_its_session_is_told(world: Make) -> None:
    w = world(cpus("a"))
    worker = w.lease("s")
    w.worker(worker, beat(GIB))
    assert w.machine.sessions["s"].state == "active"
    w.worker(worker, beat(GIB + 1))
    assert worker in w.killed
    assert "it says that it holds 1073741825 bytes where it may hold 1073741824" in w.last("s").message


def test_a_device_whose_workers_lie_again_and_again_is_closed(world: Make) -> None:
    w = world(cpus("a"))
    seat = w.machine.fleet.seats["a/cpu:0"]
    for name in "pqr":
        assert seat.is_open
        w.worker(w.lease(name), beat(9 * GIB))
        w.settle()
    assert seat.cordon.cause == "3 workers in a row said that they hold more memory than they may"


def test_an_honest_lease_between_them_makes_lies_count_anew(world: Make) -> None:
    w = world(cpus("a"))
    for name in "pqr":
        w.worker(w.lease(name), beat(9 * GIB))
        w.settle()
        w.lease(f"honest-{name}")
        w.drain(f"honest-{name}")
    assert w.machine.fleet.seats["a/cpu:0"].is_open


# Policies


def test_a_model_that_is_kept_for_a_tenant_is_refused_to_others_with_the_reason(world: Make) -> None:
    w = world(cpus("a"))
    w.do(PolicySet(Policy(models={"cpu-dev": ModelPolicy("cpu-dev", frozenset({"globex"}))})))
    w.join("s")
    assert (w.last("s").code, "cpu-dev is kept for other tenants" in w.last("s").message) == ("not_servable", True)
    w.join("t", tenant="globex")
    w.acquire("t")
    w.settle()
    assert w.machine.sessions["t"].state == "active"


def test_residents_beyond_a_flavors_bound_are_parked_when_a_lease_closes(world: Make) -> None:
    w = world(cpus("a"), [Flavor("dev.1gb", GIB, (Equivalent("cpu-dev"),), residents_max=2)])
    for name in "abc":
        w.lease(name)
        w.wait(1)
        w.drain(name)
        w.settle()
    assert [w.machine.sessions[name].state for name in "abc"] == ["parked", "resident", "resident"]


def test_a_resident_that_need_not_go_stays_when_a_larger_one_goes_anyway(world: Make) -> None:
    sizes = {"one": 1, "five": 5, "seven": 7}
    w = world(cpus("a"), [Flavor(name, gib * GIB, (Equivalent("cpu-dev"),)) for name, gib in sizes.items()])
    for name in ("one", "five"):
        w.lease(name, flavor=name)
        w.wait(1)
        w.drain(name)
    w.lease("seven", flavor="seven")
    assert [w.machine.sessions[name].state for name in ("one", "five", "seven")] == ["resident", "parked", "active"]
