"""Models and their training steps, alike on the virtual device and natively; functions that peers run, as in :mod:`gpu.programs`.

The small ones are those of ``bench/step``. The large ones have the sizes that their papers give: GPT-2 medium (Radford et al. 2019),
ViT-B/16 (Dosovitskiy et al. 2021) and ResNet-50 (He et al. 2016), with weights of chance, so that no package of models is needed.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpu.programs import synchronize

Step = Callable[[], Tensor]
STEPS: dict[str, Step] = {}
"""Models that were made here."""


class Block(nn.Module):
    """Attention and a perceptron, each behind a layer norm."""

    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) → the same."""
        batch, length, width = x.shape
        split = self.inward(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind()
        dropout = self.dropout if self.training else 0.0
        seen = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)
        x = x + self.outward(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.perceptron(self.before_perceptron(x))  # type: ignore[no-any-return]


class GPT2(nn.Module):
    """Tokens (batch, length) → logits (batch, length, words); the output's weights are the embedding's."""

    def __init__(self, words: int, length: int, width: int, layers: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, True, dropout) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.places(places))
        return nn.functional.linear(self.last(x), self.tokens.weight)


class ViT(nn.Module):
    """Images (batch, 3, side, side) → logits (batch, 1000)."""

    def __init__(self, side: int = 224, patch: int = 16, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, False, 0.0) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1000))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(images), -1, -1), patches], 1) + self.places
        return self.head(self.blocks(x)[:, 0])  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        made = 4 * width
        first, second = convolution(given, width, 1, 1), convolution(width, width, 3, stride)
        self.path = nn.Sequential(*first, nn.ReLU(True), *second, nn.ReLU(True), *convolution(width, made, 1, 1))
        self.shortcut = nn.Sequential(*convolution(given, made, 1, stride)) if stride > 1 or given != made else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.shortcut(x))


