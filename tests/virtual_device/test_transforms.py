"""Function transforms, derivatives forward and backward, and layers that take roads of their own on CUDA."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.testing import assert_close

# PyTorch's forward derivatives compile their rules with torch.jit.script, which it deprecates itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning", "ignore:`torch.jit.script:FutureWarning")


def test_hessians_and_jacobians_are_those_of_the_cpu() -> None:
    x = torch.randn(5)
    assert_close(hessian(lambda v: (v.sin() * v).sum())(x.cuda()).cpu(), hessian(lambda v: (v.sin() * v).sum())(x))
    assert_close(jacrev(torch.sin)(x.cuda()).cpu(), jacrev(torch.sin)(x))


def test_forward_derivatives_pass_where_one_factor_has_none() -> None:
    x, t = torch.randn(4, 5), torch.randn(4, 5)
    _, expected = jvp(lambda v: v.tanh() @ v.t(), (x,), (t,))
    _, actual = jvp(lambda v: v.tanh() @ v.t(), (x.cuda(),), (t.cuda(),))
    assert_close(actual.cpu(), expected)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.cuda(), t.cuda())
        tangent = forward_ad.unpack_dual(dual * 2 + torch.ones(5, device="cuda")).tangent
    assert_close(tangent.cpu(), 2 * t)


def test_gradients_of_each_sample_are_those_of_the_cpu() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    x, y = torch.randn(7, 6), torch.randint(0, 2, (7,))

    def of_samples(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        def loss(weights: dict[str, torch.Tensor], one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(functional_call(model, weights, (one[None],)), label[None])

        return vmap(grad(loss), in_dims=(None, 0, 0))({name: weight.detach() for name, weight in model.named_parameters()}, x, y)

    expected = of_samples(model, x, y)
    actual = of_samples(copy.deepcopy(model).cuda(), x.cuda(), y.cuda())
    for name, one in expected.items():
        assert_close(actual[name].cpu(), one)


def test_an_encoder_in_evaluation_takes_a_padding_mask() -> None:
    host = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    there = copy.deepcopy(host).cuda()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
    host.use_nested_tensor = False
    with torch.no_grad():
        expected = host(x, src_key_padding_mask=padding)
        actual = there(x.cuda(), src_key_padding_mask=padding.cuda()).cpu()
    assert_close(actual[~padding], expected[~padding])


def test_integers_are_counted_as_on_a_gpu() -> None:
    x = torch.tensor([0, 1, 1, 3], dtype=torch.int32, device="cuda")
    assert torch.histc(x, bins=4, min=0, max=3).tolist() == [1, 2, 0, 1]
    assert torch.histc(x.float(), bins=4, min=0, max=3).tolist() == [1.0, 2.0, 0.0, 1.0]


def test_a_softmax_widens_half_precision() -> None:
    x = torch.randn(3, 4, device="cuda", dtype=torch.float16, requires_grad=True)
    for softmax in (torch.softmax, torch.log_softmax):
        y = softmax(x, 1, dtype=torch.float32)
        assert y.dtype == torch.float32
        assert_close(y.cpu(), softmax(x.detach().cpu().float(), 1))
        (y * y).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float16
