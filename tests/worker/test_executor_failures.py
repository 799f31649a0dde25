"""From a failed command on nothing takes effect until the client has heard of it; the memory limit holds, and the session goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from forebay_wire import stream
from forebay_wire.stream import Argument, FailureCode, Geometry, Output, OutputTag, Tag, Template

aten = torch.ops.aten
FOUR = Geometry(6, (4,), (1,))
FOUR_INDICES = Geometry(4, (4,), (1,))
ONE = Geometry(6, (1,), (1,))
ONE_INDEX = Geometry(4, (1,), (1,))
MIB = 1 << 20


def failing_gather(client: Any, first: bool = True) -> tuple[int, int]:
    """A gather of an index out of range, or of a wrong dtype where that costs the device; returns (its result, a good input)."""
    indices = FOUR_INDICES if client.device == "cpu:0" else FOUR
    arguments = (Argument(Tag.TENSOR, geometry=FOUR), Argument(Tag.INT), Argument(Tag.TENSOR, geometry=indices), Argument(Tag.BOOL))
    output = Output(OutputTag.NEW, geometry=FOUR, storage_bytes=16)
    number = client.template(Template(client.operator(aten.gather.default), arguments, (output,)))
    good = client.upload(torch.ones(4))
    index = client.upload(torch.tensor([0, 1, 99, 2]))
    new = client.storage()
    client.send(stream.Call(number, (stream.View(good), stream.View(index), new)))
    return new, good


def why_gather_fails(client: Any) -> str:
    return "index 99 is out of bounds" if client.device == "cpu:0" else "Expected dtype int32/int64 for index"


def failure_that_says(client: Any, text: str) -> str:
    """PyTorch's sentence on a reduction of this name, as the worker tells it."""
    whole, index, part = (Argument(Tag.TENSOR, geometry=geometry) for geometry in (FOUR, ONE_INDEX, ONE))
    arguments = (whole, Argument(Tag.INT), index, part, Argument(Tag.STRING, text=text), Argument(Tag.BOOL))
    number = client.template(Template(client.operator(aten.index_reduce_.default), arguments, (Output(OutputTag.SAME, same=0),)))
    views = [stream.View(client.upload(tensor)) for tensor in (torch.ones(4), torch.tensor([0]), torch.ones(1))]
    client.send(stream.Call(number, tuple(views)))
    reply = client.sync()
    assert isinstance(reply, stream.Failure), reply
    return reply.message


def add(client: Any, one: int, other: int) -> int:
    arguments = (Argument(Tag.TENSOR, geometry=FOUR), Argument(Tag.TENSOR, geometry=FOUR), Argument(Tag.SCALAR_INT))
    output = Output(OutputTag.NEW, geometry=FOUR, storage_bytes=16)
    number = client.template(Template(client.operator(aten.add.Tensor), arguments, (output,)))
    new: int = client.storage()
    client.send(stream.Call(number, (stream.View(one), stream.View(other), 1, new)))
    return new


def add_in_place(client: Any, one: int, other: int) -> None:
    arguments = (Argument(Tag.TENSOR, geometry=FOUR), Argument(Tag.TENSOR, geometry=FOUR), Argument(Tag.SCALAR_INT))
    number = client.template(Template(client.operator(aten.add_.Tensor), arguments, (Output(OutputTag.SAME, same=0),)))
    client.send(stream.Call(number, (stream.View(one), stream.View(other), 1)))


def read(client: Any, storage: int) -> stream.Reply:
    client.send(stream.Read(client.request(), storage, 0, 16))
    reply: stream.Reply = client.reply()
    return reply


def floats(client: Any, storage: int) -> list[float]:
    return torch.frombuffer(bytearray(client.read(storage, 16)), dtype=torch.float32).tolist()


def test_a_failure_is_told_by_the_next_sync_with_its_sequence(client: Any) -> None:
    add(client, client.upload(torch.ones(4)), client.upload(torch.ones(4)))
    failing_gather(client)
    reply = client.sync()
    assert isinstance(reply, stream.Failure)
    assert (reply.code, reply.sequence, reply.operator) == (FailureCode.OPERATOR, 1, "aten::gather")
    assert why_gather_fails(client) in reply.message
    assert isinstance(client.sync(), stream.Done)


def test_a_failure_shows_no_address_of_the_worker(client: Any) -> None:
    told = failure_that_says(client, "<Object at 0x7f12Ab34cd56>, 0x0,0x and 0xyz; 0x1")
    assert "but got <Object at an address>, an address,0x and 0xyz; an address." in told


def test_a_failure_is_announced_before_anybody_asks(client: Any) -> None:
    failing_gather(client)
    told = client.sync()
    assert [(notice.request, notice.number, notice.message) for notice in client.notices] == [(0, 1, told.message)]
    assert told.number == 1


