"""What a worker keeps and says as a session leaves it; and a session that begins again with the numbers of what it is sent."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay_wire import images, messages, stream
from link_to_pool import WAIT_SECONDS_MAX, Linked
from test_executor_traces import INPUT, NEW, TENSOR, aten, begin, floats, segment
from test_packed_versions import kept

Start = Callable[..., Linked]
HELD = torch.arange(1 << 18, dtype=torch.int32)
NOTHING, MOVED, IMAGE = range(3)
"""What a worker may have of a session before its client comes."""


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def leave(client: Any, *named: int) -> None:
    client.send(stream.Leave(client.request(), *named))
    assert isinstance(client.reply(), stream.Done)


def keep(worker: Linked, client: Any) -> None:
    """Image 1."""
    kept(client, 1)
    worker.pool.expect(messages.Kept)


def holds(client: Any, storage: int) -> bool:
    return client.read(storage, HELD.nbytes) == bytes(HELD.numpy())


@pytest.mark.parametrize("base", [0, 1])
def test_the_image_before_stays_until_another_worker_comes_for_the_session(start_on_pool: Start, tmp_path: Path, base: int) -> None:
    folder = tmp_path / "images"
    old, new = start_on_pool(), start_on_pool()
    client = old.serve(images=str(folder))
    assert (old.welcome.begun, old.welcome.images) == (NOTHING, ())
    with client.socket:
        storage = client.upload(HELD)
        keep(old, client)
        leave(client, 2, base)
        left = old.pool.expect(messages.Left)
    assert left.image == 2 and names(folder) == {"2", *["1"][:base]}
    new.assign(messages.Source(address=left.address, ticket=left.ticket), images=str(folder))
    new.pool.expect(messages.Assigned)
    new.open()
    again = new.client()
    assert (new.welcome.begun, new.welcome.images) == (MOVED, (2,)) and names(folder) == {"2"}
    with again.socket:
        assert holds(again, storage)


def test_a_worker_that_dies_while_it_writes_the_last_image_leaves_the_one_before(start_on_pool: Start, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    old = start_on_pool()
    client = old.serve(images=str(folder))
    with client.socket:
        storage = client.upload(HELD)
        keep(old, client)
        os.mkfifo(folder / "unfinished")  # of which it cannot write more than a pipe holds
        reading = os.open(folder / "unfinished", os.O_RDONLY | os.O_NONBLOCK)
        leave(client, 2, 1)
        assert select.select([reading], [], [], WAIT_SECONDS_MAX)[0]
        old.kill()
    os.close(reading)
    for name in ("7x", "x7", "-3", "99999999999999999999"):
        (folder / name).touch()
    fresh, stored = start_on_pool(), start_on_pool()
    again = fresh.serve(images=str(folder))
    assert (fresh.welcome.begun, fresh.welcome.images) == (NOTHING, (1,)), "what is not whole, or no image, is not told of"
    with again.socket:
        again.send(images.Restore(1))
        assert holds(again, storage)
    by_itself = stored.serve(images=str(folder), image=1)
    assert (stored.welcome.begun, stored.welcome.images) == (IMAGE, (1,))
    with by_itself.socket:
        assert holds(by_itself, storage)


def test_where_the_last_image_cannot_be_written_there_is_none(start_on_pool: Start, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    old = start_on_pool()
    client = old.serve(images=str(folder))
    with client.socket:
        client.upload(HELD)
        keep(old, client)
        (folder / "unfinished").mkdir()
        leave(client, 2, 1)
        left = old.pool.expect(messages.Left)
    assert left.image == 0 and not folder.exists(), "its pool must not take the one before for what the session was"


@pytest.mark.parametrize("device", ["cpu:0", "cpu:0,cpu:0"])
def test_numbers_begin_again_and_all_that_was_made_stays(start_on_pool: Start, device: str) -> None:
    worker = start_on_pool(device=device)
    client = worker.serve()
    with client.socket:
        mul, neg = begin(client)
        client.send(stream.Settings(512), *segment(mul, neg, 3), stream.Cut(), stream.Follow(3))
        client.send(stream.Renumber())
        client.operators, client.templates = {}, {}
        alpha = stream.Argument(stream.Tag.SCALAR_DOUBLE)
        add = client.template(stream.Template(client.operator(aten.add.Tensor), (TENSOR, TENSOR, alpha), (NEW,)))
        assert (add, mul) == (0, 0)
        views = stream.View(4), stream.View(INPUT)
        for result in (10, 11):
            client.send(stream.Call(add, (*views, 2.0, result)), stream.Cut())
        assert [floats(client.read(result, 16)) for result in (4, 6, 10, 11)] == [(-6.0,) * 4] * 2 + [(-4.0,) * 4] * 2
        again = begin_again(client, mul, neg)
        assert floats(client.read(again, 16)) == (-60.0,) * 4, "and once more, with the numbers of before"


def begin_again(client: Any, mul: int, neg: int) -> int:
    """The same segment over another input; its last result."""
    client.send(stream.Renumber(), stream.Renumber())
    client.operators, client.templates = {}, {}
    scalar = stream.Argument(stream.Tag.SCALAR_TENSOR, dtype=7, flag=True)
    assert mul == client.template(stream.Template(client.operator(aten.mul.Tensor), (TENSOR, scalar), (NEW,)))
    assert neg == client.template(stream.Template(client.operator(aten.neg_.default), (TENSOR,), (stream.Output(stream.OutputTag.SAME),)))
    client.send(stream.Write(INPUT, 0, struct.pack("<4f", *[10.0] * 4)), *segment(mul, neg, 20))
    return 21


@pytest.mark.parametrize("command", [stream.Follow(1), stream.Step(None, ())])
def test_no_step_from_before_comes_again(start_on_pool: Start, command: stream.Command) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        mul, neg = begin(client)
        client.send(*segment(mul, neg, 3), stream.Cut())
        client.send(stream.Renumber(), command)
        assert isinstance(client.reply(), stream.Refused)


def test_no_template_from_before_is_there(start_on_pool: Start) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        begin(client)
        client.send(stream.Renumber())
        client.send_raw(b"\x04\x00\x01\x00")
        refused = client.reply()
        assert isinstance(refused, stream.Refused) and "template 0 is not defined" in refused.message
