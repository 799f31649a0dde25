"""Calls that came before come again in a few bytes, and do what the calls in full would have done."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from forebay_wire import stream
from forebay_wire.stream import Argument, Geometry, Output, OutputTag, Tag, Template

aten = torch.ops.aten
FOUR = Geometry(6, (4,), (1,))
TENSOR = Argument(Tag.TENSOR, geometry=FOUR)
NEW = Output(OutputTag.NEW, geometry=FOUR, storage_bytes=16)
INPUT, OTHER = 1, 2


def floats(data: bytes) -> tuple[float, ...]:
    return struct.unpack("<4f", data)


def bits(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")


def begin(client: Any) -> tuple[int, int]:
    """Two inputs, and the numbers of two templates: ``mul(tensor, number)`` and ``neg_``."""
    for storage, value in ((INPUT, 1.0), (OTHER, 10.0)):
        client.writer.add(stream.Allocate(storage, 16))
        client.writer.add(stream.Write(storage, 0, struct.pack("<4f", *[value] * 4)))
    mul = client.template(Template(client.operator(aten.mul.Tensor), (TENSOR, Argument(Tag.SCALAR_TENSOR, dtype=7, flag=True)), (NEW,)))
    neg = client.template(Template(client.operator(aten.neg_.default), (TENSOR,), (Output(OutputTag.SAME),)))
    return mul, neg


def segment(mul: int, neg: int, first: int) -> list[stream.Command]:
    """A scratch result that is freed, and one that stays: ``first + 1``."""
    return [
        stream.Call(mul, (stream.View(INPUT), 2.0, first)),
        stream.Call(mul, (stream.View(first), 3.0, first + 1)),
        stream.Free((first,)),
        stream.Call(neg, (stream.View(first + 1),)),
    ]


def test_a_segment_comes_again_with_new_storages_and_frees(client: Any) -> None:
    mul, neg = begin(client)
    client.send(*segment(mul, neg, 3), stream.Cut(), stream.Follow(3), stream.Cut(), stream.Step(1), stream.Follow(2))
    for result in (4, 6, 8):
        assert floats(client.read(result, 16)) == (-6.0,) * 4
    client.send(*[stream.Write(scratch, 0, bytes(16)) for scratch in (5,)])
    assert "storage 5 does not exist" in client.reply().message, "the scratch result was not freed"


def test_a_step_comes_with_another_number_and_another_input(client: Any) -> None:
    mul, neg = begin(client)
    other = (stream.Change(0, OTHER), stream.Change(2, bits(5.0)))
    client.send(*segment(mul, neg, 3), stream.Cut(), stream.Step(None, other), stream.Follow(2), stream.Cut(), stream.Follow(3))
    assert floats(client.read(6, 16)) == (-150.0,) * 4
    assert floats(client.read(8, 16)) == (-150.0,) * 4, "what came last is what is expected"


def test_a_segment_branches_where_the_program_did(client: Any) -> None:
    mul, neg = begin(client)
    head = stream.Call(mul, (stream.View(INPUT), 2.0, 5))
    client.send(*segment(mul, neg, 3), stream.Cut(), head, stream.Call(neg, (stream.View(5),)), stream.Cut())
    client.send(stream.Follow(1), stream.Step(0), stream.Free(()), stream.Follow(1))  # the first way again, but nothing is freed
    assert floats(client.read(5, 16)) == (-2.0,) * 4
    assert floats(client.read(7, 16)) == (-6.0,) * 4
    assert floats(client.read(6, 16)) == (2.0,) * 4, "an empty FREE says that the expected one does not come"


@pytest.mark.everywhere
def test_a_failure_within_followed_steps_stops_them_and_is_forgotten_when_they_come_again(client: Any) -> None:
    mul, neg = begin(client)
    client.send(*segment(mul, neg, 3), stream.Sync(1))
    assert isinstance(client.reply(), stream.Done)
    client.send(stream.Allocate(5, 1 << 40), stream.Sync(2))
    assert client.reply().code is stream.FailureCode.OUT_OF_MEMORY
    client.send(stream.Step(1, (stream.Change(0, 5),)), stream.Follow(2))
    failure = client.sync()
    assert isinstance(failure, stream.Failure)
    assert failure.code is stream.FailureCode.NEVER_MADE
    client.send(stream.Step(1, (stream.Change(0, INPUT),)), stream.Follow(2))
    assert floats(client.read(9, 16)) == (-6.0,) * 4


def test_random_steps_go_on_counting(client: Any) -> None:
    begin(client)
    op = client.operator(aten.uniform_.default)
    arguments = (TENSOR, Argument(Tag.DOUBLE), Argument(Tag.DOUBLE), Argument(Tag.GENERATOR))
    draw = client.template(Template(op, arguments, (Output(OutputTag.SAME),), stream.RANDOM))
    client.send(stream.Call(draw, (stream.View(INPUT), 0.0, 1.0), stream.Random(5, 0)))
    first = floats(client.read(INPUT, 16))
    client.send(stream.Follow(1))
    second = floats(client.read(INPUT, 16))
    client.send(stream.Call(draw, (stream.View(INPUT), 0.0, 1.0), stream.Random(5, 1)))
    assert floats(client.read(INPUT, 16)) == second != first


def told(client: Any) -> dict[int, stream.Segment]:
    """The segments that came, by how many steps they are."""
    client.send(stream.TellSegments(77))
    reply = client.reply()
    assert isinstance(reply, stream.Segments) and reply.request == 77
    return {segment.calls + segment.allocations: segment for segment in reply.segments}


def test_segments_are_counted_and_described(client: Any) -> None:
    mul, neg = begin(client)
    client.sync()
    client.send(*segment(mul, neg, 3), stream.Cut(), stream.Follow(3), stream.Cut())
    client.send(stream.Step(1), stream.Follow(1), stream.Step(None, (stream.Change(0, OTHER),)), stream.Cut())
    client.send(stream.Step(1, (stream.Change(2, bits(4.0)),)), stream.Cut())
    segments = told(client)
    assert (segments[3].times, segments[1].times) == (3, 1)
    assert (segments[3].calls, segments[3].births, segments[3].frees) == (3, 2, 1)
    assert segments[3].words == 2 * 4 + 2, "storage, offset, number and new storage; storage and offset"
    assert (segments[3].varying, segments[1].varying) == (1, 1), "the first step of both varies"


def test_a_segment_has_its_identity_in_any_session_and_whatever_the_numbers_of_its_templates(start_worker: Any) -> None:
    identities = []
    for unused in (0, 2):
        with (client := start_worker().connect()).socket:
            client.hello()
            for number in range(unused):
                geometry = Geometry(6, (number + 5,), (1,))
                client.template(
                    Template(client.operator(aten.neg_.default), (Argument(Tag.TENSOR, geometry=geometry),), (Output(OutputTag.SAME),))
                )
            mul, neg = begin(client)
            assert isinstance(client.sync(), stream.Done)
            client.send(*segment(mul, neg, 3), stream.Cut(), *segment(mul, neg, 7)[:2], stream.Cut())
            identities.append({steps: found.identity for steps, found in told(client).items()})
    assert identities[0] == identities[1]
    assert identities[0][3] != identities[0][2]


@pytest.mark.everywhere
def test_segments_are_counted_on_while_the_stream_is_stopped(client: Any) -> None:
    mul, neg = begin(client)
    client.send(*segment(mul, neg, 3), stream.Sync(1))
    assert isinstance(client.reply(), stream.Done)
    client.hears = False
    client.send(stream.Allocate(5, 1 << 40), stream.Cut(), stream.Step(1, (stream.Change(0, 5),)), stream.Follow(2), stream.Cut())
    client.send(stream.Step(1, (stream.Change(0, INPUT),)), stream.Follow(2), stream.Cut())
    assert told(client)[3].times == 3, "a client counts its calls, whether they are carried out or not"


def test_segments_are_forgotten_with_their_steps(client: Any) -> None:
    mul, neg = begin(client)
    client.send(*segment(mul, neg, 3), stream.Cut())
    assert told(client)[3].times == 1
    client.send(stream.Cut(forget=True))
    assert told(client) == {}
