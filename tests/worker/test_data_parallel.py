"""A batch that comes again and again is divided among a session's devices: failures, what is read and written meanwhile, and parking."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from devices import PAIR, pair_of
from forebay_wire import messages, stream
from forebay_wire.stream import Argument, Geometry, Output, OutputTag, Tag, Template
from link_to_pool import LIMIT_BYTES, WAIT_SECONDS_MAX
from test_worker_parking import park

aten = torch.ops.aten
ROWS = 8
SQUARE = Geometry(6, (ROWS, ROWS), (ROWS, 1))
TURNED = Geometry(6, (ROWS, ROWS), (1, ROWS))
INDEX = Geometry(4, (ROWS, ROWS), (ROWS, 1))
BYTES = ROWS * ROWS * 4
ROUNDS = 8
"""Until a batch was found, and was divided."""


NEW = Output(OutputTag.NEW, geometry=SQUARE, storage_bytes=BYTES)


class Loop:
    """A program that uploads a batch and indices in each round, and leaves what it made of them in the last one."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.weights = torch.randn(ROWS, ROWS)
        self.held = client.upload(self.weights)
        self.kept: dict[int, torch.Tensor] = {self.held: self.weights}

    def call(self, op: Any, *tensors: tuple[int, Geometry], more: tuple[Argument, ...] = (), output: Output = NEW, words: Any = ()) -> int:
        """Returns the storage of its result, if it makes one."""
        arguments = [Argument(Tag.TENSOR, geometry=geometry) for _, geometry in tensors]
        number = self.client.template(Template(self.client.operator(op), (*arguments, *more), (output,)))
        fresh = (self.client.storage(),) if output.tag == OutputTag.NEW else ()
        self.client.send(stream.Call(number, (*(stream.View(storage) for storage, _ in tensors), *words, *fresh)))
        return fresh[0] if fresh else 0

    def gather(self, source: int, index: int) -> int:
        along = Argument(Tag.INT, integer=1)
        arguments = (Argument(Tag.TENSOR, geometry=SQUARE), along, Argument(Tag.TENSOR, geometry=INDEX), Argument(Tag.BOOL))
        number = self.client.template(Template(self.client.operator(aten.gather.default), arguments, (NEW,)))
        fresh = self.client.storage()
        self.client.send(stream.Call(number, (stream.View(source), stream.View(index), fresh)))
        return int(fresh)

    def round(self, bad: int | None = None) -> dict[int, torch.Tensor]:
        """Values by storage; ``bad``: the row with an index that is out of range, from which on nothing is made."""
        x, index = torch.randn(ROWS, ROWS), torch.randint(0, ROWS, (ROWS, ROWS))
        if bad is not None:
            index[bad, 3] = ROWS
        ours = {self.client.upload(x): x, self.client.upload(index): index}
        batch, indices = ours
        product = self.call(aten.mm.default, (batch, SQUARE), (self.held, SQUARE))
        picked = self.gather(product, indices)
        gradient = self.call(aten.mm.default, (batch, TURNED), (picked, SQUARE))
        ours[product] = x @ self.weights
        if bad is None:
            ours[picked] = ours[product].gather(1, index)
            ours[gradient] = x.t() @ ours[picked]
        same, factor = Output(OutputTag.SAME, same=0), (Argument(Tag.SCALAR_DOUBLE),)
        self.call(aten.add_.Tensor, (self.held, SQUARE), (gradient, SQUARE), more=factor, output=same, words=(0.01,))
        if bad is None:
            self.weights = self.weights + 0.01 * ours[gradient]
        return ours

    def run(self, rounds: int = ROUNDS) -> None:
        """Goes on; what the last round made stays."""
        for number in range(rounds):
            ours = self.round()
            if number < rounds - 1:
                self.client.send(stream.Free(tuple(ours)))
        self.kept = {**ours, self.held: self.weights}

    def check(self, values: dict[int, torch.Tensor] | None = None) -> None:
        for storage, value in (values or {**self.kept, self.held: self.weights}).items():
            geometry = INDEX if value.dtype == torch.int64 else SQUARE
            torch.testing.assert_close(self.client.download(storage, geometry), value, rtol=1e-4, atol=1e-4)


@pytest.fixture
def loop(start_worker: Callable[..., Any], device: str) -> Any:
    client = start_worker(device=pair_of(device)).connect()
    with client.socket:
        client.hello()
        yield Loop(client)


def test_what_devices_hold_together_reads_as_on_one(loop: Loop) -> None:
    loop.run()
    loop.check()
    loop.run(3)
    loop.check()