def convolution(given: int, made: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    """With its batch norm."""
    return nn.Conv2d(given, made, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(made)


def resnet50() -> nn.Module:
    """Images (batch, 3, 224, 224) → logits (batch, 1000)."""
    layers: list[nn.Module] = [*convolution(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    given = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for at in range(count):
            layers.append(Bottleneck(given, 64 << stage, 2 if stage and not at else 1))
            given = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(128 * 64, 10))


def convnet() -> nn.Module:
    blocks: list[nn.Module] = []
    for given, made in ((3, 16), (16, 32), (32, 32)):
        blocks += [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 16, 10))


class Recurrent(nn.Module):
    """Two recurrent layers, of which the last state is read."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers, self.head = kind(64, 128, num_layers=2, batch_first=True), nn.Linear(128, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(inputs)[0][:, -1])
        return found


def sequences() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 64, 64), torch.randint(0, 10, (16,))


def images(batch: int, side: int, classes: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, side, side), torch.randint(0, classes, (batch,))


def tokens(batch: int, length: int, words: int) -> tuple[Tensor, Tensor]:
    found = torch.randint(0, words, (batch, length + 1))
    return found[:, :-1].contiguous(), found[:, 1:].contiguous()


SGD = partial(torch.optim.SGD, lr=0.01)
MOMENTUM = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=1e-3)
SMALL_GPT2 = partial(GPT2, words=256, length=64, width=128, layers=2, heads=4)

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]], Callable[..., torch.optim.Optimizer]]] = {
    "mlp": (mlp, lambda: (torch.randn(64, 64), torch.randint(0, 10, (64,))), SGD),
    "transformer": (transformer, lambda: (torch.randn(8, 64, 128), torch.randint(0, 10, (8,))), ADAMW),
    "convnet": (convnet, lambda: images(16, 32, 10), MOMENTUM),
    "gpt2": (SMALL_GPT2, lambda: tokens(4, 64, 256), ADAMW),
    "lstm": (partial(Recurrent, nn.LSTM), sequences, ADAMW),
    "gru": (partial(Recurrent, nn.GRU), sequences, ADAMW),
    "gpt2-medium": (lambda: GPT2(50257, 1024, 1024, 24, 16), lambda: tokens(4, 1024, 50257), ADAMW),
    "vit-b": (ViT, lambda: images(32, 224, 1000), ADAMW),
    "resnet-50": (resnet50, lambda: images(64, 224, 1000), MOMENTUM),
}


def make(device: str, model: str, dtype: str = "float32", autocast: bool = False) -> None:
    """A model's training step on the device, under its name: with weights of this dtype, or in bf16 autocast."""
    torch.manual_seed(0)
    network, batch, optimizer_of = MODELS[model]
    module = network().to(device, getattr(torch, dtype)).train()
    optimizer = optimizer_of(module.parameters())
    inputs, labels = (tensor.to(device) for tensor in batch())
    if inputs.is_floating_point():
        inputs = inputs.to(getattr(torch, dtype))
    lowered = partial(torch.autocast, torch.device(device).type, torch.bfloat16) if autocast else contextlib.nullcontext

    def step() -> Tensor:
        optimizer.zero_grad()
        with lowered():
            logits = module(inputs)
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    STEPS[model] = step


def losses(device: str, model: str, steps: int, dtype: str = "float32", autocast: bool = False) -> list[float]:
    """Of a training that begins anew."""
    make(device, model, dtype, autocast)
    found = torch.stack([STEPS[model]() for _ in range(steps)]).float().tolist()
    del STEPS[model]
    return [float(loss) for loss in found]


def fed(device: str, model: str, steps: int) -> dict[str, Any]:
    """A training that begins anew, with a batch from the host for each step: losses, and the median of a later step, in ms."""
    torch.manual_seed(0)
    network, batch, optimizer_of = MODELS[model]
    module = network().to(device).train()
    optimizer = optimizer_of(module.parameters())
    losses, taken = [], []
    for _ in range(steps):
        inputs, labels = batch()
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs.to(device)).flatten(0, -2), labels.to(device).flatten())
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        synchronize(device)
        taken.append(1e3 * (time.perf_counter() - began))
    return {"losses": losses, "ms": statistics.median(taken[steps // 2 :])}


def block_ms(device: str, model: str, steps: int) -> float:
    """Mean time of a step of a model that was made, over a block that ends when its work is done."""
    began = time.perf_counter()
    for _ in range(steps):
        STEPS[model]()
    synchronize(device)
    return (time.perf_counter() - began) / steps * 1e3


def standing(device: str, model: str, steps: int) -> dict[str, Any]:
    """How the longest segment that came in one of the model's steps is carried out: its tier, and why that is no higher."""
    from forebay import _C

    before = {one["identity"]: one["times"] for one in _C.segments()}
    block_ms(device, model, steps)
    found = max(_C.segments(), key=lambda one: one["calls"] * (one["times"] - before.get(one["identity"], 0)))
    return {name: found[name] for name in ("tier", "why", "calls")}


def steps_within(device: str, model: str, seconds: float) -> float:
    """Steps a second of a model that was made, each waited for."""
    began, count = time.perf_counter(), 0
    while (now := time.perf_counter()) - began < seconds or not count:
        STEPS[model]()
        synchronize(device)
        count += 1
    return count / (now - began)


def discard(device: str, model: str) -> None:
    """Frees the model."""
    STEPS.pop(model, None)
    synchronize(device)
    if device != "cpu":
        torch.cuda.empty_cache()


def dropped(device: str, seed: int) -> list[float]:
    """The losses of a training with dropout in it, in attention as well, from a seed."""
    torch.manual_seed(0)
    module = nn.Sequential(SMALL_GPT2(dropout=0.2), nn.Dropout(0.2)).to(device)
    inputs, labels = (tensor.to(device) for tensor in tokens(4, 64, 256))
    optimizer = SGD(module.parameters())
    torch.manual_seed(seed)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs).flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        found.append(float(loss.item()))
    return found
