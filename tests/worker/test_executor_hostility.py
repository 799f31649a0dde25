"""Whatever a client sends, it gets an answer or a refusal with one sentence, and only its own connection ends."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from forebay_wire import stream
from forebay_wire.stream import Argument, Geometry, Output, OutputTag, Tag, Template

aten = torch.ops.aten
FOUR = Geometry(6, (4,), (1,))
TENSOR = Argument(Tag.TENSOR, geometry=FOUR)
NEW = Output(OutputTag.NEW, geometry=FOUR, storage_bytes=16)
SEEDS = 12


def hash_of(op: torch._ops.OpOverload) -> int:
    return stream.schema_hash(str(op._schema))


def operator(op: torch._ops.OpOverload) -> stream.Operator:
    return stream.Operator(op._schema.name, op._schema.overload_name, hash_of(op))


def template(
    op: torch._ops.OpOverload, arguments: tuple[Argument, ...], outputs: tuple[Output, ...] = (NEW,), flags: int = 0
) -> list[stream.Command]:
    return [operator(op), stream.DefineTemplate(Template(0, arguments, outputs, flags))]


NEG = template(aten.neg.default, (TENSOR,))


def neg_of(geometry: Geometry, output: Geometry = FOUR, storage_bytes: int = 16) -> list[stream.Command]:
    outputs = (Output(OutputTag.NEW, geometry=output, storage_bytes=storage_bytes),)
    return template(aten.neg.default, (Argument(Tag.TENSOR, geometry=geometry),), outputs)


def indices(dtype: int = 4, layout: int = 0) -> list[stream.Command]:
    numbers = tuple(Argument(Tag.INT, integer=number) for number in (2, 2, 0, dtype, layout))
    return template(aten.tril_indices.default, (*numbers, Argument(Tag.NONE), Argument(Tag.NONE)))


STORAGE = stream.Allocate(1, 16)
REFUSALS: list[tuple[str, list[stream.Command] | bytes, str]] = [
    ("an unknown command", b"\x63", "an unknown command 99"),
    ("half a command", b"\x06\x01", "a frame ends in the middle of a command"),
    ("a second HELLO", [stream.Hello(bytes(32), "2.13.0")], "a second HELLO"),
    ("an unknown storage", [stream.Read(1, 77, 0, 4)], "storage 77 does not exist"),
    ("a freed storage", [STORAGE, stream.Free((1,)), stream.Write(1, 0, b"x")], "storage 1 does not exist"),
    ("a storage freed twice", [STORAGE, stream.Free((1, 1))], "storage 1 does not exist"),
    ("a storage made twice", [STORAGE, STORAGE], "storage 1 exists already"),
    ("storage 0", [stream.Allocate(0, 16)], "a new storage may not have the id 0"),
    ("a WRITE past the end", [STORAGE, stream.Write(1, 13, b"abcd")], "a WRITE of 4 bytes at 13 of a storage of 16 bytes"),
    ("a WRITE at the largest offset", [STORAGE, stream.Write(1, 2**64 - 1, b"abcd")], "a WRITE of 4 bytes at 18446744073709551615"),
    ("a READ past the end", [STORAGE, stream.Read(1, 1, 0, 17)], "a READ of 17 bytes at 0 of a storage of 16 bytes"),
    (
        "a storage too large",
        b"\x06\x01\x81\x80\x80\x80\x80\x80\x20",
        "the size of a storage is 140737488355329, at most 70368744177664 is accepted",
    ),
    ("an operator that does not exist", [stream.Operator("aten::nothing", "", 0)], "operator aten::nothing does not exist"),
    ("an operator of another namespace", [stream.Operator("prim::device", "", 0)], "operator prim::device does not exist"),
    ("an operator that opens files", [operator(aten.from_file.default)], "operator aten::from_file is not allowed: it opens files"),
    ("an operator that resizes", [operator(aten.resize_.default)], "operator aten::resize_ is not allowed: it changes a tensor's metadata"),
    (
        "an operator that swaps storages",
        [operator(aten.set_.source_Tensor)],
        r"operator aten::set_.source_Tensor is not allowed: it replaces or shares",
    ),
    (
        "an operator that transposes in place",
        [operator(aten.t_.default)],
        "operator aten::t_ is not allowed: it changes a tensor's metadata",
    ),
    (
        "an operator that shows old memory",
        [operator(aten.empty_like.default)],
        "operator aten::empty_like is not allowed: its result shows memory",
    ),
    ("an operator that trusts addresses", [operator(aten.fbgemm_linear_fp16_weight.default)], "trusts their addresses"),
    ("an operator without bounds", [operator(aten._reshape_alias.default)], "does not check that its result lies within the storage"),
    ("another schema", [stream.Operator("aten::neg", "", 1)], "operator aten::neg has another schema here"),
    ("an undefined operator", [stream.DefineTemplate(Template(0, (TENSOR,), (NEW,)))], "operator 0 is not defined"),
    ("an undefined template", b"\x04\x05", "template 5 is not defined"),
    ("a forgotten template", [*NEG, stream.Forget(), stream.Sync(1)], ""),
    ("too few arguments", template(aten.neg.default, ()), "has 0 arguments, its operator takes 1"),
    ("too many outputs", template(aten.neg.default, (TENSOR,), (NEW, NEW)), "has 2 outputs, its operator gives 1"),
    (
        "an argument of another type",
        template(aten.neg.default, (Argument(Tag.INT, integer=3),)),
        "gives argument self a value that is not Tensor",
    ),
    ("a tensor list for a tensor", template(aten.neg.default, (Argument(Tag.TENSOR_LIST, items=(TENSOR,)),)), "a value that is not Tensor"),
    (
        "an output list for a tensor",
        template(aten.neg.default, (TENSOR,), (Output(OutputTag.LIST, items=(NEW,)),)),
        "gives an output that is not Tensor",
    ),
    (
        "an output of no argument",
        template(aten.neg.default, (TENSOR,), (Output(OutputTag.SAME, same=1),)),
        "tensor argument 1, which does not exist",
    ),
    ("a default dtype of whole numbers", template(aten.neg.default, (TENSOR,), flags=2), "under the default dtype 1, which"),
    ("an unknown default dtype", template(aten.neg.default, (TENSOR,), flags=0xFF), "under the default dtype 127, which"),
    ("a dtype out of range", neg_of(Geometry(200, (4,), (1,))), "a tensor of dtype 200, which is not served"),
    ("a quantized dtype", neg_of(Geometry(12, (4,), (1,))), "a tensor of dtype 12, which is not served"),
    ("unknown tensor flags", neg_of(Geometry(6, (4,), (1,), 4)), "a tensor with unknown flags 4"),
    ("a conjugate real number", neg_of(Geometry(6, (4,), (1,), 1)), "a conjugate bit on a tensor that is not complex"),
    ("a tensor beyond all storages", neg_of(Geometry(6, (2**45,), (2,))), "a tensor larger than a storage may be"),
    ("more elements than numbers", neg_of(Geometry(6, (2**40, 2**40), (0, 0))), "a tensor of more elements than can be served"),
    ("an output larger than its storage", neg_of(FOUR, storage_bytes=15), "gives an output less storage than it spans"),
    ("a dtype argument out of range", indices(dtype=-1), "names dtype -1, which is not served"),
    ("a sparse layout", indices(layout=1), "names layout 1, only strided tensors are served"),
    (
        "a written number",
        template(aten.neg_.default, (Argument(Tag.SCALAR_TENSOR, dtype=6),), (Output(OutputTag.SAME),)),
        "a value that is not Tensor",
    ),
    (
        "a view past the end",
        [STORAGE, *NEG, stream.Call(0, (stream.View(1, 1), 2))],
        "a tensor reaches to byte 20 of a storage of 16 bytes",
    ),
    ("a view at a huge offset", [STORAGE, *NEG, stream.Call(0, (stream.View(1, 2**46), 2))], "a tensor reaches to byte"),
    (
        "a view at an offset without a number",
        [STORAGE, *NEG, stream.Call(0, (stream.View(1, 2**63), 2))],
        "an offset is 9223372036854775808",
    ),
    ("a result in a storage that exists", [STORAGE, *NEG, stream.Call(0, (stream.View(1), 1))], "storage 1 exists already"),
    ("a result in storage 0", [STORAGE, *NEG, stream.Call(0, (stream.View(1), 0))], "a new storage may not have the id 0"),
    (
        "a CALL that only ASK may be",
        [STORAGE, *template(aten.nonzero.default, (TENSOR,), (Output(OutputTag.UNKNOWN),)), stream.Call(0, (stream.View(1),))],
        "a CALL of a template whose outputs only an ASK can tell",
    ),
    (
        "more steps than came before",
        [STORAGE, *NEG, stream.Call(0, (stream.View(1), 2)), stream.Cut(), stream.Follow(4)],
        "a FOLLOW beyond what came before",
    ),
    ("steps where none came", [stream.Follow(1)], "a FOLLOW beyond what came before"),
    ("a step that never came", [STORAGE, stream.Cut(), stream.Step(7)], "a STEP that did not come before"),
    ("more steps than there can be", b"\x14\xff\xff\xff\x7f", "the number of steps is 268435455, at most 65536 is accepted"),
    (
        "a change of a word that a step does not have",
        [STORAGE, stream.Cut(), stream.Step(0, (stream.Change(1, 5),))],
        "a change of a word that a step does not have",
    ),
    (
        "a step that frees what is freed",
        [STORAGE, stream.Cut(), stream.Free((1,)), stream.Allocate(2, 4), stream.Cut(), stream.Follow(1)],
        "storage 1 does not exist",
    ),
    (
        "a step that reads what is freed",
        [STORAGE, stream.Cut(), *NEG, stream.Call(0, (stream.View(1), 2)), stream.Cut(), stream.Free((1,)), stream.Step(1)],
        "storage 1 does not exist",
    ),
    (
        "a step of forgotten templates",
        [STORAGE, *NEG, stream.Call(0, (stream.View(1), 2)), stream.Forget(), stream.Follow(1)],
        "a FOLLOW beyond what came before",
    ),
    (
        "two results in one storage",
        [
            STORAGE,
            *template(
                aten.split_copy.Tensor,
                (TENSOR, Argument(Tag.INT, integer=2), Argument(Tag.INT)),
                (Output(OutputTag.LIST, items=(Output(OutputTag.NEW, geometry=Geometry(6, (2,), (1,)), storage_bytes=8),) * 2),),
            ),
            stream.Call(0, (stream.View(1), 5, 5)),
        ],
        "storage 5 exists already",
    ),
]


@pytest.mark.parametrize(
    ("commands", "sentence"), [case[1:] for case in REFUSALS if case[2]], ids=[case[0] for case in REFUSALS if case[2]]
)
def test_each_offence_is_refused_with_its_sentence(client: Any, commands: list[stream.Command] | bytes, sentence: str) -> None:
    if isinstance(commands, bytes):
        client.send_raw(commands)
    else:
        client.send(*commands)
    reply = client.reply()
    assert isinstance(reply, stream.Refused), reply
    assert sentence in reply.message
    assert stream.read_frame(client.socket) is None


@pytest.mark.parametrize("size", [0, stream.FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_a_frame_of_forbidden_size_is_refused(client: Any, size: int) -> None:
    client.socket.sendall(struct.pack("<I", size) + b"x" * 100)
    reply = client.reply()
    assert isinstance(reply, stream.Refused)
    assert f"a frame of {size} bytes" in reply.message


def test_the_pool_hears_that_a_refused_client_is_gone(start_worker: Callable[..., Any]) -> None:
    worker = start_worker()
    client = worker.connect()
    with client.socket:
        client.hello()
        client.send_raw(b"\x63")
        assert isinstance(client.reply(), stream.Refused)
    events = [event["event"] for event in worker.events() if event["event"] != "assigned"]  # told by another thread, before or after
    assert events == ["connected", "refused", "client_gone"]


HELLO = stream.Hello(bytes(32), "2.13.0")


@pytest.mark.parametrize(
    ("hello", "sentence"),
    [
        (HELLO, "the ticket is not this session's"),
        (stream.Hello(bytes(32), "2.13.0", magic=7), "the first frame is not a HELLO"),
        (stream.Hello(bytes(32), "2.13.0", version=9), f"speaks version 9 of the command stream, the worker version {stream.VERSION}"),
        (stream.Sync(1), "the first frame is not a HELLO"),
    ],
)
def test_who_does_not_say_hello_rightly_is_turned_away_and_the_client_still_comes_in(
    start_worker: Callable[..., Any], hello: stream.Command, sentence: str
) -> None:
    worker = start_worker(address="tcp:127.0.0.1:0")
    stranger, client = worker.connect(), worker.connect()
    with stranger.socket, client.socket:
        stranger.send(hello)
        reply = stranger.reply()
        assert isinstance(reply, stream.Refused)
        assert sentence in reply.message
        assert isinstance(client.hello(), stream.Welcome)


def test_silent_peers_do_not_keep_the_client_out(start_worker: Callable[..., Any]) -> None:
    worker = start_worker()
    crowd = [worker.connect() for _ in range(20)]
    client = worker.connect()
    with client.socket:
        assert isinstance(client.hello(), stream.Welcome)
        late = socket.socket(socket.AF_UNIX)
        with late, pytest.raises(OSError):
            late.connect(worker.address.removeprefix("unix:"))
    for peer in crowd:
        peer.socket.close()


def test_only_one_client_is_ever_let_in_and_the_socket_goes(start_worker: Callable[..., Any]) -> None:
    worker = start_worker()
    client, second = worker.connect(), worker.connect()
    with client.socket, second.socket:
        client.hello()
        second.writer.add(stream.Hello(second.ticket, "2.13.0"))
        with pytest.raises((OSError, AssertionError)):
            second.send()
            second.reply()
        assert isinstance(client.sync(), stream.Done)


def valid_session() -> list[bytes]:
    """Frames of a session that uses every command."""
    writer = stream.CommandWriter()
    frames = []
    wide = Geometry(6, (2, 2), (1, 2))
    commands: list[list[stream.Command]] = [
        [
            operator(aten.add.Tensor),
            operator(aten.add_.Tensor),
            operator(aten.cat.default),
            operator(aten.nonzero.default),
            operator(aten.normal_.default),
        ],
        [
            stream.DefineTemplate(Template(0, (TENSOR, TENSOR, Argument(Tag.SCALAR_INT)), (NEW,))),
            stream.DefineTemplate(Template(1, (TENSOR, TENSOR, Argument(Tag.SCALAR_INT)), (Output(OutputTag.SAME),))),
            stream.DefineTemplate(
                Template(
                    2,
                    (Argument(Tag.TENSOR_LIST, items=(Argument(Tag.TENSOR, geometry=wide),) * 2), Argument(Tag.INT)),
                    (Output(OutputTag.NEW, geometry=Geometry(6, (4, 2), (2, 1)), storage_bytes=32),),
                )
            ),
            stream.DefineTemplate(Template(3, (TENSOR,), (Output(OutputTag.UNKNOWN),))),
            stream.DefineTemplate(
                Template(
                    4,
                    (TENSOR, Argument(Tag.DOUBLE), Argument(Tag.DOUBLE), Argument(Tag.GENERATOR)),
                    (Output(OutputTag.SAME),),
                    stream.RANDOM,
                )
            ),
        ],
        [stream.Allocate(1, 16), stream.Allocate(2, 16), stream.Write(1, 0, bytes(range(16))), stream.Resize(2, 32)],
        [stream.Call(0, (stream.View(1), stream.View(2), 1, 3)), stream.Call(1, (stream.View(1), stream.View(2, 4), 2))],
        [stream.Call(2, (stream.View(1), stream.View(2), 4)), stream.Ask(9, 100, 3, (stream.View(3),))],
        [stream.Call(4, (stream.View(1), 0.0, 1.0), stream.Random(3, 4)), stream.Read(10, 4, 0, 32), stream.Sync(11)],
        [stream.Share(13, 1 << 20), stream.WriteShared(3, 0, 16, 4096), stream.Copy(4, 0, 3, 0, 16), stream.ReadShared(14, 4, 0, 16, 8192)],
        [stream.Settings(0b101), stream.Time(8), stream.Call(0, (stream.View(1), stream.View(2), 5, 3)), stream.TellTimes(15)],
        [stream.Free((3, 4)), stream.Mark(1), stream.Forget(), stream.Sync(12)],
    ]
    for group in commands:
        for command in group:
            writer.add(command)
        frames.append(writer.take())
    return frames


def damaged(chance: random.Random) -> Iterator[bytes]:
    for body in valid_session():
        if chance.random() < 0.5:
            yield body
            continue
        damaged = bytearray(body)
        for _ in range(chance.randint(1, 3)):
            where = chance.randrange(len(damaged))
            match chance.randrange(3):
                case 0:
                    damaged[where] = chance.randrange(256)
                case 1:
                    damaged[where] ^= 1 << chance.randrange(8)
                case _:
                    del damaged[where]
            if not damaged:
                return
        yield bytes(damaged)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_damaged_session_is_answered_or_refused_and_never_kills_the_worker(start_worker: Callable[..., Any], seed: int) -> None:
    worker = start_worker(memory_bytes=64 << 20)
    client = worker.connect()
    with client.socket:
        assert isinstance(client.hello(), stream.Welcome)
        for body in damaged(random.Random(seed)):
            try:
                client.send_raw(body)
            except OSError:
                break
        client.socket.shutdown(socket.SHUT_WR)
        while (answer := stream.read_frame(client.socket)) is not None:
            stream.decode_reply(answer)
    events = [event["event"] for event in worker.events()]
    assert worker.process.returncode == 0
    assert events[-1] == "client_gone" and "failed" not in events


def test_a_client_that_does_not_read_its_answers_is_only_waited_for(start_worker: Callable[..., Any]) -> None:
    worker = start_worker()
    client = worker.connect()
    with client.socket:
        client.hello()
        client.send(stream.Allocate(1, 4 << 20))
        for _ in range(20):
            client.send(stream.Read(1, 1, 0, 4 << 20))
        time.sleep(0.2)  # the worker fills the socket meanwhile; nothing else shows it
        assert worker.process.poll() is None
    assert worker.events()[-1]["event"] == "client_gone"
