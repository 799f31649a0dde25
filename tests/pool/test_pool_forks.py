"""Sessions that begin as copies of others: who may have one, when it is open, and what it costs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forebay_pool.machine.base.messages import resume_key
from forebay_pool.model.events import SessionJoined, SessionLeft, SessionMoved, SessionParked, WorkerAway, WorkerGone
from forebay_pool.model.instructions import DropImages
from forebay_wire import messages as wire
from forebay_wire.message_parts import SHARED_IMAGE
from forking_programs import REAL
from pool_world import GIB, World, devices
from programs import output_of

Make = Callable[..., Any]
PROGRAM = Path(__file__).with_name("forked_trees.py")


def fork(world: World, name: str, of: str, checkpoint: int = 1) -> None:
    """A process of the same user's that was forked from the one of that session."""
    origin = world.machine.sessions[of]
    copy = wire.Fork(session=of, key=resume_key(origin), checkpoint=checkpoint)
    secret = name.encode().ljust(32, b"s")
    world.do(SessionJoined(name, secret, origin.tenant, origin.user, "python train.py", origin.flavor, fork=copy))


def opened(world: World, name: str) -> bool:
    return any(isinstance(one, wire.SessionOpened) for one in world.told(name))


def test_a_copy_is_open_once_its_image_is_there_and_its_worker_goes_on_from_that() -> None:
    world = World(devices(2))
    first = world.lease("origin")
    fork(world, "copy", "origin", 7)
    assert world.ordered(first)[-1] == wire.Copy(session="copy", checkpoint=7)
    assert not opened(world, "copy")
    world.worker(first, wire.Copied(session="copy", bytes=GIB // 2))
    assert opened(world, "copy")
    second = world.lease("copy")
    assert second != first
    assigned = next(one for one in world.ordered(second) if isinstance(one, wire.Assign))
    assert assigned.image == SHARED_IMAGE
    assert world.machine.sessions["copy"].replay.stretch is None, "the shared part is not metered again"
    world.worker(second, wire.Kept(number=1, bytes=GIB // 2))
    assert world.machine.sessions["copy"].replay.stretch is not None, "an image of its own is"


def test_the_origin_and_each_copy_have_leases_of_their_own() -> None:
    world = World(devices(3))
    first = world.lease("origin")
    for name in ("one", "two"):
        fork(world, name, "origin")
        world.worker(first, wire.Copied(session=name, bytes=1000))
        world.lease(name)
    world.wait(1.0)
    for name in ("one", "two", "origin"):
        world.drain(name)
    assert [(record.session, record.duration_ns) for record in world.records] == [(name, 10**9) for name in ("one", "two", "origin")]


def test_a_copy_that_cannot_be_had_ends_and_says_why() -> None:
    world = World()
    first = world.lease("origin")
    fork(world, "copy", "origin")
    world.worker(first, wire.Copied(session="copy", why="memory was short"))
    assert "memory was short" in world.last("copy").message
    assert "copy" not in world.machine.sessions and "origin" in world.machine.sessions


def test_a_copy_of_a_session_that_ends_before_is_lost() -> None:
    world = World()
    world.lease("origin")
    fork(world, "copy", "origin")
    world.do(SessionLeft("origin"))
    world.tick()
    assert isinstance(world.last("copy"), wire.SessionLost)
    assert world.last("copy").cause.code == "fork_gone"


def test_an_image_that_comes_after_its_session_has_ended_is_removed() -> None:
    world = World()
    first = world.lease("origin")
    fork(world, "copy", "origin")
    secret = world.machine.sessions["copy"].secret
    world.do(SessionLeft("copy"))
    world.tick()
    world.worker(first, wire.Copied(session="copy", bytes=1000))
    assert DropImages(secret, "main") in world.fresh


def test_the_next_worker_of_the_origin_is_asked_if_the_first_one_cannot() -> None:
    world = World(devices(2), resume_seconds=60.0)
    first = world.lease("origin")
    world.do(WorkerAway(first))
    fork(world, "copy", "origin")
    assert not [one for one in world.ordered(first) if isinstance(one, wire.Copy)], "it has no link"
    world.worker(first, back(world, first, "origin"))
    world.tick()
    assert len([one for one in world.ordered(first) if isinstance(one, wire.Copy)]) == 1
    world.tick()
    assert len([one for one in world.ordered(first) if isinstance(one, wire.Copy)]) == 1
    world.do(WorkerGone(first, "killed"))
    world.tick()
    assert not opened(world, "copy") and isinstance(world.last("copy"), wire.SessionLost)


def test_an_origin_that_rests_between_two_workers_is_brought_to_one_once() -> None:
    world = World(devices(2))
    first = world.lease("origin")
    world.drain("origin")
    world.do(SessionMoved("origin"))
    world.tick()
    world.worker(first, wire.Left(address="unix:/left", ticket="ab" * 32, bytes=GIB, image=1))
    origin = world.machine.sessions["origin"]
    assert origin.worker is None and origin.request is None
    fork(world, "copy", "origin", 7)
    assert origin.request is not None and not [one for one in world.ordered(first) if isinstance(one, wire.Copy)]
    request = origin.request
    world.tick()
    assert origin.request is request, "it is asked for once"
    world.settle()
    second = world.worker_of("origin")
    world.client("origin", wire.Arrived(epoch=world.epoch("origin")))
    world.tick()
    assert second != first and wire.Copy(session="copy", checkpoint=7) in world.ordered(second)
    world.worker(second, wire.Copied(session="copy", bytes=1000))
    assert opened(world, "copy") and origin.lease is not None


def back(world: World, worker: str, session: str) -> wire.ResumeWorker:
    epoch = world.epoch(session)
    address = f"unix:/{worker}"
    return wire.ResumeWorker(
        worker=worker, address=address, session=session, epoch=epoch, ended=None, starved=False, client_gone=False, memory_bytes=0,
        parked_bytes=None,
    )  # fmt: skip


@pytest.mark.parametrize(("who", "key"), [("ben", None), ("other-ada", None), ("ada", "0" * 64)])
def test_nobody_gets_a_copy_of_anothers_session_nor_without_its_key(pool: Make, who: str, key: str | None) -> None:
    async def scenario() -> None:
        async with pool() as running:
            mine, other = await running.client("ada"), await running.client(who)
            opened = await mine.hello()
            assert opened.resume_key is not None
            copy = wire.Fork(session=opened.session, key=key or opened.resume_key, checkpoint=1)
            await other.say(wire.Hello(process="p", pid=1, torch="2.13.0", fork=copy))
            refused = await other.hears(wire.Refused)
            assert (refused.code, refused.message) == (
                "no_session",
                "The session of the process that this one was forked from is over, and its tensors are gone.",
            )
            assert list(running.machine.sessions) == [opened.session]

    asyncio.run(scenario())


FORKS = """
import multiprocessing, os, sys, torch

def bits(*tensors):
    return [tensor.detach().cpu().flatten().view(torch.uint8).tolist() for tensor in tensors]

x = torch.tensor([1.0, float("nan"), -0.0, float("inf"), 5.0], device="cuda:0")
view = x[1::2]
freed = torch.arange(1000.0, device="cuda:0")
double = freed * 2
resized = torch.ones(10, device="cuda:0")
torch.cuda.manual_seed(7)
torch.rand(3, device="cuda:0")
context = multiprocessing.get_context("fork")
mine, theirs = context.Pipe()

def child():
    theirs.recv()  # the parent has changed all by now
    held = bits(x, view, freed, double, resized, torch.rand(5, device="cuda:0"))
    view.fill_(9)
    theirs.send((held, bits(x), torch.randn(3, device="cuda:0").tolist()))

process = context.Process(target=child)
process.start()
before = bits(x, view, freed, double, resized)
after = (torch.rand(5, device="cuda:0"), torch.randn(3, device="cuda:0").tolist())
x.zero_()
del freed
double.copy_(torch.arange(1000.0))
resized.untyped_storage().resize_(80)
torch.ones(4096, device="cuda:0").sum().item()
mine.send(None)
held, changed, drawn = mine.recv()
process.join()
print(process.exitcode, held == before + bits(after[0]), drawn == after[1])
print(bits(x) == bits(torch.zeros(5)), changed == bits(torch.tensor([1.0, 9.0, -0.0, 9.0, 5.0])))
"""


def test_a_forked_child_has_all_that_its_parent_had_whatever_that_does_meanwhile(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            out, _ = await output_of(running, FORKS)
            assert out == ["0 True True", "True True"]
            await running.until(lambda: not running.machine.sessions)
            assert len({record["session"] for record in running.records()}) == 2, "each has a bill of its own"
            assert not running.parked_records(), "the copy is free"

    asyncio.run(scenario())


IDLE = """
import os, torch
from torch.utils.data import DataLoader, TensorDataset
from forebay import _C
x = torch.ones(1000, device="cuda:0")
x.sum().item()
for _ in range(2):
    for batch, in DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=2, multiprocessing_context="fork"):
        x.add_(batch.sum().item())
print(x[0].item(), len(_C.reported_checkpoints(0)[0]))
"""


def test_children_that_never_use_the_device_cost_nothing(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            out, _ = await output_of(running, IDLE)
            assert out == ["57.0 0"]
            await running.until(lambda: not running.machine.sessions)
            assert len({record["session"] for record in running.records()}) == 1

    asyncio.run(scenario())


GRANDCHILDREN = """
import os, torch
x = torch.arange(6.0, device="cuda:0")
x.sum().item()

def forked(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def grandchild():
    assert x.tolist() == [float(i) for i in range(6)], x.tolist()
    print("grandchild", flush=True)

def leaf():
    assert x.tolist() == [float(i + 10) for i in range(6)], x.tolist()
    print("leaf", flush=True)

def child():
    unsent = torch.empty(3, device="cuda:0")
    forked(grandchild)  # of a child that has not begun
    x.add_(10)
    forked(leaf)  # of one that has
    assert x.tolist() == [float(i + 10) for i in range(6)]

forked(child)
print(x.tolist() == [float(i) for i in range(6)])
"""


ORPHANS = """
import os, time, torch
from forebay import _C
x = torch.arange(6.0, device="cuda:0")
x.sum().item()
reading, writing = os.pipe()
pid = os.fork()
if pid == 0:
    if os.fork() == 0:
        time.sleep(1.0)  # its parent is gone by now, without having begun
        os.write(writing, b"well" if x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] else b"ill")
    os._exit(0)
os.waitpid(pid, 0)
os.close(writing)
x.zero_()
print(x.sum().item(), os.read(reading, 4).decode())
"""


def test_a_grandchild_begins_though_its_parent_never_did(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            out, _ = await output_of(running, ORPHANS)
            assert out == ["0.0 well"]

    asyncio.run(scenario())


def test_children_of_children_begin_with_what_those_held(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            out, _ = await output_of(running, GRANDCHILDREN)
            assert out == ["grandchild", "leaf", "True"]

    asyncio.run(scenario())


TREES, STEPS = 2, 25
LONG_TREES, LONG_STEPS = 250, 40


async def happen(running: Any, chance: random.Random, events: str, happened: Counter[str]) -> None:
    """Parks sessions that rest, moves those that have tensors on a device, and kills workers, now and then."""
    while True:
        await asyncio.sleep(chance.uniform(0, 0.3))
        sessions = [session for session in running.machine.sessions.values() if session.worker is not None]
        if sessions and "p" in events:
            session = chance.choice(sessions)
            running.service.shell.apply(SessionParked(session.id))
            happened["parked"] += session.worker is not None and session.worker.parking
        movable = [session for session in sessions if session.worker is not None and session.worker.opened]
        if movable and "m" in events and chance.random() < 0.5:
            running.service.shell.apply(SessionMoved(chance.choice(movable).id))
            happened["moved"] += 1
        if sessions and "k" in events and chance.random() < 0.15:
            worker = chance.choice(sessions).worker
            with contextlib.suppress(ProcessLookupError, KeyError):
                os.kill(running.service.shell.launcher._pids[worker.id], signal.SIGKILL)
                happened["killed"] += 1


@pytest.mark.timeout(7200)  # 250 trees in full
@pytest.mark.parametrize("events", ["", "pm", *(pytest.param(one, marks=pytest.mark.full_sweep) for one in ("p", "m", "k", "pk", "pmk"))])
def test_every_leaf_of_a_tree_of_forks_is_what_its_straight_run_is(pool: Make, events: str, full_sweep: bool) -> None:
    """A session that has images is lost with no worker of its own."""
    happened: Counter[str] = Counter()

    async def tree(running: Any, seed: int) -> Counter[str]:
        chance = random.Random(seed)
        interval = chance.choice(["0", "0.05", "10"])
        around = asyncio.create_task(happen(running, chance, events, happened))
        text = f"import runpy, sys; sys.argv = ['forked_trees.py', *sys.argv[1:]]; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
        steps = str(LONG_STEPS if full_sweep else STEPS)
        try:
            out, _ = await output_of(running, text, str(seed), steps, FOREBAY_IMAGE_SECONDS=interval)
        finally:
            around.cancel()
        done = sum(map(Counter, map(json.loads, out)), Counter(leaves=len(out)))
        assert not done["unkept"] or interval == "0", (seed, done)
        return done

    async def scenario() -> None:
        done: Counter[str] = Counter()
        async with pool(**REAL | {"heartbeat_seconds": 0.2, "resume_seconds": 0.0}) as running:
            for seed in range(LONG_TREES if full_sweep else TREES):
                done += await tree(running, seed)
        assert done["leaves"] > 2 * TREES and done["restore"] > 0
        assert done["lost"] == 0 or "k" in events, done
        assert bool(happened.total()) == bool(events), happened

    asyncio.run(scenario())
