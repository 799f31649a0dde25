"""Models train on the virtual device as they do on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset


class Sequence(nn.Module):
    """A recurrent layer and a linear one."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.recurrent = kind(6, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)), (5, 6)),
    "convnet": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)),
        (5, 2, 8, 8),
    ),
    "transposed convolution": (lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 3, stride=2), nn.Flatten(), nn.Linear(243, 3)), (5, 2, 4, 4)),
    "encoder": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), nn.Flatten(), nn.Linear(64, 3)),
        (5, 4, 16),
    ),
    "lstm": (lambda: Sequence(nn.LSTM), (5, 4, 6)),
    "gru": (lambda: Sequence(nn.GRU), (5, 4, 6)),
    "rnn": (lambda: Sequence(nn.RNN), (5, 4, 6)),
}
OPTIMIZERS = [
    name
    for name in dir(torch.optim)
    if isinstance(getattr(torch.optim, name), type)
    and issubclass(getattr(torch.optim, name), torch.optim.Optimizer)
    and name not in ("Optimizer", "SparseAdam")  # which takes sparse gradients: test_sparse.py
]


def train(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, optimizer: torch.optim.Optimizer, steps: int = 3) -> list[float]:
    """Losses of some steps, and the model changed by them."""
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    for _ in range(steps):
        losses.append(optimizer.step(closure).item())
    return losses


def pair(name: str) -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    make, shape = MODELS[name]
    host = make()
    return host, copy.deepcopy(host).to("cuda"), torch.randn(shape), torch.randint(0, 3, (shape[0],))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_same_losses_and_gradients(name: str) -> None:
    host, there, inputs, labels = pair(name)
    expected = train(host, inputs, labels, torch.optim.SGD(host.parameters(), lr=0.1))
    actual = train(there, inputs.to("cuda"), labels.to("cuda"), torch.optim.SGD(there.parameters(), lr=0.1))
    assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(there.parameters(), host.parameters(), strict=True):
        assert_close(one.grad.cpu(), other.grad, rtol=1e-3, atol=1e-5)


def optimizer_of(name: str, model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.dim() == 2] if name == "Muon" else list(model.parameters())
    return getattr(torch.optim, name)(parameters, lr=0.01, **options)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_takes_the_same_steps(name: str) -> None:
    host, there, inputs, labels = pair("mlp")
    expected = train(host, inputs, labels, optimizer_of(name, host))
    actual = train(there, inputs.to("cuda"), labels.to("cuda"), optimizer_of(name, there))
    assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("option", ["foreach", "fused", "capturable"])
