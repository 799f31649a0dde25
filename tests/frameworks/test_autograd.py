"""What people build on autograd: functions of their own, hooks, checkpoints, parametrizations, averaged models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, stack_module_state, vmap
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parametrizations, prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Cube(torch.autograd.Function):
    """x³, its derivative differentiable and usable in function transforms."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


def network() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.4), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.cpu() for p in model.parameters() if p.grad is not None]


def test_a_function_of_ones_own_is_differentiated_twice_and_vectorised() -> None:
    x = torch.randn(5)
    there = x.cuda().requires_grad_()
    (first,) = torch.autograd.grad(Cube.apply(there).sum(), there, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), there)
    assert_close(first.detach().cpu(), 3 * x**2)
    assert_close(second.cpu(), 6 * x)
    assert_close(vmap(grad(Cube.apply))(x.cuda()).cpu(), 3 * x**2)
    assert torch.autograd.gradcheck(Cube.apply, torch.randn(4, dtype=torch.float64, device="cuda", requires_grad=True))


def test_a_penalty_on_the_gradient_trains_as_on_the_cpu() -> None:
    found = []
    for device in ("cuda", "cpu"):
        model = network().eval().to(device)
        x = torch.linspace(-1, 1, 24).reshape(4, 6).to(device).requires_grad_()
        (of_input,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        of_input.norm(2, dim=1).sub(1).pow(2).mean().backward()
        found.append(gradients(model))
    for one, other in zip(*found, strict=True):
        assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_hooks_see_and_change_what_passes() -> None:
    model, x = network().eval().cuda(), torch.randn(4, 6, device="cuda", requires_grad=True)
    seen: dict[str, torch.Tensor] = {}
    model[0].register_forward_hook(lambda module, inputs, output: seen.update(forward=output.detach()))
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    model[3].register_full_backward_hook(lambda module, into, out: seen.update(backward=out[0]))
    model[5].weight.register_hook(lambda gradient: gradient * 0)
    model[5].bias.register_post_accumulate_grad_hook(lambda p: seen.update(accumulated=p.grad))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.cuda()):
        loss = model(x).sum()
    loss.backward()
    assert_close(seen["forward"].cpu(), network()[0](2 * x.detach().cpu()), rtol=1e-4, atol=1e-5)
    assert seen["backward"].shape == (4, 16) and seen["backward"].is_cuda
    assert seen["accumulated"].tolist() == [4.0] * 3
    assert model[5].weight.grad.count_nonzero().item() == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_computes_again_with_the_same_random_numbers(reentrant: bool) -> None:
    found = []
    for run in (lambda m, x: m(x), lambda m, x: checkpoint(m, x, use_reentrant=reentrant)):
        model, x = network().cuda().train(), torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).cuda().requires_grad_()
        torch.manual_seed(9)
        run(model, x).pow(2).sum().backward()
        found.append(gradients(model))
    for one, other in zip(*found, strict=True):
        assert_close(one, other)
    model = network().cuda()
    checkpoint_sequential(model, 2, torch.randn(8, 6, device="cuda", requires_grad=True), use_reentrant=reentrant).sum().backward()
    assert len(gradients(model)) == 6


def test_an_ensemble_is_run_as_one_and_a_hessian_taken_through_it() -> None:
    models = [nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(3)]
    x = torch.randn(5, 6)
    expected = torch.stack([model(x) for model in models])
    base = copy.deepcopy(models[0]).to("meta")
    weights, buffers = stack_module_state([copy.deepcopy(model).cuda() for model in models])
    ensemble = vmap(lambda w, b, x: functional_call(base, (w, b), (x,)), in_dims=(0, 0, None))
    assert_close(ensemble(weights, buffers, x.cuda()).cpu(), expected, rtol=1e-4, atol=1e-5)
    there = copy.deepcopy(models[0]).cuda()
    assert_close(hessian(lambda v: there(v).sum())(x[0].cuda()).cpu(), hessian(lambda v: models[0](v).sum())(x[0]), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal])
def test_a_parametrized_weight_is_that_of_the_cpu(wrap: Callable[..., nn.Module]) -> None:
    host = wrap(nn.Linear(6, 6))
    there, x = copy.deepcopy(host).cuda(), torch.randn(4, 6)
    host(x).pow(2).sum().backward()
    there(x.cuda()).pow(2).sum().backward()
    assert_close(there.weight.cpu(), host.weight, rtol=1e-3, atol=1e-4)
    assert_close(clip_grad_norm_(there.parameters(), 0.5).cpu(), clip_grad_norm_(host.parameters(), 0.5), rtol=1e-3, atol=1e-4)
    clip_grad_value_(there.parameters(), 0.01)
    assert all(gradient.abs().max() <= 0.01 for gradient in gradients(there))


def test_a_pruned_weight_keeps_its_largest_half() -> None:
    host = nn.Linear(6, 6)
    there = copy.deepcopy(host).cuda()
    for layer in (host, there):
        prune.l1_unstructured(layer, "weight", 0.5)
    assert torch.equal(there.weight_mask.cpu(), host.weight_mask)


def test_averaged_models_follow_as_on_the_cpu() -> None:
    found = []
    for device in ("cuda", "cpu"):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).to(device)
        x = torch.linspace(-1, 1, 48).reshape(8, 6).to(device)
        moving = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        mean = AveragedModel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            moving.update_parameters(model)
            mean.update_parameters(model)
        update_bn([x], mean)
        found.append([value.cpu() for value in (moving.state_dict() | {f"mean {k}": v for k, v in mean.state_dict().items()}).values()])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, rtol=1e-3, atol=1e-5)
