"""``ADDRESS TICKET SECONDS MODEL``: trains until a library serves the step, and takes a step by it and one by tier 1 from the same state.

Prints a line of JSON.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Any

import torch
from forebay import _C
from operator_sweep import attach
from torch import nn

BLOCK = 20
LEARNING_RATE = 1e-4
SETTLED = ("wrong", "takes", "random", "cannot", "not made", "not compiled", "given", "failed", "whole number", "truth", "part of")
"""Of reasons why a segment stays at tier 1: those that are for good."""


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    """With dropout."""
    first, last = (nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2)), (nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(*first, *last), torch.randn(64, 64)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    """With biases before normalizations, whose gradients are rounding alone, of sums of 64 thousand numbers."""
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    last = (nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 10))
    return nn.Sequential(*first, *last), torch.randn(16, 3, 64, 64)


class Sequences(nn.Module):
    """The last state of a recurrent layer, read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(32, 64, batch_first=True), nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layer(inputs)[0][:, -1])
        return found


def sequences() -> tuple[nn.Module, torch.Tensor]:
    return Sequences(), torch.randn(16, 8, 32)


class Quotients(nn.Module):
    """A perceptron of whole numbers, which become fractions on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers((inputs / 3).sin() + inputs * 0.1)
        return found


def doubles() -> tuple[nn.Module, torch.Tensor]:
    """In double precision by default."""
    torch.set_default_dtype(torch.float64)
    return Quotients(), torch.arange(64 * 64).reshape(64, 64) % 13


MODELS = {made.__name__: made for made in (perceptron, convolutions, sequences, doubles)}


COMPILED = "compiled "
"""Before the name of a model that the program itself compiles, by torch.compile."""


class Training:
    """Of one batch, with AdamW, or with SGD where Adam would make much of rounding. Labels are shifted, as language models do.

    It learns slowly, so that it converges nowhere meanwhile; a step moves weights by a thousand times their last bit and more."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        model, inputs = MODELS[name.removeprefix(COMPILED)]()
        self.model, self.inputs = model.cuda(), inputs.cuda()
        self.forward: Callable[[torch.Tensor], torch.Tensor] = torch.compile(self.model) if name.startswith(COMPILED) else self.model
        self.labels = torch.randint(0, 10, (len(inputs),)).cuda()
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        if name == "convolutions":
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=0.9)

    def step(self) -> None:
        self.optimizer.zero_grad()
        labels = nn.functional.pad(self.labels, (0, 1), value=-100)[1:]
        nn.functional.cross_entropy(self.forward(self.inputs), labels).backward()
        self.optimizer.step()

    def state(self) -> Any:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict())), torch.cuda.get_rng_state()

    def restore(self, state: Any) -> None:
        self.model.load_state_dict(state[0][0])
        self.optimizer.load_state_dict(copy.deepcopy(state[0][1]))
        torch.cuda.set_rng_state(state[1])

    def weights(self) -> list[torch.Tensor]:
        return [one.detach().cpu() for one in self.model.parameters()]

    def steps(self, count: int) -> float:
        """Milliseconds of each."""
        torch.cuda.synchronize()
        begin = perf_counter()
        for _ in range(count):
            self.step()
        torch.cuda.synchronize()
        return (perf_counter() - begin) / count * 1e3


def farthest(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(some, others, strict=True))


def segment() -> dict[str, Any]:
    return dict(max(_C.segments(), key=lambda one: one["calls"] * one["times"]))


def train(training: Training, seconds: float) -> dict[str, Any]:
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        training.steps(BLOCK)
        found = segment()
        if found["tier"] == 2 or any(word in found["why"] for word in SETTLED):
            break
    return found


def main() -> None:
    attach(sys.argv[1], sys.argv[2])
    training = Training(sys.argv[4])
    training.steps(BLOCK)
    before = training.state()
    found = train(training, float(sys.argv[3]))
    training.restore(before)
    weights = training.weights()
    training.steps(1)
    served = segment()["times"] - found["times"]
    by_library = training.weights()
    training.restore(before)
    torch.use_deterministic_algorithms(True)
    training.steps(1)
    told = {"tier": found["tier"], "why": found["why"], "served": served}
    print(json.dumps(told | {"moved": farthest(weights, by_library), "farthest": farthest(by_library, training.weights())}))


if __name__ == "__main__":
    main()
