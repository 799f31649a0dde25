"""Checkpoints of a session, command by command: what is kept while it is parked, and what a hostile client gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checkpoint_client import go_back, told
from forebay_wire import images, messages, stream
from link_to_pool import Linked
from test_worker_parking import park

Start = Callable[..., Linked]
BYTES = 1 << 20
HELD = torch.randint(0, 256, (BYTES,), dtype=torch.uint8)


def overwrite(client: Any, storage: int, number: int = 0) -> None:
    client.send(stream.Write(storage, number, bytes([number]) * (BYTES - number)))


@pytest.mark.everywhere
@pytest.mark.one_device
@pytest.mark.parametrize("parks_after_going_back", [False, True])
def test_what_was_kept_survives_parking(start_on_pool: Start, parks_after_going_back: bool) -> None:
    assert came_back_after_parking(start_on_pool(), parks_after_going_back) == bytes(HELD.numpy())


@pytest.mark.parametrize("parks_after_going_back", [False, True])
def test_what_several_devices_kept_survives_parking(start_on_pool: Start, parks_after_going_back: bool) -> None:
    assert came_back_after_parking(start_on_pool(device="cpu:0,cpu:0"), parks_after_going_back) == bytes(HELD.numpy())


def came_back_after_parking(worker: Linked, parks_after_going_back: bool) -> bytes:
    """What a storage holds that went back and forth, over a parking, in the end to the first of two checkpoints."""
    client = worker.serve()
    with client.socket:
        storage = client.upload(HELD)
        client.send(images.Checkpoint(3))
        overwrite(client, storage, 1)
        client.send(images.Checkpoint(7, is_named=True))
        overwrite(client, storage)
        if parks_after_going_back:
            assert go_back(client, 3).storages == (storage,)
        worker.drain(client)
        assert 2 + (not parks_after_going_back) <= park(worker, 1 << 40, 1 << 40).bytes / BYTES <= 3
        worker.pool.send(messages.Restore())
        worker.pool.expect(messages.Restored)
        worker.open()
        assert told(client).there == ((3, parks_after_going_back), (7, False))
        assert go_back(client, 3).changed == int(not parks_after_going_back)
        assert client.read(storage, BYTES) == bytes(HELD.numpy())
        client.send(stream.Write(storage, 5, b"12345"))
        assert go_back(client, 7).storages == (storage,)
        assert client.read(storage, BYTES) == bytes(HELD[:1].numpy()) + b"\x01" * (BYTES - 1)
        assert go_back(client, 3).storages == (storage,)
        return client.read(storage, BYTES)


def test_what_has_no_room_beside_the_parked_storages_is_dropped(start_on_pool: Start) -> None:
    worker = start_on_pool()
    client = worker.serve()
    with client.socket:
        storage = client.upload(HELD)
        client.send(images.Checkpoint(1))
        overwrite(client, storage)
        worker.drain(client)
        assert park(worker, BYTES + BYTES // 2, 1 << 40).bytes == BYTES
        worker.pool.send(messages.Restore())
        worker.pool.expect(messages.Restored)
        worker.open()
        assert (told(client).there, told(client).why_dropped) == ((), "memory was short")
        assert client.read(storage, BYTES) == bytes(BYTES)


def test_the_end_of_a_span_tells_what_was_dropped_meanwhile(start_on_pool: Start) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        storage = client.upload(HELD)
        client.send(images.Checkpoint(1))
        overwrite(client, storage)
        worker.drain(client)
        park(worker, BYTES, 0)
        worker.pool.send(messages.Restore())
        worker.pool.expect(messages.Restored)
        worker.open()
        client.send(stream.Write(storage, 0, b"1"))
        worker.drain(client)
        assert client.reply() == images.Checkpoints(0, (), "memory was short")
        worker.open()
        client.send(stream.Write(storage, 0, b"2"))
        worker.drain(client)
        assert isinstance(client.sync(), stream.Done), "it is told once"


def test_the_oldest_go_first_and_those_with_a_name_last(start_on_pool: Start) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        storage = client.upload(HELD)
        for number in range(1, 6):
            client.send(images.Checkpoint(number, is_named=number in (1, 3)))
            overwrite(client, storage, number)
        order = []
        for room in range(5, 0, -1):
            worker.drain(client)
            park(worker, room * BYTES, 1 << 40)
            worker.pool.send(messages.Restore())
            worker.pool.expect(messages.Restored)
            worker.open()
            order.append([number for number, _ in told(client).there])
        assert order == [[1, 3, 4, 5], [1, 3, 5], [1, 3], [3], []]


def test_a_failure_before_a_checkpoint_keeps_it_from_being_taken(client: Any) -> None:
    storage = client.upload(HELD)
    client.send(stream.Allocate(client.storage(), 1 << 45))
    client.send(images.Checkpoint(1))
    assert (told(client).there, told(client).why_dropped) == ((), "a call before the checkpoint failed")
    assert isinstance(client.sync(), stream.Failure)
    client.send(images.Checkpoint(2))
    overwrite(client, storage)
    assert go_back(client, 2).storages == (storage,)


@pytest.mark.parametrize(
    ("commands", "sentence"),
    [
        ([images.GoBack(5, 1)], "checkpoint 1 is not there"),
        ([images.Checkpoint(2), images.Checkpoint(2)], "checkpoint 2 after checkpoint 2"),
        ([images.Checkpoint(2), images.Checkpoint(1)], "checkpoint 1 after checkpoint 2"),
        ([images.Checkpoint(0)], "checkpoint 0 after checkpoint 0"),
    ],
)
def test_what_is_not_the_protocol_ends_the_session(client: Any, commands: list[stream.Command], sentence: str) -> None:
    client.send(*commands)
    reply = client.reply()
    assert isinstance(reply, stream.Refused) and sentence in reply.message


def test_a_session_keeps_as_many_as_it_may(client: Any) -> None:
    storage = client.upload(HELD)
    client.send(*[images.Checkpoint(number) for number in range(1, images.CHECKPOINTS_MAX + 11)])
    there = told(client).there
    assert [number for number, _ in there] == list(range(11, images.CHECKPOINTS_MAX + 11))
    overwrite(client, storage)
    assert go_back(client, 11).storages == (storage,)
    assert client.read(storage, BYTES) == bytes(HELD.numpy())
