"""Programs whose weights are larger than their batches, so that devices keep rows of weights rather than copies.

``sharded_programs.py ADDRESS TICKET PROGRAM …`` runs each on the virtual device and on the CPU in float64, and prints as JSON what it
leaves on both (losses, what was read of the weights and of the optimizer), and how many calls were divided.
"""

from __future__ import annotations

import io
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
from forebay import gang_work
from torch import nn
from torch.nn import functional

WIDTH = 256
WIDE = 21504
"""Rows of 2 KiB: 42 MiB."""
CLASSES = 10
ROWS = 8
STEPS = 8


def perceptron() -> nn.Module:
    wide = (part for _ in range(2) for part in (nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)))
    return nn.Sequential(*wide, nn.Linear(WIDTH, CLASSES))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(64, WIDTH), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, CLASSES))


def batch(generator: torch.Generator, words: bool, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    if words:
        return torch.randint(0, 64, (rows // 4, 6), generator=generator), torch.randint(0, CLASSES, (rows // 4, 6), generator=generator)
    return torch.randn(rows, WIDTH, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator)


def nothing(*_: Any) -> None:
    """Between two steps."""


def trained(
    device: str,
    make: Callable[[], nn.Module],
    optimizer: Callable[..., torch.optim.Optimizer],
    between: Callable[..., None] = nothing,
    **options: Any,
) -> list[float]:
    """Losses, then sums of all weights and states; ``between`` is called before each step."""
    torch.manual_seed(0)
    model = make().to(device)
    steps = optimizer(model.parameters(), **options)
    generator = torch.Generator().manual_seed(1)
    left = []
    for step in range(STEPS):
        x, y = (one.to(device) for one in batch(generator, make is transformer))
        between(step, model, steps, left)
        steps.zero_grad()
        loss = functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        steps.step()
        left.append(loss.item())
    states = [state for states in steps.state.values() for state in states.values() if isinstance(state, torch.Tensor)]
    return left + [tensor.detach().double().abs().sum().item() for tensor in (*model.parameters(), *states)]


def adam(device: str) -> list[float]:
    return trained(device, perceptron, torch.optim.AdamW, lr=1e-3, eps=1e-3)


def fused(device: str) -> list[float]:
    return trained(device, perceptron, torch.optim.AdamW, lr=1e-3, eps=1e-3, fused=True)


def one_by_one(device: str) -> list[float]:
    return trained(device, perceptron, torch.optim.SGD, lr=0.05, momentum=0.9, foreach=False)


def words(device: str) -> list[float]:
    return trained(device, transformer, torch.optim.AdamW, lr=1e-3, eps=1e-3)


def disturbed(device: str) -> list[float]:
    """Other batches, evaluations, checkpoints, surgery and hooks between the steps."""

    def between(step: int, model: nn.Module, steps: torch.optim.Optimizer, left: list[float]) -> None:
        first, generator = model[0], torch.Generator().manual_seed(step)
        assert isinstance(first, nn.Linear)
        if step == 4:
            with torch.no_grad():
                left.append(model.eval()(batch(generator, words=False, rows=5)[0].to(device)).sum().item())
                model.train()
        if step == 5:
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": steps.state_dict()}, file)
            kept = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")
            left.append(sum(tensor.abs().sum().item() for tensor in kept["model"].values()))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.5)
            model.load_state_dict(kept["model"])
            steps.load_state_dict(kept["optimizer"])
        if step == 6:
            with torch.no_grad():
                first.weight[3:7].fill_(float("-0.0"))
                first.weight[0, 0] = 2.0
                left.append(first.weight[:, 1].norm().item())
                left.append(first.weight.t().argmax().item())
            first.register_forward_hook(lambda module, given, made: made * 2)
        if step == 7:
            model[-1] = nn.Linear(WIDTH, CLASSES).to(device)
            steps.param_groups[0]["params"][-2:] = list(model[-1].parameters())
            left.append(torch.cat([parameter.grad.flatten() for parameter in list(model.parameters())[:4]]).abs().max().item())

    return trained(device, perceptron, torch.optim.SGD, between, lr=0.05, momentum=0.9)


def zeros_and_infinities(device: str) -> list[float]:
    """Weights of zeros, half of a batch that is infinite, and a step that a gradient scaler leaves out."""
    torch.manual_seed(0)
    model = perceptron().to(device)
    with torch.no_grad():
        model[2].weight[: 2 * WIDTH // 4].zero_()
    steps, scaler = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), torch.amp.GradScaler(device, init_scale=4.0)
    generator, left = torch.Generator().manual_seed(1), []
    for step in range(STEPS):
        x, y = batch(generator, words=False)
        if step == 5:
            x[: ROWS // 2] = float("inf")
        if step == 6:
            x.zero_()
        x, y = x.to(device), y.to(device)
        steps.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(steps)
        scaler.step(steps)
        scaler.update()
        left += [loss.item(), scaler.get_scale()]
    return left + [parameter.detach().abs().sum().item() for parameter in model.parameters()]


def selected(device: str, width: int = WIDTH) -> list[float]:
    """Batches are taken by indices from data on the device; nothing is uploaded in the loop."""
    torch.manual_seed(0)
    rows = 32 * ROWS
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, CLASSES)).to(device)
    steps = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
    data, truth = torch.randn(rows, width).to(device), torch.randint(0, CLASSES, (rows,)).to(device)
    order, left = torch.randperm(rows).to(device), []
    for first in range(0, STEPS * ROWS, ROWS):
        chosen = order[first : first + ROWS]
        x, y = (data[chosen], truth[chosen]) if first % 3 else (data.index_select(0, chosen), truth.index_select(0, chosen))
        steps.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        steps.step()
        left.append(loss.item())
    return left + [parameter.detach().abs().sum().item() for parameter in model.parameters()]


def selected_from_few(device: str) -> list[float]:
    """As selected, of few columns: batches are divided, not weights."""
    return selected(device, width=32)


def wide(device: str) -> list[float]:
    """A layer that is larger than a device, evaluated and read in the middle."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDE), nn.ReLU(), nn.Linear(WIDE, CLASSES)).to(device)
    steps = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator, left = torch.Generator().manual_seed(1), []
    for step in range(STEPS):
        x, y = (one.to(device) for one in batch(generator, words=False))
        steps.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        steps.step()
        left.append(loss.item())
        if step == 4:
            with torch.no_grad():
                left.append(model.eval()(batch(generator, words=False, rows=5)[0].to(device)).sum().item())
                model.train()
            left.append(model[0].weight.detach().cpu().abs().sum().item())
    return left + [parameter.detach().cpu().abs().sum().item() for parameter in model.parameters()]


PROGRAMS = {one.__name__: one for one in (adam, fused, one_by_one, words, disturbed, zeros_and_infinities, selected, selected_from_few)}
"""Of devices that have room for copies."""


def divided() -> int:
    told = gang_work.read(0)
    assert told is not None
    return told.divided.calls


def plan() -> Any:
    told = gang_work.read(0)
    return None if told is None else told.as_json()["plan"]


def main(names: list[str]) -> None:
    found = {}
    for name in names:
        before = divided()
        program = wide if name == wide.__name__ else PROGRAMS[name]
        ours = program("cuda")
        found[name] = {"ours": ours, "theirs": program("cpu"), "divided": divided() - before, "plan": plan()}
    print(json.dumps(found))


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.ones(1).to("cuda").sum().item()
    main(sys.argv[3:])
