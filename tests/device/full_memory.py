"""Programs that take most of a virtual device's memory, in five steps of a batch that comes anew.

``full_memory.py MODEL MIB ADDRESS TICKET OPTIMIZER…`` trains a model whose weights, gradients and two states of AdamW take so many MiB,
with each optimizer, and prints the losses and the sum of the weights' squares by optimizer as JSON. MODEL ``temporaries`` asks for what
keeps three times its argument while it runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[3], sys.argv[4])

import torch
from torch import nn
from torch.nn import functional

MIB = 1 << 20
BYTES_EACH = 16
"""Of a parameter: the weight, its gradient and two states."""
STEPS, ROWS, WORDS = 5, 8, 101


class Residual(nn.Module):
    def __init__(self, given: int, made: int, stride: int = 1) -> None:
        super().__init__()
        self.one, self.first = nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made)
        self.two, self.second = nn.Conv2d(made, made, 3, padding=1, bias=False), nn.BatchNorm2d(made)
        self.past = nn.Identity() if given == made else nn.Conv2d(given, made, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(self.two(functional.relu(self.first(self.one(x)))))
        return functional.relu(self.past(x) + made)


def resnet(channels: int) -> nn.Module:
    c = channels
    parts = (
        Residual(3, c),
        Residual(c, c),
        Residual(c, 2 * c, 2),
        Residual(2 * c, 2 * c),
        Residual(2 * c, 4 * c, 2),
        Residual(4 * c, 4 * c),
    )
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * c, WORDS))


class UNet(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        c = channels
        self.first, self.second, self.third, self.middle = (
            Residual(3, c),
            Residual(c, 2 * c, 2),
            Residual(2 * c, 4 * c, 2),
            Residual(4 * c, 4 * c),
        )
        self.up, self.upper = nn.ConvTranspose2d(4 * c, 2 * c, 2, 2), nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.back, self.last, self.head = Residual(4 * c, 2 * c), Residual(2 * c, c), nn.Conv2d(c, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.first(x)
        coarse = self.second(fine)
        made = self.back(torch.cat((self.up(self.middle(self.third(coarse))), coarse), 1))
        result: torch.Tensor = self.head(self.last(torch.cat((self.upper(made), fine), 1)))
        return result


class Transformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(WORDS, width), nn.Parameter(0.02 * torch.randn(12, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.layers(self.embedding(words) + self.position))
        return hidden.flatten(0, 1)


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.layers, self.head = nn.LSTM(width, width, 2, batch_first=True), nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.layers(self.embedding(words))[0])
        return hidden.flatten(0, 1)


MODELS: dict[str, Callable[[int], nn.Module]] = {"transformer": Transformer, "resnet": resnet, "unet": UNet, "recurrent": Recurrent}
OPTIMIZERS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "plain": {"foreach": False}}


def largest(make: Callable[[int], nn.Module], count: int) -> nn.Module:
    """As wide as so many parameters allow."""
    width = 4
    with torch.device("meta"):
        while sum(parameter.numel() for parameter in make(width + 4).parameters()) <= count:
            width += 4
    torch.manual_seed(0)
    return make(width)


def batch(model: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    if model in ("transformer", "recurrent"):
        return torch.randint(0, WORDS, (ROWS, 12), generator=generator), torch.randint(0, WORDS, (ROWS * 12,), generator=generator)
    x = torch.randn(ROWS, 3, 16, 16, generator=generator)
    return x, x.mean(1, keepdim=True) if model == "unet" else torch.randint(0, WORDS, (ROWS,), generator=generator)


def train(name: str, mib: int, optimizer_name: str) -> dict[str, object]:
    model, generator = largest(MODELS[name], mib * MIB // BYTES_EACH).to("cuda"), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3, **OPTIMIZERS[optimizer_name])
    losses = []
    for _ in range(STEPS):
        x, y = (value.to("cuda") for value in batch(name, generator))
        optimizer.zero_grad()
        loss = (functional.mse_loss if name == "unet" else functional.cross_entropy)(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "squares": sum(parameter.detach().square().sum().item() for parameter in model.parameters())}


def temporaries(mib: int) -> dict[str, object]:
    """Of a fifth of a device's memory, where the rest of all devices is taken but for a quarter."""
    generator, losses = torch.Generator().manual_seed(1), []
    taken = [torch.randn(MIB // 4, generator=generator).to("cuda") for _ in range(mib)]
    for step in range(STEPS):
        x = torch.randn(ROWS, mib * MIB // 15 // ROWS // 4, generator=generator).to("cuda")
        values, places = x.kthvalue(x.shape[1] // 2, 1)
        losses += [*values.tolist(), *places.tolist(), taken[step].sum().item()]
        taken[step].add_(1)
    return {"losses": losses, "squares": sum(value.square().sum().item() for value in taken)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, mib = sys.argv[1], int(sys.argv[2])
    if name in MODELS:
        print(json.dumps({optimizer: train(name, mib, optimizer) for optimizer in sys.argv[5:]}))
    else:
        print(json.dumps({"none": temporaries(mib)}))
