"""The rules of sessions, leases and the queue, each by what the machine says to whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from forebay_pool.model.events import FlavorSet, PricesSet, SessionLeft, SessionParked
from forebay_pool.model.prices import Tariff
from forebay_pool.model.types import Device, Equivalent, Flavor, Price
from forebay_wire import messages as wire
from forebay_wire.remote.runtimes import RUNTIMES
from pool_world import World

GIB = 2**30
SECOND = 1_000_000_000

Make = Callable[..., World]


def cpus(count: int, gib: int = 8) -> list[Device]:
    return [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", gib * GIB) for index in range(count)]


def priced(nano_per_hour: int) -> PricesSet:
    """All are billed in dollars but globex, in won, in which dev.4gb has no price."""
    prices = {("dev.1gb", "USD"): nano_per_hour, ("dev.1gb", "KRW"): 1_400 * nano_per_hour, ("dev.4gb", "USD"): 7}
    return PricesSet(Tariff(prices, {}, "USD", {"globex": "KRW"}))


# Sessions


def test_a_hello_is_answered_with_the_session_and_its_flavor(world: Make) -> None:
    w = world()
    w.do(priced(2_990_000_000))
    w.join("s")
    opened = w.last("s")
    assert opened == wire.SessionOpened(
        session="s",
        flavor=wire.Flavor(name="dev.1gb", memory_bytes=GIB, price_nano_per_hour=2_990_000_000, currency="USD", runtimes=RUNTIMES),
        heartbeat_seconds=20.0,
        resume_key=opened.resume_key,
    )
    assert len(opened.resume_key) == 64
    assert w.machine.sessions["s"].state == "idle"


def test_an_unknown_flavor_is_refused_with_the_names_there_are(world: Make) -> None:
    w = world()
    w.join("s", "dev.9gb")
    assert (w.last("s").code, "dev.1gb" in w.last("s").message) == ("unknown_flavor", True)
    assert not w.machine.sessions


@pytest.mark.parametrize(
    ("equivalents", "expected"),
    [
        ([("MI210", 1)], "needs 1 MI210; this installation has 1 cpu-dev"),
        ([("cpu-dev", 2)], "it takes 2 cpu-dev together, and there are 1"),
        ([("cpu-dev", 1), ("MI210", 2)], "a cpu-dev here has 8.0 GiB, the flavor 64.0 GiB; there is no MI210 here"),
    ],
)
def test_a_flavor_that_no_device_serves_is_refused_with_the_reason(world: Make, equivalents: list[tuple[str, int]], expected: str) -> None:
    w = world(flavors=[Flavor("big", 64 * GIB, tuple(Equivalent(*e) for e in equivalents))])
    w.join("s", "big")
    assert w.last("s").code == "not_servable"
    assert expected in w.last("s").message


def test_the_number_of_sessions_is_bounded(world: Make) -> None:
    w = world(sessions_max=1)
    w.join("a")
    w.join("b")
    assert w.last("b").code == "limit"


# A lease's life


def test_the_first_lease_starts_a_worker_assigns_it_and_opens(world: Make) -> None:
    w = world()
    w.join("s")
    w.acquire("s")
    waits = w.last("s")
    assert (waits.request, waits.position, waits.code, waits.reason) == (1, 1, "starting", "A worker is starting.")
    assert (waits.ahead, waits.estimate, waits.since_ns) == (0, None, 1_700_000_000 * SECOND + w.now)
    w.wait(1)
    w.ready("p-w1")
    assign = w.ordered("p-w1")[0]
    assert (assign.session, assign.memory_limit_bytes) == ("s", GIB)
    w.wait(1)
    w.worker("p-w1", wire.Assigned(session="s"))
    assert w.ordered("p-w1")[1] == wire.Open(epoch=1, memory_limit_bytes=GIB)
    granted = w.last("s")
    assert (granted.request, granted.lease, granted.epoch, granted.address) == (1, "s.1", 1, "unix:/p-w1")
    assert granted.ticket == assign.ticket
    assert w.machine.sessions["s"].state == "active"


def test_a_lease_is_metered_from_grant_to_drained_and_waiting_is_free(world: Make) -> None:
    w = world()
    w.do(priced(3 * 3600))
    w.join("s")
    w.acquire("s")
    w.wait(7)
    w.settle()
    w.wait(1.5)
    w.drain("s")
    (record,) = w.records
    assert (record.id, record.lease, record.duration_ns, record.close_reason) == ("s.1/1", "s.1", 1_500_000_000, "drained")
    assert record.started_at_unix_ns == 1_700_000_000 * SECOND + 8 * SECOND
    assert (record.tenant, record.user, record.flavor, record.device_model, record.devices) == ("acme", "ada", "dev.1gb", "cpu-dev", 1)
    assert record.span.cell == 1
    assert w.last("s") == wire.LeaseClosed(lease="s.1", epoch=1, reason="drained", duration_ns=1_500_000_000, cost_nano=4)
    assert w.machine.sessions["s"].state == "resident"


def test_each_tenant_is_told_the_price_in_its_own_currency(world: Make) -> None:
    w = world(cpus(2))
    w.do(priced(3600 * SECOND))
    for session, tenant, nano, currency in (("s", "acme", 3600 * SECOND, "USD"), ("t", "globex", 3600 * 1_400 * SECOND, "KRW")):
        w.join(session, tenant=tenant)
        assert (w.last(session).flavor.price_nano_per_hour, w.last(session).flavor.currency) == (nano, currency)
        w.lease(session)
        w.wait(2)
        w.drain(session)
        assert w.last(session).cost_nano == 2 * nano // 3600


def test_who_is_billed_in_a_currency_without_a_price_is_told_so_and_no_others_price(world: Make) -> None:
    w = world()
    w.do(priced(3600 * SECOND))
    w.join("t", "dev.4gb", tenant="globex")
    assert w.last("t").flavor == wire.Flavor(name="dev.4gb", memory_bytes=4 * GIB, currency="KRW", runtimes=RUNTIMES)
    w.lease("t")
    assert w.machine.sessions["t"].lease.price == Price(None, "KRW")
    w.drain("t")
    assert w.last("t").cost_nano is None


def test_a_price_that_changes_has_effect_on_later_leases_alone(world: Make) -> None:
    w = world()
    w.do(priced(3600 * SECOND))
    w.lease("s")
    w.do(priced(9 * 3600 * SECOND))
    w.wait(2)
    w.drain("s")
    assert w.last("s").cost_nano == 2 * SECOND
    w.lease("s", 2)
    w.wait(2)
    w.drain("s")
    assert w.last("s").cost_nano == 18 * SECOND


def test_the_next_lease_of_a_session_opens_at_once_on_its_device(world: Make) -> None:
    w = world(cpus(2))
    worker = w.lease("s")
    w.drain("s")
    w.acquire("s", 2)
    assert w.last("s").worker == worker
    assert (w.last("s").epoch, w.last("s").lease) == (2, "s.2")
    assert w.launched == [worker]


def test_the_idle_stretch_is_not_billed(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.wait(5)
    w.worker(worker, wire.Idle(epoch=1, idle_ns=2 * SECOND))
    assert (w.last("s").reason, w.last("s").duration_ns) == ("idle", 3 * SECOND)


def test_an_idle_stretch_longer_than_the_lease_bills_nothing_and_never_less(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.wait(1)
    w.worker(worker, wire.Idle(epoch=1, idle_ns=99 * SECOND))
    assert w.records[0].duration_ns == 0


def test_starved_acquires_on_the_sessions_behalf_with_its_last_span(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.worker(worker, wire.Idle(epoch=1, idle_ns=0))
    w.worker(worker, wire.Starved())
    granted = w.last("s")
    assert (granted.request, granted.epoch) == (0, 2)
    assert w.machine.sessions["s"].lease.span.id == "s-1"
    w.worker(worker, wire.Starved())
    assert w.last("s") is granted


def test_an_acquire_for_the_span_whose_lease_is_open_gets_that_lease(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.worker(worker, wire.Idle(epoch=1, idle_ns=0))
    w.worker(worker, wire.Starved())
    w.acquire("s", 2, span="s-1")
    assert (w.last("s").request, w.last("s").epoch) == (2, 2)


def test_an_acquire_waits_while_the_previous_lease_drains(world: Make) -> None:
    w = world()
    w.lease("s")
    w.acquire("s", 2)
    assert w.last("s").reason == "The session's previous lease is still draining."
    w.wait(1)
    w.drain("s")
    assert [type(m).__name__ for m in w.told("s")[-2:]] == ["LeaseClosed", "Granted"]
    assert w.last("s").epoch == 2


def test_a_second_acquire_with_another_number_is_refused(world: Make) -> None:
    w = world()
    w.join("s")
    w.acquire("s", 1)
    w.acquire("s", 2)
    assert (w.last("s").code, w.last("s").request) == ("limit", 2)
    w.settle()
    assert w.last("s").request == 1


def test_release_closes_the_lease_when_the_worker_has_stopped(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.wait(1)
    w.client("s", wire.Release(epoch=1))
    assert w.ordered(worker)[-1] == wire.Close(epoch=1)
    w.wait(1)
    w.worker(worker, wire.Closed(epoch=1))
    assert (w.last("s").reason, w.records[0].duration_ns) == ("released", 2 * SECOND)


def test_release_of_another_epoch_does_nothing(world: Make) -> None:
    w = world()
    w.lease("s")
    w.client("s", wire.Release(epoch=7))
    assert w.machine.sessions["s"].lease.state == "open"


def test_messages_of_a_closed_epoch_do_nothing(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.drain("s")
    w.lease("s", 2)
    for message in (wire.Drained(epoch=1), wire.Idle(epoch=1, idle_ns=5), wire.Closed(epoch=1)):
        w.worker(worker, message)
    assert w.machine.sessions["s"].lease is not None
    assert len(w.records) == 1


def test_a_cancelled_request_leaves_the_queue(world: Make) -> None:
    w = world()
    w.lease("a")
    w.join("b")
    w.acquire("b")
    w.client("b", wire.Cancel(request=1))
    w.drain("a")
    assert w.machine.sessions["b"].state == "idle"
    assert w.machine.fleet.seats["main/cpu:0"].state == "free"


def test_cancelling_a_grant_under_way_frees_the_device_for_the_next(world: Make) -> None:
    w = world()
    w.join("a")
    w.acquire("a")
    w.join("b")
    w.acquire("b")
    w.client("a", wire.Cancel(request=1))
    w.settle()
    assert w.machine.sessions["b"].state == "active"
    assert not w.records


def test_cancelling_what_was_granted_already_gives_it_back(world: Make) -> None:
    w = world()
    w.lease("s")
    w.client("s", wire.Cancel(request=1))
    w.settle()
    assert w.last("s").reason == "released"


# The queue


def test_requests_are_served_in_the_order_of_arrival(world: Make) -> None:
    w = world()
    w.lease("a")
    for name in "bcd":
        w.join(name)
        w.acquire(name)
    assert [w.last(name).position for name in "bcd"] == [1, 2, 3]
    assert w.last("b").reason == "The one device that serves dev.1gb is held."
    w.drain("a")
    w.settle()
    w.tick()
    assert w.machine.sessions["b"].state == "active"
    assert [w.last(name).position for name in "cd"] == [1, 2]


def test_a_session_waits_for_its_own_device_and_is_told_so(world: Make) -> None:
    w = world()
    w.lease("a")
    w.drain("a")
    w.lease("b")
    w.acquire("a", 2)
    assert w.last("a").reason == "The device that has this session's tensors is held by another lease."
    w.drain("b")
    assert w.last("a").epoch == 2


def test_who_waits_for_another_device_is_not_counted_before_one(world: Make) -> None:
    w = world(cpus(2))
    w.lease("a")
    w.drain("a")
    w.lease("b")
    w.drain("b")
    first, second = w.machine.sessions["a"].worker.device.id, w.machine.sessions["b"].worker.device.id
    if first == second:
        pytest.fail("two sessions were placed on one device while another was free")
    w.lease("a", 2)
    w.lease("b", 2)
    w.join("c")
    w.acquire("c")
    w.drain("a")
    w.settle()
    w.acquire("a", 3)
    assert w.last("a").position == 1


def test_a_full_queue_refuses(world: Make) -> None:
    w = world(queue_max=1)
    w.lease("a")
    for name in "bc":
        w.join(name)
        w.acquire(name)
    assert (w.last("b").position, w.last("c").code) == (1, "limit")


def test_a_session_waits_when_the_pool_has_all_workers_it_may(world: Make) -> None:
    w = world(cpus(2), workers_max=1)
    w.lease("a")
    w.join("b")
    w.acquire("b")
    assert "1 are allowed" in w.last("b").reason
    w.do(SessionLeft("a"))
    w.settle()
    assert w.machine.sessions["b"].state == "active"


def test_a_worker_that_ends_on_one_device_lets_one_start_on_another_at_once(world: Make) -> None:
    small, large = Device("main/cpu:0", "main", "cpu", 0, "cpu-dev", GIB), Device("main/null:0", "main", "null", 0, "null", 8 * GIB)
    flavors = [Flavor("small", GIB, (Equivalent("cpu-dev", 1),)), Flavor("large", 8 * GIB, (Equivalent("null", 1),))]
    w = world([small, large], flavors, workers_max=1)
    w.lease("a", flavor="small")
    w.join("b", "large")
    w.acquire("b")
    w.do(SessionLeft("a"))
    w.settle()
    assert w.machine.sessions["b"].state == "active"


def test_a_prestarted_worker_makes_way_for_somebody_whom_it_cannot_serve(world: Make) -> None:
    small, large = Device("main/cpu:0", "main", "cpu", 0, "cpu-dev", GIB), Device("main/null:0", "main", "null", 0, "null", 8 * GIB)
    flavors = [Flavor("small", GIB, (Equivalent("cpu-dev", 1),)), Flavor("large", 8 * GIB, (Equivalent("null", 1),))]
    w = world([small, large], flavors, workers_max=1, warm_workers=1)
    w.tick()
    w.settle()
    w.join("b", "large")
    w.acquire("b")
    w.tick()
    w.settle()
    assert w.machine.sessions["b"].state == "active"
    w.tick()
    assert len(w.machine.fleet.workers) == 1


def test_who_needs_a_new_worker_does_not_hold_up_who_has_one_when_workers_are_short(world: Make) -> None:
    w = world(workers_max=2)
    w.lease("a")
    w.drain("a")
    w.lease("b")
    w.join("c")
    w.acquire("c")
    w.acquire("a", 2)
    w.drain("b")
    assert w.machine.sessions["a"].state == "active"
    assert w.machine.sessions["c"].state == "queued"


# Residents and parking


def test_the_least_recently_used_resident_is_parked_and_later_restored(world: Make) -> None:
    w = world(cpus(1, gib=8))
    for name in "ab":
        w.lease(name, flavor="dev.4gb")
        w.worker(w.worker_of(name), wire.Heartbeat(epoch=1, memory_bytes=3 * GIB, busy_ns=0, commands=1))
        w.wait(1)
        w.drain(name)
    w.join("c", "dev.4gb")
    w.acquire("c")
    oldest = w.worker_of("a")
    assert w.ordered(oldest)[-1] == wire.Park()
    assert w.last("c").reason == "A resident session (4.0 GiB) must be parked to make room for 4.0 GiB."
    w.settle()
    assert [w.machine.sessions[name].state for name in "abc"] == ["parked", "resident", "active"]
    w.wait(1)
    w.drain("c")
    w.acquire("a", 2)
    w.settle()
    assert [w.machine.sessions[name].state for name in "abc"] == ["active", "parked", "resident"]
    assert w.ordered(oldest)[-1] == wire.Open(epoch=2, memory_limit_bytes=4 * GIB)
    assert len(w.records) == 3


def test_what_one_session_has_of_a_hosts_memory_and_disk_is_not_left_for_the_next(world: Make) -> None:
    w = world(parked_host_bytes_max=GIB, spill_bytes_max=GIB)
    workers = {}
    for name in ("s", "t"):
        workers[name] = w.lease(name)
        w.drain(name)
    w.do(SessionParked("s"))
    assert w.ordered(workers["s"])[-1] == wire.Park(host_bytes_max=GIB, spill_bytes_max=GIB)
    w.worker(workers["s"], wire.Parked(bytes=GIB, spilled_bytes=GIB // 4))
    w.do(SessionParked("t"))
    assert w.ordered(workers["t"])[-1] == wire.Park(host_bytes_max=GIB // 4, spill_bytes_max=3 * GIB // 4)


def test_a_session_that_waits_is_parked_after_those_that_do_not(world: Make) -> None:
    w = world(cpus(1, gib=8))
    for name in "ab":
        w.lease(name, flavor="dev.4gb")
        w.wait(1)
        w.drain(name)
    w.lease("b", 2)
    w.join("c", "dev.4gb")
    w.acquire("c")
    w.acquire("a", 2)
    w.drain("b")
    w.settle()
    assert [w.machine.sessions[name].state for name in "abc"] == ["queued", "parked", "active"]


def test_a_request_that_was_cancelled_while_room_was_made_leaves_nothing_behind(world: Make) -> None:
    w = world(cpus(1, gib=4))
    first = w.lease("a", flavor="dev.4gb")
    w.drain("a")
    w.join("b", "dev.4gb")
    w.acquire("b")
    w.client("b", wire.Cancel(request=1))
    w.acquire("a", 2)
    assert w.machine.sessions["a"].lease is None
    w.worker(first, wire.Parked(bytes=5))
    assert w.ordered(first)[-1] == wire.Restore()
    w.worker(first, wire.Restored())
    assert w.machine.sessions["a"].lease.epoch == 2


def test_a_worker_that_does_not_park_in_time_is_killed_and_its_session_lost(world: Make) -> None:
    w = world(cpus(1, gib=4), heartbeat_seconds=100.0)
    first = w.lease("a", flavor="dev.4gb")
    w.drain("a")
    w.join("b", "dev.4gb")
    w.acquire("b")
    w.wait(31)
    w.tick()
    assert first in w.killed
    assert isinstance(w.last("a"), wire.SessionLost)


# Flavors


def test_a_chosen_flavor_counts_from_the_next_lease(world: Make) -> None:
    w = world()
    worker = w.lease("s")
    w.client("s", wire.ChooseFlavor(flavor="dev.4gb"))
    assert w.last("s").flavor.name == "dev.4gb"
    w.drain("s")
    assert w.records[0].flavor == "dev.1gb"
    w.lease("s", 2)
    assert w.ordered(worker)[-1] == wire.Open(epoch=2, memory_limit_bytes=4 * GIB)
    w.drain("s")
    assert w.records[1].flavor == "dev.4gb"


def test_a_smaller_flavor_keeps_the_memory_that_the_tensors_have(world: Make) -> None:
    w = world()
    w.lease("s", flavor="dev.4gb")
    w.drain("s")
    w.client("s", wire.ChooseFlavor(flavor="dev.1gb"))
    w.lease("s", 2)
    assert w.machine.fleet.seats["main/cpu:0"].reserved_bytes == 4 * GIB


def test_a_flavor_that_is_too_small_for_what_the_session_holds_is_refused(world: Make) -> None:
    w = world()
    worker = w.lease("s", flavor="dev.4gb")
    w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=2 * GIB, busy_ns=0, commands=1))
    w.client("s", wire.ChooseFlavor(flavor="dev.1gb"))
    assert (w.last("s").code, w.machine.sessions["s"].flavor) == ("not_servable", "dev.4gb")
    assert "holds 2.0 GiB" in w.last("s").message
    w.client("s", wire.ChooseFlavor(flavor="none"))
    assert w.last("s").code == "unknown_flavor"


def test_a_flavor_that_an_operator_takes_away_refuses_those_who_wait_for_it(world: Make) -> None:
    w = world()
    w.lease("a")
    w.join("b")
    w.acquire("b")
    w.do(FlavorSet(Flavor("dev.1gb", GIB, (Equivalent("MI210", 1),))))
    assert w.last("b").code == "not_servable"
    w.drain("a")
    assert w.records[0].close_reason == "drained"


def test_a_flavor_that_an_operator_adds_is_there_at_once(world: Make) -> None:
    w = world()
    w.do(FlavorSet(Flavor("new", 2 * GIB, (Equivalent("cpu-dev", 1),))))
    w.lease("s", flavor="new")
    assert w.machine.sessions["s"].lease.flavor.memory_bytes == 2 * GIB
