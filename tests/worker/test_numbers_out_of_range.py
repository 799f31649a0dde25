"""A number that leads out of a tensor fails its call, on any device, before a kernel looks at it: nothing is lost, and the session goes on.

On an accelerator PyTorch's kernels assert instead, after which a process can do nothing more on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Recording, bytes_of
from forebay_wire import stream
from forebay_wire.stream import FailureCode, Template

aten = torch.ops.aten
MANY = 20_000
"""Numbers that the host does not fetch, but has the device look at."""

pytestmark = pytest.mark.everywhere("each case")


def floats(*sizes: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(sizes).numel())).reshape(sizes) / 8


# By name: the operator, its arguments with the numbers in question at a place, and a number that is out of range.
CALLS: dict[str, tuple[Any, Callable[[], list[Any]], int, float]] = {
    "gather": (aten.gather.default, lambda: [floats(4, 3), 0, torch.tensor([[0, 3, 1], [2, 2, 0]])], 2, 4),
    "gather, below": (aten.gather.default, lambda: [floats(4, 3), 0, torch.tensor([[0, 3, 1], [2, 2, 0]])], 2, -1),
    "gather, many": (aten.gather.default, lambda: [floats(7), 0, torch.arange(MANY) % 7], 2, 7),
    "scatter": (aten.scatter.value, lambda: [floats(4), 0, torch.tensor([3, 0]), 1.0], 2, 4),
    "scatter_add_": (aten.scatter_add_.default, lambda: [floats(4), 0, torch.tensor([3, 0]), floats(2)], 2, 99),
    "index_select": (aten.index_select.default, lambda: [floats(4, 3), -1, torch.tensor([2, 0, 0])], 2, 3),
    "index_add_": (aten.index_add_.default, lambda: [floats(4, 3), 0, torch.tensor([3, 0]), floats(2, 3)], 2, 4),
    "index_copy": (aten.index_copy.default, lambda: [floats(4, 3), 0, torch.tensor([3, 0]), floats(2, 3)], 2, 4),
    "index_fill_": (aten.index_fill_.int_Scalar, lambda: [floats(4), 0, torch.tensor([-4, 3]), 1.0], 2, -5),
    "take": (aten.take.default, lambda: [floats(4, 3), torch.tensor([-12, 11])], 1, 12),
    "embedding_backward": (aten.embedding_dense_backward.default, lambda: [floats(3, 2), torch.tensor([4, 0, 4]), 5, -1, False], 1, 5),
    "nll_loss": (aten.nll_loss_forward.default, lambda: [floats(3, 4), torch.tensor([3, -100, 0]), None, 1, -100], 1, 4),
    "nll_loss2d": (aten.nll_loss2d_forward.default, lambda: [floats(1, 3, 2, 2), torch.tensor([[[2, 0], [1, 1]]]), None, 1, -100], 1, 3),
    "bernoulli_": (aten.bernoulli_.Tensor, lambda: [floats(3), torch.tensor([0.0, 1.0, 0.0])], 1, 1.5),
    "binary_cross_entropy": (aten.binary_cross_entropy.default, lambda: [floats(3), torch.tensor([0.0, 1.0, 1.0])], 0, float("nan")),
}


class Call:
    """One that can be sent again and again, as a loop does."""

    def __init__(self, client: Any, operator: Any, arguments: list[Any]) -> None:
        self._client = client
        self._recording = Recording(client, operator, arguments, {})
        outputs = self._recording.outputs(self._recording.run_here())
        self._random = stream.Random(7, 0) if operator is aten.bernoulli_.Tensor else None
        flags = stream.RANDOM if self._random else 0
        self._number = client.template(Template(client.operator(operator), tuple(self._recording.arguments), tuple(outputs), flags))

    def storage(self, tensor: torch.Tensor) -> int:
        return self._recording.storages[tensor.untyped_storage().data_ptr()]

    def send(self) -> None:
        """With results of their own."""
        new = {storage: self._client.storage() for storage, _ in self._recording.news}
        bindings = tuple(new.get(binding, binding) if type(binding) is int else binding for binding in self._recording.bindings)
        self._recording.news = [(new[storage], geometry) for storage, geometry in self._recording.news]
        self._recording.bindings = list(bindings)
        self._client.send(stream.Call(self._number, bindings, self._random))

    def results(self) -> list[torch.Tensor]:
        return self._recording.there()


def by_the_client(client: Any, storage: int, numbers: torch.Tensor) -> None:
    client.send(stream.Write(storage, 0, bytes_of(numbers)))


def on_the_device(client: Any, storage: int, numbers: torch.Tensor) -> None:
    source = client.upload(numbers)
    client.send(stream.Copy(storage, 0, source, 0, len(bytes_of(numbers))))


def by_an_operator(client: Any, storage: int, numbers: torch.Tensor) -> None:
    """As a training's own computation of its indices."""
    call = Recording(client, aten.copy_.default, [torch.zeros_like(numbers), numbers], {})
    outputs = call.outputs(call.run_here())
    number = client.template(Template(client.operator(aten.copy_.default), tuple(call.arguments), tuple(outputs)))
    client.send(stream.Call(number, (stream.View(storage, 0), *call.bindings[1:])))


