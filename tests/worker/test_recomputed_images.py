"""An image of a session that recomputes has how tensors that are let go are made, and another worker makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay_wire import images, messages, stream
from forebay_wire.stream import Argument, Geometry, Output, OutputTag, Tag, Template
from link_to_pool import Linked
from test_packed_versions import kept

Start = Callable[..., Linked]
aten = torch.ops.aten
RECOMPUTED = 1 << 14
FLOATS = 1 << 18
BYTES = 4 * FLOATS
LIMIT_BYTES = 8 * BYTES
CHAINS, LENGTH = 4, 3
GEOMETRY = Geometry(6, (FLOATS,), (1,))
TENSOR = Argument(Tag.TENSOR, geometry=GEOMETRY)
MADE = Output(OutputTag.NEW, geometry=GEOMETRY, storage_bytes=BYTES)
SCALE = Template(0, (TENSOR, Argument(Tag.SCALAR_TENSOR, dtype=7, flag=True)), (MADE,))
DRAW = Template(1, (TENSOR, Argument(Tag.DOUBLE), Argument(Tag.DOUBLE), Argument(Tag.GENERATOR)), (Output(OutputTag.SAME),), stream.RANDOM)
SEED = stream.Random(5, 0)


def define(client: Any, bits: int = RECOMPUTED) -> None:
    for op in (aten.mul.Tensor, aten.uniform_.default):
        client.operator(op)
    for template in (SCALE, DRAW):
        client.template(template)
    client.send(stream.Settings(bits))


class Story:
    """Chains of tensors that together do not fit the device, of which all but the last ones are freed, and numbers that were drawn."""

    def __init__(self, client: Any) -> None:
        define(client)
        self.data = torch.randn(FLOATS)
        self.data[:4] = torch.tensor([0.0, -0.0, float("inf"), float("nan")])
        self.input = client.upload(self.data)
        self.drawn = client.storage()
        client.send(stream.Allocate(self.drawn, BYTES), stream.Call(1, (stream.View(self.drawn), -1.0, 1.0), SEED))
        self.draw = client.read(self.drawn, BYTES)
        self.held: dict[int, bytes] = {self.drawn: self.draw}
        for chain in range(CHAINS):
            self._extend(client, chain)

    def _extend(self, client: Any, chain: int) -> None:
        """Its first tensor stays, and its last one."""
        before, value = self.input, self.data
        for place in range(LENGTH):
            made, value = client.storage(), value * (chain + place + 1.5)
            client.send(stream.Call(0, (stream.View(before), chain + place + 1.5, made)))
            if place in (0, LENGTH - 1):
                self.held[made] = bytes(value.numpy())
            if place == LENGTH - 1:
                client.send(stream.Free((before,)))
            before = made

    def check(self, client: Any) -> None:
        for _ in range(2):  # the second time others were let go
            for storage, content in self.held.items():
                assert client.read(storage, BYTES) == content, storage
        client.send(stream.Free(tuple(self.held)))
        assert client.read(self.input, BYTES) == bytes(self.data.numpy())


def serve(start_on_pool: Start, device: str, folder: Path) -> tuple[Linked, Any]:
    worker = start_on_pool(device=device)
    worker.assign(images=str(folder), limit_bytes=LIMIT_BYTES)
    worker.pool.expect(messages.Assigned)
    worker.open(LIMIT_BYTES)
    return worker, worker.client()


def next_client(start_on_pool: Start, folder: Path) -> Any:
    """Of a worker after one that kept an image of what was let go, and was killed."""
    worker, client = serve(start_on_pool, "cpu:0", folder)
    with client.socket:
        Story(client)
        kept(client)
    worker.kill()
    return serve(start_on_pool, "cpu:0", folder)[1]


@pytest.mark.parametrize("device", ["cpu:0", "cpu:0,cpu:0"])
def test_another_worker_makes_what_was_let_go(start_on_pool: Start, tmp_path: Path, device: str) -> None:
    worker, client = serve(start_on_pool, device, tmp_path / "images")
    with client.socket:
        story = Story(client)
        assert len(story.held) * BYTES > LIMIT_BYTES
        first = kept(client).bytes
        assert first <= LIMIT_BYTES
    worker.kill()
    second, again = serve(start_on_pool, device, tmp_path / "images")
    with again.socket:
        again.send(images.Restore(1))
        define(again)
        assert kept(again, 2).bytes == first, "it knows what the one before knew"
        story.check(again)
    second.kill()
    _, third = serve(start_on_pool, device, tmp_path / "images")
    with third.socket:
        third.send(images.Restore(2))
        define(third)
        story.check(third)


def test_a_session_that_does_not_recompute_goes_on_from_no_such_image(start_on_pool: Start, tmp_path: Path) -> None:
    """What is let go would be zeros."""
    again = next_client(start_on_pool, tmp_path / "images")
    with again.socket:
        again.send(images.Restore(1))
        define(again, bits=0)
        refused = again.reply()
        assert isinstance(refused, stream.Refused) and "an image of a session that recomputes, which is not told to" in refused.message


def test_an_image_whose_calls_have_other_templates_is_refused(start_on_pool: Start, tmp_path: Path) -> None:
    again = next_client(start_on_pool, tmp_path / "images")
    with again.socket:
        again.send(images.Restore(1), stream.Settings(RECOMPUTED))
        refused = again.reply()
        assert isinstance(refused, stream.Refused) and "is not defined" in refused.message