@pytest.mark.parametrize("device", ["cpu:0"])  # a kernel of the stand-in's that finds a bad index costs the device
@pytest.mark.parametrize("row", [0, ROWS - 1])
def test_a_failure_in_the_rows_of_one_device_is_as_precise_as_on_one(loop: Loop, row: int) -> None:
    loop.run()
    before = loop.kept
    ours = loop.round(bad=row)
    reply = loop.client.sync()
    assert isinstance(reply, stream.Failure)
    assert reply.operator == "aten::gather"
    loop.check(before | ours | {loop.held: loop.weights})
    assert isinstance(loop.client.sync(), stream.Done)
    loop.run(3)
    loop.check()


@pytest.mark.parametrize("device", ["cpu:0"])  # a kernel of the stand-in's that finds a bad index costs the device
@pytest.mark.parametrize("row", [0, ROWS - 1])
def test_a_batch_norm_after_a_failure_that_is_not_known_yet_leaves_its_statistics(loop: Loop, row: int) -> None:
    """The failing call's device, be it the other one, is first heard of in the middle of the batch norm, which several calls make."""
    loop.run()
    channel, count = Geometry(6, (ROWS,), (1,)), ROWS * 4
    batch, indices = list(loop.kept)[:2]
    statistics = {loop.client.upload(torch.full((ROWS,), float(start))): float(start) for start in (0, 1)}
    tensors = (SQUARE, channel, channel)
    arguments = [Argument(Tag.TENSOR, geometry=geometry) for geometry in tensors]
    more = (Argument(Tag.BOOL, flag=True), Argument(Tag.DOUBLE), Argument(Tag.DOUBLE))
    outputs = (NEW, *(Output(OutputTag.NEW, geometry=channel, storage_bytes=count) for _ in range(2)))
    template = Template(
        loop.client.operator(aten.native_batch_norm.default),
        (arguments[0], Argument(Tag.NONE), Argument(Tag.NONE), *arguments[1:], *more),
        outputs,
    )
    number = loop.client.template(template)

    def normalise() -> tuple[int, ...]:
        fresh = tuple(loop.client.storage() for _ in outputs)
        views = (stream.View(storage) for storage in (batch, *statistics))
        loop.client.send(stream.Call(number, (*views, 0.5, 1e-5, *fresh)))
        return fresh

    x = loop.kept[batch]
    mean, variance = torch.zeros(ROWS), torch.ones(ROWS)
    for _ in range(4):
        made = normalise()
        mean, variance = mean.lerp(x.mean(0), 0.5), variance.lerp(x.var(0), 0.5)
    values = dict(zip(statistics, (mean, variance), strict=True))
    result = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(loop.client.download(made[0], SQUARE), result, rtol=1e-4, atol=1e-4)
    bad = loop.kept[indices].clone()
    bad[row, 3] = ROWS
    loop.client.send(stream.Write(indices, 0, bytes(bad.view(torch.uint8).numpy().reshape(-1))))
    assert isinstance(loop.client.sync(), stream.Done)
    loop.gather(batch, indices)
    normalise()
    reply = loop.client.sync()
    assert isinstance(reply, stream.Failure) and reply.operator == "aten::gather"
    for storage, value in values.items():
        torch.testing.assert_close(loop.client.download(storage, channel), value, rtol=1e-4, atol=1e-4)
    loop.check({batch: x})
    made = normalise()
    torch.testing.assert_close(loop.client.download(made[0], SQUARE), result, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu:0"])  # a kernel of the stand-in's that finds a bad index costs the device
@pytest.mark.parametrize("row", [0, ROWS - 1])
def test_what_is_written_by_bad_indices_keeps_its_rows_on_all_devices(loop: Loop, row: int) -> None:
    """In a storage in rows, after a round that wrote to it by good indices."""
    loop.run()
    batch, indices = list(loop.kept)[:2]
    arguments = (Argument(Tag.TENSOR, geometry=SQUARE), Argument(Tag.INT, integer=1), Argument(Tag.TENSOR, geometry=INDEX))
    output = Output(OutputTag.SAME, same=0)
    number = loop.client.template(
        Template(loop.client.operator(aten.scatter_.value), (*arguments, Argument(Tag.SCALAR_DOUBLE)), (output,))
    )
    loop.client.send(stream.Call(number, (stream.View(batch), stream.View(indices), 5.0)))
    loop.kept[batch] = loop.kept[batch].scatter(1, loop.kept[indices], 5.0)
    assert isinstance(loop.client.sync(), stream.Done)
    bad = loop.kept[indices].clone()
    bad[row, 3] = ROWS
    loop.client.send(stream.Write(indices, 0, bytes(bad.view(torch.uint8).numpy().reshape(-1))))
    loop.kept[indices] = bad
    loop.client.send(stream.Call(number, (stream.View(batch), stream.View(indices), 7.0)))
    assert isinstance(loop.client.sync(), stream.Failure)
    loop.check(loop.kept)


def test_what_is_written_and_resized_meanwhile_is_whole(loop: Loop) -> None:
    loop.run()
    for storage, value in loop.kept.items():
        part = torch.full((2, ROWS), 7, dtype=value.dtype)
        data = bytes(part.view(torch.uint8).numpy().reshape(-1))
        loop.client.send(stream.Write(storage, len(data), data))
        value[2:4] = part
    loop.check(loop.kept)
    loop.weights = loop.kept[loop.held]
    larger = next(iter(loop.kept))
    loop.client.send(stream.Resize(larger, 2 * BYTES))
    loop.check(loop.kept)
    assert loop.client.read(larger, BYTES, BYTES) == bytes(BYTES)
    loop.run(3)
    loop.check()


def test_a_session_leaves_for_other_numbers_of_devices_with_what_several_hold_and_is_divided_again(start_on_pool: Any) -> None:
    source, loop, workers = None, None, []
    for devices in (PAIR, "cpu:0", f"{PAIR}+cpu:0", f"{PAIR}+{PAIR}", PAIR):
        worker = start_on_pool(device=devices)
        workers.append(worker)
        worker.assign(source)
        worker.pool.expect(messages.Assigned)
        client = worker.client()
        with client.socket:
            worker.open()
            loop = loop or Loop(client)
            if loop.client is not client:
                client.next_storage, loop.client = loop.client.next_storage, client
                loop.check()
            loop.run()
            loop.check()
            told = work_of(loop)
            assert told.devices == devices.count("cpu:0")
            assert (told.divided.calls > 0) == (told.devices in (2, 4)), "three do not have equal parts of eight rows"
            client.send(stream.Leave(client.request()))
            assert isinstance(client.reply(), stream.Done)
            left = worker.pool.expect(messages.Left)
            source = messages.Source(address=left.address, ticket=left.ticket)
    for worker in workers:
        worker.pool.send(messages.End())
        assert worker.process.wait(WAIT_SECONDS_MAX) == 0


def test_a_session_that_was_parked_is_divided_again(start_on_pool: Any) -> None:
    worker = start_on_pool(device=PAIR)
    client = worker.serve()
    with client.socket:
        loop = Loop(client)
        loop.run()
        before = work_of(loop)
        worker.drain(client)
        park(worker, 0, 1 << 40)
        worker.open()
        loop.check()
        loop.run()
        loop.check()
        assert work_of(loop).divided.calls >= before.divided.calls + 3 * (ROUNDS - 1), "from the first batch on"


INTERRUPTIONS = 8


def interrupt(worker: Any, chance: random.Random) -> None:
    """Takes the lease back again and again, as a budget, maintenance or somebody's want of memory does, and parks in most cases."""

    def hear(kind: type[messages.Message]) -> None:
        while not isinstance(heard := worker.pool.heard.get(timeout=WAIT_SECONDS_MAX), kind):
            assert isinstance(heard, messages.Heartbeat | messages.Starved), heard

    for _ in range(INTERRUPTIONS):
        time.sleep(chance.uniform(0, 0.05))  # of a program that goes on meanwhile
        worker.pool.send(messages.Close(epoch=worker.epoch))
        hear(messages.Closed)
        if chance.random() < 0.7:
            worker.pool.send(messages.Park(host_bytes_max=chance.choice((0, 1 << 40)), spill_bytes_max=1 << 40))
            hear(messages.Parked)
        worker.epoch += 1
        worker.pool.send(messages.Open(epoch=worker.epoch, memory_limit_bytes=LIMIT_BYTES))


def test_a_session_that_loses_its_lease_at_any_moment_computes_what_it_would_have(start_on_pool: Any, full_sweep: bool) -> None:
    for seed in range(40 if full_sweep else 2):
        chance = random.Random(seed)
        worker = start_on_pool(device=chance.choice((PAIR, f"{PAIR}+{PAIR}")))
        client = worker.serve()
        with client.socket, ThreadPoolExecutor(1) as other:
            interruptions = other.submit(interrupt, worker, chance)
            is_over = False
            while not is_over:
                is_over = interruptions.done()
                loop = Loop(client)  # its rounding would grow with its rounds
                loop.run()
                loop.check()
            interruptions.result()
            assert work_of(loop).divided.calls > 0, seed


def work_of(loop: Loop) -> stream.GangWork:
    loop.client.send(stream.TellGang(77))
    reply = loop.client.reply()
    assert isinstance(reply, stream.GangWork) and reply.request == 77
    return reply


def lone(told: stream.GangWork, reason: stream.Alone) -> dict[str, int]:
    """Calls by operator."""
    return {one.operator: one.work.calls for one in told.alone if one.reason == reason}


@pytest.mark.parametrize("device", ["cpu:0", "standin:0"])
def test_calls_are_told_by_who_carried_them_out(loop: Loop) -> None:
    """Of a round two products and a gather are divided, and the weights, which each device has, are added to."""
    loop.run()
    before = work_of(loop)
    assert lone(before, stream.Alone.NO_BATCH).keys() == {"aten::mm", "aten::gather", "aten::add_.Tensor"}
    assert {one.reason for one in before.alone} == {stream.Alone.NO_BATCH}
    loop.run(4)
    after = work_of(loop)
    assert after.devices == 2
    assert (after.divided.calls - before.divided.calls, after.copies.calls - before.copies.calls) == (3 * 4, 4)
    assert after.divided.ns > before.divided.ns and after.copies.ns > before.copies.ns
    assert after.alone == before.alone


@pytest.mark.parametrize("device", ["cpu:0", pytest.param("standin:0", marks=pytest.mark.full_sweep)])
def test_what_runs_alone_is_told_with_its_reason(loop: Loop) -> None:
    loop.run()
    ours = loop.round()
    batch = next(iter(ours))
    along = (Argument(Tag.INT, integer=0), Argument(Tag.BOOL))
    made = loop.call(aten._softmax.default, (batch, SQUARE), more=along)
    torch.testing.assert_close(loop.client.download(made, SQUARE), ours[batch].softmax(0))
    told = work_of(loop)
    assert lone(told, stream.Alone.NO_RULE) == {"aten::_softmax": 1}
    (softmax,) = (one for one in told.alone if one.reason == stream.Alone.NO_RULE)
    assert softmax.work.ns > 0


def test_what_runs_alone_for_want_of_room_or_of_sizes_or_where_it_is_kept_is_told_with_that(loop: Loop) -> None:
    """Each of two devices has 128 MiB: a table of 120 MiB is kept by one, and a batch that is looked up in it needs it on both."""
    loop.run()
    asked = Template(loop.client.operator(aten.nonzero.default), (Argument(Tag.TENSOR, geometry=SQUARE),), (Output(OutputTag.UNKNOWN),))
    number, first = loop.client.template(asked), loop.client.storage()
    loop.client.send(stream.Ask(loop.client.request(), first, number, (stream.View(loop.held),)))
    assert isinstance(loop.client.reply(), stream.Outputs)
    table, total = loop.client.storage(), Output(OutputTag.NEW, geometry=Geometry(6, (), ()), storage_bytes=4)
    loop.client.send(stream.Allocate(table, 120 << 20), stream.Write(table, 0, bytes(4)))
    along = (Argument(Tag.INT_LIST, list=(0,)), Argument(Tag.BOOL), Argument(Tag.NONE))
    loop.call(aten.sum.dim_IntList, (table, Geometry(6, (30 << 20,), (1,))), more=along, output=total)
    assert lone(work_of(loop), stream.Alone.KEPT) == {"aten::sum.dim_IntList": 1}
    rows = Output(OutputTag.NEW, geometry=Geometry(6, (ROWS, 4), (4, 1)), storage_bytes=16 * ROWS)
    lookup = tuple(Argument(Tag.TENSOR, geometry=geometry) for geometry in (Geometry(6, (30 << 18, 4), (4, 1)), Geometry(4, (ROWS,), (1,))))
    select = Template(loop.client.operator(aten.index_select.default), (lookup[0], Argument(Tag.INT, integer=0), lookup[1]), (rows,))
    number = loop.client.template(select)
    for _ in range(3):
        batch, found = loop.client.upload(torch.randint(0, ROWS, (ROWS,))), loop.client.storage()
        loop.client.send(stream.Call(number, (stream.View(table), stream.View(batch), found)))
        loop.client.send(stream.Free((batch, found)))
    loop.check()
    told = work_of(loop)
    assert lone(told, stream.Alone.SIZES) == {"aten::nonzero": 1}
    assert lone(told, stream.Alone.NO_ROOM) == {"aten::index_select": 1}, "the third upload was a batch"


def test_a_session_of_one_device_tells_of_no_other(start_worker: Callable[..., Any]) -> None:
    client = start_worker().connect()
    with client.socket:
        client.hello()
        alone = Loop(client)
        alone.run(2)
        told = work_of(alone)
    assert (told.devices, told.divided.calls, told.copies.calls, told.alone) == (1, 0, 0, ())