CHANGES = by_the_client, on_the_device, by_an_operator
UNCHECKED_ON_HOSTS = {"embedding_backward"}
"""PyTorch's kernel for the host passes such numbers over."""


@pytest.mark.parametrize("change", CHANGES)
def test_a_number_out_of_range_fails_the_call_and_loses_nothing(client: Any, change: Callable[..., None]) -> None:
    for name, (operator, given, place, wrong) in CALLS.items():
        arguments = given()
        numbers = arguments[place]
        bad = numbers.clone().view(-1)
        bad[-1] = wrong
        call = Call(client, operator, arguments)
        kept = client.upload(torch.ones(4))
        for _ in range(2):  # the second time what is known of the numbers
            call.send()
        assert isinstance(client.sync(), stream.Done), name
        tensors = [tensor for tensor in arguments if isinstance(tensor, torch.Tensor) and tensor is not numbers]
        before = [client.read(call.storage(tensor), tensor.untyped_storage().nbytes()) for tensor in tensors]

        change(client, call.storage(numbers), bad.view(numbers.shape))
        call.send()
        told = client.sync()
        if client.device.startswith("cpu"):
            assert isinstance(told, stream.Failure) or name in UNCHECKED_ON_HOSTS, (name, told)
        else:
            assert isinstance(told, stream.Failure), (name, told)
            assert told.code == (FailureCode.OPERATOR if numbers.is_floating_point() else FailureCode.INDEX), (name, told)
            assert f"holds {wrong:g}, and must lie between" in told.message
        assert torch.frombuffer(bytearray(client.read(kept, 16)), dtype=torch.float32).tolist() == [1, 1, 1, 1]
        for tensor, held in zip(tensors, before, strict=True):
            assert client.read(call.storage(tensor), len(held)) == held, name

        change(client, call.storage(numbers), numbers)
        call.send()
        assert isinstance(client.sync(), stream.Done), name
        assert call.results(), name


@pytest.mark.parametrize("indices", [[torch.tensor([3, -4])], [None, torch.tensor([[-3], [2]])]], ids=["rows", "columns"])
def test_one_of_several_indices_out_of_range_fails_the_call(client: Any, indices: list[torch.Tensor | None]) -> None:
    index = next(index for index in indices if index is not None)
    for operator, rest in ((aten.index.Tensor, []), (aten._index_put_impl_.default, [torch.ones(()), False, False])):
        call = Call(client, operator, [floats(4, 3), indices, *rest])
        call.send()
        assert isinstance(client.sync(), stream.Done)
        for wrong in (4, -5):
            by_the_client(client, call.storage(index), torch.full_like(index, wrong))
            call.send()
            told = client.sync()
            assert isinstance(told, stream.Failure) and told.code == FailureCode.INDEX, told
        by_the_client(client, call.storage(index), index)
        call.send()
        assert isinstance(client.sync(), stream.Done)
