"""Recurrent networks on the virtual device, of which each layer is one call: results, gradients and refusals are PyTorch's own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from forebay import _C
from torch import Tensor, nn
from torch.testing import assert_close

ROWS, STEPS, WIDE, HIDDEN = 3, 5, 4, 6
KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": lambda *sizes, **how: nn.RNN(*sizes, nonlinearity="relu", **how),
}  # fmt: skip
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "without biases, double": {"bias": False, "dtype": torch.float64},
}


def everything(results: Any) -> list[Tensor]:
    output, last = results
    return [output, *(last if isinstance(last, tuple) else [last])]


def pair(kind: str, **how: Any) -> tuple[nn.RNNBase, nn.RNNBase, Tensor]:
    torch.manual_seed(0)
    host = KINDS[kind](WIDE, HIDDEN, **how)
    return host, copy.deepcopy(host).cuda(), torch.randn(STEPS, ROWS, WIDE, dtype=how.get("dtype", torch.float32))


def gradients_of(results: list[Tensor], wanted: list[Tensor]) -> list[Tensor]:
    loss = sum((one * torch.linspace(-1, 1, one.numel(), device=one.device, dtype=one.dtype).view(one.shape)).sum() for one in results)
    assert isinstance(loss, Tensor)
    return [gradient.cpu() for gradient in torch.autograd.grad(loss, wanted)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOW)
def test_results_and_gradients_are_the_hosts(kind: str, how: str) -> None:
    host, there, inputs = pair(kind, **HOW[how])
    mine, theirs = inputs.clone().requires_grad_(), inputs.cuda().requires_grad_()
    expected, found = everything(host(mine)), everything(there(theirs))
    assert [one.stride() for one in found] == [one.stride() for one in expected]
    assert_close([one.cpu() for one in found], expected)
    assert_close(gradients_of(found, [theirs, *there.parameters()]), gradients_of(expected, [mine, *host.parameters()]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_one_call_however_long_the_sequence(kind: str) -> None:
    _, there, _ = pair(kind)
    calls = []
    for steps in (4, 40):
        inputs = torch.randn(steps, ROWS, WIDE, device="cuda")
        before = _C.statistics()["commands"]
        there(inputs)[0].sum().backward()
        calls.append(_C.statistics()["commands"] - before)
    assert max(calls) < 20  # the layer, its derivative, the sum, and what is freed


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_pytorchs_to_the_bit_with_a_derivative_and_without(kind: str) -> None:
    host, there, inputs = pair(kind, num_layers=2, bidirectional=True)
    for derives in (True, False):
        with torch.set_grad_enabled(derives):
            found, expected = everything(there(inputs.cuda())), everything(host(inputs))
        assert [torch.equal(one.cpu(), other) for one, other in zip(found, expected, strict=True)] == [True] * len(expected)


def test_a_derivative_is_taken_as_often_as_natively() -> None:
    _, there, inputs = pair("lstm")
    loss = there(inputs.cuda())[0].square().sum()
    first, again = (torch.autograd.grad(loss, list(there.parameters()), retain_graph=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_what_was_saved_on_the_host_meanwhile_is_computed_again() -> None:
    _, there, inputs = pair("lstm")
    expected = torch.autograd.grad(there(inputs.cuda())[0].square().sum(), list(there.parameters()))
    with torch.autograd.graph.save_on_cpu():
        loss = there(inputs.cuda())[0].square().sum()
    assert_close(torch.autograd.grad(loss, list(there.parameters())), expected)


def test_results_that_were_changed_in_place_have_no_derivative() -> None:
    _, there, inputs = pair("lstm")
    loss = there(inputs.cuda())[0].mul_(2).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_states_that_are_given_have_gradients() -> None:
    host, there, inputs = pair("lstm")
    state = [torch.randn(1, ROWS, HIDDEN, requires_grad=True) for _ in range(2)]
    moved = [one.detach().cuda().requires_grad_() for one in state]
    expected, found = everything(host(inputs, tuple(state))), everything(there(inputs.cuda(), tuple(moved)))
    assert_close(gradients_of(found, moved), gradients_of(expected, state))


def test_dropout_between_layers_draws_as_before_and_not_in_evaluation() -> None:
    _, there, inputs = pair("gru", num_layers=2, dropout=0.5)
    torch.manual_seed(1)
    first = there(inputs.cuda())[0]
    torch.manual_seed(1)
    assert torch.equal(first, there(inputs.cuda())[0])
    assert not torch.equal(first, there(inputs.cuda())[0])
    there.eval()
    assert torch.equal(there(inputs.cuda())[0], there(inputs.cuda())[0])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_gradient_has_a_gradient(kind: str) -> None:
    found = []
    for network, at in zip(pair(kind)[:2], ("cpu", "cuda"), strict=True):
        inputs = torch.linspace(-1, 1, STEPS * ROWS * WIDE, device=at).view(STEPS, ROWS, WIDE).requires_grad_()
        (first,) = torch.autograd.grad(network(inputs)[0].sum(), inputs, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), [inputs, *network.parameters()], allow_unused=True)
        found.append([gradient.cpu() for gradient in second if gradient is not None])
    assert_close(found[1], found[0])


def test_autocast_computes_in_its_type() -> None:
    _, there, inputs = pair("lstm")
    with torch.autocast("cuda", torch.bfloat16):
        output, (h, c) = there(inputs.cuda())
    assert output.dtype == h.dtype == c.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(weight.grad is not None and weight.grad.dtype == torch.float32 for weight in there.parameters())
    assert_close(output.float(), there(inputs.cuda())[0], rtol=0.05, atol=0.05)


def test_those_who_look_on_see_the_parts() -> None:
    host, there, inputs = pair("gru")
    gradients = []
    for network, at in ((host, "cpu"), (there, "cuda")):
        given = inputs.to(at)
        gradients.append(torch.func.grad(lambda one, network=network: network(one)[0].square().sum())(given).cpu())
    assert_close(gradients[1], gradients[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(there, backend="eager")
    assert_close(compiled(inputs.cuda())[0].cpu(), host(inputs)[0])
    with torch.inference_mode():
        assert_close(there(inputs.cuda())[0].cpu(), host(inputs)[0])


def test_sequences_of_different_lengths_and_projections_are_as_before() -> None:
    host, there, inputs = pair("lstm", proj_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of oneDNN
        assert_close(there(inputs.cuda())[0].cpu(), host(inputs)[0])
    host, there, inputs = pair("gru")
    packed = nn.utils.rnn.pack_padded_sequence(inputs, torch.tensor([5, 3, 2]))
    assert_close(there(packed.to("cuda"))[0].data.cpu(), host(packed)[0].data)