@pytest.mark.everywhere
def test_nothing_takes_effect_from_a_failure_on_until_the_client_has_heard(client: Any) -> None:
    client.hears = False
    kept, grown, freed = (client.upload(torch.ones(4)) for _ in range(3))
    bad, good = failing_gather(client)
    add_in_place(client, kept, good)
    worse, fine = add(client, bad, good), add(client, good, good)
    late = client.upload(torch.ones(4))
    client.send(stream.Write(kept, 0, bytes(16)), stream.Copy(kept, 0, freed, 0, 8), stream.Free((freed,)))
    client.send(stream.Resize(grown, 32), stream.Resize(kept, 8))
    for _ in range(2):
        told = client.sync()
        assert isinstance(told, stream.Failure) and (told.number, told.sequence) == (1, 0)
    assert isinstance(read(client, kept), stream.Failure), "nobody has heard of it yet"
    client.send(stream.Heard(1))
    assert floats(client, kept) == floats(client, good) == [1.0] * 4
    assert client.read(grown, 32)[16:] == bytes(16)
    for storage in (bad, worse, fine, late):
        reply = read(client, storage)
        assert isinstance(reply, stream.Failure)
        assert (reply.number, reply.code, reply.sequence, reply.operator) == (0, FailureCode.NEVER_MADE, 0, "aten::gather")
        assert why_gather_fails(client) in reply.message
    assert floats(client, add(client, kept, good)) == [2.0] * 4
    client.send(stream.Free((bad, worse, fine, late)))
    assert isinstance(client.sync(), stream.Done)


def test_only_the_number_of_the_last_failure_lets_the_stream_go_on(client: Any) -> None:
    client.hears = False
    _, good = failing_gather(client)
    assert isinstance(client.sync(), stream.Failure)
    client.send(stream.Heard(0))
    assert isinstance(client.sync(), stream.Failure)
    client.send(stream.Heard(1), stream.Heard(1))
    failing_gather(client)
    client.send(stream.Heard(1))
    told = client.sync()
    assert isinstance(told, stream.Failure) and told.number == 2
    client.send(stream.Heard(2))
    assert floats(client, add(client, good, good)) == [2.0] * 4
    client.send(stream.Heard(3))
    assert isinstance(client.reply(), stream.Refused), "a failure that has not been"


@pytest.mark.parametrize("use", ["input", "target", "upload", "copy"])
def test_a_command_that_uses_what_was_never_made_fails_for_the_same_reason(client: Any, use: str) -> None:
    bad, good = failing_gather(client)
    assert isinstance(client.sync(), stream.Failure)
    target = client.upload(torch.ones(4))
    if use == "input":
        add_in_place(client, target, bad)
    elif use == "target":
        add_in_place(client, bad, good)
    elif use == "upload":
        client.send(stream.Write(bad, 0, bytes(16)))
    else:
        client.send(stream.Copy(target, 0, bad, 0, 16))
    add_in_place(client, target, good)
    reply = client.sync()
    assert isinstance(reply, stream.Failure) and (reply.number, reply.code, reply.sequence) == (2, FailureCode.NEVER_MADE, 0)
    assert floats(client, target) == [1.0] * 4, "and so does what came after"


def test_a_result_of_another_kind_than_predicted_is_a_failure(client: Any) -> None:
    a = client.upload(torch.ones(4))
    for geometry in (Geometry(11, (4,), (1,)), Geometry(6, (2,), (1,))):
        output = Output(OutputTag.NEW, geometry=geometry, storage_bytes=64)
        number = client.template(Template(client.operator(aten.neg.default), (Argument(Tag.TENSOR, geometry=FOUR),), (output,)))
        new = client.storage()
        client.send(stream.Call(number, (stream.View(a), new)))
        reply = client.sync()
        assert isinstance(reply, stream.Failure) and reply.code == FailureCode.GEOMETRY
        assert "not what the client predicted" in reply.message
        assert isinstance(read(client, new), stream.Failure)


@pytest.mark.everywhere
def test_an_operator_cannot_resize_what_it_writes_to(client: Any) -> None:
    """`out` is smaller than the result: PyTorch would grow its storage behind the session's back."""
    small = Geometry(6, (2,), (1,))
    tensor = Argument(Tag.TENSOR, geometry=FOUR)
    arguments = (tensor, tensor, Argument(Tag.SCALAR_INT), Argument(Tag.TENSOR, geometry=small))
    number = client.template(Template(client.operator(aten.add.out), arguments, (Output(OutputTag.SAME, same=2),)))
    a, out = client.upload(torch.ones(4)), client.upload(torch.ones(2))
    client.send(stream.Call(number, (stream.View(a), stream.View(a), 1, stream.View(out))))
    reply = client.sync()
    assert isinstance(reply, stream.Failure)
    assert "resiz" in reply.message
    assert isinstance(read(client, a), stream.Data)


def test_a_kernel_that_this_worker_lacks_is_told_as_such(client: Any) -> None:
    complex_numbers = Geometry(9, (4,), (1,))
    output = Output(OutputTag.NEW, geometry=complex_numbers, storage_bytes=32)
    number = client.template(Template(client.operator(aten.lgamma.default), (Argument(Tag.TENSOR, geometry=complex_numbers),), (output,)))
    client.send(stream.Call(number, (stream.View(client.upload(torch.ones(4, dtype=torch.complex64))), client.storage())))
    reply = client.sync()
    assert isinstance(reply, stream.Failure) and reply.code == FailureCode.UNSUPPORTED
    assert "not implemented for 'ComplexFloat'" in reply.message


