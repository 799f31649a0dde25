"""One session on several devices: together they hold what none of them could, and they end together."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay_wire import stream
from forebay_wire.stream import Argument, Geometry, Output, OutputTag, Tag, Template
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

aten = torch.ops.aten
MIB = 1 << 20
GONE_SECONDS_MAX = 15
DEATH_SECONDS_MAX = 0.5
ELEMENTS = 8


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    until = time.monotonic() + GONE_SECONDS_MAX
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return not Path(f"/proc/{pid}").exists()


def check_same(ours: tuple[Any, Any]) -> None:
    here, there = ours
    assert len(here) == len(there)
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one, other)


def test_devices_together_hold_what_none_of_them_holds(start_worker: Callable[..., Any]) -> None:
    """Nine tenths of four devices of 16 MiB, in storages of 3 MiB, each computed with."""
    worker = start_worker(device="cpu:0,cpu:0,cpu:0,cpu:0", memory_bytes=64 * MIB)
    client = worker.connect()
    with client.socket:
        client.hello()
        tensors = [torch.full((3 * MIB // 4,), float(index)) for index in range(19)]
        storages = []
        for tensor in tensors:
            storages.append(client.upload(tensor))
            assert isinstance(client.sync(), stream.Done)
        for tensor, storage in zip(tensors, storages, strict=True):
            assert client.read(storage, 3 * MIB) == bytes(tensor.numpy().view("uint8"))


@pytest.mark.parametrize("device", ["cpu:0,cpu:0,cpu:0"])
def test_operators_of_lists_take_each_item_where_it_lies(start_worker: Callable[..., Any], device: str) -> None:
    """Bit for bit as on one device: with lists, scalars, lists of scalars, results, and what is written in place."""
    torch.manual_seed(0)
    client = start_worker().connect()
    with client.socket:
        client.hello()
        lists = [[torch.randn(5 + index) for index in range(11)] for _ in range(4)]
        for _ in range(3):
            check_same(client.run(aten._foreach_add.List, lists[0], lists[1], alpha=2))
            check_same(client.run(aten._foreach_mul_.Scalar, lists[0], 0.5))
            check_same(client.run(aten._foreach_addcdiv_.ScalarList, lists[0], lists[1], lists[2], [0.1 * index for index in range(11)]))
            check_same(client.run(aten._foreach_norm.Scalar, lists[3], 2))
            check_same(client.run(aten._foreach_lerp_.Scalar, lists[1], lists[2], 0.3))
        steps = [torch.tensor(float(index)) for index in range(1, 12)]
        rates = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False, "maximize": False}
        check_same(client.run(aten._fused_adamw_.default, *lists[:3], [tensor.abs() for tensor in lists[3]], [], steps, **rates))


@pytest.mark.parametrize("device", ["cpu:0,cpu:0"])
def test_each_device_computes_under_the_default_dtype_of_a_call(start_worker: Callable[..., Any], device: str) -> None:
    client = start_worker().connect()
    lists = [torch.arange(1, 9), torch.arange(1, 9)], [torch.arange(2, 10), torch.arange(3, 11)]
    try:
        with client.socket:
            client.hello()
            for dtype in (torch.float32, torch.float64, torch.float32):
                torch.set_default_dtype(dtype)
                check_same(client.run(aten._foreach_div.List, *lists))
                check_same(client.run(aten.sqrt.default, lists[0][0]))
    finally:
        torch.set_default_dtype(torch.float32)


SQUARE = Geometry(6, (ELEMENTS, ELEMENTS), (ELEMENTS, 1))
INDEX = Geometry(4, (1,), (1,))
SQUARE_BYTES = ELEMENTS * ELEMENTS * 4


def call(client: Any, op: Any, output: Output, *views: int, scalars: tuple[int, ...] = ()) -> int:
    """An operator of square matrices; returns the storage of its result, if it makes one."""
    arguments = (*(Argument(Tag.TENSOR, geometry=SQUARE) for _ in views), *(Argument(Tag.SCALAR_INT) for _ in scalars))
    number = client.template(Template(client.operator(op), arguments, (output,)))
    fresh = (client.storage(),) if output.tag == OutputTag.NEW else ()
    client.send(stream.Call(number, (*(stream.View(view) for view in views), *scalars, *fresh)))
    return fresh[0] if fresh else 0


def fail(client: Any, source: int) -> None:
    """A gather of an index that is out of range."""
    part = Geometry(6, (1,), (1,))
    arguments = (Argument(Tag.TENSOR, geometry=part), Argument(Tag.INT), Argument(Tag.TENSOR, geometry=INDEX), Argument(Tag.BOOL))
    output = Output(OutputTag.NEW, geometry=part, storage_bytes=4)
    number = client.template(Template(client.operator(aten.gather.default), arguments, (output,)))
    index = client.upload(torch.tensor([99]))
    client.send(stream.Call(number, (stream.View(source), stream.View(index), client.storage())))


NEW = Output(OutputTag.NEW, geometry=SQUARE, storage_bytes=SQUARE_BYTES)
SAME = Output(OutputTag.SAME, same=0)


@pytest.mark.parametrize("device", ["cpu:0,cpu:0"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_programs_with_failures_leave_what_one_device_leaves(client: Any, device: str, data: st.DataObject) -> None:
    """What comes after a failure has no effect until the program has heard of it, on whichever device it would have run."""
    made = [torch.randn(ELEMENTS, ELEMENTS) for _ in range(4)]
    storages = [client.upload(tensor) for tensor in made]
    stopped = False
    for _ in range(data.draw(st.integers(3, 16))):
        target, source = data.draw(st.permutations(range(4)))[:2]
        match data.draw(st.sampled_from(["add", "add", "product", "product", "fail", "listen"])):
            case "listen":
                assert isinstance(client.sync(), stream.Failure if stopped else stream.Done)
                stopped = False
            case "fail":
                fail(client, storages[source])
                stopped = True
            case "add":
                call(client, aten.add_.Tensor, SAME, storages[target], storages[source], scalars=(1,))
                if not stopped:
                    made[target] = made[target] + made[source]
            case "product":
                fresh = call(client, aten.mm.default, NEW, storages[target], storages[source])
                if not stopped:
                    storages[target], made[target] = fresh, made[target] @ made[source]
    client.sync()
    for storage, tensor in zip(storages, made, strict=True):
        assert client.read(storage, SQUARE_BYTES) == bytes(tensor.numpy().view("uint8").reshape(-1))


def test_a_device_whose_process_ends_ends_the_session_with_one_sentence(start_worker: Callable[..., Any]) -> None:
    worker = start_worker(device="cpu:0,cpu:0", python=sys.executable)
    client = worker.connect()
    with client.socket:
        client.hello()
        client.run(aten.mm.default, torch.ones(4, 4), torch.ones(4, 4))
        (other,) = children_of(worker.process.pid)
        os.kill(other, signal.SIGKILL)
        client.send(*(stream.Allocate(client.storage(), 16) for _ in range(4)))
        for _ in range(4):
            client.upload(torch.ones(4))
        client.send(stream.Sync(client.request()))
        reply = client.reply()
        assert reply == stream.Refused("device 2 of this session has ended", goes_on=True)
        assert worker.process.wait(GONE_SECONDS_MAX) == 1


def test_a_client_that_waits_for_nothing_hears_that_a_device_has_ended(start_worker: Callable[..., Any]) -> None:
    worker = start_worker(device="cpu:0,cpu:0,cpu:0", python=sys.executable)
    client = worker.connect()
    with client.socket:
        client.hello()
        assert isinstance(client.sync(), stream.Done)
        os.kill(children_of(worker.process.pid)[1], signal.SIGKILL)
        assert re.fullmatch("device [23] of this session has ended", client.reply().message)
        assert worker.process.wait(GONE_SECONDS_MAX) == 1


def train(client: Any, chance: random.Random) -> None:
    """Products and sums of what is read and kept now and then, for as long as the worker lives."""
    storages = [client.upload(torch.randn(ELEMENTS, ELEMENTS)) for _ in range(8)]
    while True:
        target, source = chance.sample(range(8), 2)
        match chance.choice(["add", "product", "product", "read", "upload"]):
            case "add":
                call(client, aten.add_.Tensor, SAME, storages[target], storages[source], scalars=(1,))
            case "product":
                storages[target] = call(client, aten.mm.default, NEW, storages[target], storages[source])
            case "read":
                client.read(storages[source], SQUARE_BYTES)
            case "upload":
                storages[target] = client.upload(torch.randn(ELEMENTS, ELEMENTS))


def test_a_device_that_ends_at_any_moment_ends_all_in_time_and_leaves_nothing(start_worker: Callable[..., Any], full_sweep: bool) -> None:
    """The first one's process, or another device's, while a program runs."""
    for seed in range(200 if full_sweep else 2):
        chance = random.Random(seed)
        worker = start_worker(device="cpu:0,cpu:0,cpu:0" if chance.random() < 0.5 else "cpu:0+cpu:0", python=sys.executable)
        processes = [worker.process.pid, *children_of(worker.process.pid)]
        victim = chance.choice(processes)
        client = worker.connect()
        with client.socket:
            client.hello()
            death = threading.Timer(chance.random() * DEATH_SECONDS_MAX, os.kill, (victim, signal.SIGKILL))
            death.start()
            client.socket.settimeout(GONE_SECONDS_MAX)
            with pytest.raises((OSError, AssertionError, AttributeError)) as ended:
                train(client, chance)
            assert not isinstance(ended.value, TimeoutError), seed
        assert worker.process.wait(GONE_SECONDS_MAX) in (1, -signal.SIGKILL), seed
        assert all(gone(process) for process in processes[1:]), seed
        death.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_leaves_no_process_of_another_device(start_worker: Callable[..., Any], number: signal.Signals) -> None:
    worker = start_worker(device="cpu:0,cpu:0,cpu:0", python=sys.executable)
    others = children_of(worker.process.pid)
    assert len(others) == 2
    os.kill(worker.process.pid, number)
    worker.process.wait(GONE_SECONDS_MAX)
    assert all(gone(other) for other in others)
