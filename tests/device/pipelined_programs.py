"""Trainings of layers in stages: ``pipelined_programs.py ADDRESS TICKET PROGRAM …``.

Runs each on the virtual device and on the CPU in float64, and prints as JSON what each leaves on both, whether its
steps were carried out as a pipeline, and the pipeline that was chosen.
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
from forebay import _C, gang_work
from torch import Tensor, nn
from torch.nn import functional

WIDTH, CLASSES, ROWS, STEPS, TOKENS, WORDS = 96, 10, 48, 14, 6, 64
Training = Callable[[str], list[float]]


def perceptron(layers: int = 12) -> nn.Module:
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())), nn.Linear(WIDTH, CLASSES))


class Residual(nn.Module):
    """Layers whose inputs are added to what they make, with norms and a table that all of them use."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(-1, 1, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(5))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            rows = rows + functional.gelu(layer(norm(rows) * self.shift))
        return self.head(rows)


class Language(nn.Module):
    """Words that the last layer shares with the first."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.register_buffer("mask", torch.triu(torch.full((TOKENS, TOKENS), float("-inf")), 1))

    def forward(self, words: Tensor) -> Tensor:
        return functional.linear(self.layers(self.words(words), mask=self.mask, is_causal=True), self.words.weight)


def special(step: int, ordinary: Tensor) -> Tensor:
    """Zeros, equal numbers, ties, half of a batch that is different, large numbers; and ordinary ones."""
    half = ordinary.clone()
    half[: ROWS // 2] = 0
    made = {3: torch.zeros_like(ordinary), 4: torch.full_like(ordinary, 0.5), 5: ordinary.round(), 6: half, 7: 30 * ordinary}
    return made.get(step, ordinary)


def numbers(generator: torch.Generator, step: int) -> tuple[Tensor, Tensor]:
    targets = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    return special(step, torch.randn(ROWS, WIDTH, generator=generator)), torch.zeros_like(targets) if step == 8 else targets


def trained(
    device: str,
    model: nn.Module,
    make: Callable[..., torch.optim.Optimizer],
    loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor] = lambda model, x, y: functional.cross_entropy(model(x), y),
    batch: Callable[[torch.Generator, int], tuple[Tensor, Tensor]] = numbers,
    between: Callable[[nn.Module, int], list[float]] = lambda model, step: [],
    clip: bool = False,
) -> list[float]:
    model.to(device)
    optimizer, generator, left = make(model.parameters()), torch.Generator().manual_seed(1), []
    for step in range(STEPS):
        x, y = (one.to(device) for one in batch(generator, step))
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        left.append(loss.item())
        left += between(model, step)
    return left + [parameter.detach().cpu().abs().sum().item() for parameter in model.parameters()]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def one_by_one(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=False)


def deep(device: str) -> list[float]:
    return trained(device, seeded(perceptron), sgd)


def squares(device: str) -> list[float]:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(model(x), functional.one_hot(y, CLASSES).double(), reduction="sum")

    return trained(device, seeded(perceptron), lambda parameters: torch.optim.SGD(parameters, lr=1e-4), loss, clip=True)


def residual(device: str) -> list[float]:
    return trained(device, seeded(Residual), adam, clip=True)


def weighted(device: str) -> list[float]:
    """Classes that count differently, and targets that do not count."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        weights = torch.linspace(0.5, 2, CLASSES, device=x.device)
        return functional.cross_entropy(model(x), torch.where(y == 3, -100, y), weights, label_smoothing=0.1)

    return trained(device, seeded(perceptron), one_by_one, loss)


def language(device: str) -> list[float]:
    def words(generator: torch.Generator, step: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, WORDS, (ROWS, TOKENS + 1), generator=generator)
        return x[:, :-1].contiguous(), x[:, 1:].contiguous()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return trained(device, seeded(Language), adam, loss, words)


def disturbed(device: str) -> list[float]:
    """Evaluated, changed and read between steps; batches of other sizes among them."""

    def batch(generator: torch.Generator, step: int) -> tuple[Tensor, Tensor]:
        x, y = numbers(generator, step)
        return (x[:7].clone(), y[:7].clone()) if step in (6, 11) else (x, y)

    def between(model: nn.Module, step: int) -> list[float]:
        if step == 5:
            with torch.no_grad():
                model[2].weight.mul_(0.5)
                return [model(next(model.parameters())).sum().item()]
        return [model[4].bias.grad.abs().sum().item()] if step == 9 else []

    return trained(device, seeded(perceptron), sgd, batch=batch, between=between)


