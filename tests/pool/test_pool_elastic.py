"""Nodes that come and go: what the pool asks an autoscaler for, what it gives back, and what people who wait are told; in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.hosts.ray_autoscaler import demands
from forebay_pool.hosts.ray_nodes import RayNode
from forebay_pool.model.elastic import Growth, NodeGroup
from forebay_pool.model.events import QuotaSet, SessionLeft
from forebay_pool.model.instructions import Scale, Show
from forebay_pool.model.node_events import NodeDrain, NodeJoined, NodeLost
from forebay_pool.model.types import Device, Equivalent, Flavor, Node, Quota
from forebay_pool.placement.forecast import erlang_c, servers_for
from forebay_pool.placement.node_demand import FlavorDemand, nodes_needed
from forebay_pool.settings import Settings
from forebay_service.errors import SettingsError
from forebay_wire import messages as wire
from hypothesis import given
from hypothesis import strategies as st
from pool_world import World

GIB = 2**30
RELEASE_SECONDS = 600.0
Make = Callable[..., World]


def group(model: str = "A100", devices: int = 2, floor: int = 0, most: int = 4) -> NodeGroup:
    return NodeGroup(model, "cpu", 8 * GIB, devices, floor, most, start_seconds=90.0)


def flavor(name: str, *ways: Equivalent, gib: int = 8) -> Flavor:
    return Flavor(name, gib * GIB, ways)


ONE = flavor("one", Equivalent("A100"))
HALF = flavor("half", Equivalent("A100", 1, 500), gib=4)
PAIR = flavor("pair", Equivalent("A100", 2), gib=16)
EITHER = flavor("either", Equivalent("L4"), Equivalent("A100"))


def needed(demands: list[FlavorDemand], *groups: NodeGroup, **fixed_devices: int) -> dict[str, int]:
    return nodes_needed(demands, groups, {model: 1000 * count for model, count in fixed_devices.items()}, 0.05)


# How many


@given(st.floats(0.01, 300.0), st.floats(0.001, 0.9))
def test_the_fewest_servers_are_enough_and_one_less_is_not(load: float, wait_share: float) -> None:
    servers = servers_for(load, wait_share)
    assert erlang_c(servers, load) <= wait_share
    assert servers == 1 or erlang_c(servers - 1, load) > wait_share


@pytest.mark.parametrize(
    ("present", "nodes"), [([], 0), ([(ONE, 1)], 1), ([(ONE, 3)], 2), ([(HALF, 4)], 1), ([(HALF, 5)], 2), ([(PAIR, 2), (ONE, 1)], 3)]
)
def test_those_who_are_there_have_room(present: list[tuple[Flavor, int]], nodes: int) -> None:
    assert needed([FlavorDemand(one, count) for one, count in present], group()) == {"A100": nodes}


def test_a_gang_takes_whole_parts_of_nodes() -> None:
    """Three of three do not fit on two nodes of five."""
    three = flavor("three", Equivalent("A100", 3), gib=24)
    assert needed([FlavorDemand(three, 3)], group(devices=5)) == {"A100": 3}
    assert needed([FlavorDemand(three, 1)], group(devices=2)) == {"A100": 2}, "nor one of three on a node of two"


def test_the_forecast_asks_for_more_than_its_load_so_that_few_wait() -> None:
    demand = [FlavorDemand(ONE, 0, 4.0, 9.0)]
    (nodes,) = needed(demand, group(most=100)).values()
    assert nodes == -(-servers_for(4.0, 0.05) // 2) > 2
    assert needed([FlavorDemand(ONE, 30, 4.0, 9.0)], group(most=100)) == {"A100": 15}, "and what is there now may be more"


def test_nothing_is_kept_ready_for_who_hardly_comes() -> None:
    assert needed([FlavorDemand(ONE, 0, 0.1, 0.4)], group()) == {"A100": 0}
    assert needed([FlavorDemand(ONE, 0, 0.1, 0.4), FlavorDemand(HALF, 0, 0.1, 0.4)], group()) == {"A100": 1}, "together they do"
    assert needed([FlavorDemand(ONE, 1, 0.1, 0.4)], group()) == {"A100": 1}


def test_flavors_on_the_same_devices_share_what_is_beyond_their_present_need() -> None:
    apart = sum(needed([FlavorDemand(one, 0, 2.0, 9.0)], group(most=100))["A100"] for one in (ONE, EITHER))
    together = needed([FlavorDemand(one, 0, 2.0, 9.0) for one in (ONE, EITHER)], group(most=100))["A100"]
    assert together < apart


def test_devices_that_are_always_there_come_first_and_groups_in_their_order() -> None:
    two = [group("L4", most=1), group("A100")]
    assert needed([FlavorDemand(EITHER, 2)], *two) == {"L4": 1, "A100": 0}
    assert needed([FlavorDemand(EITHER, 5)], *two) == {"L4": 1, "A100": 2}
    assert needed([FlavorDemand(EITHER, 5)], *two[1:], L4=4) == {"A100": 1}


def test_no_more_than_the_most_and_no_fewer_than_the_floor() -> None:
    assert needed([FlavorDemand(ONE, 100, 50.0, 9.0)], group(most=4)) == {"A100": 4}
    assert needed([], group(floor=2)) == {"A100": 2}


def test_as_many_are_wanted_as_were_needed_at_any_moment_of_a_while() -> None:
    growth = Growth(group())
    wanted = []
    for second, nodes in enumerate([1, 3, 2, 2, 1, 0, 0, 0, 0]):
        growth.need(nodes, second, release_ns=3)
        wanted.append(growth.wanted)
    assert wanted == [1, 3, 3, 3, 3, 2, 2, 1, 0]


# The state machine


class Cloud:
    """A world whose nodes come when they are asked for."""

    def __init__(self, world: Make, *groups: NodeGroup, flavors: tuple[Flavor, ...] = (ONE, PAIR), **more: Any) -> None:
        self.world = world([], list(flavors), groups or (group(),), warm_workers=0, elastic_release_seconds=RELEASE_SECONDS, **more)
        self.world.tick()

    @property
    def asked(self) -> Scale:
        return next(one for one in reversed(self.world.out) if isinstance(one, Scale))

    def node(self, name: str) -> Node:
        node: Node = self.world.machine.fleet.nodes[name]
        return node

    def comes(self, name: str, model: str = "A100") -> None:
        devices = tuple(Device(f"{name}/cpu:{index}", name, "cpu", index, model, 8 * GIB) for index in range(2))
        self.world.do(NodeJoined(name, devices))
        self.world.settle()

    def later(self, seconds: float) -> None:
        """So long passes; workers live."""
        for _ in range(int(seconds // 5)):
            self.world.wait(5)
            for worker in list(self.world.machine.fleet.workers.values()):
                lease = None if worker.session is None else worker.session.lease
                beat = wire.Heartbeat(epoch=lease and lease.epoch, memory_bytes=worker.memory_bytes, busy_ns=0, commands=0)
                self.world.worker(worker.id, beat)
            self.world.tick()
            self.world.settle()


@pytest.fixture
def cloud(world: Make) -> Cloud:
    return Cloud(world)


def test_who_finds_no_device_waits_for_a_node_that_is_asked_for_and_is_told_how_long_that_takes(cloud: Cloud) -> None:
    world = cloud.world
    assert cloud.asked.nodes == {"A100": 0}
    world.join("s1", "one")
    world.acquire("s1")
    cloud.later(5)
    assert cloud.asked.nodes == {"A100": 1}
    cloud.later(5)
    queued = world.last("s1")
    assert (queued.cause.code, queued.cause.values["seconds"]) == ("host_starts", "90")
    cloud.later(80)
    cloud.comes("n1")
    assert world.machine.sessions["s1"].lease is not None


def test_the_estimate_of_a_wait_is_what_is_left_of_the_nodes_start(cloud: Cloud) -> None:
    world = cloud.world
    cloud.comes("n0")
    for name in ("a", "b"):
        world.lease(name, flavor="one")
    cloud.later(3_600)  # leases last for an hour
    for name in ("a", "b"):
        world.drain(name)
        world.lease(name, 2)
    world.join("s1", "one")
    world.acquire("s1")
    cloud.later(30)
    estimate = world.last("s1").estimate
    assert cloud.asked.nodes["A100"] >= 2
    assert 60 <= estimate.middle_seconds <= 85 and estimate.running == 2


def test_a_node_that_is_not_needed_is_released_after_a_while_and_may_end_once_it_is_empty(cloud: Cloud) -> None:
    world = cloud.world
    world.join("s1", "one")
    world.acquire("s1")
    cloud.later(5)
    cloud.comes("n1")
    cloud.later(60)
    world.drain("s1")
    cloud.later(RELEASE_SECONDS / 2)
    assert not cloud.node("n1").releases and cloud.asked.nodes == {"A100": 1}
    cloud.later(RELEASE_SECONDS)
    assert cloud.node("n1").releases and not cloud.node("n1").is_open
    assert cloud.asked == Scale({"A100": 0}, frozenset()), "the session's tensors are there"
    world.do(SessionLeft("s1"))
    world.settle()
    cloud.later(5)
    assert cloud.asked == Scale({"A100": 0}, frozenset({"n1"}))
    world.do(NodeLost("n1", "it ended"))
    cloud.later(5)
    assert not world.machine.fleet.nodes and not world.machine.fleet.seats
    shown = [one.record for one in world.out if isinstance(one, Show) and isinstance(one.record, Node)]
    assert shown[-1].is_forgotten


def test_a_node_that_is_needed_again_before_it_ended_lends_its_devices_again(cloud: Cloud) -> None:
    world = cloud.world
    cloud.comes("n1")
    cloud.later(RELEASE_SECONDS + 10)
    assert cloud.node("n1").releases and cloud.asked == Scale({"A100": 0}, frozenset({"n1"}))
    world.join("s1", "one")
    world.acquire("s1")
    cloud.later(5)
    assert cloud.asked == Scale({"A100": 1}, frozenset()) and not cloud.node("n1").releases
    assert world.machine.sessions["s1"].lease is not None


def test_a_pool_that_starts_gives_no_node_back_before_it_knows_the_demand(world: Make) -> None:
    cloud = Cloud(world)
    cloud.comes("n1")
    cloud.later(RELEASE_SECONDS - 10)
    assert cloud.asked.nodes == {"A100": 0} or not cloud.node("n1").releases


def test_a_node_with_a_lease_stays(cloud: Cloud) -> None:
    world = cloud.world
    cloud.comes("n1")
    cloud.comes("n2")
    world.lease("s1", flavor="one")
    (busy,) = {seat.node.name for seat in world.machine.fleet.seats.values() if seat.holders}
    cloud.later(3 * RELEASE_SECONDS)
    released = {node.name for node in world.machine.fleet.nodes.values() if node.releases}
    assert released == {"n1", "n2"} - {busy}


def test_who_a_quota_stops_asks_for_no_node(cloud: Cloud) -> None:
    world = cloud.world
    world.do(QuotaSet("acme", None, Quota(devices_milli=1000)))
    for name in ("s1", "s2", "s3"):
        world.join(name, "one")
        world.acquire(name)
    cloud.later(5)
    cloud.comes("n1")
    cloud.later(30)
    present = sum(session.lease is not None for session in world.machine.sessions.values())
    assert present == 1 and cloud.asked.nodes["A100"] <= 2, "three would need two nodes, and the forecast's reserve"


def test_a_node_that_an_operator_drains_is_replaced(cloud: Cloud) -> None:
    cloud.comes("n1")
    cloud.world.lease("s1", flavor="one")
    cloud.later(5)
    before = cloud.asked.nodes["A100"]
    cloud.world.do(NodeDrain("n1", True))
    cloud.later(5)
    assert cloud.asked.nodes == {"A100": before + 1} and not cloud.node("n1").releases
    assert cloud.asked.over == frozenset(), "an operator's node is not the autoscaler's to end"


def test_a_node_that_its_provider_takes_back_is_replaced_and_asked_for_no_more(cloud: Cloud) -> None:
    """Ray itself does not count it among those that are there."""
    cloud.comes("n1")
    cloud.world.lease("s1", flavor="one")
    cloud.later(5)
    before = cloud.asked.nodes["A100"]
    cloud.world.do(NodeDrain("n1", True, 60.0, reclaimed=True))
    cloud.later(5)
    growth = cloud.world.machine.fleet.growth["A100"]
    assert cloud.asked.nodes == {"A100": before} and len(growth.asked_ns) == before


def test_no_more_is_asked_for_than_there_may_be(world: Make) -> None:
    """Ray's autoscaler starts nothing where it may not start all."""
    cloud = Cloud(world, group(most=1))
    cloud.comes("n1")
    cloud.world.lease("s1", flavor="one")
    cloud.world.do(NodeDrain("n1", True))
    cloud.later(5)
    assert cloud.asked.nodes == {"A100": 1}


