"""Where what a dead worker did is done again: on devices that compute as that worker's did, or nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay_pool.model.causes import Cause
from forebay_pool.model.events import FlavorSet, PolicySet, SessionParked, SessionReplays, WorkerGone
from forebay_pool.model.node_events import NodeDrain, NodeJoined, NodeLost
from forebay_pool.model.policies import ImagePolicy, ModelPolicy, Policy
from forebay_pool.model.types import Device, Equivalent, Flavor
from forebay_wire import messages as wire
from pool_world import GIB, World, flavor

Make = Callable[..., World]
EITHER = flavor("either", 1, "old", "new")
"""Both models serve it; the old one is slower, so it is taken first."""
FLAVORS = [EITHER, flavor("old", 1, "old"), flavor("new", 1, "new")]


def host(name: str, *models: str) -> list[Device]:
    speeds = {"old": 50, "new": 100}
    return [Device(f"{name}/null:{index}", name, "null", index, model, 8 * GIB, speed=speeds[model]) for index, model in enumerate(models)]


def rests(world: Make, devices: list[Device], flavors: list[Flavor] = FLAVORS, image: bool = False) -> World:
    """A session whose client keeps what it sends has computed on an old device, and rests."""
    w = world(devices, flavors)
    w.lease("s", flavor="either")
    w.do(SessionReplays("s"))
    if image:
        w.worker(w.worker_of("s"), wire.Kept(number=1, bytes=1 << 20))
    w.drain("s")
    return w


def kill(w: World, session: str = "s") -> None:
    w.do(WorkerGone(w.worker_of(session), Cause("killed", signal="SIGKILL")))
    w.settle()


def devices_of(w: World, session: str) -> list[str]:
    lease = w.machine.sessions[session].lease
    return [] if lease is None else [device.id for device in lease.place.devices]


def ask(w: World, session: str, flavor: str = "either", number: int = 1) -> list[str]:
    """The devices that the session gets now."""
    if session not in w.machine.sessions:
        w.join(session, flavor)
    w.acquire(session, number)
    w.settle()
    return devices_of(w, session)


def said(w: World, kind: type[Any]) -> list[Any]:
    return [message for message in w.told("s") if isinstance(message, kind)]


def test_a_replay_waits_for_a_device_of_its_own_model_and_lets_others_have_the_rest(world: Make) -> None:
    w = rests(world, host("here", "old", "new"))
    assert ask(w, "other", "old") == ["here/null:0"]
    kill(w)
    assert ask(w, "s", number=2) == []
    (queued,) = said(w, wire.Queued)[-1:]
    assert queued.cause.code == "one_held", "the one device that serves it"
    assert ask(w, "behind") == ["here/null:1"]
    w.drain("other")
    w.settle()
    assert devices_of(w, "s") == ["here/null:0"]


def test_a_replay_has_as_many_devices_as_before(world: Make) -> None:
    two = Flavor("either", GIB, (Equivalent("old", 2), Equivalent("new", 1)))
    w = rests(world, host("here", "old", "old", "new"), [two, flavor("old", 1, "old")])
    assert w.machine.sessions["s"].worker.names == ("here/null:0", "here/null:1")
    (taken,) = ask(w, "other", "old")
    kill(w)
    assert ask(w, "s", number=2) == [], "a single device is free"
    w.drain("other")
    w.settle()
    assert {*devices_of(w, "s")} == {"here/null:0", "here/null:1"} and taken in devices_of(w, "s")


def test_a_replay_waits_for_the_host_that_has_its_image_and_lets_others_have_the_rest(world: Make) -> None:
    w = rests(world, [*host("east", "old"), *host("west", "old", "new")], image=True)
    home = w.machine.sessions["s"].replay.image.node
    away = {"east": "west", "west": "east"}[home]
    taken = {name: ask(w, name, "old") for name in ("one", "two")}
    holder = next(name for name, (device,) in taken.items() if device.startswith(home))
    w.drain(next(name for name in taken if name != holder))
    kill(w)
    assert ask(w, "s", number=2) == [], "no device of its model is free where its image is"
    (device,) = ask(w, "behind", "old")
    assert device.startswith(away)
    w.drain(holder)
    w.settle()
    assert devices_of(w, "s")[0].startswith(home)


def test_devices_that_join_the_host_of_its_image_are_for_a_replay_too(world: Make) -> None:
    w = rests(world, host("east", "old"), image=True)
    ask(w, "other", "old")
    kill(w)
    assert ask(w, "s", number=2) == []
    w.do(NodeJoined("east", tuple(host("east", "old", "old"))))
    w.settle()
    assert devices_of(w, "s") == ["east/null:1"]


def test_a_replay_without_a_device_of_its_model_waits_as_long_as_one_may_come_back(world: Make) -> None:
    w = rests(world, [*host("east", "old"), *host("west", "new")])
    w.do(NodeDrain("east", drains=True))
    w.settle()
    kill(w)
    assert ask(w, "s", number=2) == [] and said(w, wire.Queued)[-1].cause.code == "all_closed"
    w.wait(3_600)
    w.tick()
    assert not said(w, wire.SessionLost)
    w.do(NodeLost("east", "cut off"))
    w.settle()
    (lost,) = said(w, wire.SessionLost)
    assert "s" not in w.machine.sessions and not said(w, wire.Refused)
    assert lost.message == (
        "The worker that held this session's tensors is gone (killed by SIGKILL; doing its work again takes 1 old, and no host has that"
        " any more)."
    )


def test_a_replay_ends_with_the_host_that_alone_has_its_image(world: Make) -> None:
    w = rests(world, [*host("east", "old"), *host("west", "old")], image=True)
    home = w.machine.sessions["s"].replay.image.node
    kill(w)
    w.do(NodeLost(home, "cut off"))
    assert "the host with its image is lost" in said(w, wire.SessionLost)[0].message and "s" not in w.machine.sessions


def test_a_replay_ends_where_its_model_is_kept_for_others_or_its_flavor_has_it_no_more(world: Make) -> None:
    for change in (PolicySet(Policy(models={"old": ModelPolicy("old", frozenset({"others"}))})), FlavorSet(flavor("either", 1, "new"))):
        w = rests(world, host("here", "old", "new"))
        ask(w, "other", "old")
        kill(w)
        assert ask(w, "s", number=2) == []
        w.do(change)
        w.tick()
        w.settle()
        assert len(said(w, wire.SessionLost)) == 1 and not said(w, wire.Refused), change


def test_a_session_whose_flavor_has_no_device_of_its_workers_model_any_more_is_lost_with_the_worker(world: Make) -> None:
    w = rests(world, host("here", "old", "new"))
    w.do(FlavorSet(flavor("either", 1, "new")))
    kill(w)
    assert len(said(w, wire.SessionLost)) == 1 and not said(w, wire.WorkerLost)


def test_nobody_chooses_a_flavor_that_a_replay_cannot_have(world: Make) -> None:
    w = rests(world, host("here", "old", "new"))
    kill(w)
    w.client("s", wire.ChooseFlavor(flavor="new"))
    assert said(w, wire.Refused)[-1].message == "This session's tensors are on a old, which does not serve new; start a new process."
    w.client("s", wire.ChooseFlavor(flavor="old"))
    assert ask(w, "s", number=2) == ["here/null:0"]


def test_a_session_that_did_its_work_again_may_be_anywhere(world: Make) -> None:
    w = rests(world, host("here", "old", "new"))
    kill(w)
    ask(w, "s", number=2)
    w.client("s", wire.Arrived(epoch=w.epoch("s")))
    w.drain("s")
    w.client("s", wire.ChooseFlavor(flavor="new"))
    assert w.machine.sessions["s"].flavor == "new"


def test_a_parked_session_goes_on_from_its_image_if_its_worker_or_its_host_is_gone(world: Make) -> None:
    policies: dict[ImagePolicy, bool] = {"node": True, "process": False}
    for policy, outlives_the_host in policies.items():
        for host_is_lost in (False, True):
            w = world([*host("east", "old"), *host("west", "old")], FLAVORS)
            w.do(PolicySet(Policy(images=policy)))
            w.lease("s", flavor="either")
            w.do(SessionReplays("s"))
            w.worker(w.worker_of("s"), wire.Heartbeat(epoch=1, memory_bytes=1 << 20, busy_ns=0, commands=1))
            w.worker(w.worker_of("s"), wire.Kept(number=1, bytes=1 << 20))
            w.drain("s")
            w.do(SessionParked("s"))
            w.settle()
            session = w.machine.sessions["s"]
            assert session.state == "parked"
            if host_is_lost:
                w.do(NodeLost(session.worker.device.node, "cut off"))
                w.settle()
            else:
                kill(w)
            assert ("s" in w.machine.sessions) == (outlives_the_host or not host_is_lost)
            assert "s" not in w.machine.sessions or len(ask(w, "s", number=2)) == 1
