"""A failed call poisons what it would have made, and nothing else; the memory limit holds, and the session goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    """A gather whose index is out of range; returns (its result's storage, a good input's)."""
    arguments = (Argument(Tag.TENSOR, geometry=FOUR), Argument(Tag.INT), Argument(Tag.TENSOR, geometry=FOUR_INDICES), Argument(Tag.BOOL))
    output = Output(OutputTag.NEW, geometry=FOUR, storage_bytes=16)
    number = client.template(Template(client.operator(aten.gather.default), arguments, (output,)))
    good = client.upload(torch.ones(4))
    index = client.upload(torch.tensor([0, 1, 99, 2]))
    new = client.storage()
    client.send(stream.Call(number, (stream.View(good), stream.View(index), new)))
    return new, good


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


def test_a_failure_is_told_once_by_the_next_sync_with_its_sequence(client: Any) -> None:
    add(client, client.upload(torch.ones(4)), client.upload(torch.ones(4)))
    failing_gather(client)
    reply = client.sync()
    assert isinstance(reply, stream.Failure)
    assert (reply.code, reply.sequence, reply.operator) == (FailureCode.OPERATOR, 1, "aten::gather")
    assert "index 99 is out of bounds" in reply.message
    assert isinstance(client.sync(), stream.Done)


def test_a_failure_shows_no_address_of_the_worker(client: Any) -> None:
    told = failure_that_says(client, "<Object at 0x7f12Ab34cd56>, 0x0,0x and 0xyz; 0x1")
    assert "but got <Object at an address>, an address,0x and 0xyz; an address." in told


def test_what_comes_of_a_failure_is_poisoned_and_the_rest_is_good(client: Any) -> None:
    bad, good = failing_gather(client)
    worse = add(client, bad, good)
    fine = add(client, good, good)
    first = read(client, fine)
    assert isinstance(first, stream.Failure) and first.code == FailureCode.OPERATOR
    data = read(client, fine)
    assert isinstance(data, stream.Data)
    assert torch.frombuffer(bytearray(data.data), dtype=torch.float32).tolist() == [2.0] * 4
    for storage in (bad, worse):
        reply = read(client, storage)
        assert isinstance(reply, stream.Failure)
        assert (reply.code, reply.sequence, reply.operator) == (FailureCode.POISONED, 0, "aten::gather")
        assert "index 99 is out of bounds" in reply.message
    client.send(stream.Free((bad, worse, fine)))
    assert isinstance(client.sync(), stream.Done)


def test_writing_a_poisoned_value_poisons_what_it_is_written_to(client: Any) -> None:
    bad, good = failing_gather(client)
    assert isinstance(client.sync(), stream.Failure)
    target = client.upload(torch.ones(4))
    add_in_place(client, target, bad)
    reply = client.sync()
    assert isinstance(reply, stream.Failure) and (reply.code, reply.sequence) == (FailureCode.POISONED, 0)
    reply = read(client, target)
    assert isinstance(reply, stream.Failure) and reply.code == FailureCode.POISONED
    assert isinstance(read(client, good), stream.Data)


def test_a_failing_list_operator_poisons_all_it_writes_to(client: Any) -> None:
    tensors = [client.upload(torch.ones(4)) for _ in range(2)]
    item = Argument(Tag.TENSOR, geometry=FOUR)
    three = Argument(Tag.TENSOR, geometry=Geometry(6, (3,), (1,)))
    arguments = (Argument(Tag.TENSOR_LIST, items=(item, item)), Argument(Tag.TENSOR_LIST, items=(item, three)), Argument(Tag.SCALAR_INT))
    number = client.template(Template(client.operator(aten._foreach_add_.List), arguments, ()))
    views = [stream.View(tensor) for tensor in tensors]
    other = stream.View(client.upload(torch.ones(4)))
    client.send(stream.Call(number, (*views, other, other, 1)))
    assert isinstance(client.sync(), stream.Failure)
    for tensor in tensors:
        reply = read(client, tensor)
        assert isinstance(reply, stream.Failure) and reply.code == FailureCode.POISONED


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


def test_a_question_after_a_failure_is_not_carried_out_but_tells_it(client: Any) -> None:
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


def test_too_large_an_allocation_says_what_to_do_and_the_session_goes_on(start_worker: Callable[..., Any]) -> None:
    client = start_worker(memory_bytes=16 * MIB).connect()
    with client.socket:
        client.hello()
        small, large = client.storage(), client.storage()
        client.send(stream.Allocate(small, 6 * MIB), stream.Allocate(large, 12 * MIB))
        reply = client.sync()
        assert isinstance(reply, stream.Failure) and reply.code == FailureCode.OUT_OF_MEMORY
        assert reply.message == (
            "out of memory: 12.00 MiB requested, 6.00 MiB in use, 10.00 MiB available of this virtual device's limit of 16.00 MiB; "
            "free tensors or choose a larger flavor with `forebay flavor set`"
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


def test_results_and_temporaries_count_against_the_limit(start_worker: Callable[..., Any]) -> None:
    client = start_worker(memory_bytes=16 * MIB).connect()
    with client.socket:
        client.hello()
        fill(client, 3 * MIB)
        assert isinstance(client.sync(), stream.Done)
        fill(client, 3 * MIB)
        reply = client.sync()
        assert isinstance(reply, stream.Failure) and reply.code == FailureCode.OUT_OF_MEMORY
        assert "12.00 MiB requested, 12.00 MiB in use, 4.00 MiB available" in reply.message


def test_a_prediction_that_lies_gets_no_more_memory(start_worker: Callable[..., Any]) -> None:
    """The template says four elements, the operator would make a terabyte."""
    client = start_worker(memory_bytes=16 * MIB).connect()
    with client.socket:
        client.hello()
        fill(client, 1 << 38, predicted=4)
        reply = client.sync()
        assert isinstance(reply, stream.Failure) and reply.code == FailureCode.OUT_OF_MEMORY
        assert "1.00 TiB requested" in reply.message
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
