"""Ordinary training and evaluation loops in float64, run on the virtual device and on the CPU of the same process.

``divided_loops.py ADDRESS TICKET LOOP…`` prints for each loop, as a line of JSON, by how much its results differ and how many of its calls
were divided. Batches have 12 rows; the first ones hold zeros, equal numbers, ties, one-hot and saturating rows, and ordinary ones follow.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[1], sys.argv[2])

import torch
from forebay import gang_work
from forebay_wire.gang_work import Alone
from torch import Tensor, nn

ROWS = 12
STEPS = 9
DRAWN_ON_THE_DEVICE = {"dropouts"}
"""Loops whose draws are not the CPU's: their results are printed."""
LEAST = 1e-3
"""Errors of smaller numbers are set in relation to this one."""

Body = Callable[["Run"], None]
Module = TypeVar("Module", bound=nn.Module)
LOOPS: dict[str, Body] = {}


class Run:
    """One loop on one device: its batches, and what it tells of its results."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.told: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.generator = torch.Generator().manual_seed(1)
        torch.manual_seed(2)

    def up(self, value: Tensor) -> Tensor:
        return value.to(self.device)

    def up_model(self, model: Module) -> Module:
        """All weights in one upload: one by one they would come as those of the loops before, and be taken for batches."""
        values = [value.detach() for value in (*model.parameters(), *model.buffers())]
        numbers = [value for value in values if value.is_floating_point()]
        parts = self.up(torch.cat([value.flatten() for value in numbers])).split([value.numel() for value in numbers])
        of = {id(value): part for value, part in zip(numbers, parts, strict=True)}
        model.to_empty(device=self.device)
        with torch.no_grad():
            for target, value in zip((*model.parameters(), *model.buffers()), values, strict=True):
                target.copy_(of[id(value)].view_as(value) if id(value) in of else value)
        return model

    def whole_numbers(self, high: int, *sizes: int) -> Tensor:
        return torch.randint(0, high, sizes, generator=self.generator)

    def drawn(self, *sizes: int) -> Tensor:
        return torch.randn(sizes, generator=self.generator)

    def numbers(self, step: int, *sizes: int) -> Tensor:
        """Special values in the first steps: zeros, equal numbers, ties, one-hot rows, large numbers."""
        ordinary = self.drawn(*sizes)
        one_hot = torch.zeros(sizes[0], ordinary.numel() // sizes[0])
        one_hot[torch.arange(sizes[0]), torch.arange(sizes[0]) % one_hot.shape[1]] = 1.0
        special = [torch.zeros(sizes), torch.full(sizes, 0.5), ordinary.round(), one_hot.reshape(sizes), 40 * ordinary]
        return special[step] if step < len(special) else ordinary

    def classes(self, step: int, count: int, *sizes: int) -> Tensor:
        """The first class alone, then the last one alone, and ordinary ones."""
        ordinary = self.whole_numbers(count, *sizes)
        special = [torch.zeros(sizes, dtype=torch.int64), torch.full(sizes, count - 1)]
        return special[step] if step < len(special) else ordinary

    def tell(self, *values: Tensor) -> None:
        self.told += [value.detach().cpu().clone() for value in values]

    def keep(self, module: nn.Module) -> None:
        """Its weights and buffers are results at the end."""
        self.weights += [value.detach().cpu().clone() for value in module.state_dict().values()]

    def train(
        self,
        model: nn.Module,
        loss_of: Callable[[int], Tensor],
        optimizer: torch.optim.Optimizer | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """A step for each batch; ``between``: after the gradients are there."""
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(step)
            loss.backward()
            between()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            self.tell(loss)
        self.keep(model)


def loop(body: Body) -> Body:
    """Its name is the function's, in words."""
    LOOPS[body.__name__.replace("_", " ")] = body
    return body


def error(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest relative error of an element; whole numbers must be equal.

    Errors are relative to the element, or to a hundredth of its tensor's largest one if that is more."""
    worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return float("inf")
        different = ~((one == other) | (one.isnan() & other.isnan()))
        if not different.any():
            continue
        if not one.is_floating_point() or not (one[different].isfinite() & other[different].isfinite()).all():
            return float("inf")
        sizes = other.nan_to_num(posinf=0.0, neginf=0.0).abs()
        least = max(sizes.max().item() / 100, LEAST)
        worst = max(worst, ((one - other).abs() / sizes.clamp(min=least))[different].max().item())
    return worst


def carried_out(body: Body, device: str) -> Run:
    run = Run(device)
    body(run)
    return run


def compared(name: str) -> dict[str, Any]:
    before = gang_work.read(0)
    ours = carried_out(LOOPS[name], "cuda")
    after = gang_work.read(0)
    found: dict[str, Any] = {
        "divided": after.since(before).divided.calls if after is not None else 0,
        "whole": [one.operator for one in after.since(before).alone if one.reason == Alone.NO_RULE] if after is not None else [],
        "numbers": sum(value.numel() for value in (*ours.told, *ours.weights)),
    }
    if name in DRAWN_ON_THE_DEVICE:
        return {**found, "values": [one for value in (*ours.told, *ours.weights) for one in value.double().flatten().tolist()]}
    theirs = carried_out(LOOPS[name], "cpu")
    return {**found, "results": error(ours.told, theirs.told), "weights": error(ours.weights, theirs.weights)}


def loops() -> Iterator[str]:
    """The names of all, once the modules that have them are imported."""
    import loops_of_data
    import loops_of_frameworks
    import loops_of_losses
    import loops_of_networks
    import loops_of_slices
    import loops_of_statistics

    del loops_of_data, loops_of_frameworks, loops_of_losses, loops_of_networks, loops_of_slices, loops_of_statistics
    yield from LOOPS


if __name__ == "__main__":
    sys.modules["divided_loops"] = sys.modules["__main__"]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    every = list(loops())
    names = sys.argv[3:] or every
    for name in names:
        with redirect_stdout(sys.stderr):
            found = compared(name)
        print(json.dumps({name: found}), flush=True)