def test_a_question_after_a_failure_is_not_carried_out_but_tells_of_it(client: Any) -> None:
    _, good = failing_gather(client)
    number = client.template(
        Template(client.operator(aten.nonzero.default), (Argument(Tag.TENSOR, geometry=FOUR),), (Output(OutputTag.UNKNOWN),))
    )
    question = [stream.Ask(client.request(), 900 + 10 * index, number, (stream.View(good),)) for index in range(2)]
    client.send(question[0])
    reply = client.reply()
    assert isinstance(reply, stream.Failure) and reply.sequence == 0 and reply.request == question[0].request
    client.send(question[1])
    assert isinstance(client.reply(), stream.Outputs)


@pytest.mark.one_device
def test_too_large_an_allocation_says_what_to_do_and_the_session_goes_on(start_worker: Callable[..., Any]) -> None:
    client = start_worker(memory_bytes=16 * MIB).connect()
    with client.socket:
        client.hello()
        small, large = client.storage(), client.storage()
        client.send(stream.Allocate(small, 6 * MIB), stream.Allocate(large, 12 * MIB))
        reply = client.sync()
        assert isinstance(reply, stream.Failure) and reply.code == FailureCode.OUT_OF_MEMORY
        assert reply.message == (
            "CUDA out of memory. Tried to allocate 12.00 MiB: 6.00 MiB are in use, 10.00 MiB available of this virtual device's limit "
            "of 16.00 MiB; "
            "free tensors, or choose a larger flavor with `%flavor NAME` in a notebook, FOREBAY_FLAVOR for a program"
        )
        client.send(stream.Free((small, large)), stream.Allocate(small, 12 * MIB), stream.Write(small, 0, b"fits"))
        assert client.read(small, 4) == b"fits"


def fill(client: Any, elements: int, predicted: int | None = None) -> int:
    geometry = Geometry(6, (predicted or elements,), (1,))
    arguments = (Argument(Tag.TENSOR, geometry=Geometry(6, (1,), (1,))), Argument(Tag.INT_LIST, list=(elements,)), Argument(Tag.BOOL))
    output = Output(OutputTag.NEW, geometry=geometry, storage_bytes=geometry.span() * 4)
    number = client.template(Template(client.operator(aten.expand_copy.default), arguments, (output,)))
    one, new = client.upload(torch.ones(1)), client.storage()
    client.send(stream.Call(number, (stream.View(one), new)))
    return int(new)


@pytest.mark.everywhere
@pytest.mark.one_device
def test_results_and_temporaries_count_against_the_limit(start_worker: Callable[..., Any]) -> None:
    client = start_worker(memory_bytes=16 * MIB).connect()
    with client.socket:
        client.hello()
        fill(client, 3 * MIB)
        assert isinstance(client.sync(), stream.Done)
        fill(client, 3 * MIB)
        reply = client.sync()
        assert isinstance(reply, stream.Failure) and reply.code == FailureCode.OUT_OF_MEMORY
        assert "Tried to allocate 12.00 MiB: 12.00 MiB are in use, 4.00 MiB available" in reply.message


@pytest.mark.everywhere
def test_a_prediction_that_lies_gets_no_more_memory(start_worker: Callable[..., Any]) -> None:
    """The template says four elements, the operator would make a terabyte."""
    client = start_worker(memory_bytes=16 * MIB).connect()
    with client.socket:
        client.hello()
        fill(client, 1 << 38, predicted=4)
        reply = client.sync()
        assert isinstance(reply, stream.Failure) and reply.code == FailureCode.OUT_OF_MEMORY
        assert re.search(r"Tried to allocate (1.00 TiB|1024.00 GiB|1048576 MiB)", reply.message), reply.message
        fill(client, 4)
        assert isinstance(client.sync(), stream.Done)


def test_a_null_device_keeps_books_without_memory_or_arithmetic(start_worker: Callable[..., Any]) -> None:
    client = start_worker(device="null:0", memory_bytes=1 << 40).connect()
    with client.socket:
        welcome = client.hello()
        assert isinstance(welcome, stream.Welcome) and welcome.device_kind == "null"
        storage = client.storage()
        client.send(stream.Allocate(storage, 1 << 39), stream.Write(storage, 0, b"something"))
        assert client.read(storage, 9) == bytes(9)
        one = client.upload(torch.ones(4))
        total = add(client, one, one)
        assert client.read(total, 16) == bytes(16)
        large = fill(client, 1 << 37)
        reply = client.sync()
        assert isinstance(reply, stream.Failure) and reply.code == FailureCode.OUT_OF_MEMORY
        assert isinstance(read(client, large), stream.Failure)
        client.send(stream.Free((storage, total, large)))
        fill(client, 1 << 37)
        assert isinstance(client.sync(), stream.Done)
