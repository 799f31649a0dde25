"""Small models, and a training step of each, alike on the virtual device and natively."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[], Tensor]
"""Runs one training step, and returns its loss, on the device."""
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Wrap = Callable[[nn.Module], nn.Module]
"""What becomes of a model before it is trained."""


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def as_it_is(model: nn.Module) -> nn.Module:
    return model


def mlp(device: str, wrap: Wrap = as_it_is, hidden: int = 1) -> Step:
    """64-256-256-10, batch 64, SGD; ``hidden`` is the number of its 256-256 layers."""
    torch.manual_seed(0)
    blocks = [layer for _ in range(hidden) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), *blocks, nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return classifies(wrap(model), optimizer, torch.randn(64, 64).to(device), torch.randint(0, 10, (64,)).to(device))


def transformer(
    device: str, wrap: Wrap = as_it_is, layers: int = 2, optimizer: MakeOptimizer = adamw, dropout: float = 0.0, autocast: bool = False
) -> Step:
    """Encoder layers, width 128, sequence 64, batch 8."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=dropout, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = nn.Sequential(encoder, nn.Flatten(), nn.Linear(128 * 64, 10)).to(device)
    inputs, labels = torch.randn(8, 64, 128).to(device), torch.randint(0, 10, (8,)).to(device)
    return classifies(wrap(model), optimizer(model.parameters()), inputs, labels, autocast=autocast)


def dropout(device: str, wrap: Wrap = as_it_is) -> Step:
    """The transformer with dropout of a tenth."""
    return transformer(device, wrap, dropout=0.1)


def autocast(device: str, wrap: Wrap = as_it_is) -> Step:
    """The transformer in bfloat16, as autocast has it."""
    return transformer(device, wrap, autocast=True)


def accumulation(device: str, wrap: Wrap = as_it_is) -> Step:
    """An MLP of 256-512-512-10 that adds the gradients of four batches of 16, SGD with momentum."""
    torch.manual_seed(0)
    layers = (nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = [(torch.randn(16, 256).to(device), torch.randint(0, 10, (16,)).to(device)) for _ in range(4)]
    wrapped = wrap(model)

    def step() -> Tensor:
        optimizer.zero_grad()
        for inputs, labels in batches:
            loss = nn.functional.cross_entropy(wrapped(inputs), labels) / len(batches)
            loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def convnet(device: str, wrap: Wrap = as_it_is) -> Step:
    """Three convolutions with batch norm, 16 images of 32x32, SGD with momentum."""
    torch.manual_seed(0)
    blocks = []
    for given, made in ((3, 16), (16, 32), (32, 32)):
        blocks += [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 16, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return classifies(wrap(model), optimizer, torch.randn(16, 3, 32, 32).to(device), torch.randint(0, 10, (16,)).to(device))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.lstm(x)[0][:, -1])
        return found


def lstm(device: str, wrap: Wrap = as_it_is) -> Step:
    """One layer of width 128, sequence 32, batch 16, AdamW."""
    torch.manual_seed(0)
    model = _Recurrent().to(device)
    inputs, labels = torch.randn(16, 32, 64).to(device), torch.randint(0, 10, (16,)).to(device)
    return classifies(wrap(model), adamw(model.parameters()), inputs, labels)


def gpt2(device: str, wrap: Wrap = as_it_is) -> Step:
    """transformers' GPT-2 with two layers of width 128, sequence 64, batch 4, AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(device).train()
    tokens = torch.randint(0, 256, (4, 64)).to(device)
    return _loses(wrap(model), adamw(model.parameters()), {"input_ids": tokens, "labels": tokens})


def t5(device: str, wrap: Wrap = as_it_is) -> Step:
    """transformers' T5 with two layers each way of width 128, sequences of 32, batch 4, AdamW, without dropout."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
    config = T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0)
    model = T5ForConditionalGeneration(config).to(device).train()
    tokens, labels = (torch.randint(1, 256, (4, 32)).to(device) for _ in range(2))
    return _loses(wrap(model), adamw(model.parameters()), {"input_ids": tokens, "labels": labels})


def vit(device: str, wrap: Wrap = as_it_is) -> Step:
    """transformers' ViT with two layers of width 128, 8 images of 32x32 in patches of 4x4, AdamW."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"image_size": 32, "patch_size": 4, "hidden_size": 128, "intermediate_size": 512}
    config = ViTConfig(**sizes, num_hidden_layers=2, num_attention_heads=4, num_labels=10)
    model = ViTForImageClassification(config).to(device).train()
    images, labels = torch.randn(8, 3, 32, 32).to(device), torch.randint(0, 10, (8,)).to(device)
    return classifies(wrap(model), adamw(model.parameters()), images, labels, lambda found: found.logits)


class _Residual(nn.Module):
    """Two convolutions behind group norms, to which the time is added."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)
        self.before, self.between = nn.GroupNorm(4, given), nn.GroupNorm(4, made)
        self.time, self.past = nn.Linear(64, made), nn.Conv2d(given, made, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.first(nn.functional.silu(self.before(x))) + self.time(time)[:, :, None, None]
        past: Tensor = self.past(x)
        return past + self.second(nn.functional.silu(self.between(h)))


class _UNet(nn.Module):
    """Images and noise levels → the noise; one level down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64))
        self.inward, self.outward = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.down, self.middle, self.up = _Residual(16, 32), _Residual(32, 32), _Residual(32 + 16, 16)
        self.smaller = nn.Conv2d(16, 16, 3, stride=2, padding=1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        time, x = self.time(level), self.inward(x)
        h = self.middle(self.down(self.smaller(x), time), time)
        found: Tensor = self.outward(self.up(torch.cat([nn.functional.interpolate(h, scale_factor=2.0), x], 1), time))
        return found


def unet(device: str, wrap: Wrap = as_it_is) -> Step:
    """A U-Net that tells noise, 4 images of 32x32, AdamW; noise and levels are drawn on the device."""
    torch.manual_seed(0)
    model = _UNet().to(device)
    optimizer, wrapped, images = adamw(model.parameters()), wrap(model), torch.randn(4, 3, 32, 32).to(device)

    def step() -> Tensor:
        optimizer.zero_grad()
        noise, level = torch.randn_like(images), torch.rand(4, 1, device=device)
        scale = level[:, :, None, None]
        loss = nn.functional.mse_loss(wrapped(images * (1 - scale).sqrt() + noise * scale.sqrt(), level), noise)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


MAKERS = (mlp, transformer, convnet, gpt2, vit, t5, lstm, unet, dropout, autocast, accumulation)
MODELS: dict[str, Callable[..., Step]] = {make.__name__: make for make in MAKERS}


def classifies(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    labels: Tensor,
    logits: Callable[[Any], Tensor] = lambda found: found,
    autocast: bool = False,
) -> Step:
    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(inputs.device.type, torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(logits(model(inputs)), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _loses(model: nn.Module, optimizer: torch.optim.Optimizer, given: dict[str, Tensor]) -> Step:
    """Of a model that tells its loss."""

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(**given).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
