"""Hosts that could not confine a process: others are chosen for processes, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.model.events import ClientSaid, NodeDrain, NodeJoined, NodeLost, SessionRuns
from forebay_pool.model.instructions import Kill, Show, TellWorker
from forebay_pool.model.types import Device, Equivalent, Flavor
from forebay_pool.views.rows import node_row
from forebay_wire import messages as wire
from pool_world import GIB, World

Make = Callable[..., World]
ONE = Flavor("one", GIB, (Equivalent("cpu-dev"),))
RETRY_SECONDS = 30.0
WHY = "bwrap: no permissions to make a namespace"


def make(world: Make, *names: str, **limits: Any) -> World:
    """Hosts of one device each."""
    devices = [Device(f"{name}/cpu:0", name, "cpu", 0, "cpu-dev", 8 * GIB) for name in names]
    return world(devices, [ONE], **({"heartbeat_seconds": 1e6, "process_retry_seconds": RETRY_SECONDS} | limits))


def process(w: World, session: str) -> None:
    """The session is a process that asks for a lease; its worker has started, and has been given it."""
    w.join(session, "one")
    w.do(SessionRuns(session))
    w.acquire(session)
    if w.machine.sessions[session].request is not None:
        start(w, session)


def start(w: World, session: str) -> None:
    """The worker that is started for it is ready; it is given the session, and says nothing yet."""
    for worker in list(w.machine.fleet.workers.values()):
        if worker.state == "starting":
            w.ready(worker.id)


def fail(w: World, session: str) -> str:
    """The session's worker says that it cannot confine; the host's name."""
    worker = w.machine.sessions[session].worker
    assert worker is not None and worker.state == "assigning"
    w.worker(worker.id, wire.Unconfined(why=WHY))
    return worker.device.node


def test_a_process_goes_on_where_it_is_confined_and_costs_nothing_where_it_is_not(world: Make) -> None:
    w = make(world, "a", "b")
    process(w, "p")
    first = fail(w, "p")
    (other,) = {"a", "b"} - {first}
    request = w.machine.sessions["p"].request
    assert request is not None and request.place is not None and request.place.devices[0].node == other
    assert not [one for one in w.out if isinstance(one, Kill)] and [one for one in w.out if isinstance(one, TellWorker)]
    w.settle()
    assert w.last("p").type == "granted" and not w.records
    process(w, "q")
    assert w.last("q").cause.code == "runtime_held", "the free host is not chosen, and it says why it waits"
    w.join("calls", "one")
    w.acquire("calls")
    w.settle()
    calls = w.machine.sessions["calls"].worker
    assert calls is not None and calls.device.node == first, "calls are served there as before"


def test_where_no_other_host_confines_the_process_is_refused_and_no_worker_starts_for_the_next(world: Make) -> None:
    w = make(world, "a")
    process(w, "p")
    fail(w, "p")
    refused = w.last("p")
    assert (refused.type, refused.code, refused.cause.code) == ("refused", "not_servable", "process_unserved")
    launched = len(w.launched)
    process(w, "q")
    assert w.last("q").type == "refused" and len(w.launched) == launched and not w.records
    w.wait(RETRY_SECONDS - 1)
    w.tick()
    process(w, "r")
    assert w.last("r").type == "refused"
    w.wait(1)
    w.tick()
    process(w, "s")
    w.settle()
    assert w.last("s").type == "granted"


def test_a_worker_that_starts_later_does_not_say_that_its_host_confines(world: Make) -> None:
    w = make(world, "a")
    process(w, "p")
    fail(w, "p")
    w.join("calls", "one")
    w.acquire("calls")
    w.settle()
    assert w.last("calls").type == "granted"
    process(w, "q")
    assert w.last("q").type == "refused"


def test_the_row_of_the_host_says_why_until_it_is_tried_again(world: Make) -> None:
    w = make(world, "a")
    process(w, "p")
    fail(w, "p")
    node = w.machine.fleet.nodes["a"]
    row = node_row(node)
    assert row["state"] == "up" and row["cause"] == f"processes of `forebay exec` cannot be confined there: {WHY}"
    assert row["causes"][0]["code"] == "unconfined" and row["causes"][0]["values"] == {"why": WHY}
    assert [one for one in w.out if isinstance(one, Show) and one.record is node]
    w.wait(RETRY_SECONDS)
    w.tick()
    assert node_row(node)["cause"] is None


@pytest.mark.parametrize(
    "events",
    [
        (NodeLost("a", "it was restarted"), NodeJoined("a", (Device("a/cpu:0", "a", "cpu", 0, "cpu-dev", 8 * GIB),))),
        (NodeDrain("a", True), NodeDrain("a", False)),
    ],
    ids=["it restarts", "an operator lends it again"],
)
def test_a_host_that_comes_back_is_tried_at_once(world: Make, events: tuple[Any, ...]) -> None:
    w = make(world, "a")
    process(w, "p")
    fail(w, "p")
    for event in events:
        w.do(event)
    process(w, "q")
    w.settle()
    assert w.last("q").type == "granted"


def test_a_word_that_comes_too_late_changes_nothing(world: Make) -> None:
    w = make(world, "a")
    process(w, "p")
    worker = w.worker_of("p")
    w.settle()
    w.worker(worker, wire.Unconfined(why=WHY))
    assert w.machine.sessions["p"].lease is not None and w.machine.fleet.nodes["a"].unconfined is None
    w.do(ClientSaid("p", wire.Release(epoch=1)))
    assert w.machine.fleet.nodes["a"].unconfined is None


def test_a_process_that_is_confined_after_all_shows_that_its_host_can(world: Make) -> None:
    devices = [Device(f"a/cpu:{index}", "a", "cpu", index, "cpu-dev", 8 * GIB) for index in range(2)]
    w = world(devices, [Flavor("one", 8 * GIB, (Equivalent("cpu-dev"),))], heartbeat_seconds=1e6)
    for name in ("p", "q"):
        process(w, name)
    fail(w, "p")
    assert w.last("p").type == "refused" and w.machine.fleet.nodes["a"].unconfined is not None
    w.worker(w.worker_of("q"), wire.Assigned(session="q", door="unix:/door"))
    assert w.machine.fleet.nodes["a"].unconfined is None
    process(w, "r")
    w.settle()
    assert w.last("r").type == "granted" and not w.machine.fleet.runtimes.lacking("exec")
