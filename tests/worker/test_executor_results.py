"""What the executor computes is bit by bit what PyTorch computes here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import DTYPES, geometry_of
from forebay_wire import _stream, stream
from forebay_wire.stream import Argument, FailureCode, Geometry, Output, OutputTag, Tag, Template
from forebay_wire.vocabulary import DEFAULT_DTYPE_SHIFT

aten = torch.ops.aten


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    ours, theirs = ours.resolve_conj().resolve_neg().contiguous(), theirs.resolve_conj().resolve_neg().contiguous()
    return torch.equal(ours.view(-1).view(torch.uint8), theirs.view(-1).view(torch.uint8))


def check(client: Any, op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> None:
    ours, theirs = client.run(op, *args, **kwargs)
    assert len(ours) == len(theirs) > 0
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert same_bits(our, their), f"{op} {number}: {our} is not {their}"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(20261121)


def test_arithmetic_in_every_dtype(client: Any) -> None:
    for dtype in [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.complex64]:
        a, b = (torch.randint(1, 50, (5, 7)).to(dtype) for _ in range(2))
        check(client, aten.add.Tensor, a, b, alpha=2)
        check(client, aten.mul.Tensor, a, b)
        check(client, aten.div.Tensor, a, b)
        check(client, aten.eq.Tensor, a, b)
        check(client, aten.cumsum.default, a, 0, dtype=torch.float32)


@pytest.fixture
def default_dtypes() -> Iterator[list[torch.dtype]]:
    """To set one after the other."""
    yield [torch.float32, torch.float64, torch.float16, torch.float32, torch.bfloat16, torch.float64]
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("device", ["cpu:0"])  # the stand-in computes after a call, and the default dtype is the whole process's
def test_each_call_is_computed_under_the_default_dtype_of_its_template(client: Any, device: str, default_dtypes: list[torch.dtype]) -> None:
    whole = torch.arange(1, 8)
    for dtype in default_dtypes:
        torch.set_default_dtype(dtype)
        for _ in range(2):
            check(client, aten.div.Tensor, whole, whole + 2)
            check(client, aten.sqrt.default, whole)
            check(client, aten.atan2.default, whole, whole + 1)
            check(client, aten.pow.Tensor_Scalar, whole, -1.5)


def test_a_default_dtype_that_is_no_floating_one_ends_the_session(client: Any) -> None:
    template = Template(client.operator(aten.sqrt.default), (), (), DTYPES[torch.int64] << DEFAULT_DTYPE_SHIFT)
    client.send(stream.DefineTemplate(template), stream.Sync(client.request()))
    refused = client.reply()
    assert isinstance(refused, stream.Refused) and "made under the default dtype 4, which is no floating one" in refused.message


def test_scalars_of_every_kind(client: Any) -> None:
    a = torch.randn(3, 4)
    check(client, aten.addcmul.default, a, a, a, value=2)
    check(client, aten.ge.Scalar, a, 0.5)
    check(client, aten.eq.Scalar, a, True)
    check(client, aten.pow.Tensor_Scalar, a, 1 + 2j)
    check(client, aten.clamp.default, a, -0.5, None)
    check(client, aten.roll.default, a, [2, 1], [0, 1])
    check(client, aten.gelu.default, a, approximate="tanh")
    check(client, aten.arange.start_out, 1, 10, 3, out=torch.empty(3))
    check(client, aten._foreach_add.ScalarList, [a, a], [1.5, 2])


@pytest.mark.everywhere
def test_a_neural_network_forward_and_backward(client: Any) -> None:
    x, w, b = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    check(client, aten.convolution.default, x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    grad = torch.randn(2, 4, 8, 8)
    check(client, aten.convolution_backward.default, grad, x, w, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])
    h = torch.randn(6, 16)
    check(client, aten.native_layer_norm.default, h, [16], torch.randn(16), torch.randn(16), 1e-5)
    check(client, aten.native_layer_norm.default, h, [16], None, None, 1e-5)
    check(client, aten._softmax.default, h, 1, False)
    check(client, aten._log_softmax.default, h, 1, False)
    check(client, aten.mm.default, h, torch.randn(16, 5))
    check(client, aten.addmm.default, torch.randn(5), h, torch.randn(16, 5))
    check(client, aten.bmm.default, torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    check(client, aten.embedding_dense_backward.default, torch.randn(2, 2, 4), torch.tensor([[1, 2], [9, 0]]), 10, -1, False)
    check(client, aten.max_pool2d_with_indices.default, x, [2, 2])
    check(client, aten.nll_loss_forward.default, torch.randn(4, 5), torch.tensor([1, 0, 4, 2]), None, 1, -100)
    check(client, aten.native_batch_norm.default, x, torch.randn(3), torch.randn(3), None, None, True, 0.1, 1e-5)


def test_reductions_sorts_and_indices(client: Any) -> None:
    a = torch.randn(6, 7)
    check(client, aten.sum.dim_IntList, a, [1], True)
    check(client, aten.mean.dim, a, None)
    check(client, aten.max.dim, a, 1)
    check(client, aten.sort.stable, a, stable=False, dim=0, descending=True)
    check(client, aten.topk.default, a, 3)
    check(client, aten.cumsum.default, a, 1)
    check(client, aten.var_mean.correction, a, [0], correction=1)
    check(client, aten.index.Tensor, a, [None, torch.tensor([1, 3, 3])])
    check(client, aten.gather.default, a, 1, torch.tensor([[0, 1], [2, 3]]))
    check(client, aten.where.self, a > 0, a, -a)
    check(client, aten.linalg_qr.default, a)


def test_views_offsets_and_strides(client: Any) -> None:
    base = torch.randn(8, 9)
    check(client, aten.add.Tensor, base.t()[2:5], base[1:4, :8])
    check(client, aten.mm.default, base.t(), base[:, ::2])
    check(client, aten.sum.dim_IntList, base[3, 4:], None)
    check(client, aten.add.Tensor, base[:1].expand(8, 9), base)
    check(client, aten.permute_copy.default, base, [1, 0])
    check(client, aten.slice_copy.Tensor, base, 0, 2, 6)
    check(client, aten.alias_copy.default, base.t())
    check(client, aten.as_strided_copy.default, base, [3, 3], [9, 2], 1)


@pytest.mark.everywhere
def test_conjugate_and_negative_bits(client: Any) -> None:
    a = torch.randn(3, 4, dtype=torch.complex64)
    check(client, aten.add.Tensor, a.conj(), a)
    check(client, aten.mm.default, a.conj().t(), a)
    check(client, aten.mul.Tensor, torch._neg_view(torch.randn(3)), torch.randn(3))
    check(client, aten._conj_copy.default, a)
    check(client, aten.view_as_real_copy.default, a)


def test_writing_in_place(client: Any) -> None:
    a, b = torch.randn(4, 5), torch.randn(4, 5)
    check(client, aten.add_.Tensor, a, b, alpha=3)
    check(client, aten.mul_.Tensor, a[1:3, ::2], b[:2, :3])
    check(client, aten.zero_.default, a[2])
    check(client, aten.copy_.default, a, b.to(torch.float64))
    check(client, aten._index_put_impl_.default, a, [torch.tensor([0, 2])], torch.randn(5))
    check(client, aten.add.out, a, b, out=torch.empty(4, 5))
    check(client, aten.max.dim_max, a, 1, max=torch.empty(4), max_values=torch.empty(4, dtype=torch.int64))


def test_lists_of_tensors(client: Any) -> None:
    tensors = [torch.randn(3, size) for size in (1, 4, 2)]
    check(client, aten.cat.default, tensors, 1)
    check(client, aten._foreach_add_.Scalar, tensors, 2.0)
    check(client, aten._foreach_mul.List, tensors, [tensor + 1 for tensor in tensors])
    check(client, aten._foreach_lerp_.Scalar, tensors, [tensor + 1 for tensor in tensors], 0.25)
    check(client, aten.split_copy.Tensor, torch.randn(7, 2), 3)
    check(client, aten.unbind_copy.int, torch.randn(3, 4))


def test_empty_and_zero_dimensional_tensors(client: Any) -> None:
    check(client, aten.add.Tensor, torch.tensor(1.5), torch.tensor(2.5))
    check(client, aten.sum.dim_IntList, torch.empty(0, 4), None)
    check(client, aten.cat.default, [torch.empty(0), torch.randn(3)])
    ours, theirs = client.run(aten.pow.Tensor_Scalar, torch.empty(0, 3), 2.0)
    assert theirs[0].shape == ours[0].shape


def test_the_same_call_again_and_again_reads_what_was_written_between(client: Any) -> None:
    """Tensors are kept from call to call; they must show the storage as it is now."""
    g = Geometry(6, (4,), (1,))
    op = client.operator(aten.add.Tensor)
    output = Output(OutputTag.NEW, geometry=g, storage_bytes=16)
    number = client.template(
        Template(op, (Argument(Tag.TENSOR, geometry=g), Argument(Tag.TENSOR, geometry=g), Argument(Tag.SCALAR_INT)), (output,))
    )
    storage = client.upload(torch.zeros(4))
    for step in range(5):
        client.writer.add(stream.Write(storage, 0, torch.full((4,), float(step)).numpy().tobytes()))
        new = client.storage()
        client.send(stream.Call(number, (stream.View(storage), stream.View(storage), 1, new)))
        assert client.download(new, g).tolist() == [2.0 * step] * 4


@pytest.mark.parametrize("wrapped", [True, False])
def test_host_scalars_promote_as_at_the_client(client: Any, wrapped: bool) -> None:
    """A wrapped number does not promote, a zero-dimensional tensor of a wider category does."""
    g = Geometry(4, (2,), (1,))
    result = Geometry(6 if wrapped else 7, (2,), (1,))
    arguments = (Argument(Tag.TENSOR, geometry=g), Argument(Tag.SCALAR_TENSOR, dtype=7, flag=wrapped))
    output = Output(OutputTag.NEW, geometry=result, storage_bytes=8 if wrapped else 16)
    number = client.template(Template(client.operator(aten.mul.Tensor), arguments, (output,)))
    storage = client.upload(torch.tensor([2, 3]))
    new = client.storage()
    client.send(stream.Call(number, (stream.View(storage), 1.5, new)))
    assert client.download(new, result).tolist() == [3.0, 4.5]


def test_a_result_in_another_layout_is_copied_into_the_predicted_one(client: Any) -> None:
    g, predicted = Geometry(6, (2, 3), (3, 1)), Geometry(6, (2, 3), (1, 4))
    output = Output(OutputTag.NEW, geometry=predicted, storage_bytes=64)
    number = client.template(Template(client.operator(aten.neg.default), (Argument(Tag.TENSOR, geometry=g),), (output,)))
    tensor = torch.randn(2, 3)
    new = client.storage()
    client.send(stream.Call(number, (stream.View(client.upload(tensor)), new)))
    assert torch.equal(client.download(new, predicted), -tensor)
    gap = client.read(new, 4, offset=2 * 4)
    assert gap == bytes(4), "what lies between the elements shows nobody's old bytes"


def ask(client: Any, op: torch._ops.OpOverload, *bindings: stream.Binding, arguments: tuple[Argument, ...]) -> stream.Reply:
    outputs = tuple(Output(OutputTag.UNKNOWN) for _ in op._schema.returns)
    number = client.template(Template(client.operator(op), arguments, outputs))
    first = client.next_storage + 1
    client.next_storage += 100
    client.send(stream.Ask(client.request(), first, number, bindings))
    reply: stream.Reply = client.reply()
    return reply


def test_questions_are_answered_with_geometries_and_values(client: Any) -> None:
    a = torch.tensor([[0.0, 2.0], [3.0, 3.0]])
    tensor = Argument(Tag.TENSOR, geometry=Geometry(6, (2, 2), (2, 1)))
    view = stream.View(client.upload(a))
    reply = ask(client, aten.nonzero.default, view, arguments=(tensor,))
    assert isinstance(reply, stream.Outputs)
    (found,) = reply.outputs
    assert found.geometry is not None and found.storage_bytes == 48
    assert torch.equal(client.download(found.storage, found.geometry), a.nonzero())
    flags = tuple(Argument(Tag.BOOL, flag=True) for _ in range(3))
    reply = ask(client, aten._unique2.default, view, arguments=(tensor, *flags))
    assert isinstance(reply, stream.Outputs)
    for told, expected in zip(reply.outputs, torch.unique(a, return_inverse=True, return_counts=True), strict=True):
        assert told.geometry is not None
        assert torch.equal(client.download(told.storage, told.geometry), expected)
    reply = ask(client, aten.equal.default, view, view, arguments=(tensor, tensor))
    assert isinstance(reply, stream.Outputs) and reply.outputs[0].value is True


def test_a_result_that_the_stream_cannot_carry_fails_the_question_alone(client: Any) -> None:
    """A tensor without elements may have any sizes; a client would take an answer with such for a broken stream."""
    number = Argument(Tag.TENSOR, geometry=Geometry(6, (), ()))
    view = stream.View(client.upload(torch.tensor(1.0)))
    for size, carried in ((_stream.STORAGE_BYTES_MAX, True), (_stream.STORAGE_BYTES_MAX + 1, False), (2**62, False)):
        arguments = (number, Argument(Tag.INT, integer=size), Argument(Tag.INT, integer=-1))
        reply = ask(client, aten.nonzero_static.default, view, arguments=arguments)
        if carried:
            assert isinstance(reply, stream.Outputs) and reply.outputs[0].geometry is not None
            assert reply.outputs[0].geometry.sizes == (size, 0)
        else:
            assert isinstance(reply, stream.Failure) and reply.code == FailureCode.GEOMETRY
            assert f"beyond what the command stream carries: sizes [{size}, 0] and strides [1, " in reply.message


@pytest.mark.everywhere
def test_chance_depends_on_seed_and_counter_alone(client: Any) -> None:
    g = Geometry(6, (1000,), (1,))
    op = client.operator(aten.normal_.default)
    arguments = (Argument(Tag.TENSOR, geometry=g), Argument(Tag.DOUBLE), Argument(Tag.DOUBLE), Argument(Tag.GENERATOR))
    number = client.template(Template(op, arguments, (Output(OutputTag.SAME, same=0),), stream.RANDOM))
    storages = [client.upload(torch.zeros(1000)) for _ in range(5)]
    draws = [(1, 0), (1, 1), (1, 0), (2, 0), (1 + (1 << 40), 0)]
    for storage, draw in zip(storages, draws, strict=True):
        client.writer.add(stream.Call(number, (stream.View(storage), 0.0, 1.0), stream.Random(*draw)))
    client.send()
    drawn = [client.download(storage, g) for storage in storages]
    assert torch.equal(drawn[0], drawn[2])
    for other in (1, 3, 4):
        assert not torch.equal(drawn[0], drawn[other])
    for values in drawn:
        assert abs(values.mean()) < 0.2 and 0.8 < values.std() < 1.2


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_masks_are_those_of_pytorch(client: Any, dtype: torch.dtype, p: float) -> None:
    """Where elements have room between them PyTorch draws for each by itself, elsewhere the worker does, many at a time."""
    count = 5_001
    op = client.operator(aten.bernoulli_.float)
    drawn = []
    for step in (1, 2):
        laid = torch.zeros(count * step, dtype=dtype)
        g = geometry_of(laid[::step])
        arguments = (Argument(Tag.TENSOR, geometry=g), Argument(Tag.DOUBLE), Argument(Tag.GENERATOR))
        number = client.template(Template(op, arguments, (Output(OutputTag.SAME, same=0),), stream.RANDOM))
        storage = client.upload(laid)
        client.send(stream.Call(number, (stream.View(storage), p), stream.Random(3, 4)))
        drawn.append(client.download(storage, g))
    assert torch.equal(*drawn)
    assert abs(drawn[0].double().mean() - p) < 0.03


@pytest.mark.everywhere
def test_large_transfers_go_both_ways_whole(client: Any) -> None:
    tensor = torch.randn(3_000_000)
    storage = client.storage()
    client.writer.add(stream.Allocate(storage, 12_000_000))
    data = tensor.numpy().tobytes()
    for start in range(0, len(data), stream.CHUNK_BYTES_MAX):
        client.send(stream.Write(storage, start, data[start : start + stream.CHUNK_BYTES_MAX]))
    assert client.read(storage, len(data)) == data


def test_storages_grow_shrink_and_begin_as_zeros(client: Any) -> None:
    storage = client.storage()
    client.send(stream.Allocate(storage, 8))
    assert client.read(storage, 8) == bytes(8)
    client.send(stream.Write(storage, 0, b"abcdefgh"), stream.Resize(storage, 12))
    assert client.read(storage, 12) == b"abcdefgh" + bytes(4)
    client.send(stream.Resize(storage, 3))
    assert client.read(storage, 3) == b"abc"
    client.send(stream.Free((storage,)))
    assert isinstance(client.sync(), stream.Done)