def test_flavors_that_only_nodes_to_come_can_serve_are_served(world: Make) -> None:
    huge = flavor("huge", Equivalent("A100", 16), gib=128)
    cloud = Cloud(world, flavors=(ONE, huge))
    fleet = cloud.world.machine.fleet
    assert fleet.why_not(ONE) is None
    assert str(fleet.why_not(huge)) == "huge needs 16 A100; this installation has no device.", "four nodes have eight"
    assert fleet.most_together(ONE, "acme") == 8
    assert cloud.world.machine.outlook(ONE, "acme").wait_seconds == 90.0


# Settings, and what Ray is told


TABLE = {"kind": "cpu", "model": "A100", "memory": "8 GiB", "count": 2}


def settings(**changes: Any) -> Settings:
    return Settings.load(None, {}, {"launcher": "ray", "devices": [{**TABLE, "nodes_max": 4, **changes}]})


def test_a_group_is_elastic_where_it_says_how_many_nodes_there_may_be() -> None:
    assert settings(nodes_min=1).node_groups == (NodeGroup("A100", "cpu", 8 * GIB, 2, 1, 4, 90.0),)
    assert settings(nodes_max=0).node_groups == ()


@pytest.mark.parametrize(
    ("command_line", "why"),
    [
        ({"launcher": "local"}, "for ray"),
        ({"devices": [{**TABLE, "nodes_min": 2, "nodes_max": 1}]}, "nodes_min is 2, and nodes_max 1"),
        ({"devices": 2 * [{**TABLE, "nodes_max": 1}]}, "no other group may be of that model"),
    ],
)
def test_settings_that_make_no_sense_are_refused(command_line: dict[str, Any], why: str) -> None:
    own = {"launcher": "ray", "devices": [{**TABLE, "nodes_max": 1}], **command_line}
    with pytest.raises(SettingsError, match=why):
        Settings.load(None, {}, own)


def test_each_wanted_node_is_a_demand_that_is_not_laid_onto_one_that_is_over() -> None:
    assert demands(Scale({"A100": 2, "L4": 1}, frozenset({"n1"})), frozenset({"ab"})) == (
        [{"forebay-A100": 1}, {"forebay-A100": 1}, {"forebay-L4": 1}],
        3 * [{"ray.io/node-id": "!in(ab)"}],
    )


def test_a_node_that_ray_drains_says_when_it_goes() -> None:
    row = {"NodeID": "ab", "NodeManagerHostname": "gpu-7", "NodeManagerAddress": "10.0.0.7", "Labels": {}, "Resources": {"GPU": 8.0}}
    assert RayNode.of(row).reclaim_unix_ms is None
    assert RayNode.of(row, {"ab": 1_790_000_000_000}).reclaim_unix_ms == 1_790_000_000_000
