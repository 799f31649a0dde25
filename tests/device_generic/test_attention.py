"""Scaled dot-product attention with every back end a program may ask for, masked, causal, grouped, and with dropout."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

CHOICES = [[SDPBackend.MATH], [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]]
FORMS = {
    "plain": {},
    "causal": {"is_causal": True},
    "masked": {"attn_mask": torch.arange(7) < torch.arange(7)[:, None] + 2},
    "biased": {"attn_mask": torch.linspace(-1, 1, 49).reshape(7, 7)},
    "scaled": {"scale": 0.3},
    "grouped": {"enable_gqa": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_attention_and_its_gradients_are_the_cpu_s(form: str, choice: list[SDPBackend], dtype: torch.dtype) -> None:
    heads = 2 if form == "grouped" else 4
    here = [torch.randn(2, count, 7, 8, dtype=dtype, requires_grad=True) for count in (4, heads, heads)]
    there = [tensor.detach().cuda().requires_grad_() for tensor in here]
    given = {name: value.to(dtype) if name == "attn_mask" and form == "biased" else value for name, value in FORMS[form].items()}
    moved = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    expected = scaled_dot_product_attention(*here, **given)
    with sdpa_kernel(choice):
        actual = scaled_dot_product_attention(*there, **moved)
    torch.testing.assert_close(actual.cpu(), expected)
    weights = torch.randn_like(expected)
    for one, other in zip(torch.autograd.grad(actual, there, weights.cuda()), torch.autograd.grad(expected, here, weights), strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_dropout_in_attention_follows_the_seed() -> None:
    query = torch.randn(2, 4, 7, 8, device="cuda")
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(scaled_dot_product_attention(query, query, query, dropout_p=0.5))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert not torch.allclose(results[0], scaled_dot_product_attention(query, query, query))