def test_adamw_in_each_implementation_takes_the_same_steps(option: str) -> None:
    host, there, inputs, labels = pair("mlp")
    expected = train(host, inputs, labels, optimizer_of("AdamW", host))
    actual = train(there, inputs.to("cuda"), labels.to("cuda"), optimizer_of("AdamW", there, **{option: True}))
    assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_batches_come_through_a_loader_with_pinned_memory_and_workers() -> None:
    data = TensorDataset(torch.arange(32.0).reshape(16, 2), torch.arange(16))
    total = 0.0
    for x, y in DataLoader(data, batch_size=4, pin_memory=True, num_workers=1):
        assert x.is_pinned()
        total += (x.to("cuda", non_blocking=True).sum() + y.to("cuda", non_blocking=True).sum()).item()
    assert total == sum(range(32)) + sum(range(16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layer", [nn.LayerNorm, nn.BatchNorm1d, lambda size: nn.GroupNorm(2, size), nn.RMSNorm])
@pytest.mark.parametrize("training", [True, False])
def test_a_norm_in_half_precision_is_that_of_the_cpu(layer: Callable[[int], nn.Module], dtype: torch.dtype, training: bool) -> None:
    host = layer(8).to(dtype).train(training)
    there, x = copy.deepcopy(host).to("cuda"), torch.randn(6, 8, dtype=dtype)
    found = []
    for model, inputs in ((host, x.clone()), (there, x.to("cuda"))):
        inputs.requires_grad_()
        model(inputs).pow(3).sum().backward()
        found.append([inputs.grad, *(p.grad for p in model.parameters())])
    for expected, actual in zip(*found, strict=True):
        assert actual is not None
        assert_close(actual.cpu(), expected, rtol=3e-2, atol=3e-2)


PARTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "batch norm": (lambda: nn.BatchNorm2d(4), (2, 4, 3, 3)),
    "layer norm": (lambda: nn.LayerNorm(5), (2, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 5)),
    "rms norm": (lambda: nn.RMSNorm(5), (2, 5)),
    "convolution": (lambda: nn.Conv2d(4, 2, 3), (2, 4, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose1d(4, 2, 3), (2, 4, 5)),
}


@pytest.mark.parametrize("wanted", ["input", "weight", "bias"])
@pytest.mark.parametrize("part", PARTS)
def test_derivatives_that_nobody_wants_are_left_out(part: str, wanted: str) -> None:
    make, sizes = PARTS[part]
    host = make()
    if wanted == "bias" and getattr(host, "bias", None) is None:
        wanted = "weight"
    there, x = copy.deepcopy(host).to("cuda"), torch.randn(sizes)
    found = []
    for layer, inputs in ((host, x), (there, x.to("cuda"))):
        layer.requires_grad_(False)
        leaf = inputs.clone() if wanted == "input" else getattr(layer, wanted)
        leaf.requires_grad_()
        layer(leaf if wanted == "input" else inputs).square().sum().backward()
        found.append(leaf.grad.cpu())
    assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_autocast_runs_matrix_products_in_the_lower_precision() -> None:
    model, x = nn.Linear(8, 8).to("cuda"), torch.randn(4, 8, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = model(x)
        assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert model.weight.grad is not None and model.weight.grad.dtype == torch.float32


def test_the_gradient_scaler_steps_and_skips() -> None:
    model = nn.Linear(4, 1).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=1)
    before = model.weight.detach().cpu().clone()
    scaler.scale(model(torch.ones(2, 4, device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 8.0
    changed = model.weight.detach().cpu().clone()
    assert not torch.equal(before, changed)
    optimizer.zero_grad()
    scaler.scale(model(torch.full((2, 4), float("inf"), device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0 and torch.equal(model.weight.detach().cpu(), changed)


def test_a_state_dict_of_model_and_optimizer_goes_round() -> None:
    host, there, inputs, labels = pair("mlp")
    optimizer = torch.optim.Adam(there.parameters())
    train(there, inputs.to("cuda"), labels.to("cuda"), optimizer)
    host.load_state_dict(there.state_dict())
    fresh = torch.optim.Adam(host.parameters())
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    expected = train(host, inputs, labels, fresh)
    assert_close(train(there, inputs.to("cuda"), labels.to("cuda"), optimizer), expected, rtol=1e-3, atol=1e-4)


def test_gradients_of_gradients_hooks_and_checkpoints_work() -> None:
    x = torch.randn(4, device="cuda", requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert_close(second.cpu(), 6 * x.detach().cpu())
    seen: list[torch.Tensor] = []
    x.register_hook(seen.append)
    torch.utils.checkpoint.checkpoint(lambda value: value.sin().exp(), x, use_reentrant=False).sum().backward()
    host = x.detach().cpu()
    assert_close(seen[0].cpu(), host.sin().exp() * host.cos())


def test_the_distances_of_no_rows_have_an_empty_gradient() -> None:
    """As on a GPU; PyTorch's kernel for the CPU, and so for a CPU worker, ends its process."""
    rows = torch.ones(0, 3, device="cuda", requires_grad=True)
    torch.pdist(rows).sum().backward()
    assert rows.grad is not None and rows.grad.shape == (0, 3)
    assert (rows.grad.cpu() + 1).tolist() == []
