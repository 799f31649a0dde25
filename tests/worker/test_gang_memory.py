"""What each device of a session may hold, and gives back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import PAIR, STANDIN_PAIR
from forebay_wire import messages, stream
from forebay_wire.stream import Argument, FailureCode, Geometry, Output, OutputTag, Tag, Template
from link_to_pool import WAIT_SECONDS_MAX, Linked
from test_worker_parking import park

aten = torch.ops.aten
MIB = 1 << 20
PART_BYTES = 128 * MIB
"""Of the 256 MiB that sessions have here, on each of two devices."""


@pytest.fixture
def worker_python() -> Path:
    """One that reads the stand-in's variables as it starts."""
    return Path(sys.executable)


def upload(client: Any, data: torch.Tensor) -> int:
    """More than one frame holds."""
    storage, sent = client.storage(), bytes(data.view(torch.uint8).numpy())
    client.send(stream.Allocate(storage, len(sent)))
    for start in range(0, len(sent), stream.CHUNK_BYTES_MAX):
        client.send(stream.Write(storage, start, sent[start : start + stream.CHUNK_BYTES_MAX]))
    return int(storage)


def product(client: Any, *views: int, elements: int) -> int:
    """The storage of the products of two vectors' elements."""
    vector = Geometry(6, (8, elements // 8), (elements // 8, 1))
    arguments = tuple(Argument(Tag.TENSOR, geometry=vector) for _ in views)
    output = Output(OutputTag.NEW, geometry=vector, storage_bytes=4 * elements)
    number = client.template(Template(client.operator(aten.mul.Tensor), arguments, (output,)))
    fresh = client.storage()
    client.send(stream.Call(number, (*(stream.View(view) for view in views), fresh)))
    return int(fresh)


@pytest.mark.parametrize("device", ["cpu:0", pytest.param("standin:0", marks=pytest.mark.full_sweep)])
def test_a_limit_that_a_worker_is_told_holds_until_another_and_never_beyond_what_it_was_given(start_worker: Callable[..., Any]) -> None:
    client = start_worker().connect()
    with client.socket:
        client.hello()
        data = torch.rand(2 * MIB)
        storage = upload(client, data)
        client.send(stream.Limit(12 * MIB))
        product(client, storage, storage, elements=data.numel())
        told = client.sync()
        assert isinstance(told, stream.Failure) and told.code == FailureCode.OUT_OF_MEMORY
        client.send(stream.Limit((1 << 64) - 1))
        made = product(client, storage, storage, elements=data.numel())
        assert client.read(made, 8 * MIB) == bytes((data * data).view(torch.uint8).numpy())
        client.send(stream.Allocate(client.storage(), 250 * MIB))
        told = client.sync()
        assert isinstance(told, stream.Failure) and told.code == FailureCode.OUT_OF_MEMORY


def holdings(folder: Path, pid: int, device: int) -> tuple[int, int, int]:
    """Limit, bytes of tensors, and bytes kept for later ones, as the process told of its allocator last."""
    limit, allocated, cached = (folder / str(pid)).read_text().splitlines()[device].split()
    return int(limit), int(allocated), int(cached)


@pytest.mark.parametrize("device", [STANDIN_PAIR])
def test_each_device_is_held_to_its_part_and_has_all_of_it_back_while_the_session_is_parked(
    start_on_pool: Callable[..., Linked],
    device_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """Both allocators keep what is freed, as CUDA's does."""
    device_environment["FOREBAY_STANDIN_HOLDINGS"] = str(tmp_path)
    worker = start_on_pool("--homes", "scatter")
    client = worker.serve()
    with client.socket:
        data = [torch.rand(MIB) for _ in range(4)]
        storages = [upload(client, tensor) for tensor in data]
        client.send(stream.Free((product(client, *storages[:2], elements=MIB), product(client, *storages[2:], elements=MIB))))
        assert isinstance(client.sync(), stream.Done)
        (other,) = (int(child) for child in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split())
        first, second = (worker.pid, 0), (other, 1)
        assert [holdings(tmp_path, *one)[0] for one in (first, second)] == [PART_BYTES, PART_BYTES]
        worker.drain(client)
        park(worker, 1 << 40, 0)
        assert holdings(tmp_path, *first)[1:] == (0, 0)
        while holdings(tmp_path, *second) != (0, 0, 0):  # it is told, and does not answer
            assert worker.process.poll() is None
        worker.open()
        for tensor, storage in zip(data, storages, strict=True):
            assert client.read(storage, 4 * MIB) == bytes(tensor.view(torch.uint8).numpy())
        assert holdings(tmp_path, *second)[0] == PART_BYTES
    worker.pool.send(messages.End())
    assert worker.process.wait(WAIT_SECONDS_MAX) == 0


@pytest.mark.parametrize("device", [pytest.param(PAIR, marks=pytest.mark.full_sweep), STANDIN_PAIR])
def test_what_one_device_keeps_makes_room_for_a_batch_on_another(start_worker: Callable[..., Any]) -> None:
    """A device has no room beside 60 MiB for 24 MiB of batch and as much of result."""
    client = start_worker().connect()
    with client.socket:
        client.hello()
        large, elements = client.storage(), 6 * MIB
        client.send(stream.Allocate(large, 60 * MIB))
        product(client, large, large, elements=MIB)
        for _ in range(5):
            data = torch.rand(elements)
            batch = upload(client, data)
            made = product(client, batch, batch, elements=elements)
            assert client.read(made, 4 * elements) == bytes((data * data).view(torch.uint8).numpy())
            client.send(stream.Free((batch, made)))
        client.send(stream.TellGang(7))
        told = client.reply()
        assert [one.reason for one in told.alone if one.operator == "aten::mul.Tensor"] == [stream.Alone.NO_BATCH]
        assert told.divided.calls == 3
