"""Operators that a program defines by ``torch.library``, with bodies of PyTorch's operators, are the device's like PyTorch's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

_names = itertools.count()


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield


@pytest.fixture
def scaled_tanh() -> Any:
    """tanh(x) * scale, differentiable, with its geometry and its way through vmap and autocast."""

    @torch.library.custom_op(f"forebay_tests::scaled_tanh_{next(_names)}", mutates_args=())
    def scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.tanh(x) * scale

    scaled.register_fake(lambda x, scale: torch.empty_like(x))

    def keep(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        ctx.scale = inputs[1]
        ctx.save_for_backward(output)

    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (output,) = ctx.saved_tensors
        return gradient * (ctx.scale - output * output / ctx.scale), None

    scaled.register_autograd(backward, setup_context=keep)
    scaled.register_vmap(lambda info, dims, x, scale: (scaled(x, scale), dims[0]))
    scaled.register_autocast("cuda", torch.bfloat16)
    return scaled


def plain(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.tanh(x) * scale


def values_and_gradients(function: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.detach().requires_grad_()
    made = function(x, 1.5)
    (gradient,) = torch.autograd.grad((made * made).sum(), x)
    return made.detach(), gradient


@pytest.mark.parametrize("compiled", [False, True, "dynamic"], ids=str)
def test_an_operator_of_ones_own_has_its_values_and_its_gradient(scaled_tanh: Any, compiled: bool | str) -> None:
    function = torch.compile(scaled_tanh, fullgraph=True, dynamic=compiled == "dynamic") if compiled else scaled_tanh
    for rows in (4, 7):
        x = torch.randn(rows, 5)
        made = values_and_gradients(function, x.cuda())
        assert all(one.is_cuda for one in made)
        assert_close([one.cpu() for one in made], list(values_and_gradients(plain, x)))


def test_an_operator_of_ones_own_is_mapped_over_a_batch_and_cast(scaled_tanh: Any) -> None:
    x = torch.randn(3, 4, 5)
    assert_close(torch.vmap(lambda one: scaled_tanh(one, 2.0))(x.cuda()).cpu(), plain(x, 2.0))
    with torch.autocast("cuda"):
        assert scaled_tanh(x.cuda(), 2.0).dtype == torch.bfloat16


def test_pytorch_finds_nothing_wrong_with_an_operator_on_the_device(scaled_tanh: Any) -> None:
    x = torch.randn(4, 5, device="cuda", requires_grad=True)
    found = torch.library.opcheck(scaled_tanh, (x, 0.5))
    assert set(found.values()) == {"SUCCESS"}, found


def test_an_operator_that_writes_to_what_it_is_given_does_so_in_a_graph_too() -> None:
    @torch.library.custom_op(f"forebay_tests::add_into_{next(_names)}", mutates_args={"target"})
    def add_into(target: torch.Tensor, x: torch.Tensor) -> None:
        target.add_(x.relu())

    def step(target: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        add_into(target, x)
        return target * 2

    x = torch.randn(4, 5)
    for function in (step, torch.compile(step, fullgraph=True)):
        target = torch.ones(4, 5, device="cuda")
        assert_close(function(target, x.cuda()).cpu(), (1 + x.relu()) * 2)
        assert_close(target.cpu(), 1 + x.relu())


@pytest.mark.parametrize("key", ["CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd"])
def test_a_kernel_of_a_library_of_ones_own_is_called_for_the_device(key: str) -> None:
    library = torch.library.Library(f"forebay_tests_{next(_names)}", "DEF")
    library.define("halves(Tensor x) -> (Tensor, Tensor)")
    library.impl("halves", lambda x: (x[: len(x) // 2].clone(), x[len(x) // 2 :].clone()), key)
    halves = getattr(torch.ops, library.ns).halves
    if key != "CompositeImplicitAutograd":
        torch.library.register_fake(
            f"{library.ns}::halves", lambda x: (torch.empty_like(x[: len(x) // 2]), torch.empty_like(x[len(x) // 2 :]))
        )
    x = torch.arange(6.0)
    for function in (halves, torch.compile(lambda x: halves(x), fullgraph=True)):
        first, second = function(x.cuda())
        assert (first.tolist(), second.tolist()) == ([0.0, 1.0, 2.0], [3.0, 4.0, 5.0])


def test_an_operator_for_cuda_alone_is_refused_on_the_host_as_everywhere() -> None:
    @torch.library.custom_op(f"forebay_tests::doubled_{next(_names)}", mutates_args=(), device_types="cuda")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert doubled(torch.ones(3, device="cuda")).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(NotImplementedError, match="CPU"):
        doubled(torch.ones(3))


def test_an_operator_for_the_host_alone_says_that_cuda_has_no_kernel_and_takes_one() -> None:
    name = f"forebay_tests::tripled_{next(_names)}"

    @torch.library.custom_op(name, mutates_args=(), device_types="cpu")
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    assert tripled(torch.ones(2)).tolist() == [3.0, 3.0]
    says = rf'{name} has a kernel for the CPU, and none for cuda: .*register_kernel\("{name}", "cuda"\)'
    with pytest.raises(NotImplementedError, match=says):
        tripled(torch.ones(2, device="cuda"))
    tripled.register_kernel("cuda")(lambda x: x + x + x)
    assert tripled(torch.ones(2, device="cuda")).tolist() == [3.0, 3.0]


def test_triton_op_with_a_body_of_pytorchs_operators_is_one_of_them() -> None:
    @torch.library.triton_op(f"forebay_tests::softened_{next(_names)}", mutates_args=())
    def softened(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(x) + 1

    softened.register_autograd(
        lambda ctx, gradient: gradient * ctx.slope,
        setup_context=lambda ctx, inputs, output: setattr(ctx, "slope", torch.sigmoid(inputs[0])),
    )
    x = torch.randn(4, 5)
    for function in (softened, torch.compile(softened, fullgraph=True)):
        given = x.cuda().requires_grad_()
        made = function(given)
        assert_close(made.cpu(), torch.nn.functional.softplus(x) + 1)
        assert_close(torch.autograd.grad(made.sum(), given)[0].cpu(), torch.sigmoid(x))
