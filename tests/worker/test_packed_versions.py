"""Checkpoints go to another worker: with a session that moves, and in images that outlive a worker."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_client import go_back, told
from forebay_wire import images, messages, stream
from link_to_pool import Linked
from test_forks import begun, copied
from test_worker_parking import park

Start = Callable[..., Linked]
BYTES = 1 << 20
HELD = torch.randint(0, 256, (BYTES,), dtype=torch.uint8)
OLD, NEW, FORK = 3, 7, 9
"""Checkpoints: without a name and with one, and one with which other sessions may begin."""
NO_FORKS = "another worker went on from an image, and images have none for processes that have not begun"


def overwrite(client: Any, storage: int, byte: bytes) -> None:
    client.send(stream.Write(storage, 0, byte * BYTES))


class Story:
    """A session with checkpoints behind it, and what it holds at each."""

    def __init__(self, client: Any) -> None:
        self.changed, self.same, self.freed, self.resized, self.returned = (client.upload(HELD.roll(number)) for number in range(5))
        self.zeros = client.storage()
        client.send(stream.Allocate(self.zeros, BYTES))
        client.send(images.Checkpoint(OLD))
        overwrite(client, self.changed, b"1")
        overwrite(client, self.returned, b"r")
        client.send(stream.Write(self.zeros, BYTES // 2, b"z"))
        client.send(images.Checkpoint(NEW, is_named=True))
        overwrite(client, self.changed, b"2")
        self.later = client.upload(HELD.roll(9))
        assert self.returned in go_back(client, OLD).storages
        overwrite(client, self.changed, b"3")
        client.send(images.Checkpoint(FORK, is_for_forks=True))
        overwrite(client, self.changed, b"4")
        client.send(stream.Free((self.freed,)), stream.Resize(self.resized, 2 * BYTES))

    def rolled(self, number: int) -> bytes:
        return bytes(HELD.roll(number).numpy())

    def check(self, client: Any) -> None:
        """What it holds now, what it goes back to, and back."""
        assert told(client).there == ((OLD, False), (NEW, False))
        now = {self.changed: b"4" * BYTES, self.same: self.rolled(1), self.returned: self.rolled(4), self.zeros: bytes(BYTES)}
        self.hold(client, now | {self.resized: self.rolled(3) + bytes(BYTES), self.later: self.rolled(9)})
        went = go_back(client, NEW)
        assert set(went.storages) == {self.changed, self.returned, self.zeros} and went.resized == 1
        half = bytes(BYTES // 2) + b"z" + bytes(BYTES // 2 - 1)
        self.hold(client, {self.changed: b"1" * BYTES, self.same: self.rolled(1), self.returned: b"r" * BYTES, self.zeros: half})
        assert told(client).there == ((OLD, False), (NEW, False)), "one has another size"
        overwrite(client, self.same, b"s")
        went = go_back(client, OLD)
        assert set(went.storages) == {self.changed, self.returned, self.zeros, self.same}
        first = {self.changed: self.rolled(0), self.same: self.rolled(1), self.returned: self.rolled(4), self.zeros: bytes(BYTES)}
        self.hold(client, first)
        assert set(go_back(client, NEW).storages) == {self.changed, self.returned, self.zeros}
        client.send(images.Checkpoint(FORK + 1))
        assert told(client).there == ((OLD, False), (NEW, False), (FORK + 1, True))

    def hold(self, client: Any, held: dict[int, bytes]) -> None:
        for storage, content in held.items():
            assert client.read(storage, len(content)) == content, storage


def left(worker: Linked, client: Any) -> messages.Source:
    """The session leaves the worker."""
    client.send(stream.Leave(client.request()))
    assert isinstance(client.reply(), stream.Done)
    where = worker.pool.expect(messages.Left)
    return messages.Source(address=where.address, ticket=where.ticket)


def kept(client: Any, number: int = 1) -> images.Kept:
    """The worker keeps an image."""
    client.send(images.Keep(number))
    reply = client.reply()
    assert isinstance(reply, images.Kept) and not reply.why, reply
    return reply


@pytest.mark.everywhere
@pytest.mark.one_device
@pytest.mark.parametrize("parks", [False, True])
def test_a_session_that_moves_goes_back_where_it_could_before(start_on_pool: Start, tmp_path: Path, parks: bool) -> None:
    old, new = start_on_pool(), start_on_pool()
    client = old.serve()
    with client.socket:
        story = Story(client)
        if parks:
            old.drain(client)
            park(old, 1 << 40, 1 << 40)
        source = left(old, client)
    new.assign(source)
    new.pool.expect(messages.Assigned)
    again = new.client()
    with again.socket:
        new.open()
        story.check(again)
        assert not copied(new, tmp_path / "copy", FORK).why, "a forked process that had not begun begins now"
    _, child = begun(start_on_pool, tmp_path / "copy")
    with child.socket:
        forked = {story.changed: b"3" * BYTES, story.freed: story.rolled(2), story.resized: story.rolled(3)}
        story.hold(child, forked | {story.returned: story.rolled(4), story.zeros: bytes(BYTES), story.later: story.rolled(9)})


@pytest.mark.everywhere
@pytest.mark.one_device
@pytest.mark.parametrize("parks", [False, True])
def test_another_worker_goes_back_by_what_an_image_has(start_on_pool: Start, tmp_path: Path, parks: bool) -> None:
    worker = start_on_pool()
    client = worker.serve(images=str(tmp_path / "images"))
    with client.socket:
        story = Story(client)
        if parks:
            worker.drain(client)
            park(worker, 1 << 40, 1 << 40)
        assert kept(client).bytes > 9 * BYTES
    worker.kill()
    second = start_on_pool()
    again = second.serve(images=str(tmp_path / "images"))
    with again.socket:
        again.send(images.Restore(1))
        story.check(again)
        assert copied(second, tmp_path / "copy", FORK).why == NO_FORKS, "it is told at once"
        again.send(images.Keep(2, 1))
        assert not again.reply().why, "and so does the next one"


def test_a_session_that_never_asked_for_checkpoints_has_the_image_that_it_always_had(start_on_pool: Start, tmp_path: Path) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve(images=str(tmp_path / "images"))
    with client.socket:
        client.upload(HELD)
        before = kept(client).bytes
        client.send(images.Checkpoint(1))
        assert kept(client, 2).bytes - before < 200, "what was not changed since is not there twice"


def test_where_the_next_worker_has_no_room_the_storages_come_alone(start_on_pool: Start) -> None:
    old, new = start_on_pool(device="cpu:0"), start_on_pool(device="cpu:0")
    client = old.serve()
    with client.socket:
        storage = client.upload(HELD)
        for number in range(1, 6):
            client.send(images.Checkpoint(number))
            overwrite(client, storage, b"%d" % number)
        source = left(old, client)
    new.assign(source, limit_bytes=3 * BYTES)
    new.pool.expect(messages.Assigned)
    again = new.client()
    with again.socket:
        new.open()
        assert again.read(storage, BYTES) == b"5" * BYTES
        found = told(again)
        assert (found.there, found.why_dropped) == ((), "memory was short")
        again.send(images.Checkpoint(6))
        assert told(again).there == ((6, True),)


def test_several_devices_have_what_one_had(start_on_pool: Start) -> None:
    old, new = start_on_pool(device="cpu:0"), start_on_pool(device="cpu:0,cpu:0")
    client = old.serve()
    with client.socket:
        storage = client.upload(HELD)
        client.send(images.Checkpoint(1))
        overwrite(client, storage, b"2")
        source = left(old, client)
    new.assign(source)
    new.pool.expect(messages.Assigned)
    again = new.client()
    with again.socket:
        new.open()
        assert again.read(storage, BYTES) == b"2" * BYTES
        found = told(again)
        assert (found.there, found.why_dropped) == (((1, False),), "")
        assert go_back(again, 1).storages == (storage,)
        assert again.read(storage, BYTES) == bytes(HELD.numpy())
        overwrite(again, storage, b"3")
        again.send(images.Checkpoint(2))
        overwrite(again, storage, b"4")
        assert go_back(again, 2).storages == (storage,) and again.read(storage, BYTES) == b"3" * BYTES


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    if os.getuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={8 * BYTES}", "tmpfs", str(folder)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_an_image_that_has_no_room_for_them_is_kept_without(start_on_pool: Start, small_disk: Path) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve(images=str(small_disk / "images"), images_fill_max=0.9)
    with client.socket:
        storage = client.upload(HELD)
        for number in range(1, 10):
            client.send(images.Checkpoint(number))
            overwrite(client, storage, b"%d" % number)
        assert BYTES <= kept(client).bytes < 2 * BYTES
        assert len(told(client).there) == 9, "the worker itself has them"
    worker.kill()
    again = start_on_pool(device="cpu:0").serve(images=str(small_disk / "images"))
    with again.socket:
        again.send(images.Restore(1))
        assert again.read(storage, BYTES) == b"9" * BYTES
        found = told(again)
        assert (found.there, found.why_dropped) == ((), "another worker went on from an image that had no room for them")
