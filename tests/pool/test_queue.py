"""Whose turn it is: quotas, priority, fair share, arrival, gangs and backfill, revocation, and what those who wait are told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.machine.leasing.queue_positions import LOOK_MAX
from forebay_pool.model.events import BudgetSet, ClientSaid, LeaseRevoked, Look, QuotaSet, SessionJoined, SessionLeft, Tick, WorkerSaid
from forebay_pool.model.node_events import PolicySet
from forebay_pool.model.policies import ModelPolicy, Policy
from forebay_pool.model.types import Device, Equivalent, Flavor, Quota
from forebay_wire import messages as wire
from pool_world import World

GIB = 2**30
SECOND = 1_000_000_000

Make = Callable[..., World]
FLAVORS = [
    Flavor("one", GIB, (Equivalent("cpu-dev"),)),
    Flavor("half", GIB, (Equivalent("cpu-dev", 1, 500),)),
    Flavor("pair", GIB, (Equivalent("cpu-dev", 2),)),
]


def cpus(count: int) -> list[Device]:
    return [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 64 * GIB) for index in range(count)]


def make(world: Make, seats: list[Device], flavors: list[Flavor], **limits: Any) -> Any:
    """A world whose workers are never taken for dead."""
    return world(seats, flavors, **({"heartbeat_seconds": 1e6} | limits))


def ask(w: World, session: str, user: str = "ada", tenant: str = "acme", flavor: str = "one", priority: int | None = None) -> None:
    """The session, new or not, asks for a lease, and workers do what they must."""
    if session not in w.machine.sessions:
        w.join(session, flavor, user, tenant)
    span = wire.Span(id=f"{session}-{w.now}", kind="cell", label="n.ipynb", cell=1)
    w.client(session, wire.Acquire(request=1, span=span, priority=priority))
    w.settle()


def done(w: World, session: str) -> None:
    w.drain(session)
    w.settle()


def holders(w: World) -> set[str]:
    return {name for name, session in w.machine.sessions.items() if session.lease is not None}


def allow(w: World, tenant: str = "acme", user: str | None = None, **quota: Any) -> None:
    w.do(QuotaSet(tenant, user, Quota(**quota)))
    w.settle()


def codes(w: World, session: str) -> list[str]:
    return [message.code for message in w.told(session) if isinstance(message, wire.Queued)]


# Quotas


def test_a_request_over_quota_waits_and_goes_on_when_there_is_room(world: Make) -> None:
    w = make(world, cpus(3), FLAVORS)
    allow(w, devices_milli=2000)
    for name in ("a", "b", "c"):
        ask(w, name)
    ask(w, "other", tenant="globex")
    assert holders(w) == {"a", "b", "other"}
    waits = w.last("c")
    assert (waits.code, waits.position, waits.estimate) == ("quota", 1, None)
    assert waits.reason == "Tenant acme holds 2 devices of its quota of 2 devices."
    done(w, "a")
    assert holders(w) == {"b", "c", "other"}


def test_a_users_quota_stops_that_user_alone(world: Make) -> None:
    w = make(world, cpus(3), FLAVORS)
    allow(w, user="ada", devices_milli=1000)
    ask(w, "a")
    ask(w, "a2")
    ask(w, "b", user="ben")
    assert holders(w) == {"a", "b"}
    assert w.last("a2").reason == "ada of acme holds 1 device of its quota of 1 device."


def test_a_gang_counts_its_devices_and_a_share_its_thousandths(world: Make) -> None:
    w = make(world, cpus(4), FLAVORS)
    allow(w, devices_milli=2500)
    ask(w, "gang", flavor="pair")
    ask(w, "half", flavor="half")
    ask(w, "more", flavor="half")
    assert holders(w) == {"gang", "half"}
    assert w.last("more").reason == "Tenant acme holds 2.5 devices of its quota of 2.5 devices."
    done(w, "gang")
    assert holders(w) == {"half", "more"}


def test_what_could_never_fit_is_refused_at_once_and_when_the_quota_shrinks(world: Make) -> None:
    w = make(world, cpus(2), FLAVORS)
    allow(w, devices_milli=1000)
    ask(w, "gang", flavor="pair")
    refused = w.last("gang")
    sentence = "It takes 2 devices, and the quota of Tenant acme is 1 device at a time; choose another flavor, or ask an operator."
    assert (type(refused), refused.code, refused.message) == (wire.Refused, "quota", sentence)
    for name in ("a", "b"):
        ask(w, name)
    allow(w, devices_milli=500)
    assert (w.last("b").code, w.machine.sessions["b"].request) == ("quota", None)
    assert holders(w) == {"a"}, "a lease that is open stays"


def test_device_time_within_the_window_is_bounded_and_comes_back(world: Make) -> None:
    w = make(world, cpus(2), FLAVORS)
    allow(w, device_seconds=10, window_seconds=100)
    ask(w, "a")
    w.wait(10)
    w.tick()
    assert holders(w) == {"a"}, "leases end by themselves"
    ask(w, "b")
    assert w.last("b").code == "quota"
    assert w.last("b").reason == "Tenant acme has used its 10 device-seconds within 100 s."
    done(w, "a")
    w.wait(89)
    w.tick()
    w.settle()
    assert holders(w) == set()
    w.wait(2)
    w.tick()
    w.settle()
    assert holders(w) == {"b"}


def test_all_whom_time_lets_start_again_start_at_once_and_not_the_first_alone(world: Make) -> None:
    w = make(world, cpus(2), [*FLAVORS, Flavor("large", 8 * GIB, (Equivalent("cpu-dev"),))])
    ask(w, "x", tenant="globex", flavor="large")
    done(w, "x")
    allow(w, device_seconds=1, window_seconds=10)
    ask(w, "a")
    w.wait(2)
    done(w, "a")
    ask(w, "b")
    ask(w, "c")
    w.wait(11)
    assert holders(w) == set()
    ask(w, "d")
    done(w, "d")
    assert holders(w) == {"b", "c"}, "the device that became free suits the first best, and the other is free still"


def test_a_window_of_many_short_leases_forgets_none_too_early(world: Make) -> None:
    w = make(world, cpus(1), FLAVORS)
    allow(w, device_seconds=1_000, window_seconds=100)
    account = w.machine.accounts.of("acme")
    used: list[tuple[int, int]] = []
    for _ in range(3000):
        ask(w, "a")
        begin = w.now
        w.wait(0.03)
        done(w, "a")
        used.append((begin, w.now))
        w.wait(0.02)
        edge = w.now - 100 * SECOND
        exact = sum(end - max(begin, edge) for begin, end in used if end > edge) * 1000
        assert exact <= account.window.used(w.now) <= exact + 1000 * SECOND * 100 // 1000 + 60 * 10**9
    assert len(account.window._marks) <= 2_002


def test_leases_are_revoked_when_device_time_is_used_up_if_the_policy_says_so(world: Make) -> None:
    w = make(world, cpus(1), FLAVORS, revoke_grace_seconds=5.0)
    allow(w, user="ada", device_seconds=10, window_seconds=60, on_exhausted="revoke")
    ask(w, "a")
    w.wait(9)
    w.tick()
    assert not [m for m in w.told("a") if isinstance(m, wire.Revoking)]
    w.wait(1)
    w.tick()
    told = w.last("a")
    assert (type(told), told.epoch, told.seconds) == (wire.Revoking, 1, 5.0)
    assert told.reason == told.cause.said() == "ada of acme has used its 10 device-seconds within 60 s."
    w.wait(5)
    w.tick()
    w.settle()
    assert [record.close_reason for record in w.records] == ["revoked"]
    assert (w.last("a").request, w.last("a").code) == (0, "quota")
    w.wait(61)
    w.tick()
    w.settle()
    assert w.machine.sessions["a"].epoch == 2


def test_a_claim_that_a_smaller_quota_overtakes_is_not_granted(world: Make) -> None:
    w = make(world, cpus(2), FLAVORS)
    ask(w, "a")
    w.join("b", "one")
    w.acquire("b")
    w.do(QuotaSet("acme", None, Quota(devices_milli=1000)))
    w.settle()
    assert holders(w) == {"a"}
    done(w, "a")
    assert holders(w) == {"b"}


# Order


def test_priority_goes_before_arrival_and_is_capped_by_what_the_quotas_allow(world: Make) -> None:
    w = make(world, cpus(1), FLAVORS)
    allow(w, priority_max=50)
    allow(w, user="ben", priority_max=-5)
    ask(w, "a")
    ask(w, "low", priority=-1)
    ask(w, "plain")
    ask(w, "capped", user="ben", priority=99)
    ask(w, "high", priority=99)
    ask(w, "foreign", tenant="globex", priority=99)
    priorities = {name: w.machine.sessions[name].request.priority for name in ("low", "plain", "capped", "high", "foreign")}
    assert priorities == {"low": -1, "plain": 0, "capped": -5, "high": 50, "foreign": 0}
    served = []
    for _ in range(5):
        w.wait(1)
        done(w, next(iter(holders(w))))
        served += holders(w)
    assert served == ["high", "foreign", "plain", "low", "capped"]


def test_who_used_less_goes_first_and_old_use_is_forgotten(world: Make) -> None:
    w = make(world, cpus(1), FLAVORS, fair_share_half_life_seconds=100.0, wait_seconds_max=1e6)
    ask(w, "heavy", tenant="acme")
    w.wait(60)
    done(w, "heavy")
    ask(w, "light", tenant="globex")
    w.wait(10)
    ask(w, "acme")
    ask(w, "globex", tenant="globex")
    done(w, "light")
    assert holders(w) == {"globex"}
    w.wait(1000)
    ask(w, "globex2", tenant="globex")
    done(w, "globex")
    assert holders(w) == {"acme"}, "1000 s of late weigh more than 60 s ten half-lives ago"


def test_a_weight_of_three_gets_three_times_as_much(world: Make) -> None:
    w = make(world, cpus(1), FLAVORS, fair_share_half_life_seconds=50.0, wait_seconds_max=1e6)
    allow(w, tenant="acme", weight=3)
    for tenant in ("acme", "globex"):
        for index in range(2):
            ask(w, f"{tenant}{index}", tenant=tenant)
    served: list[str] = []
    for _ in range(400):
        name = next(iter(holders(w)))
        served.append(w.machine.sessions[name].tenant)
        w.wait(1)
        done(w, name)
        ask(w, name, tenant=served[-1])
    assert 2.8 < served.count("acme") / served.count("globex") < 3.2


def test_users_of_a_tenant_share_by_their_own_use(world: Make) -> None:
    w = make(world, cpus(1), FLAVORS, wait_seconds_max=1e6)
    for user in ("ada", "ben", "cy"):
        for index in range(3):
            ask(w, f"{user}{index}", user=user)
    served: list[str] = []
    for _ in range(90):
        name = next(iter(holders(w)))
        served.append(w.machine.sessions[name].user)
        w.wait(1)
        done(w, name)
        ask(w, name, user=served[-1])
    assert {user: served.count(user) for user in ("ada", "ben", "cy")} == {"ada": 30, "ben": 30, "cy": 30}


def test_nobody_waits_longer_for_those_of_higher_priority_and_smaller_share_than_the_setting(world: Make) -> None:
    w = make(world, cpus(1), FLAVORS, wait_seconds_max=30.0)
    allow(w, tenant="globex", priority_max=99)
    ask(w, "busy", tenant="globex")
    ask(w, "low", priority=-99)
    since = w.now
    for index in range(100):
        ask(w, f"high{index % 3}{index}", user=f"u{index}", tenant="globex", priority=99)
        w.wait(1)
        name = next(iter(holders(w)))
        if name == "low":
            break
        done(w, name)
        w.client(name, wire.Cancel(request=1))
        w.tick()
    assert holders(w) == {"low"}
    assert 30 * SECOND <= w.now - since <= 32 * SECOND


# Gangs and backfill


def gang_waits(world: Make, **changes: Any) -> Any:
    """Two devices, one held by a lease that began now, the other free, and a gang that waits for both. Leases last 10 s."""
    w = make(world, cpus(2), FLAVORS, **changes)
    for _ in range(30):
        ask(w, "long")
        w.wait(10)
        done(w, "long")
    ask(w, "long")
    ask(w, "gang", flavor="pair")
    assert holders(w) == {"long"}
    assert w.last("gang").code == "shortage"
    return w


def test_what_is_free_is_kept_for_the_gang_that_comes_first(world: Make) -> None:
    w = gang_waits(world, backfill_seconds_max=60.0)
    w.wait(5)
    ask(w, "late")
    assert holders(w) == {"long"}, "it would be done 5 s after the gang could start"
    w.wait(5)
    done(w, "long")
    assert holders(w) == {"gang"}


def test_what_was_kept_for_somebody_whom_a_quota_stops_since_goes_to_who_comes_next(world: Make) -> None:
    """Found by seed 3557 of the simulator: it stayed free until the next tick."""
    w = make(world, cpus(2), FLAVORS, backfill_seconds_max=0.0)
    allow(w, priority_max=10)
    allow(w, user="ada", devices_milli=1000, priority_max=10)
    ask(w, "resident", flavor="half")
    done(w, "resident")
    ask(w, "h1", tenant="globex", flavor="half")
    ask(w, "h2", tenant="globex", flavor="half")
    ask(w, "whole", tenant="globex")
    w.wait(100)
    ask(w, "first")  # what is free next is kept for it
    ask(w, "resident", priority=10)
    done(w, "whole")  # from here on the first would be over its quota
    assert holders(w) == {"h1", "h2", "resident"}
    ask(w, "next", tenant="globex", flavor="half")
    assert holders(w) == {"h1", "h2", "resident", "next"}


def test_who_is_done_before_the_gang_could_start_may_pass(world: Make) -> None:
    w = gang_waits(world, backfill_seconds_max=60.0)
    for _ in range(40):
        w.machine.scheduler.lengths.add("half", SECOND)
    w.wait(5)
    ask(w, "short", flavor="half")
    assert holders(w) == {"long", "short"}


def test_after_the_setting_nobody_passes_a_gang(world: Make) -> None:
    w = gang_waits(world, backfill_seconds_max=4.0)
    for _ in range(40):
        w.machine.scheduler.lengths.add("half", SECOND)
    w.wait(5)
    ask(w, "short", flavor="half")
    assert holders(w) == {"long"}


def test_a_gang_starts_in_bounded_time_under_any_stream_of_small_requests(world: Make) -> None:
    w = make(world, cpus(2), FLAVORS, backfill_seconds_max=20.0, wait_seconds_max=1e6)
    ask(w, "s0")
    w.wait(3)
    ask(w, "s1")
    ask(w, "gang", flavor="pair")
    since, count = w.now, 2
    while "gang" not in holders(w) and w.now - since < 100 * SECOND:
        w.wait(3)
        done(w, min(holders(w), key=lambda name: w.machine.sessions[name].lease.opened_ns))
        for _ in range(2):
            ask(w, f"s{count}", user=f"u{count}", tenant="globex")
            count += 1
        w.tick()
        w.settle()
        for name in [n for n, s in w.machine.sessions.items() if s.lease is None and s.request is None]:
            w.do(SessionLeft(name))
            w.settle()
    assert "gang" in holders(w)
    assert w.now - since <= 30 * SECOND


# Revocation


def test_a_revoked_lease_ends_after_its_grace_and_waits_again_at_its_old_place(world: Make) -> None:
    w = make(world, cpus(1), FLAVORS, revoke_grace_seconds=5.0)
    ask(w, "a")
    ask(w, "b")
    ask(w, "c")
    w.do(LeaseRevoked("a", "An operator takes the lease back."))
    told = w.last("a")
    assert (type(told), told.epoch, told.seconds, told.reason) == (wire.Revoking, 1, 5.0, "An operator takes the lease back.")
    w.wait(4.9)
    w.tick()
    assert holders(w) == {"a"}
    w.wait(0.1)
    w.tick()
    w.settle()
    assert [(record.close_reason, record.duration_ns) for record in w.records] == [("revoked", 5 * SECOND)]
    assert holders(w) == {"b"}, "who waits goes first, or taking back would be of no use"
    assert w.machine.sessions["a"].request.number == 0
    done(w, "b")
    assert holders(w) == {"a"}, "it came before c"
    assert w.last("a").epoch == 2


def test_a_lease_that_ends_within_its_grace_does_not_wait_again(world: Make) -> None:
    w = make(world, cpus(1), FLAVORS, revoke_grace_seconds=5.0)
    ask(w, "a")
    w.do(LeaseRevoked("a", "An operator takes the lease back."))
    w.do(LeaseRevoked("a", "And again."))
    done(w, "a")
    w.wait(10)
    w.tick()
    assert [record.close_reason for record in w.records] == ["drained"]
    assert w.machine.sessions["a"].request is None
    assert len([m for m in w.told("a") if isinstance(m, wire.Revoking)]) == 1


def test_work_that_drains_while_it_is_being_closed_does_not_wait_again(world: Make) -> None:
    w = make(world, cpus(1), FLAVORS, revoke_grace_seconds=1.0)
    ask(w, "a")
    w.do(LeaseRevoked("a", "An operator takes the lease back."))
    w.wait(1)
    w.tick()
    w.drain("a")
    w.settle()
    assert [record.close_reason for record in w.records] == ["drained"]
    assert w.machine.sessions["a"].request is None


def test_a_higher_priority_takes_the_device_of_the_lowest_if_the_gap_is_large_enough(world: Make) -> None:
    w = make(world, cpus(2), FLAVORS, preempt_priority_gap=20, revoke_grace_seconds=2.0)
    allow(w, priority_max=99)
    ask(w, "mid", priority=5)
    ask(w, "low", priority=-10)
    ask(w, "near", priority=9)
    assert not [m for m in w.told("low") if isinstance(m, wire.Revoking)], "the gap is 19"
    ask(w, "high", priority=40)
    revoked = {name for name in ("mid", "low") for m in w.told(name) if isinstance(m, wire.Revoking)}
    assert revoked == {"low"}
    w.wait(2)
    w.tick()
    w.settle()
    assert holders(w) == {"mid", "high"}
    w.wait(2)
    for _ in range(3):
        w.tick()
        w.settle()
    assert not [m for m in w.told("mid") if isinstance(m, wire.Revoking)], "whom a lease was taken for has it now"


# Budgets


def test_without_a_budget_requests_wait_or_are_refused(world: Make) -> None:
    w = make(world, cpus(2), FLAVORS)
    w.do(BudgetSet("acme", None, "wait"))
    ask(w, "a")
    assert (w.last("a").code, w.last("a").reason) == ("budget", "Tenant acme has no budget left; work goes on once there is.")
    w.do(BudgetSet("acme", None, "open"))
    w.settle()
    assert holders(w) == {"a"}
    w.do(BudgetSet("acme", "ben", "refuse"))
    ask(w, "b", user="ben")
    assert (type(w.last("b")), w.last("b").code) == (wire.Refused, "budget")


# What those who wait are told


def test_who_waits_knows_the_place_who_is_ahead_and_how_long(world: Make) -> None:
    w = make(world, cpus(2), FLAVORS)
    for _ in range(3):
        ask(w, "a")
        w.wait(20)
        done(w, "a")
    for name, tenant in (("a", "acme"), ("b", "acme"), ("c", "acme"), ("d", "globex"), ("e", "acme")):
        ask(w, name, tenant=tenant)
    w.do(Look())
    waits = {name: w.last(name) for name in ("c", "d", "e")}
    assert {name: (m.position, m.ahead, m.ahead_tenant) for name, m in waits.items()} == {"d": (1, 0, 0), "c": (2, 1, 0), "e": (3, 2, 1)}
    told = [waits[name].estimate for name in ("d", "c", "e")]
    assert all(one.low_seconds <= one.middle_seconds <= one.high_seconds for one in told)
    assert [one.middle_seconds for one in told] == sorted(one.middle_seconds for one in told), "who comes later waits longer"
    assert [(one.running, one.running_seconds) for one in told] == [(2, 0.0)] * 3
    assert all(m.since_ns == 1_700_000_000 * SECOND + w.now for m in waits.values())


def test_who_has_not_come_yet_can_be_told_how_long_it_would_wait(world: Make) -> None:
    w = make(world, cpus(2), FLAVORS)
    one = w.machine.fleet.flavors["one"]
    assert w.machine.outlook(one, "acme") == (0, 0.0)
    ask(w, "a")
    ask(w, "b")
    assert w.machine.outlook(one, "acme") == (0, None), "nobody knows yet how long leases last"
    w.wait(20)
    done(w, "a")
    assert w.machine.outlook(one, "acme") == (0, 0.0)
    for name in ("c", "d", "e"):
        ask(w, name)
    assert w.machine.outlook(one, "acme") == (2, 20.0), "one is about to end, and three come before on two devices"
    pair = w.machine.fleet.flavors["pair"]
    waiting, seconds = w.machine.outlook(pair, "acme")
    assert waiting == 2 and 40 <= seconds <= 60, "it takes both devices"


def test_a_look_tells_no_more_than_so_many_and_comes_to_everybody(world: Make) -> None:
    many = 1_000
    w = make(world, cpus(1), FLAVORS, sessions_max=many + 1, queue_max=many)
    ask(w, "holder")
    for index in range(many):
        w.machine.handle(SessionJoined(f"s{index}", b"s" * 32, f"t{index % 7}", f"u{index % 50}", "python", "one"), w.now)
        span = wire.Span(id=f"{index}", kind="cell", label="n", cell=1)
        w.machine.handle(ClientSaid(f"s{index}", wire.Acquire(request=1, span=span)), w.now)
    told = []
    for _ in range(8):
        messages = [i for i in w.machine.handle(Tick(0), w.now) if isinstance(getattr(i, "message", None), wire.Queued)]
        assert len(messages) <= LOOK_MAX
        told += messages
    positions = sorted(session.request.told.position for session in w.machine.sessions.values() if session.request is not None)
    assert positions[:99] == list(range(1, 100))
    assert all(abs(position - place) <= place // 10 for place, position in enumerate(positions, 1))


def calls_per_cycle(waiting: int, world: Make) -> float:
    """How many functions are called to close a lease and open the next, with so many waiting."""
    w = make(world, cpus(1), FLAVORS, sessions_max=waiting + 10, queue_max=waiting + 10)
    ask(w, "holder")
    done(w, "holder")
    ask(w, "holder")
    machine = w.machine
    for index in range(waiting):
        machine.handle(SessionJoined(f"s{index}", b"s" * 32, f"t{index % 20}", f"u{index}", "python", "one"), w.now)
        span = wire.Span(id=f"{index}", kind="cell", label="n", cell=1)
        machine.handle(ClientSaid(f"s{index}", wire.Acquire(request=1, span=span)), w.now)
    count = 0

    def tally(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    rounds = 50
    for number in range(rounds):
        span = wire.Span(id=f"again{number}", kind="cell", label="n", cell=1)
        held = machine.sessions["holder"]
        if held.lease is None:
            break
        w.now += SECOND
        sys.setprofile(tally)
        machine.handle(WorkerSaid(held.worker.id, wire.Drained(epoch=held.epoch)), w.now)
        sys.setprofile(None)
        leader = next(s for s in machine.sessions.values() if s.request is not None and s.request.place is not None)
        machine.handle(ClientSaid(leader.id, wire.Cancel(request=1)), w.now)
        machine.handle(ClientSaid("holder", wire.Acquire(request=number + 2, span=span)), w.now)
        for name in [s.id for s in machine.sessions.values() if s.request is not None and s.request.place is not None and s is not held]:
            machine.handle(ClientSaid(name, wire.Cancel(request=1)), w.now)
    return count / rounds


def test_the_cost_of_a_decision_hardly_grows_with_those_who_wait(world: Make) -> None:
    few, many = calls_per_cycle(100, world), calls_per_cycle(5_000, world)
    assert many < 2 * few, f"{few} calls with 100 waiting, {many} with 5,000"


@pytest.mark.parametrize("milli", [0, 400])
def test_a_quota_too_small_for_anything_refuses_everything(world: Make, milli: int) -> None:
    w = make(world, cpus(1), FLAVORS)
    allow(w, devices_milli=milli)
    ask(w, "a", flavor="half")
    assert w.last("a").code == "quota"
    assert isinstance(w.last("a"), wire.Refused)


# Models that are kept for tenants


def test_who_may_not_use_a_model_does_not_stand_in_the_way_of_who_may(world: Make) -> None:
    either = Flavor("either", GIB, (Equivalent("A"), Equivalent("B")))
    seats = [Device(f"main/null:{index}", "main", "null", index, model, 8 * GIB) for index, model in enumerate("AB")]
    w = make(world, seats, [either, Flavor("a", GIB, (Equivalent("A"),)), Flavor("b", GIB, (Equivalent("B"),))])
    w.do(PolicySet(Policy(models={"A": ModelPolicy("A", frozenset({"globex"}))})))
    ask(w, "on a", tenant="globex", flavor="a")
    ask(w, "on b", tenant="initech", flavor="b")
    ask(w, "barred", tenant="acme", flavor="either")
    ask(w, "allowed", tenant="globex", flavor="either")
    assert holders(w) == {"on a", "on b"}
    done(w, "on a")
    assert holders(w) == {"on b", "allowed"}
    done(w, "on b")
    assert holders(w) == {"barred", "allowed"}


def test_who_may_use_a_model_from_now_on_waits_for_it_too(world: Make) -> None:
    either = Flavor("either", GIB, (Equivalent("A"), Equivalent("B")))
    seats = [Device(f"main/null:{index}", "main", "null", index, model, 8 * GIB) for index, model in enumerate("AB")]
    w = make(world, seats, [either, Flavor("a", GIB, (Equivalent("A"),)), Flavor("b", GIB, (Equivalent("B"),))])
    w.do(PolicySet(Policy(models={"A": ModelPolicy("A", frozenset({"globex"}))})))
    ask(w, "on b", tenant="initech", flavor="b")
    ask(w, "barred", tenant="acme", flavor="either")
    assert holders(w) == {"on b"}
    w.do(PolicySet(Policy()))
    w.settle()
    assert holders(w) == {"on b", "barred"}
