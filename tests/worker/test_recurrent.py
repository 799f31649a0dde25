"""Layers of recurrent networks in one call: against PyTorch's own, and what kernels would have trusted is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from forebay_worker import _executor
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

assert _executor.TORCH_VERSION
LAYER, DERIVATIVE = torch.ops.forebay.recurrent_layer, torch.ops.forebay.recurrent_layer_backward
RELU, TANH, LSTM, GRU = range(4)
KINDS: dict[int, Any] = {RELU: lambda *sizes, **how: nn.RNN(*sizes, nonlinearity="relu", **how), TANH: nn.RNN, LSTM: nn.LSTM, GRU: nn.GRU}
STEPS, ROWS, WIDE, HIDDEN = 5, 3, 4, 6


def layer_of(
    cell: int, dtype: torch.dtype = torch.float32, bidirectional: bool = False, bias: bool = True
) -> tuple[nn.RNNBase, Tensor, list[Tensor]]:
    """A layer, a sequence, and states, all with gradients."""
    torch.manual_seed(cell)
    layer = KINDS[cell](WIDE, HIDDEN, bidirectional=bidirectional, bias=bias, dtype=dtype)
    directions = 1 + bidirectional
    state = [torch.randn(directions, ROWS, HIDDEN, dtype=dtype, requires_grad=True) for _ in range(1 + (cell == LSTM))]
    return layer, torch.randn(STEPS, ROWS, WIDE, dtype=dtype, requires_grad=True), state


def results_of(layer: nn.RNNBase, inputs: Tensor, state: list[Tensor]) -> list[Tensor]:
    output, last = layer(inputs, tuple(state) if len(state) == 2 else state[0])
    return [output, *(last if len(state) == 2 else [last])]


def elsewhere(results: list[Tensor]) -> list[Tensor]:
    """As another process has them, beside whose storages nothing is kept."""
    return [one.clone() for one in results]


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert [torch.equal(*pair) for pair in zip(found, expected, strict=True)] == [True] * len(expected)


@pytest.mark.parametrize("cell", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_is_pytorchs_to_the_bit_and_its_gradients_are_pytorchs(
    cell: int, dtype: torch.dtype, bidirectional: bool, bias: bool
) -> None:
    layer, inputs, state = layer_of(cell, dtype, bidirectional, bias)
    weights = [weight for weight in layer.parameters()]
    expected = results_of(layer, inputs, state)
    with torch.no_grad():
        found, unkept = (LAYER(inputs, state, weights, cell, bidirectional, keeps) for keeps in (True, False))
        assert_same(unkept, results_of(layer, inputs, state))
    *results, reserve = found
    assert_same(results, expected)
    assert (reserve.shape, reserve.dtype) == ((0,), torch.uint8)
    for given in ([0], [1], list(range(len(expected)))):  # of which results there are gradients
        incoming = [torch.randn_like(one) if place in given else None for place, one in enumerate(expected)]
        reached = [(one, gradient) for one, gradient in zip(expected, incoming, strict=True) if gradient is not None]
        results, gradients = zip(*reached, strict=True)
        wanted = torch.autograd.grad(results, [inputs, *state, *weights], gradients, retain_graph=True, allow_unused=True)
        with torch.no_grad():
            made = DERIVATIVE(incoming, found, inputs, state, weights, cell, bidirectional)
            again = DERIVATIVE(incoming, elsewhere(found), inputs, state, weights, cell, bidirectional)
        assert_close(made, [torch.zeros_like(one) if gradient is None else gradient for gradient, one in zip(wanted, made, strict=True)])
        assert_same(again, made)


def operators_of(derive: Callable[[], Any]) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        derive()
    return {event.key for event in profiled.key_averages()}


@pytest.mark.parametrize("cell", KINDS)
def test_what_a_layer_kept_is_not_computed_again(cell: int) -> None:
    layer, inputs, state = layer_of(cell)
    weights = list(layer.parameters())
    forwards = {"aten::mkldnn_rnn_layer"} if cell == LSTM else {"aten::stack", "aten::linear"}
    with torch.no_grad():
        results = LAYER(inputs, state, weights, cell, False, True)
        incoming = [torch.randn_like(one) for one in results[:-1]]
        for _ in range(2):  # as with retain_graph
            assert not forwards & operators_of(lambda: DERIVATIVE(incoming, results, inputs, state, weights, cell, False))
        assert forwards <= operators_of(lambda: DERIVATIVE(incoming, elsewhere(results), inputs, state, weights, cell, False))


def test_what_another_layer_kept_is_not_looked_at() -> None:
    layer, inputs, state = layer_of(LSTM)
    weights = list(layer.parameters())
    with torch.no_grad():
        results = LAYER(inputs, state, weights, LSTM, False, True)
        incoming = [torch.randn_like(one) for one in results[:-1]]
        expected = DERIVATIVE(incoming, results, inputs, state, weights, LSTM, False)
        shorter = LAYER(inputs[:2], state, weights, LSTM, False, True)[-1]
        wide = [one.double() for one in state], [one.double() for one in weights]
        alike = LAYER(inputs + 1, state, weights, LSTM, False, True)[-1]
        double = LAYER(inputs.double(), *wide, LSTM, False, True)[-1]
        for other in (alike, shorter, double, torch.zeros(3, dtype=torch.uint8), torch.zeros(0)):
            assert_same(DERIVATIVE(incoming, [*results[:-1], other], inputs, state, weights, LSTM, False), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda call: call | {"cell": 4},
        lambda call: call | {"cell": -1},
        lambda call: call | {"bidirectional": True},
        lambda call: call | {"input": call["input"][0]},
        lambda call: call | {"input": call["input"][:0]},
        lambda call: call | {"input": call["input"].double()},
        lambda call: call | {"input": call["input"].long()},
        lambda call: call | {"input": call["input"].repeat(1, 2, 1)},
        lambda call: call | {"input": call["input"].repeat(1, 1, 2)},
        lambda call: call | {"state": []},
        lambda call: call | {"state": call["state"][:1]},
        lambda call: call | {"state": [call["state"][0], call["state"][1][:, :, :1]]},
        lambda call: call | {"state": [one.repeat(1, 1, 2) for one in call["state"]]},
        lambda call: call | {"weights": call["weights"][:3]},
        lambda call: call | {"weights": []},
        lambda call: call | {"weights": [call["weights"][1], call["weights"][0], *call["weights"][2:]]},
        lambda call: call | {"weights": [*call["weights"][:3], call["weights"][3][:1]]},
        lambda call: call | {"weights": [call["weights"][0].to_sparse(), *call["weights"][1:]]},
    ],
)
def test_what_does_not_fit_is_refused(change: Any) -> None:
    layer, inputs, state = layer_of(LSTM)
    call = change({"input": inputs, "state": state, "weights": list(layer.parameters()), "cell": LSTM, "bidirectional": False})
    with torch.no_grad():
        results = LAYER(inputs, state, list(layer.parameters()), LSTM, False, True)
        with pytest.raises(RuntimeError, match="recurrent layer"):
            LAYER(**call, keeps=True)
        with pytest.raises(RuntimeError, match="recurrent layer"):
            DERIVATIVE([None, None, None], results, **call)


OTHER_TYPE = torch.zeros(1, ROWS, HIDDEN, dtype=torch.float64)


@pytest.mark.parametrize("gradients", [[], [None], [torch.zeros(1), None, None], [None, None, OTHER_TYPE]])
def test_gradients_that_do_not_fit_are_refused(gradients: list[Tensor | None]) -> None:
    layer, inputs, state = layer_of(LSTM)
    with torch.no_grad():
        results = LAYER(inputs, state, list(layer.parameters()), LSTM, False, True)
        with pytest.raises(RuntimeError, match="recurrent layer"):
            DERIVATIVE(gradients, results, inputs, state, list(layer.parameters()), LSTM, False)


@pytest.mark.parametrize(
    "change", [lambda made: [], lambda made: made[:-1], lambda made: [made[1], *made[1:]], lambda made: [*made[:2], OTHER_TYPE, made[3]]]
)
def test_results_that_do_not_fit_are_refused(change: Callable[[list[Tensor]], list[Tensor]]) -> None:
    layer, inputs, state = layer_of(LSTM)
    with torch.no_grad():
        results = LAYER(inputs, state, list(layer.parameters()), LSTM, False, True)
        with pytest.raises(RuntimeError, match="recurrent layer"):
            DERIVATIVE([None, None, None], change(results), inputs, state, list(layer.parameters()), LSTM, False)
