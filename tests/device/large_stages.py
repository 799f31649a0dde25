"""Trainings that fit several devices in stages alone: ``large_stages.py ADDRESS TICKET DEVICE PROGRAM``.

Trains in float64 and prints as JSON what the training leaves, how many of its steps were carried out in stages, and the plan.
Nothing is set: the script is one for one device. Sizes are odd, so that no weight can be divided into rows.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[1], sys.argv[2])

import torch
from forebay import gang_work
from pipelined_programs import staged
from torch import Tensor, nn
from torch.nn import functional

WIDTH, NARROW, CLASSES, ROWS, STEPS, WORDS, TOKENS = 509, 251, 11, 48, 16, 1999, 2
Numbers = dict[str, list[float]]
Optimize = Callable[[Any], torch.optim.Optimizer]
Batch = Callable[[torch.Generator, int], Tensor]


class Residual(nn.Module):
    """Two layers behind a norm, whose input is added to what they make."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.narrow, self.wide = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NARROW), nn.Linear(NARROW, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.wide(functional.gelu(self.narrow(self.norm(rows))))


def perceptron(layers: int) -> nn.Module:
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())), nn.Linear(WIDTH, CLASSES))


def residual() -> nn.Module:
    return nn.Sequential(*(Residual() for _ in range(14)), nn.Linear(WIDTH, CLASSES))


def language() -> nn.Module:
    """A fifth of the weights are a table of words, which takes no time: stages of as long a time would not fit."""
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *(Residual() for _ in range(14)), nn.Linear(WIDTH, CLASSES))


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def special(step: int, ordinary: Tensor) -> Tensor:
    """Zeros, ties, half of a batch that is different, large numbers; and ordinary ones."""
    half = ordinary.clone()
    half[: ROWS // 2] = 0
    made = {8: torch.zeros_like(ordinary), 9: ordinary.round(), 10: half, 11: 30 * ordinary}
    return made.get(step, ordinary)


def rows_of_numbers(generator: torch.Generator, step: int) -> Tensor:
    return special(step, torch.randn(ROWS, WIDTH, generator=generator))


def rows_of_words(generator: torch.Generator, step: int) -> Tensor:
    """Of one word, too."""
    words = torch.randint(0, WORDS, (ROWS, TOKENS), generator=generator)
    return torch.zeros_like(words) if step == 9 else words


class Training:
    """``batch``: of a step, by its number."""

    def __init__(self, device: str, model: nn.Module, optimize: Optimize, batch: Batch = rows_of_numbers) -> None:
        self.device, self.model, self.batch = device, model.to(device), batch
        self.optimizer, self.generator = optimize(self.model.parameters()), torch.Generator().manual_seed(1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        made = self.model(x)
        return functional.cross_entropy(made if made.dim() == 2 else made.mean(1), y)

    def step(self, number: int) -> float:
        x, y = self.batch(self.generator, number), torch.randint(0, CLASSES, (ROWS,), generator=self.generator)
        x, y = x.to(self.device), y.to(self.device)
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def tensors(self) -> Iterator[Tensor]:
        """All that a checkpoint has, from its file."""
        file = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
        file.seek(0)
        found = torch.load(file, map_location="cpu")
        yield from found["model"].values()
        for states in found["optimizer"]["state"].values():
            yield from (state for state in states.values() if isinstance(state, Tensor))


def sums(tensors: Iterator[Tensor]) -> list[float]:
    """Also by place, so that rows that change places are seen."""
    made = []
    for tensor in tensors:
        flat = tensor.detach().cpu().double().flatten()
        made += [flat.sum().item(), (flat * torch.linspace(0, 1, flat.numel())).sum().item()]
    return made


def trained(training: Training, between: Callable[[Training, int], list[float]] = lambda training, step: []) -> Numbers:
    losses: list[float] = []
    for step in range(STEPS):
        losses += [training.step(step), *between(training, step)]
    return {"losses": losses, "tensors": sums(training.tensors())}


def momenta(device: str) -> Numbers:
    return trained(Training(device, perceptron(20), momentum))


def moments(device: str) -> Numbers:
    return trained(Training(device, residual(), adam))


def words(device: str) -> Numbers:
    return trained(Training(device, language(), momentum, rows_of_words))


def disturbed(device: str) -> Numbers:
    """Evaluated, saved, loaded and changed between steps, read in the middle; and given a batch that cannot be divided."""

    def batch(generator: torch.Generator, step: int) -> Tensor:
        return rows_of_numbers(generator, step)

    def between(training: Training, step: int) -> list[float]:
        model = training.model
        if step in (2, 8, 13):
            model.eval()
            with torch.no_grad():
                made = [model(batch(torch.Generator().manual_seed(step), step)[:rows].to(device)).sum().item() for rows in (ROWS, 7)]
            model.train()
            return made
        if step == 9:
            return sums(training.tensors())
        if step == 10:
            saved = {name: one.cpu() for name, one in model.state_dict().items()}
            model.load_state_dict({name: one * 0.5 for name, one in saved.items()})
        if step == 11:
            with torch.no_grad():
                model[4].weight.mul_(0.5)
            return [model[6].weight.grad.abs().sum().item()]
        if step == 12:
            x, y = torch.linspace(-1, 1, 7 * WIDTH).view(7, WIDTH).to(device), torch.arange(7).to(device)
            training.optimizer.zero_grad()
            loss = training.loss(x, y)
            loss.backward()
            training.optimizer.step()
            return [loss.item()]
        return []

    return trained(Training(device, perceptron(18), momentum), between)


PROGRAMS: dict[str, Callable[[str], Numbers]] = {one.__name__: one for one in (momenta, moments, words, disturbed)}


def main(device: str, name: str) -> None:
    torch.manual_seed(0)
    before = staged()
    numbers = PROGRAMS[name](device)
    work = gang_work.read(0)
    plan = None if work is None else work.as_json()["plan"]
    print(json.dumps({"numbers": numbers, "staged": staged() - before, "plan": plan, "most_bytes": torch.cuda.max_memory_allocated()}))


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.ones(1).to("cuda").sum().item()
    main(sys.argv[3], sys.argv[4])
