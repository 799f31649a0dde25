"""Small programs as people write them, on the device against the CPU: those that once found something wrong."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree

pytestmark = pytest.mark.filterwarnings("ignore")  # quantization of torch.ao and nested tensors warn that they will change


def seeded(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def observed_training(device: str) -> Any:
    """Quantization-aware training, whose observer sizes its own statistics."""
    config = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    torch.manual_seed(1)
    layer = torch.ao.nn.qat.Linear(8, 3, qconfig=config).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = layer(seeded(4, 8).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, layer.weight_fake_quant.scale, layer.weight_fake_quant.activation_post_process.min_val


def traced_convnet(device: str) -> Any:
    """``torch.jit.trace`` of convolutions whose weights are trained, saved, loaded and frozen."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2, stride=2), nn.Flatten(), nn.Linear(72, 3)).to(device)
    traced = torch.jit.trace(net, torch.ones(1, 1, 5, 5, device=device))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    loaded = torch.jit.load(file, map_location=device)
    x = seeded(2, 1, 5, 5).to(device)
    traced(x).sum().backward()
    assert "convolution" in str(traced.inlined_graph)
    return traced(x), loaded(x), torch.jit.freeze(loaded.eval())(x), net[0].weight.grad


def jagged_batch(device: str) -> Any:
    """Rows of different lengths, padded and back, with gradients."""
    rows = [seeded(2, 3).to(device), seeded(4, 3).to(device), seeded(1, 3).to(device)]
    batch = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    padded = batch.to_padded_tensor(-1.0)
    weights = torch.arange(padded.numel(), device=device, dtype=torch.float32).view(padded.shape)
    (padded * weights).sum().backward()
    back = torch.nested.narrow(padded.detach(), 1, 0, torch.tensor([2, 4, 1], device=device), layout=torch.jagged)
    kept = torch.ops.aten._padded_dense_to_jagged_forward(padded.detach(), [batch.offsets()], 7)
    return padded, batch.grad.values(), back.contiguous().values(), kept


def wide_parameters(device: str) -> Any:
    """Normalization of half precision by parameters in single precision, as mixed precision keeps them."""
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        for make in (lambda: nn.GroupNorm(2, 4), lambda: nn.LayerNorm([4, 5, 5]), lambda: nn.BatchNorm2d(4)):
            norm = make().to(device)
            x = seeded(2, 4, 5, 5).to(device, dtype).requires_grad_()
            y = norm(x)
            (y * seeded(2, 4, 5, 5).to(device)).sum().backward()
            found += [y, x.grad, norm.weight.grad, norm.bias.grad]
    return found


def powers_of_truth(device: str) -> Any:
    truths = [torch.tensor([True, False], device=device), torch.tensor([True], device=device)]
    powers = [power.long() for power in torch._foreach_pow(truths, True)]
    torch._foreach_pow_(truths, True)
    return powers, truths


PROGRAMS = [observed_training, traced_convnet, jagged_batch, wide_parameters, powers_of_truth]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_gives_what_it_gives_on_the_cpu(program: Any) -> None:
    expected, actual = (_pytree.tree_leaves(program(device)) for device in ("cpu", "cuda"))
    for one, other in zip(actual, expected, strict=True):
        assert one.is_cuda
        half = other.dtype.itemsize == 2
        torch.testing.assert_close(one.cpu(), other, rtol=2e-2 if half else 1e-4, atol=2e-2 if half else 1e-4)


def test_attention_over_jagged_rows_is_refused_in_words_that_help_and_over_jagged_batches_computed() -> None:
    rows = torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)], layout=torch.jagged, device="cuda")
    heads = rows.unflatten(-1, (2, 8)).transpose(1, 2)
    with pytest.raises(RuntimeError, match=r"Attention over jagged tensors is not available .* to_padded_tensor\(\)"):
        F.scaled_dot_product_attention(heads, heads, heads)
    made = [torch.randn(2, 3, 4, 8), torch.randn(1, 3, 4, 8)]
    host, there = (torch.nested.nested_tensor(made, layout=torch.jagged, device=device) for device in ("cpu", "cuda"))
    expected, actual = (F.scaled_dot_product_attention(batch, batch, batch).values() for batch in (host, there))
    torch.testing.assert_close(actual.cpu(), expected)


def test_a_padded_batch_of_no_rows_or_no_values_is_padding() -> None:
    offsets = torch.tensor([0, 0, 0], device="cuda")
    padded = torch.ops.aten._jagged_to_padded_dense_forward(torch.ones(0, 2, device="cuda"), [offsets], [3], 7.0)
    assert torch.equal(padded.cpu(), torch.full((2, 3, 2), 7.0))
    assert torch.ops.aten._padded_dense_to_jagged_forward(padded, [offsets], None).shape == (0, 2)


def test_lying_offsets_read_nothing_that_is_not_theirs() -> None:
    offsets = torch.tensor([0, 100, 3], device="cuda")
    padded = torch.ops.aten._jagged_to_padded_dense_forward(torch.arange(3.0, device="cuda"), [offsets], [4], 0.0)
    assert padded.cpu().max() <= 2
    assert F.relu(padded).shape == (2, 4)