def accumulated(device: str) -> list[float]:
    """Gradients of two batches are added before a step, and set to zero in place."""
    model = seeded(perceptron).to(device)
    optimizer, generator, left = sgd(model.parameters()), torch.Generator().manual_seed(1), []
    for step in range(STEPS):
        for _ in range(2):
            x, y = (one.to(device) for one in numbers(generator, step))
            loss = functional.cross_entropy(model(x), y) / 2
            loss.backward()
            left.append(loss.item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return left + [parameter.detach().cpu().abs().sum().item() for parameter in model.parameters()]


def fails(device: str) -> list[float]:
    """A class that there is not: the call fails, and the next steps are right."""
    model = seeded(perceptron).to(device)
    optimizer, generator, left = sgd(model.parameters()), torch.Generator().manual_seed(1), []
    for step in range(STEPS):
        x, y = numbers(generator, step)
        if step in (7, 10):
            y[-1] = CLASSES
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        try:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            left.append(loss.item())
        except (IndexError, RuntimeError) as error:
            assert "out of bounds" in str(error), error
            left.append(-1.0)
            continue
        optimizer.step()
    return left + [parameter.detach().cpu().abs().sum().item() for parameter in model.parameters()]


DATA = 4
"""Batches in the data."""
Choice = Callable[[Tensor], Tensor]


def of_data(device: str, choice_of: Callable[[int], Choice], read_between: bool = False) -> list[float]:
    """Batches are taken from data that lies on the device, in each step by another choice."""
    model = seeded(perceptron).to(device)
    optimizer, generator, left = sgd(model.parameters()), torch.Generator().manual_seed(1), []
    made = [numbers(generator, 3 + step) for step in range(DATA)]
    x, y = (torch.cat(parts).to(device) for parts in zip(*made, strict=True))
    for step in range(STEPS):
        optimizer.zero_grad()
        choose = choice_of(step)
        loss = functional.cross_entropy(model(choose(x)), choose(y))
        if read_between:
            left.append(loss.item())
        loss.backward()
        optimizer.step()
        left.append(loss.item())
    return left + [parameter.detach().cpu().abs().sum().item() for parameter in model.parameters()]


def slices(device: str) -> list[float]:
    """From the last one on to the first, and again."""
    return of_data(device, lambda step: lambda data: data[(begin := (DATA - 1 - step % DATA) * ROWS) : begin + ROWS])


def chosen(device: str) -> list[float]:
    """By indices that are uploaded, the same number more than once among them."""
    order = torch.randint(0, DATA * ROWS, (STEPS, ROWS), generator=torch.Generator().manual_seed(2))

    def choice_of(step: int) -> Choice:
        rows = order[step].to(device)
        return lambda data: data[rows]

    return of_data(device, choice_of)


def shuffled(device: str) -> list[float]:
    """By indices that lie on the device."""
    order = torch.randperm(DATA * ROWS, generator=torch.Generator().manual_seed(2)).to(device)
    return of_data(device, lambda step: lambda data: data.index_select(0, order[(begin := step % DATA * ROWS) : begin + ROWS]))


def renewed(device: str) -> list[float]:
    """One model after the other: the second one's steps are the same calls on other weights, while the first one is still there."""
    first, second = (seeded(perceptron).to(device) for _ in range(2))
    left = trained(device, first, sgd)
    return left + trained(device, second, sgd) + [parameter.detach().cpu().abs().sum().item() for parameter in first.parameters()]


PROGRAMS: dict[str, Training] = {
    one.__name__: one
    for one in (deep, squares, residual, weighted, language, disturbed, accumulated, fails, renewed, slices, chosen, shuffled)
}


def dropouts(device: str) -> list[float]:
    """The CPU draws other masks: for one device to be compared with several."""
    model = nn.Sequential(*(part for _ in range(5) for part in (nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3))), nn.Linear(WIDTH, CLASSES))
    torch.cuda.manual_seed(3)
    return trained(device, seeded(lambda: model), sgd)


def deterministic(device: str) -> list[float]:
    torch.use_deterministic_algorithms(True)
    try:
        return deep(device)
    finally:
        torch.use_deterministic_algorithms(False)


def reads_between(device: str) -> list[float]:
    """The loss is read between the passes, so the segment ends there."""
    return of_data(device, lambda step: lambda data: data[(begin := step % DATA * ROWS) : begin + ROWS], read_between=True)


def deeper(device: str) -> list[float]:
    return trained(device, seeded(lambda: perceptron(24)), sgd)


OTHERS: dict[str, Training] = {one.__name__: one for one in (deterministic, reads_between, deeper)}
"""That are not run in all ways."""


def staged() -> int:
    """How often segments came that a pipeline carries out, since the steps were dropped last."""
    return sum(one["times"] for one in _C.segments(0) if one["tier"] == 2)


def main(names: list[str]) -> None:
    found = {}
    for name in names:
        before = staged()
        program = (PROGRAMS | OTHERS).get(name, dropouts)
        ours = program("cuda")
        theirs = [] if program is dropouts else program("cpu")
        told = gang_work.read(0)
        plan = None if told is None else told.as_json()["plan"]
        why = sorted({one["why"] for one in _C.segments(0) if one["why"]})
        since = staged() - before if staged() >= before else staged()
        found[name] = {"ours": ours, "theirs": theirs, "staged": since, "plan": plan, "why": why}
    print(json.dumps(found))


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.ones(1).to("cuda").sum().item()
    main(sys.argv[3:])
