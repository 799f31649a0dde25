"""Parked sessions leave a host that is drained: their tensors are carried to another one, and are lost with neither; in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import fork_server
import pytest
from forebay_pool.machine.workers.evacuation import WRITTEN_SECONDS
from forebay_pool.model.events import SessionLeft, WorkerAway, WorkerGone
from forebay_pool.model.instructions import DropImages, Keep, Launch, MeterParked
from forebay_pool.model.node_events import NodeDrain, NodeJoined, NodeLost
from forebay_pool.model.snapshot import session_snapshot
from forebay_pool.model.types import Device, Session, Worker
from forebay_pool.views.rows import node_row
from forebay_wire import messages as wire

GIB = 2**30
Make = Callable[..., Any]
TICKET = "b" * 64


def device(node: str, index: int = 0) -> Device:
    return Device(f"{node}/cpu:{index}", node, "cpu", index, "cpu-dev", 8 * GIB)


class Hosts:
    """A world of some hosts with a device each, and sessions that rest on the first."""

    def __init__(self, make: Make, *nodes: str, **more: Any) -> None:
        self.world = make([device(node) for node in nodes], warm_workers=0, **more)

    def rests(self, session: str, node: str, gib: int = 1) -> None:
        """The session holds so much on the node, and no lease."""
        self.world.join(session)
        self.world.acquire(session)
        self.world.settle()
        worker = self.session(session).worker
        assert worker is not None and worker.device.node == node
        beat = wire.Heartbeat(epoch=1, memory_bytes=gib * GIB, busy_ns=0, commands=1)
        self.world.worker(worker.id, beat)
        self.world.drain(session)

    def session(self, name: str) -> Session:
        found: Session = self.world.machine.sessions[name]
        return found

    def drain(self, node: str) -> None:
        self.world.do(NodeDrain(node, True))
        self.world.settle()
        self.world.tick()

    def leaves(self, session: str) -> Worker:
        """The client ends its stream, as it was told."""
        assert isinstance(self.world.last(session), wire.Leave)
        worker = self.session(session).worker
        assert worker is not None and worker.parked_bytes
        self.world.worker(worker.id, wire.Left(bytes=worker.parked_bytes, address=f"tcp:{worker.id}:1", ticket=TICKET))
        return worker

    def carrier(self, session: str) -> Worker:
        """The worker that is to fetch the session's tensors; it is there."""
        self.world.tick()
        (found,) = [one for one in self.world.machine.fleet.workers.values() if one.carries is self.session(session)]
        self.world.settle()
        return found  # type: ignore[no-any-return]

    def later(self, seconds: int) -> None:
        """So long passes, and all workers live."""
        for _ in range(seconds):
            self.world.wait(1)
            for worker in list(self.world.machine.fleet.workers.values()):
                self.world.worker(worker.id, wire.Heartbeat(epoch=None, memory_bytes=0, busy_ns=0, commands=1))
        self.world.tick()

    def arrives(self, carrier: Worker, gib: int = 1) -> None:
        self.world.worker(carrier.id, wire.Left(bytes=gib * GIB, address=f"tcp:{carrier.id}:1", ticket=TICKET))


@pytest.fixture
def hosts(world: Make) -> Hosts:
    found = Hosts(world, "n1", "n2")
    found.rests("s1", "n1")
    found.drain("n1")
    return found


def test_a_drained_hosts_parked_session_is_carried_to_another_host(hosts: Hosts) -> None:
    world, session = hosts.world, hosts.session("s1")
    before = hosts.leaves("s1")
    carrier = hosts.carrier("s1")
    assert carrier.device.node == "n2" and session.image is before
    order = world.ordered(carrier.id)[-1]
    assert isinstance(order, wire.Carry)
    assert (order.source.address, order.bytes_max, order.bytes_per_second_max) == (f"tcp:{before.id}:1", GIB, 10**9)
    hosts.arrives(carrier)
    assert session.image is carrier and session.state == "parked" and carrier.reserved_bytes == 0
    assert node_row(world.machine.fleet.nodes["n1"])["parked"] == 0
    assert wire.End() not in world.ordered(before.id), "it is not written yet where they are"
    hosts.later(int(WRITTEN_SECONDS) + 1)
    assert world.killed == [before.id]
    world.do(WorkerGone(before.id, "killed"))
    world.join("s2")
    world.acquire("s1", 2)
    world.settle()
    assert session.lease is not None and session.lease.device.node == "n2"
    source = next(order.source for order in world.ordered(session.worker.id) if isinstance(order, wire.Assign))  # type: ignore[union-attr]
    assert source is not None and source.address == f"tcp:{carrier.id}:1"


