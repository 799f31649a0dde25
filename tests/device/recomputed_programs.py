"""``ADDRESS TICKET NAME``: runs a program of that name on the device and prints, as JSON, its numbers and the most memory that it held.

A number is printed by its bits, so that two runs are compared exactly. ``SEED`` in place of a name is a random program.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from operator_sweep import attach
from torch import nn

STEPS = 3
DEVICE = "cuda"


def digest(tensors: Iterator[torch.Tensor] | list[torch.Tensor]) -> str:
    summed = hashlib.sha256()
    for tensor in tensors:
        summed.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return summed.hexdigest()


def train(model: nn.Module, make: Callable[[], tuple[torch.Tensor, torch.Tensor]], accumulated: int = 1) -> list[str]:
    """Losses of some steps by Adam, and what has become of parameters and buffers."""
    model.to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(accumulated):
            data, labels = make()
            loss = F.cross_entropy(model(data.to(DEVICE)), labels.to(DEVICE))
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss)
    return [digest(losses), digest([*model.parameters(), *model.buffers()])]


def perceptron() -> list[str]:
    """With dropout, layer norms and a wide batch."""
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1))]
    return train(nn.Sequential(*layers, nn.Linear(64, 10)), lambda: (torch.randn(4096, 64), torch.randint(10, (4096,))))


def accumulated() -> list[str]:
    layers = [layer for _ in range(14) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return train(nn.Sequential(*layers, nn.Linear(64, 10)), lambda: (torch.randn(4096, 64), torch.randint(10, (4096,))), accumulated=3)


def convolutions() -> list[str]:
    """With batch norms, which keep statistics, and functions in place."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    for _ in range(5):
        layers += [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return train(model, lambda: (torch.randn(16, 3, 32, 32), torch.randint(10, (16,))))


class Residuals(nn.Module):
    """Adds in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(10))
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            y = F.silu(layer(x))
            y += x
            y *= 0.5
            x = y
        made: torch.Tensor = self.last(x)
        return made


def residuals() -> list[str]:
    return train(Residuals(), lambda: (torch.randn(4096, 64), torch.randint(10, (4096,))))


def evaluated() -> list[str]:
    """Residuals of which nothing is kept: what comes late was made of what was uploaded in more ways than can be counted."""
    made = []
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(256, 64).to(DEVICE)
            for _ in range(80):
                x = x + torch.tanh(x)
            made.append(x)
        wide = [made[0][:, :1] * torch.ones(256, 4096, device=DEVICE) for _ in range(8)]
        made += [torch.cat([tensor.sum(1, keepdim=True) for tensor in wide], 1)]
    return [digest(made)]


def encoder() -> list[str]:
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Flatten(), nn.Linear(64 * 32, 10))
    return train(model, lambda: (torch.randn(32, 32, 64), torch.randint(10, (32,))))


class Recurrent(nn.Module):
    """What a recurrent layer keeps for its derivative is not made again; what follows it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(32, 32, batch_first=True)
        self.wide, self.last = nn.Linear(32, 256), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.wide(self.layers(x)[0])
        for _ in range(8):
            x = torch.sin(F.gelu(x))
        made: torch.Tensor = self.last(x.mean(1))
        return made


def recurrent() -> list[str]:
    return train(Recurrent(), lambda: (torch.randn(64, 16, 32), torch.randint(10, (64,))))


def random_program(seed: int) -> list[str]:
    """Tensors that are made of each other, written to, dropped and read, in any order; all that is left is compared."""
    chance = random.Random(seed)
    rows = 1024
    alive = [torch.randn(rows, 64, device=DEVICE) for _ in range(3)]
    read = []

    def make() -> torch.Tensor:
        a, b = chance.choice(alive), chance.choice(alive)
        return chance.choice(
            (
                lambda: a * 0.5 + b,
                lambda: torch.tanh(a),
                lambda: F.dropout(a, 0.3),
                lambda: a[: rows // 2].repeat(2, 1),
                lambda: F.layer_norm(a, (64,)),
                lambda: torch.where(a > 0, a, b),
                lambda: torch.zeros_like(a).add_(b),
                lambda: torch.randn_like(a),
                lambda: a.sort(dim=1).values,
                lambda: torch.cat((a[:, :32], b[:, 32:]), 1),
                lambda: a.t().contiguous().t(),
            )
        )()

    def write() -> None:
        a, b = chance.choice(alive), chance.choice(alive)
        chance.choice(
            (
                lambda: a.mul_(0.5),
                lambda: a.add_(b),
                lambda: a[3:9].copy_(b[5:11].clone()),
                lambda: a.t()[2].fill_(1),
                lambda: a.copy_(torch.ones(rows, 64)),
                lambda: torch.add(b, 1, out=a),
                lambda: torch._foreach_mul_([a, alive[0]], 0.5) if a is not alive[0] else a.neg_(),
                lambda: a.bernoulli_(0.5),
                lambda: a.index_add_(0, torch.arange(4, device=DEVICE), b[:4] * 2),
            )
        )()

    writes = chance.choice((0.02, 0.06, 0.15))
    for _ in range(300):
        what = chance.random()
        if what < 0.55:
            alive.append(make())
        elif what < 0.55 + writes:
            write()
        elif what < 0.75:
            read.append(chance.choice(alive)[0, :4].clone().cpu())
        elif what < 0.8:
            parts = chance.choice(alive).unsqueeze(0).unbind(0) + chance.choice(alive).chunk(2)
            alive.append(torch.cat(parts[1:]) + parts[0])
        if len(alive) > 3 and chance.random() < 0.45:
            del alive[chance.randrange(len(alive))]
    return [digest(read), *(digest([tensor]) for tensor in alive)]


PROGRAMS = {program.__name__: program for program in (perceptron, accumulated, convolutions, residuals, evaluated, encoder, recurrent)}


def main(address: str, ticket: str, name: str) -> None:
    attach(address, ticket)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    numbers = random_program(int(name)) if name.isdigit() else PROGRAMS[name]()
    print(json.dumps({"numbers": numbers, "most_bytes": torch.cuda.max_memory_allocated()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
