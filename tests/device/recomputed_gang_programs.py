"""``ADDRESS TICKET NAME STEPS``: trains by a program of that name in float64, on the device, and prints as JSON what it leaves.

Losses, what the program holds of each step and the weights' sums, by their bits; the most memory that it held; and, of a session with
several devices, how many calls these divided among them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[1], sys.argv[2])

import torch
import torch.nn.functional as F
from forebay import gang_work
from torch import Tensor, nn

DEVICE = "cuda"
ROWS, WIDTH, CLASSES = 2048, 64, 10
Step = Callable[[Tensor, Tensor], Tensor]


def special(step: int, ordinary: Tensor) -> Tensor:
    """Zeros, equal numbers, half of a batch that is different, large numbers; and ordinary ones."""
    half = ordinary.clone()
    half[len(half) // 2 :] = 0
    made = {3: torch.zeros_like(ordinary), 4: torch.full_like(ordinary, 0.5), 5: half, 6: 30 * ordinary}
    return made.get(step, ordinary)


def half_zero(step: int, ordinary: Tensor) -> Tensor:
    """Of a batch that is all alike a norm makes rounding errors large."""
    return special(step, ordinary) if step in (5, 6) else ordinary


class Program:
    """A model that is trained by Adam; ``held``: what it keeps of each step and reads only at the end."""

    rows = ROWS
    special = staticmethod(special)

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = self.make().double().to(DEVICE)
        self.held: list[Tensor] = []
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def make(self) -> nn.Module:
        """With dropout, layer norms and a wide batch."""
        layers = [layer for _ in range(10) for layer in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Dropout(0.1))]
        return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))

    def batch(self) -> tuple[Tensor, Tensor]:
        return torch.randn(self.rows, WIDTH, dtype=torch.float64), torch.randint(CLASSES, (self.rows,))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def step(self, number: int) -> Tensor:
        x, y = self.batch()
        x, y = self.special(number, x).to(DEVICE), y.to(DEVICE)
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss


class Residuals(Program):
    """Adds in place, and writes to what it is about to drop."""

    def make(self) -> nn.Module:
        return nn.ModuleList([*(nn.Linear(WIDTH, WIDTH) for _ in range(10)), nn.Linear(WIDTH, CLASSES)])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        *layers, last = self.model
        for layer in layers:
            made = F.silu(layer(x))
            made += x
            made *= 0.5
            with torch.no_grad():
                x.detach().clone().zero_().add_(1)
            x = made
        return F.cross_entropy(last(x), y)


class Held(Program):
    """The program holds activations, changes some of them after the step, and reads all at the end."""

    def make(self) -> nn.Module:
        return nn.ModuleList([*(nn.Linear(WIDTH, WIDTH) for _ in range(12)), nn.Linear(WIDTH, CLASSES)])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        *layers, last = self.model
        for number, layer in enumerate(layers):
            x = torch.tanh(layer(x))
            if number == 4:
                kept = x.detach()
        self.held = [*self.held[-2:], kept, F.dropout(kept, 0.5)]
        return F.cross_entropy(last(x), y)

    def step(self, number: int) -> Tensor:
        loss = super().step(number)
        self.held[-2][: ROWS // 4] *= 2
        self.held[-1].sub_(self.held[-2])
        return loss


class Convolutions(Program):
    """With batch norms, which keep statistics, and functions in place. A convolution of single pixels keeps little while it runs.

    A bias before a norm has a gradient of rounding errors alone, which Adam makes large.
    """

    rows = 32
    special = staticmethod(half_zero)

    def make(self) -> nn.Module:
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
        for _ in range(5):
            layers += [nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))

    def batch(self) -> tuple[Tensor, Tensor]:
        return torch.randn(self.rows, 3, 32, 32, dtype=torch.float64), torch.randint(CLASSES, (self.rows,))


class Encoder(Program):
    rows = 32

    def make(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 256, dropout=0.1, batch_first=True)
        return nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Flatten(), nn.Linear(WIDTH * 32, CLASSES))

    def batch(self) -> tuple[Tensor, Tensor]:
        return torch.randn(self.rows, 32, WIDTH, dtype=torch.float64), torch.randint(CLASSES, (self.rows,))


class Indexed(Program):
    """Batches taken by indices from data on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.data = torch.randn(2 * ROWS, WIDTH, dtype=torch.float64).to(DEVICE)
        self.labels = torch.randint(CLASSES, (2 * ROWS,)).to(DEVICE)

    def step(self, number: int) -> Tensor:
        chosen = torch.randperm(2 * ROWS)[:ROWS].to(DEVICE)
        self.optimizer.zero_grad()
        loss = self.loss(self.data[chosen], self.labels[chosen])
        loss.backward()
        self.optimizer.step()
        return loss


PROGRAMS = {one.__name__.lower(): one for one in (Program, Residuals, Held, Convolutions, Encoder, Indexed)}


def numbers_of(tensors: list[Tensor]) -> list[str]:
    """Sums of what they hold, also by place, so that rows that change places are seen."""
    made = []
    for tensor in tensors:
        flat = tensor.detach().cpu().double().flatten()
        made += [flat.sum().item().hex(), (flat * torch.linspace(0, 1, flat.numel(), dtype=torch.float64)).sum().item().hex()]
    return made


def main(name: str, steps: int) -> None:
    torch.set_num_threads(1)
    program = PROGRAMS[name]()
    losses = [program.step(number) for number in range(steps)]
    weights = [*program.model.parameters(), *program.model.buffers()]
    told: dict[str, Any] = {"losses": numbers_of(losses), "held": numbers_of(program.held), "weights": numbers_of(weights)}
    work = gang_work.read(0)
    told["divided"], told["alone"] = (work.divided.calls, sum(one.work.calls for one in work.alone)) if work else (0, 0)
    print(json.dumps(told | {"most_bytes": torch.cuda.max_memory_allocated()}))


if __name__ == "__main__":
    main(sys.argv[3], int(sys.argv[4]))
