"""``ADDRESS TICKET SECONDS``: trains on batches of two sizes until libraries serve both, and then on a third one, which comes late.

Takes steps of all three by libraries and by tier 1 from the same state, and prints a line of JSON for each size.
"""

from __future__ import annotations

import json
import sys
from time import monotonic
from typing import Any

import torch
from compiled_training import BLOCK, SETTLED, Training, farthest
from forebay import _C
from operator_sweep import attach

CALLS_MIN = 20
LATE_STEPS = 1000
"""Of Adam's, behind which its first correction is 1 to the last bit, and changes no more."""


class Batches(Training):
    """Of the first rows of one batch, the last of each block a shorter one, as at the end of an epoch. Each step is waited for."""

    sizes = (48, 20, 36)

    def __init__(self) -> None:
        super().__init__("perceptron")
        self.batches = {size: (self.inputs[:size].clone(), self.labels[:size].clone()) for size in self.sizes}

    def step_of(self, size: int) -> None:
        self.inputs, self.labels = self.batches[size]
        self.step()

    def be_late(self) -> None:
        for state in self.optimizer.state.values():
            state["step"] += LATE_STEPS

    def block(self, size: int) -> None:
        for one in (*[self.sizes[0]] * 3, size):
            self.step_of(one)
            torch.cuda.synchronize()


def segments() -> dict[int, dict[str, Any]]:
    return {one["identity"]: dict(one) for one in _C.segments() if one["calls"] >= CALLS_MIN}


def identity_of(training: Batches, size: int) -> int:
    """Of the segment that a step of it is."""
    torch.cuda.synchronize()
    before = segments()
    training.step_of(size)
    torch.cuda.synchronize()
    grown = [one for one, now in segments().items() if one not in before or now["times"] > before[one]["times"]]
    (found,) = grown
    return found


def train(training: Batches, size: int, seconds: float) -> dict[int, dict[str, Any]]:
    """By turns on it and on the first one, until both segments are settled."""
    deadline = monotonic() + seconds
    for _ in range(BLOCK):
        training.block(size)
    sought = {one: identity_of(training, one) for one in (training.sizes[0], size)}
    while True:
        training.block(size)
        found = {one: segments()[identity] for one, identity in sought.items()}
        if monotonic() > deadline or all(one["tier"] == 2 or any(word in one["why"] for word in SETTLED) for one in found.values()):
            return found


def held(training: Batches, size: int, found: dict[str, Any], before: Any) -> dict[str, Any]:
    """A step by a library and one by tier 1 from that state: not from one that has converged, where Adam makes much of rounding."""
    training.restore(before)
    weights = training.weights()
    training.step_of(size)
    by_library = training.weights()
    training.restore(before)
    torch.use_deterministic_algorithms(True)
    training.step_of(size)
    by_tier_1 = training.weights()
    torch.use_deterministic_algorithms(False)
    distances = {"moved": farthest(weights, by_library), "farthest": farthest(by_library, by_tier_1)}
    return {"size": size, "tier": found["tier"], "why": found["why"], "times": found["times"]} | distances


def main() -> None:
    attach(sys.argv[1], sys.argv[2])
    training = Batches()
    first, second, third = training.sizes
    for _ in range(BLOCK):
        training.block(second)
    before = training.state()
    found = train(training, second, float(sys.argv[3]))
    training.be_late()
    found |= train(training, third, float(sys.argv[3]))
    for size in (first, second, third):
        print(json.dumps(held(training, size, found[size], before)))


if __name__ == "__main__":
    main()
