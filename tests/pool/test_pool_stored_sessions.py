"""A session that has left its worker goes on from the image that worker kept, should it die before another one has the tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import Restored, SessionMoved, SessionReplays, WorkerGone
from forebay_pool.model.instructions import DropImages
from forebay_pool.model.node_events import NodeLost
from forebay_pool.model.snapshot import Snapshot, session_snapshot
from forebay_pool.model.types import Device
from forebay_wire import messages as wire
from pool_world import World

Make = Callable[..., World]
GIB, MIB = 2**30, 2**20
HOSTS = ("east", "east", "west")


def devices(nodes: tuple[str, ...] = HOSTS, model: str = "cpu-dev") -> list[Device]:
    return [Device(f"{node}/cpu:{index}", node, "cpu", index, model, 8 * GIB) for index, node in enumerate(nodes)]


def left(w: World, image: int = 3) -> str:
    """The session leaves its worker, which keeps an image of that number. Returns the worker."""
    holder = w.worker_of("s")
    w.do(SessionMoved("s"))
    w.worker(holder, wire.Left(bytes=MIB, image=image, address="tcp:h:1", ticket="0" * 64))
    return holder


def resting(world: Make, image: int = 3) -> tuple[World, str]:
    """A session that rests, off devices, where it left a worker."""
    w = world(devices())
    w.lease("s")
    w.do(SessionReplays("s"))
    w.drain("s")
    return w, left(w, image)


def gone(w: World, worker: str) -> None:
    w.do(WorkerGone(worker, Cause("killed", signal="SIGKILL")))
    w.settle()


def assigned(w: World) -> wire.Assign:
    return next(said for said in reversed(w.ordered(w.worker_of("s"))) if isinstance(said, wire.Assign))


def test_the_next_lease_is_at_a_worker_that_reads_the_image(world: Make) -> None:
    w, holder = resting(world)
    node = w.machine.sessions["s"].replay.image.node
    gone(w, holder)
    session = w.machine.sessions["s"]
    assert session.stored and session.state == "idle"
    w.acquire("s")
    w.settle()
    assert session.lease is not None and session.lease.device.node == node and not session.lease.replays
    assert (assigned(w).image, assigned(w).source) == (3, None)
    assert not session.stored, "its worker has the tensors"


def test_it_is_lost_where_the_worker_kept_no_image(world: Make) -> None:
    w, holder = resting(world, image=0)
    gone(w, holder)
    assert "s" not in w.machine.sessions and isinstance(w.last("s"), wire.SessionLost)


def test_it_is_lost_with_the_host_that_alone_has_the_image(world: Make) -> None:
    w, holder = resting(world)
    gone(w, holder)
    w.do(NodeLost(w.machine.sessions["s"].replay.image.node, "cut off"))
    w.settle()
    w.tick()
    assert "s" not in w.machine.sessions


def test_a_worker_that_was_to_fetch_from_the_dead_one_is_replaced(world: Make) -> None:
    w, holder = resting(world)
    w.acquire("s")
    w.ready(w.launched[-1])
    fetching = w.machine.sessions["s"].worker
    assert fetching is not None and fetching.state == "assigning"
    gone(w, holder)
    assert w.machine.sessions["s"].lease is not None and w.worker_of("s") != fetching.id
    assert assigned(w).image == 3


def test_a_worker_that_dies_while_it_reads_is_followed_by_another(world: Make) -> None:
    w, holder = resting(world)
    gone(w, holder)
    w.acquire("s")
    w.ready(w.launched[-1])
    reading = w.machine.sessions["s"].worker
    assert reading is not None and not reading.opened
    gone(w, reading.id)
    assert w.machine.sessions["s"].lease is not None and assigned(w).image == 3


@pytest.mark.parametrize("first", ["holder", "worker"])
def test_the_death_of_the_next_worker_before_its_first_image_is_replayed_from_that_image(world: Make, first: str) -> None:
    w, holder = resting(world)
    if first == "holder":
        gone(w, holder)
    w.lease("s")
    w.client("s", wire.Arrived(epoch=w.epoch("s")))
    node = w.machine.sessions["s"].replay.image.node
    gone(w, w.worker_of("s"))
    session = w.machine.sessions["s"]
    assert session.replay.due and session.lease is not None and session.lease.replays and session.lease.device.node == node
    assert assigned(w).image == 0, "its client says from which image it goes on"


def test_images_on_another_host_are_removed_once_the_next_worker_has_kept_one(world: Make) -> None:
    w = world(devices(("east", "west")))
    w.lease("s")
    w.do(SessionReplays("s"))
    before = w.machine.sessions["s"].worker.device.node
    left(w)
    w.settle()
    w.client("s", wire.Arrived(epoch=w.epoch("s")))
    after = w.machine.sessions["s"].worker.device.node
    assert after != before and not [one for one in w.out if isinstance(one, DropImages)]
    w.worker(w.worker_of("s"), wire.Kept(number=4, bytes=MIB))
    assert [one.node for one in w.out if isinstance(one, DropImages)] == [before]


def test_a_pool_that_starts_again_knows_where_the_image_is(world: Make) -> None:
    w, holder = resting(world)
    gone(w, holder)
    saved = session_snapshot(w.machine.sessions["s"])
    successor = world(devices())
    successor.do(Restored(Snapshot(sessions=(saved,))))
    session = successor.machine.sessions["s"]
    assert session.stored and session.replay.image.number == 3
