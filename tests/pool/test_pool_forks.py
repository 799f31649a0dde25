"""Sessions that begin as copies of others: who may have one, when it is open, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.machine.base.messages import resume_key
from forebay_pool.model.events import SessionJoined, SessionLeft, WorkerAway, WorkerGone
from forebay_pool.model.instructions import DropImages
from forebay_wire import messages as wire
from forebay_wire.session_images import SHARED_IMAGE
from pool_world import GIB, World, devices
from programs import output_of

Make = Callable[..., Any]
REAL = {
    "real_workers": True,
    "devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 4}],
    "warm_workers": 2,
    "heartbeat_seconds": 0.2,
    "idle_release_seconds": 0.5,
}


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