def test_where_the_tensors_are_is_written_before_the_one_that_had_them_goes(hosts: Hosts) -> None:
    hosts.leaves("s1")
    carrier = hosts.carrier("s1")
    hosts.arrives(carrier)
    kept = [one.record for one in hosts.world.fresh if isinstance(one, Keep) and isinstance(one.record, Session)]
    assert kept == [hosts.session("s1")] and session_snapshot(hosts.session("s1")).worker == carrier.id


def test_what_a_move_takes_is_not_metered_and_parked_time_is_metered_once(hosts: Hosts) -> None:
    world, session = hosts.world, hosts.session("s1")
    hosts.leaves("s1")
    leases = len(world.records)
    hosts.later(10)
    carrier = hosts.carrier("s1")
    hosts.later(10)
    hosts.arrives(carrier)
    assert len(world.records) == leases, "no lease is open"
    metered = [one.record.duration_ns for one in world.out if isinstance(one, MeterParked)]
    assert sum(metered) == 20 * 10**9 and session.parking is not None and session.parking.holder is carrier


def test_the_next_one_leaves_when_the_one_before_it_has(world: Make) -> None:
    found = Hosts(world, "n1")
    for name in ("s1", "s2"):
        found.rests(name, "n1")
    found.world.do(NodeJoined("n2", (device("n2"),)))
    found.drain("n1")
    left = [name for name in ("s1", "s2") if wire.Leave() in found.world.told(name)]
    assert len(left) == 1
    (first,) = left
    found.leaves(first)
    carrier = found.carrier(first)
    found.world.tick()
    (second,) = {"s1", "s2"} - {first}
    assert wire.Leave() not in found.world.told(second), "one at a time"
    found.arrives(carrier)
    found.world.tick()
    assert wire.Leave() in found.world.told(second)


def test_a_target_that_dies_half_way_loses_nothing_and_another_one_goes_on(hosts: Hosts) -> None:
    world, session = hosts.world, hosts.session("s1")
    before = hosts.leaves("s1")
    world.do(WorkerGone(hosts.carrier("s1").id, "killed by signal SIGKILL"))
    assert session.image is before and session.state == "parked"
    hosts.later(5)
    hosts.arrives(hosts.carrier("s1"))
    assert session.image is not None and session.image.device.node == "n2"


def test_a_target_host_that_is_lost_loses_nothing(world: Make) -> None:
    found = Hosts(world, "n1", "n2", "n3")
    found.rests("s1", "n1")
    found.drain("n1")
    before = found.leaves("s1")
    carrier = found.carrier("s1")
    found.world.do(NodeLost(carrier.device.node, "its network is gone"))
    assert found.session("s1").image is before
    again = found.carrier("s1")
    assert again.device.node == ({"n2", "n3"} - {carrier.device.node}).pop()


def test_a_session_whose_source_dies_half_way_is_lost_and_its_carrier_goes(hosts: Hosts) -> None:
    world = hosts.world
    before = hosts.leaves("s1")
    carrier = hosts.carrier("s1")
    world.do(WorkerGone(before.id, "killed by signal SIGKILL"))
    assert isinstance(world.last("s1"), wire.SessionLost)
    assert wire.End() in world.ordered(carrier.id)


def test_a_session_that_computes_again_meanwhile_fetches_its_tensors_itself(hosts: Hosts) -> None:
    world, session = hosts.world, hosts.session("s1")
    hosts.leaves("s1")
    carrier = hosts.carrier("s1")
    world.acquire("s1", 2)
    world.settle()
    assert session.lease is not None and session.lease.device.node == "n2"
    assert wire.End() in world.ordered(carrier.id)


