"""What sessions have done on a device, the hosts that serve it, and the flavors that offer it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from forebay_pool.machine.base.messages import flavor_message
from forebay_pool.model.events import ClientSaid, FlavorSet, QuotaSet, SessionLeft, SessionRuns, WorkerAway
from forebay_pool.model.types import Device, Equivalent, Flavor, Quota
from forebay_wire import messages as wire
from pool_world import GIB, World

Make = Callable[..., World]
ONE = Flavor("one", GIB, (Equivalent("cpu-dev"),))
TORCH_ALONE = Flavor("torch", GIB, (Equivalent("cpu-dev"),), runtimes=("torch",))
PLAIN: tuple[wire.Runtime, ...] = ("torch",)


def hosts(*names: str) -> list[Device]:
    return [Device(f"{name}/cpu:0", name, "cpu", 0, "cpu-dev", 8 * GIB) for name in names]


def make(world: Make, *names: str, plain: tuple[str, ...] = (), flavors: tuple[Flavor, ...] = (ONE, TORCH_ALONE), **limits: Any) -> World:
    """Hosts of one device each, of which the ``plain`` ones serve PyTorch's calls alone."""
    w = world(hosts(*names), list(flavors), **({"heartbeat_seconds": 1e6} | limits))
    w.served = dict.fromkeys(plain, PLAIN)
    return w


def known(w: World) -> World:
    """The pool has heard of a worker on each host what that serves."""
    names = [seat.device.id for seat in w.machine.fleet.seats.values()]
    for number, _ in enumerate(names):
        w.join(f"first{number}", "one")
        w.acquire(f"first{number}")
    w.settle()
    for number, _ in enumerate(names):
        w.drain(f"first{number}")
        w.client(f"first{number}", wire.Release(epoch=1))
    w.settle()
    return w


def node(w: World, session: str) -> str:
    worker = w.machine.sessions[session].worker
    assert worker is not None
    return worker.device.node


def start(w: World, session: str, runtime: str | None = None, flavor: str = "one", number: int = 1) -> Any:
    """The session, new or not, asks for a lease; what it was told last."""
    if session not in w.machine.sessions:
        w.join(session, flavor)
    w.acquire(session, number, runtime=runtime)
    w.settle()
    return w.last(session)


def test_a_flavor_that_does_not_offer_programs_refuses_them_before_a_worker_starts(world: Make) -> None:
    w = make(world, "a")
    refused = start(w, "s", "xla", "torch")
    assert (refused.type, refused.code, refused.request) == ("refused", "not_servable", 1)
    assert refused.message == "torch does not offer xla (programs of JAX and TensorFlow); choose a flavor that does: one."
    assert not w.launched and not w.records
    assert start(w, "s", "torch", "torch", number=2).type == "granted"


def test_where_no_flavor_offers_it_the_refusal_sends_to_an_operator(world: Make) -> None:
    w = make(world, "a", flavors=(TORCH_ALONE, Flavor("big", 64 * GIB, (Equivalent("cpu-dev"),))))
    assert "no other flavor that can be had here does; ask an operator" in start(w, "s", "xla", "torch").message


def test_a_process_is_refused_by_a_flavor_without_exec_and_a_client_that_names_nothing_is_pytorchs(world: Make) -> None:
    w = make(world, "a", flavors=(ONE, TORCH_ALONE, Flavor("exec", GIB, (Equivalent("cpu-dev"),), runtimes=("exec",))))
    w.join("process", "torch")
    w.do(SessionRuns("process"))
    assert "does not offer exec (processes of `forebay exec`); choose a flavor that does: exec, one." in start(w, "process").message
    assert "exec does not offer torch (calls of PyTorch)" in start(w, "old", None, "exec").message
    assert start(w, "new", None, "torch").type == "granted"


def test_a_session_goes_to_the_host_that_serves_it_and_no_other_waits_for_that(world: Make) -> None:
    w = known(make(world, "a", "b", plain=("a",)))
    assert start(w, "first", "xla").type == "granted" and node(w, "first") == "b"
    waits = start(w, "second", "xla")
    assert (waits.type, waits.code, waits.cause.code) == ("queued", "shortage", "runtime_held")
    assert waits.reason == "What is free for one does not serve xla; the session waits for a host that does."
    assert start(w, "plain", "torch").type == "granted" and node(w, "plain") == "a", "a host that it cannot have is kept for it"
    w.drain("first")
    w.settle()
    assert w.machine.sessions["second"].lease is not None and node(w, "second") == "b"


