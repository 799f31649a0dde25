"""Shares of a device, and several devices together: who computes beside whom, what is metered, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.errors import InvariantBroken
from forebay_pool.model.events import LeaseRevoked, QuotaSet, SessionLeft, WorkerGone
from forebay_pool.model.node_events import NodeDrain
from forebay_pool.model.types import Device, Equivalent, Flavor, Place, Quota
from forebay_pool.store.database import Store
from forebay_pool.store.flavors import FlavorBody
from forebay_pool.views.rows import flavor_row
from forebay_wire import messages as wire
from pydantic import ValidationError

GIB = 2**30
SECOND = 1_000_000_000

Make = Callable[..., Any]

HALF = Flavor("half", 2 * GIB, (Equivalent("cpu-dev", 1, 500),))
WHOLE = Flavor("whole", 4 * GIB, (Equivalent("cpu-dev", 1),))
PAIR = Flavor("pair", 12 * GIB, (Equivalent("cpu-dev", 2),))


def cpus(count: int, gib: int = 8) -> list[Device]:
    return [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", gib * GIB) for index in range(count)]


@pytest.fixture
def shared(world: Make) -> Make:
    """A world with the flavors of these tests."""
    return lambda count, gib=8, **changes: world(cpus(count, gib), [HALF, WHOLE, PAIR], **changes)


# Shares


def test_two_halves_of_a_device_are_leased_at_a_time_and_a_third_waits(shared: Make) -> None:
    w = shared(1)
    first, second = w.lease("a", flavor="half"), w.lease("b", flavor="half")
    assert first != second
    w.join("c", "half")
    w.acquire("c")
    w.settle()
    assert [w.machine.sessions[name].state for name in "abc"] == ["active", "active", "queued"]
    assert "The one device that serves half is held" in w.last("c").reason
    w.drain("a")
    w.settle()
    assert w.machine.sessions["c"].state == "active"


def test_each_share_has_the_flavors_memory_and_is_metered_alone(shared: Make) -> None:
    w = shared(1)
    for name in "ab":
        worker = w.lease(name, flavor="half")
        assert w.ordered(worker)[-1] == wire.Open(epoch=1, memory_limit_bytes=2 * GIB)
    w.wait(3)
    w.drain("a")
    w.wait(1)
    w.drain("b")
    assert [(r.session, r.devices, r.duration_ns) for r in w.records] == [("a", 1, 3 * SECOND), ("b", 1, 4 * SECOND)]


def test_a_whole_device_waits_until_both_halves_are_free(shared: Make) -> None:
    w = shared(1)
    w.lease("a", flavor="half")
    w.lease("b", flavor="half")
    w.join("c", "whole")
    w.acquire("c")
    w.drain("a")
    w.settle()
    assert w.machine.sessions["c"].state == "queued"
    w.drain("b")
    w.settle()
    assert w.machine.sessions["c"].state == "active"


def test_a_parked_session_waits_until_its_flavors_memory_fits_beside_those_who_compute(shared: Make) -> None:
    """Its tensors were smaller than its flavor: what they took is not what its next lease needs."""
    w = shared(1, gib=3)
    worker = w.lease("a", flavor="half")
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=GIB // 4, busy_ns=0, commands=1))
    w.drain("a")
    w.lease("b", flavor="half")
    assert w.machine.sessions["a"].state == "parked"
    w.acquire("a", 2)
    w.settle()
    assert w.machine.sessions["a"].state == "queued"
    w.drain("b")
    w.settle()
    assert w.machine.sessions["a"].state == "active"


def test_a_share_is_not_given_where_the_memory_of_those_who_compute_leaves_no_room(shared: Make) -> None:
    w = shared(1, gib=3)
    w.lease("a", flavor="half")
    w.join("b", "half")
    w.acquire("b")
    w.settle()
    assert w.machine.sessions["b"].state == "queued"
    w.drain("a")
    w.settle()
    assert [w.machine.sessions[name].state for name in "ab"] == ["parked", "active"]


def test_the_share_of_a_lease_that_ended_badly_is_free_once_its_worker_is_gone(shared: Make) -> None:
    w = shared(1)
    worker = w.lease("a", flavor="half")
    w.lease("b", flavor="half")
    w.do(SessionLeft("a"))
    w.join("c", "half")
    w.acquire("c")
    assert w.machine.fleet.seats["main/cpu:0"].free_milli == 0
    w.do(WorkerGone(worker, "exited with status 0"))
    w.settle()
    assert w.machine.sessions["c"].state == "active"


def test_more_than_the_whole_device_is_never_taken(shared: Make) -> None:
    w = shared(1)
    w.lease("a", flavor="half")
    w.join("b", "whole")
    with pytest.raises(InvariantBroken, match="has 500/1000 free"):
        w.machine.fleet.take(Place(tuple(cpus(1)), 1000), w.machine.sessions["b"], GIB)


# Gangs


def test_a_gang_is_claimed_in_one_step_and_metered_with_its_count(shared: Make) -> None:
    w = shared(2)
    worker = w.lease("a", flavor="pair")
    assert [seat.state for seat in w.machine.fleet.seats.values()] == ["leased", "leased"]
    assert len(w.machine.fleet.workers[worker].devices) == 2
    assert w.last("a").devices == 2
    w.wait(2)
    w.drain("a")
    (record,) = w.records
    assert (record.devices, record.duration_ns) == (2, 2 * SECOND)


def test_a_gang_that_loses_a_device_costs_nothing_and_gives_all_devices_back(shared: Make) -> None:
    """Its worker ends with the process of any of its devices."""
    w = shared(2)
    worker = w.lease("a", flavor="pair")
    w.wait(2)
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=1, busy_ns=0, commands=0))
    w.do(WorkerGone(worker, "the process of device cpu:1 ended"))
    (record,) = w.records
    assert (record.devices, record.duration_ns, record.close_reason) == (2, 0, "failed")
    closed, lost = w.told("a")[-2:]
    assert (closed.reason, closed.duration_ns) == ("failed", 0)
    assert "the process of device cpu:1 ended" in lost.message
    w.lease("b", flavor="pair")


def test_a_gang_has_its_flavors_memory_of_which_each_device_sets_aside_a_part(shared: Make) -> None:
    w = shared(2)
    worker = w.lease("a", flavor="pair")
    assert w.ordered(worker)[0].memory_limit_bytes == 12 * GIB
    assert w.ordered(worker)[1] == wire.Open(epoch=1, memory_limit_bytes=12 * GIB)
    assert [seat.reserved_bytes for seat in w.machine.fleet.seats.values()] == [6 * GIB, 6 * GIB]
    w.drain("a")
    assert [seat.reserved_bytes for seat in w.machine.fleet.seats.values()] == [6 * GIB, 6 * GIB], "it rests on both"


def test_whoever_needs_any_device_of_a_resting_gang_has_it_parked(shared: Make) -> None:
    w = shared(2)
    worker = w.lease("a", flavor="pair")
    w.drain("a")
    for name in ("b", "c"):
        w.join(name, "whole")
        w.acquire(name)
        w.settle()
    assert sum(isinstance(message, wire.Park) for message in w.ordered(worker)) == 1
    assert {w.machine.sessions[name].state for name in "bc"} == {"active"}
    assert [seat.reserved_bytes for seat in w.machine.fleet.seats.values()] == [4 * GIB, 4 * GIB]


@pytest.mark.parametrize("node", ["a", "b"])
@pytest.mark.parametrize("computes", [True, False])
def test_a_gang_leaves_where_the_node_of_any_device_is_emptied_whatever_its_quota_says(world: Make, node: str, computes: bool) -> None:
    devices = [Device(f"{name}/cpu:0", name, "cpu", 0, "cpu-dev", 8 * GIB) for name in ("a", "b")]
    w = world(devices, [PAIR])
    w.do(QuotaSet("acme", None, Quota(parked_bytes=0)))
    worker, drained = w.lease("s", flavor="pair"), wire.Drained(epoch=1, memory_bytes=GIB)
    if not computes:
        w.worker(worker, drained)
    w.do(NodeDrain(node, True))
    if computes:
        w.worker(worker, drained)
    assert isinstance(w.ordered(worker)[-1], wire.Park)


def test_a_gang_has_those_parked_that_rest_on_any_of_its_devices(shared: Make) -> None:
    w = shared(2)
    workers = [w.lease(name, flavor="whole") for name in ("a", "b")]
    for name in ("a", "b"):
        w.drain(name)
    w.join("c", "pair")
    w.acquire("c")
    assert [isinstance(w.ordered(worker)[-1], wire.Park) for worker in workers] == [True, True]
    w.settle()
    assert w.machine.sessions["c"].state == "active"
    assert [seat.reserved_bytes for seat in w.machine.fleet.seats.values()] == [6 * GIB, 6 * GIB]


def test_a_gang_takes_nothing_while_one_device_is_missing(shared: Make) -> None:
    w = shared(2)
    w.lease("a", flavor="whole")
    w.join("b", "pair")
    w.acquire("b")
    w.settle()
    assert sum(bool(seat.holders) for seat in w.machine.fleet.seats.values()) == 1
    assert "which takes 2 cpu-dev" in w.last("b").reason
    w.drain("a")
    w.settle()
    assert w.machine.sessions["b"].state == "active"


def test_a_resident_gang_gets_its_next_lease_on_the_same_devices_by_the_same_worker(shared: Make) -> None:
    w = shared(3)
    worker = w.lease("a", flavor="pair")
    place = w.machine.sessions["a"].lease.place
    w.drain("a")
    assert w.lease("a", 2) == worker
    assert w.machine.sessions["a"].lease.place == place


def test_the_worker_that_starts_for_a_gang_is_ended_when_its_request_is_cancelled(shared: Make) -> None:
    w = shared(2)
    w.join("a", "pair")
    w.acquire("a")
    (worker,) = w.launched
    w.client("a", wire.Cancel(request=1))
    assert w.ordered(worker) == [wire.End()]
    assert w.machine.fleet.spare["cpu"] == 0


def test_all_devices_of_a_gang_wait_for_its_worker_to_be_gone(shared: Make) -> None:
    w = shared(2)
    worker = w.lease("a", flavor="pair")
    w.do(SessionLeft("a"))
    assert [seat.state for seat in w.machine.fleet.seats.values()] == ["draining", "draining"]
    w.do(WorkerGone(worker, "exited with status 0"))
    assert [seat.state for seat in w.machine.fleet.seats.values()] == ["free", "free"]


def test_tensors_that_a_gangs_devices_cannot_take_are_said_instead_of_waited_with(world: Make) -> None:
    large = Flavor("large", 20 * GIB, (Equivalent("big", 1),))
    w = world([Device("main/cpu:9", "main", "cpu", 9, "big", 32 * GIB), *cpus(2)], [large, PAIR], heartbeat_seconds=1e6)
    worker = w.lease("s", flavor="large")
    w.client("s", wire.ChooseFlavor(flavor="pair"))
    assert w.machine.sessions["s"].flavor == "pair"  # as long as they fit
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=18 * GIB, busy_ns=0, commands=1))
    sentence = "This session's tensors are 18.0 GiB, and the devices of pair hold 16.0 GiB"
    w.do(LeaseRevoked("s", "An operator takes it back."))
    w.wait(11)
    w.tick()
    w.settle()
    refused = w.last("s")
    assert (type(refused), refused.request, refused.code) == (wire.Refused, 0, "not_servable")
    assert refused.message == f"{sentence}; free tensors first, or choose another flavor."
    w.acquire("s", 2)
    more = "This session holds 18.0 GiB, and pair has 12.0 GiB; free tensors first."
    assert (w.last("s").request, w.last("s").message) == (2, more)
    w.client("s", wire.ChooseFlavor(flavor="large"))
    w.lease("s", 3)
    w.client("s", wire.ChooseFlavor(flavor="pair"))
    assert (w.last("s").message, w.machine.sessions["s"].flavor) == (more, "large")


@pytest.mark.parametrize(
    ("equivalents", "expected"),
    [
        ((Equivalent("cpu-dev", 4),), "it takes 4 cpu-dev together, and there are 2"),
        ((Equivalent("cpu-dev", 2),), "2 cpu-dev together have 16.0 GiB, the flavor 64.0 GiB"),
        ((Equivalent("cpu-dev", 1, 250),), "a cpu-dev here has 8.0 GiB, the flavor 64.0 GiB"),
        ((Equivalent("MI210", 1, 250), Equivalent("MI250", 16)), "needs 25 % of a MI210 or 16 MI250; this installation has 2 cpu-dev"),
    ],
)
def test_what_can_never_be_served_is_refused_with_the_reason(world: Make, equivalents: tuple[Equivalent, ...], expected: str) -> None:
    w = world(cpus(2), [Flavor("big", 64 * GIB, equivalents)])
    w.join("s", "big")
    assert w.last("s").code == "not_servable"
    assert expected in w.last("s").message


# One device or several


def test_a_flavor_of_one_device_or_several_is_leased_by_either(world: Make) -> None:
    either = Flavor("either", 12 * GIB, (Equivalent("cpu-dev", 2), Equivalent("null", 1)))
    here = [*cpus(2), Device("main/null:0", "main", "null", 0, "null", 16 * GIB)]
    w = world(here, [either])
    leased = []
    for name in "st":
        w.lease(name, flavor="either")
        leased.append([device.id for device in w.machine.sessions[name].lease.place.devices])
    assert sorted(leased) == [["main/cpu:0", "main/cpu:1"], ["main/null:0"]]
    row = flavor_row(either, w.machine.fleet, "acme", w.machine.outlook(either, "acme"), True)
    assert row["servable"] and [(way["count"], way["devices"]) for way in row["equivalents"]] == [(2, 2), (1, 1)]
    w.join("u", "either")
    w.acquire("u")
    w.settle()
    assert w.machine.sessions["u"].state == "queued"
    small = world(cpus(1), [either])
    small.join("s", "either")
    assert "either cannot be served: it takes 2 cpu-dev together, and there are 1; there is no null here." in small.last("s").message


# The edges


def test_an_equivalent_is_a_gang_or_a_share_and_never_a_gang_of_shares() -> None:
    body = '{"memory_bytes": 1073741824, "equivalents": [{"model": "a", "count": 4}, {"model": "b", "share_milli": 250}]}'
    assert FlavorBody.model_validate_json(body).named("x").equivalents == (Equivalent("a", 4), Equivalent("b", 1, 250))
    for part in ('{"model": "a", "count": 2, "share_milli": 500}', '{"model": "a", "share_milli": 1001}'):
        with pytest.raises(ValidationError):
            FlavorBody.model_validate_json('{"memory_bytes": 1073741824, "equivalents": [' + part + "]}")


def test_the_store_keeps_shares_and_reads_what_earlier_versions_wrote(tmp_path: Any) -> None:
    store = Store(f"sqlite:///{tmp_path / 'pool.sqlite'}")
    store.migrate()
    mixed = Flavor("mixed", GIB, (Equivalent("a", 4), Equivalent("b", 1, 250)))
    store.set_flavor(mixed, "operator")
    with store.engine.begin() as connection:
        connection.exec_driver_sql("""insert into flavors (name, memory_bytes, equivalents) values ('old', 5, '[["a", 1], ["b", 2]]')""")
    assert store.flavors()["mixed"] == mixed
    assert store.flavors()["old"].equivalents == (Equivalent("a", 1), Equivalent("b", 2))
    store.close()