def test_a_session_that_ends_meanwhile_is_carried_no_further(hosts: Hosts) -> None:
    hosts.leaves("s1")
    carrier = hosts.carrier("s1")
    hosts.world.do(SessionLeft("s1"))
    assert wire.End() in hosts.world.ordered(carrier.id)


def test_without_room_on_another_host_everything_stays_where_it_is(world: Make) -> None:
    found = Hosts(world, "n1", "n2", parked_host_bytes_max=GIB // 2)
    found.rests("s1", "n1")
    launches = len(found.world.launched)
    found.drain("n1")
    found.world.tick()
    assert wire.Leave() not in found.world.told("s1") and len(found.world.launched) == launches
    assert found.session("s1").state == "parked"


def test_the_host_with_the_least_of_others_is_chosen(world: Make) -> None:
    found = Hosts(world, "n1", "n2", "n3")
    found.rests("s0", "n1")
    found.drain("n1")
    found.leaves("s0")
    first = found.carrier("s0")
    found.arrives(first)
    found.world.do(NodeDrain("n1", False))
    found.rests("s1", "n1")
    found.drain("n1")
    found.leaves("s1")
    assert found.carrier("s1").device.node != first.device.node


def test_a_drain_that_is_undone_moves_nobody_else(hosts: Hosts) -> None:
    world = hosts.world
    hosts.leaves("s1")
    world.do(NodeDrain("n1", False))
    launches = len([one for one in world.out if isinstance(one, Launch)])
    world.tick()
    assert len([one for one in world.out if isinstance(one, Launch)]) == launches


def test_a_carrier_whose_link_breaks_says_what_it_has_when_it_is_back(world: Make) -> None:
    hosts = Hosts(world, "n1", "n2", resume_seconds=60.0)
    hosts.rests("s1", "n1")
    hosts.drain("n1")
    world, session = hosts.world, hosts.session("s1")
    hosts.leaves("s1")
    carrier = hosts.carrier("s1")
    world.do(WorkerAway(carrier.id))
    left = wire.Left(bytes=GIB, address=f"tcp:{carrier.id}:1", ticket=TICKET)
    back = wire.ResumeWorker(
        worker=carrier.id, address="tcp:a:1", session="s1", epoch=None, ended=None, starved=False, client_gone=False,
        memory_bytes=0, parked_bytes=None, assigned=False, left=left,
    )  # fmt: skip
    world.worker(carrier.id, back)
    assert session.image is carrier


def test_an_image_goes_along_and_is_what_the_session_goes_on_from_if_the_carrier_dies(hosts: Hosts) -> None:
    world, session = hosts.world, hosts.session("s1")
    before = session.worker
    assert before is not None
    world.worker(before.id, wire.Left(bytes=GIB, image=4, address=f"tcp:{before.id}:1", ticket=TICKET))
    carrier = hosts.carrier("s1")
    assert world.ordered(carrier.id)[-1].image == 4
    world.worker(carrier.id, wire.Left(bytes=GIB, image=4, address=f"tcp:{carrier.id}:1", ticket=TICKET))
    assert session.replay.image.node == "n2"
    assert [one.node for one in world.out if isinstance(one, DropImages)] == ["n1"]
    world.do(WorkerGone(carrier.id, "killed"))
    assert session.stored and world.machine.sessions["s1"] is session


def test_a_host_that_took_a_session_over_and_is_drained_itself_passes_it_on(hosts: Hosts) -> None:
    world, session = hosts.world, hosts.session("s1")
    hosts.leaves("s1")
    first = hosts.carrier("s1")
    hosts.arrives(first)
    world.do(NodeDrain("n1", False))
    hosts.drain("n2")
    assert session.image is first and wire.End() not in world.ordered(first.id)
    hosts.arrives(hosts.carrier("s1"))
    assert session.image is not None and session.image.device.node == "n1"


def test_a_row_of_the_host_tells_what_is_still_to_move(hosts: Hosts) -> None:
    node = hosts.world.machine.fleet.nodes["n1"]
    assert (node_row(node)["parked"], node_row(node)["parked_bytes"], node_row(node)["moving"]) == (1, GIB, 0)
    hosts.leaves("s1")
    hosts.carrier("s1")
    hosts.later(1)
    assert (node_row(node)["parked"], node_row(node)["moving"]) == (1, 1)


# With real workers and a real program

BUILT = all(importlib.util.find_spec(extension) is not None for extension in ("forebay_worker._executor", "forebay._C"))
PATIENCE_SECONDS = 60.0
PROGRAM = """
import hashlib, sys, torch
torch.manual_seed(3)
kept = torch.randn(4 << 20).to("cuda")
weights = torch.randn(64, 64).to("cuda").requires_grad_()
for turn in range(3):
    loss = (weights @ weights).square().mean() + kept[:64].sum()
    loss.backward()
    kept = kept * 1.5 + turn
    state = kept.cpu().numpy().tobytes() + weights.grad.cpu().numpy().tobytes()
    print(turn, loss.item().hex(), hashlib.sha256(state).hexdigest(), flush=True)
    sys.stdin.readline()
"""
"""It rests between its turns, with 16 MiB on its device."""


def environment(**more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    return {**own, "OMP_NUM_THREADS": "1", **more}


@contextlib.asynccontextmanager
async def resting(pool: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    own = environment(FOREBAY_URL=pool.service.url, FOREBAY_TOKEN="ada")
    process = await asyncio.create_subprocess_exec(fork_server.programs(), "-c", PROGRAM, env=own, **pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def turn(process: asyncio.subprocess.Process) -> str:
    """What the program prints next."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        return (await process.stdout.readline()).decode().strip()


def goes_on(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")


def two_hosts(**more: Any) -> dict[str, Any]:
    group = {"kind": "cpu", "model": "cpu-dev", "memory": "1 GiB"}
    hosts = [{**group, "node": node} for node in ("east", "west")]
    own = {"worker_python": Path(sys.executable), "warm_workers": 0, "heartbeat_seconds": 0.5, "idle_release_seconds": 0.3}
    return {**own, "devices": hosts, **more}


def carriers(running: Any) -> list[Worker]:
    return [worker for worker in running.machine.fleet.workers.values() if worker.state == "carrying"]


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    """What the program prints when nothing moves."""
    command, own = [fork_server.programs(), "-c", PROGRAM], environment(FOREBAY_URL="local")
    done = subprocess.run(command, env=own, input="\n\n\n", capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(not BUILT, reason="the extensions of worker and device are not built")
@pytest.mark.parametrize("dies", [False, pytest.param(True, marks=pytest.mark.full_sweep)], ids=["", "its first target is killed half-way"])
def test_a_program_that_rests_on_a_drained_host_goes_on_elsewhere_with_its_tensors(pool: Make, undisturbed: list[str], dies: bool) -> None:

    async def scenario() -> None:
        async with pool(**two_hosts(move_bytes_per_second=4 * 2**20 if dies else 10**9)) as running, resting(running) as program:
            lines = [await turn(program)]
            (session,) = running.machine.sessions.values()
            await running.until(lambda: session.lease is None and running.records())
            first, before = session.worker.device.node, len(running.records())
            assert (await running.call("PUT", f"api/nodes/{first}", body={"drain": True})).code == 200
            if dies:
                await running.until(lambda: carriers(running))
                os.kill(running.service.shell.launcher._pids[carriers(running)[0].id], signal.SIGKILL)
                object.__setattr__(running.machine.limits, "move_bytes_per_second", 10**9)  # the second target has all of it soon
            await running.until(lambda: session.image is not None and session.image.device.node != first)
            await running.until(lambda: not running.machine.fleet.seats[f"{first}/cpu:0"].workers)
            (row,) = [row for row in await running.get("api/nodes") if row["node"] == first]
            assert (row["parked"], row["moving"], row["state"]) == (0, 0, "draining")
            assert len(running.records()) == before and session.state == "parked", "nobody pays for a lease"
            for _ in range(2):
                goes_on(program)
                lines.append(await turn(program))
            assert lines == undisturbed
            goes_on(program)
            assert await asyncio.wait_for(program.wait(), PATIENCE_SECONDS) == 0

    asyncio.run(scenario())