def test_the_host_that_serves_is_kept_for_who_came_first(world: Make) -> None:
    w = known(make(world, "a", "b", plain=("a",)))
    for name in ("one", "two"):
        assert start(w, name, "torch").type == "granted"
    assert start(w, "programs", "xla").type == "queued" and start(w, "later", "torch").type == "queued"
    plain, other = sorted(("one", "two"), key=lambda name: node(w, name))
    w.drain(plain)
    w.settle()
    assert w.machine.sessions["later"].lease is not None and node(w, "later") == "a"
    w.drain(other)
    w.settle()
    assert w.machine.sessions["programs"].lease is not None and node(w, "programs") == "b"


def test_tensors_move_to_a_host_that_serves_once_their_session_sends_programs(world: Make) -> None:
    w = known(make(world, "a", "b", plain=("a",)))
    w.join("other", "one")
    assert start(w, "other", "xla").type == "granted"
    assert start(w, "s", "torch").type == "granted" and node(w, "s") == "a"
    w.drain("other")
    w.worker(w.worker_of("s"), wire.Heartbeat(epoch=1, memory_bytes=100, busy_ns=1, commands=1))
    w.drain("s")
    before = w.worker_of("s")
    start(w, "s", "xla", number=2)
    assert w.told("s")[-2:] == [wire.Leave(), w.last("s")] and w.last("s").code == "restoring"
    w.worker(before, wire.Left(address="unix:/x", ticket="0" * 64, bytes=100))
    w.settle()
    granted = w.last("s")
    assert granted.type == "granted" and granted.worker != before and node(w, "s") == "b"


def test_an_open_lease_where_programs_are_not_served_is_not_granted_again_for_them(world: Make) -> None:
    w = known(make(world, "a", plain=("a",)))
    w.join("s", "one")
    w.acquire("s", 1, span="cell", runtime="torch")
    w.settle()
    w.acquire("s", 2, span="cell", runtime="xla")
    refused = w.last("s")
    assert (refused.type, refused.request) == ("refused", 2)
    assert refused.message == (
        "No host here that serves one serves xla (programs of JAX and TensorFlow); choose another flavor, or ask an operator."
    )
    w.acquire("s", 3, span="cell", runtime="torch")
    assert (w.last("s").type, w.last("s").request) == ("granted", 3)


def test_what_a_worker_says_as_it_starts_sends_a_session_that_came_for_it_elsewhere(world: Make) -> None:
    w = make(world, "a", "b", plain=("a",))
    granted = start(w, "s", "xla")
    assert granted.type == "granted" and node(w, "s") == "b"
    (said,) = [one for one in w.machine.story.of("s", "a/cpu:0").splitlines() if "runtimes" in one and "Ready" in one][-1:] or [""]
    assert "torch" in said


def test_a_session_whose_last_host_turns_out_not_to_serve_it_is_refused(world: Make) -> None:
    w = make(world, "a", plain=("a",))
    refused = start(w, "s", "xla")
    assert (refused.type, refused.code) == ("refused", "not_servable") and not w.records
    assert start(w, "s", "torch", number=2).type == "granted"


def test_a_host_that_is_set_up_later_serves_from_its_next_worker_on(world: Make) -> None:
    w = known(make(world, "a", plain=("a",)))
    assert start(w, "s", "xla").type == "refused"
    w.served.clear()
    w.do(SessionLeft("first0"))
    w.settle()
    start(w, "first1", "torch")
    assert start(w, "s", "xla", number=2).type == "queued"


def test_a_worker_that_is_back_says_again_what_its_host_serves(world: Make) -> None:
    w = make(world, "a", resume_seconds=60.0)
    start(w, "first", "torch")
    w.do(WorkerAway(w.worker_of("first")))
    resumed = wire.ResumeWorker(
        worker=w.worker_of("first"), address="unix:/x", session="first", epoch=1, ended=None, starved=False, client_gone=False,
        memory_bytes=0, parked_bytes=None, runtimes=PLAIN,
    )  # fmt: skip
    w.worker(w.worker_of("first"), wire.from_worker(resumed.encode()))  # type: ignore[arg-type]
    assert start(w, "s", "xla").type == "refused" and w.machine.sessions["first"].lease is not None


