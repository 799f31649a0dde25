"""What a session held at a checkpoint becomes the first image of others: command by command, as their pool and their clients say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay_wire import images, messages, stream
from forebay_wire.message_parts import SHARED_IMAGE
from link_to_pool import Linked
from test_worker_parking import park

Start = Callable[..., Linked]
BYTES = 1 << 20
HELD = torch.randint(0, 256, (BYTES,), dtype=torch.uint8)


def take(client: Any, number: int) -> None:
    client.send(images.Checkpoint(number, is_for_forks=True))


def copied(worker: Linked, folder: Path, number: int = 1, session: str = "s-2", **more: Any) -> messages.Copied:
    worker.pool.send(messages.Copy(session=session, checkpoint=number, images=str(folder), **more))
    return worker.pool.expect(messages.Copied)


def begun(start: Start, folder: Path, **more: Any) -> tuple[Linked, Any]:
    """A worker whose session began with the image in that folder, and its client."""
    worker = start(**more)
    return worker, worker.serve(images=str(folder), image=SHARED_IMAGE)


def overwrite(client: Any, storage: int, byte: bytes) -> None:
    client.send(stream.Write(storage, 0, byte * BYTES))


@pytest.mark.everywhere
@pytest.mark.one_device
@pytest.mark.parametrize("parks", [False, True])
def test_a_copy_has_what_was_held_then_also_what_was_freed_or_resized_since(start_on_pool: Start, tmp_path: Path, parks: bool) -> None:
    worker = start_on_pool()
    client = worker.serve()
    with client.socket:
        same, changed, freed, grown = (client.upload(HELD.roll(number)) for number in range(4))
        zeros = client.storage()
        client.send(stream.Allocate(zeros, BYTES))
        take(client, 1)
        overwrite(client, changed, b"c")
        client.send(stream.Free((freed,)), stream.Resize(grown, 2 * BYTES))
        later = client.upload(HELD)
        if parks:
            worker.drain(client)
            park(worker, 1 << 40, 1 << 40)
        assert copied(worker, tmp_path / "copy").bytes > 4 * BYTES
    _, copy = begun(start_on_pool, tmp_path / "copy")
    with copy.socket:
        for number, storage in enumerate((same, changed, freed, grown)):
            assert copy.read(storage, BYTES) == bytes(HELD.roll(number).numpy()), number
        assert copy.read(zeros, BYTES) == bytes(BYTES)
        copy.send(stream.Read(copy.request(), later, 0, 1))
        reply = copy.reply()
        assert isinstance(reply, stream.Refused) and f"storage {later} does not exist" in reply.message


def test_copies_share_one_file_and_nobody_writes_to_it(start_on_pool: Start, tmp_path: Path) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    folders = [tmp_path / name for name in ("one", "two", "three")]
    with client.socket:
        storage, other = client.upload(HELD), client.upload(HELD.roll(5))
        take(client, 1)
        for folder in folders[:2]:
            assert not copied(worker, folder).why
        files = [(folder / str(SHARED_IMAGE)).stat() for folder in folders[:2]]
        assert files[0].st_ino == files[1].st_ino and files[0].st_nlink == 2
        first, second = (begun(start_on_pool, folder, device="cpu:0")[1] for folder in folders[:2])
        overwrite(first, storage, b"1")
        for number, base in ((1, SHARED_IMAGE), (2, 1), (3, 2)):  # its own images, over what it began with
            first.send(images.Keep(number, base))
            kept = first.reply()
            assert isinstance(kept, images.Kept) and not kept.why, kept
        assert sorted(entry.name for entry in folders[0].iterdir()) == ["2", "3"]
        overwrite(second, other, b"2")
        assert second.read(storage, BYTES) == bytes(HELD.numpy())
        assert first.read(other, BYTES) == bytes(HELD.roll(5).numpy())
        assert not copied(worker, folders[2]).why
        (folders[1] / str(SHARED_IMAGE)).unlink()
        third = begun(start_on_pool, folders[2], device="cpu:0")[1]
        assert third.read(other, BYTES) == bytes(HELD.roll(5).numpy())
        for one in (first, second, third):
            one.socket.close()


def test_a_copy_waits_for_its_checkpoint(start_on_pool: Start, tmp_path: Path) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        storage = client.upload(HELD)
        worker.pool.send(messages.Copy(session="s-2", checkpoint=4, images=str(tmp_path / "copy")))
        worker.pool.expect_silence()
        overwrite(client, storage, b"a")
        take(client, 4)
        overwrite(client, storage, b"b")
        assert not worker.pool.expect(messages.Copied).why
    _, copy = begun(start_on_pool, tmp_path / "copy", device="cpu:0")
    with copy.socket:
        assert copy.read(storage, BYTES) == b"a" * BYTES


def test_what_is_not_kept_any_more_is_not_copied(start_on_pool: Start, tmp_path: Path) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        storage = client.upload(HELD)
        take(client, 1)
        client.send(images.DropCheckpoint(1), images.DropCheckpoint(99))
        assert isinstance(client.sync(), stream.Done)
        assert copied(worker, tmp_path / "copy").why == "what it held then is not kept any more"
        take(client, 2)
        overwrite(client, storage, b"c")
        worker.drain(client)
        park(worker, BYTES, 1 << 40)
        assert copied(worker, tmp_path / "copy", 2).why == "memory was short"
        worker.pool.send(messages.Copy(session="s-3", checkpoint=2))
        assert worker.pool.expect(messages.Copied) == messages.Copied(session="s-3", why="memory was short")
    assert not (tmp_path / "copy").exists()


def test_what_is_freed_on_a_disk_is_not_taken_for_zeros(start_on_pool: Start, tmp_path: Path) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        storage = client.upload(HELD)
        take(client, 1)
        worker.drain(client)
        park(worker, 0, 1 << 40)
        client.send(stream.Free((storage,)))
        assert isinstance(client.sync(), stream.Done)
        assert copied(worker, tmp_path / "copy").why == "it freed a tensor that lay on a disk"


def test_where_there_is_no_room_for_the_image_it_says_so(start_on_pool: Start, tmp_path: Path) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        client.upload(HELD)
        take(client, 1)
        assert isinstance(client.sync(), stream.Done)
        assert "has no room" in copied(worker, tmp_path / "copy", images_fill_max=1e-9).why
        worker.pool.send(messages.Copy(session="s-2", checkpoint=1))
        assert worker.pool.expect(messages.Copied).why == "no images are kept of its flavor"


def test_going_back_and_dropping_checkpoints_leaves_a_copy_as_it_was(start_on_pool: Start, tmp_path: Path) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        storage = client.upload(HELD)
        client.send(images.Checkpoint(1, is_named=True))
        overwrite(client, storage, b"2")
        take(client, 2)
        request = client.request()
        client.send(images.TellCheckpoints(request))
        assert client.reply().there == ((1, False),), "nobody goes back to one that is for forks"
        client.send(images.GoBack(client.request(), 1))
        assert isinstance(client.reply(), images.WentBack)
        take(client, 3)
        client.send(stream.Free((storage,)), images.DropCheckpoint(1))
        assert not copied(worker, tmp_path / "second", 2).why
        assert not copied(worker, tmp_path / "third", 3).why
    for name, held in (("second", b"2" * BYTES), ("third", bytes(HELD.numpy()))):
        _, copy = begun(start_on_pool, tmp_path / name, device="cpu:0")
        with copy.socket:
            assert copy.read(storage, BYTES) == held


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda data: data[:-BYTES], "the end of an image is missing"),
        (lambda data: b"", "it is empty"),
        (lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:], "what was written is not what is read"),
        (lambda data: (1 << 40).to_bytes(8, "little") + data[8:], "a head of forbidden size"),
        (lambda data: data[:8] + (1 << 40).to_bytes(8, "little") + data[16:], "a frame of forbidden size"),
    ],
)
def test_a_damaged_image_is_refused(start_on_pool: Start, tmp_path: Path, damage: Callable[[bytes], bytes], sentence: str) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        client.upload(HELD)
        take(client, 1)
        assert not copied(worker, tmp_path / "copy").why
    file = tmp_path / "copy" / str(SHARED_IMAGE)
    file.write_bytes(damage(file.read_bytes()))
    second = start_on_pool(device="cpu:0")
    second.assign(images=str(tmp_path / "copy"), image=SHARED_IMAGE)
    assert second.process.wait(30) != 0
    assert second.process.stderr is not None and sentence in second.process.stderr.read()