def test_a_flavor_that_offers_less_than_before_refuses_who_waits_and_leaves_who_computes(world: Make) -> None:
    w = make(world, "a")
    assert start(w, "computes", "xla").type == "granted"
    assert start(w, "waits", "xla").type == "queued" and start(w, "plain", "torch").type == "queued"
    w.do(FlavorSet(replace(ONE, runtimes=("torch", "exec"))))
    refused = w.last("waits")
    assert (refused.type, refused.code) == ("refused", "not_servable") and "does not offer xla" in refused.message
    computes, plain = w.machine.sessions["computes"], w.machine.sessions["plain"]
    assert computes.lease is not None and computes.lease.state == "open" and plain.request is not None


def test_a_flavor_is_not_chosen_that_does_not_offer_what_the_session_does(world: Make) -> None:
    w = make(world, "a")
    w.join("fresh", "one")
    w.client("fresh", wire.ChooseFlavor(flavor="torch"))
    assert w.last("fresh").type == "session", "nobody knows yet what it will send"
    start(w, "s", "xla")
    w.client("s", wire.ChooseFlavor(flavor="torch"))
    assert w.last("s").type == "refused" and w.machine.sessions["s"].flavor == "one"


def test_who_waits_and_begins_to_send_programs_waits_where_these_are_served(world: Make) -> None:
    w = known(make(world, "a", "b", plain=("a",)))
    for name in ("one", "two"):
        start(w, name, "torch")
    assert start(w, "s", "torch").type == "queued"
    w.acquire("s", 1, runtime="xla")
    assert w.machine.sessions["s"].request is not None and w.machine.sessions["s"].request.lane[4] == "xla"
    on_plain = next(name for name in ("one", "two") if node(w, name) == "a")
    w.drain(on_plain)
    w.settle()
    assert w.machine.sessions["s"].lease is None


def test_a_priority_takes_no_lease_of_a_host_that_does_not_serve(world: Make) -> None:
    w = known(make(world, "a", "b", plain=("a",), preempt_priority_gap=1, revoke_grace_seconds=1.0))
    for name in ("one", "two"):
        start(w, name, "torch")
    w.do(QuotaSet("acme", None, Quota(priority_max=99)))
    w.join("urgent", "one")
    span = wire.Span(id="u", kind="cell", label="n")
    w.do(ClientSaid("urgent", wire.Acquire(request=1, span=span, priority=90, runtime="xla")))
    revoked = [name for name in ("one", "two") if w.last(name).type == "revoking"]
    assert [node(w, name) for name in revoked] == ["b"]


def test_a_node_that_is_gone_is_forgotten(world: Make) -> None:
    w = known(make(world, "a", "b", plain=("a", "b")))
    fleet = w.machine.fleet
    assert fleet.runtimes.lacking("xla") == {"a/cpu:0", "b/cpu:0"} == fleet.runtimes.lacking("exec") and not fleet.runtimes.lacking("torch")
    fleet.runtimes.forget([seat.device for seat in fleet.nodes["a"].seats])
    assert fleet.runtimes.lacking("xla") == {"b/cpu:0"}


def test_old_peers_are_sent_nothing_that_they_do_not_know_and_name_nothing() -> None:
    span = wire.Span(id="s", kind="cell", label="n")
    said = {"type": "acquire", "request": 1, "span": span.model_dump()}
    assert wire.from_client(json.dumps(said)).runtime is None  # type: ignore[union-attr]
    assert "runtime" not in json.loads(wire.Acquire(request=1, span=span).encode())
    model = wire.DeviceModel(kind="cpu", model="cpu-dev")
    ready = wire.Ready(worker="w", address="unix:/x", torch="2", device=model, pid=1)
    assert "runtimes" not in json.loads(ready.encode()) and "runtimes" in json.loads(ready.model_copy(update={"runtimes": PLAIN}).encode())
    with pytest.raises(wire.MessageError):
        wire.from_client(json.dumps({**said, "runtime": "exec"}))
    with pytest.raises(wire.MessageError):
        wire.from_client(json.dumps({**said, "runtime": "ptx"}))


def test_clients_are_told_what_a_flavor_offers_by_a_later_pool_too() -> None:
    assert flavor_message(ONE, None).runtimes == ("torch", "xla", "exec") and flavor_message(TORCH_ALONE, None).runtimes == ("torch",)
    opened = wire.SessionOpened(session="s", flavor=flavor_message(TORCH_ALONE, None), heartbeat_seconds=1.0).encode()
    later = wire.to_client(opened.replace('["torch"]', '["torch","cuda"]'))
    assert isinstance(later, wire.SessionOpened) and later.flavor.runtimes == ("torch", "cuda")
