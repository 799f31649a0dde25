"""Steps for searches by hypothesis: a chain of layers with weights of any sizes, its backward pass, and an update."""

from __future__ import annotations

from forebay.toolkit.planner.step import Block, Domain, Part, Step, StepCall
from hypothesis import strategies

LAYERS_MAX = 8
BYTES_MAX = 1 << 22


class _Made:
    """Events that come one after the other."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self.calls: list[StepCall] = []
        self.events = 0

    def block(self, size: int, part: Part, old: bool = False) -> Block:
        block = Block(len(self.blocks) + 1, size, part, -1 if old else self.events)
        self.blocks[block.number] = block
        return block

    def call(self, name: str, domain: Domain, size: int, *weights: int) -> None:
        self.calls.append(StepCall(self.events, name, domain, 2.0 * size, False, size, size, weights, hash((name, size)) & 0xFFFF))
        self.events += 1


@strategies.composite
def steps(draw: strategies.DrawFn) -> Step:
    made, sizes = _Made(), strategies.integers(1, BYTES_MAX)
    layers = draw(strategies.lists(strategies.tuples(sizes, sizes), min_size=1, max_size=LAYERS_MAX))
    moments = draw(strategies.integers(0, 2))
    weights = [made.block(size, Part.WEIGHT, old=True) for size, _ in layers]
    states = [made.block(size, Part.STATE, old=True) for size, _ in layers for _ in range(moments)]
    kept = []
    for weight, (_, activation) in zip(weights, layers, strict=True):
        kept.append(made.block(activation, Part.ROWS))
        made.call("forward", Domain.ROWS, activation, weight.number)
    gradients = {}
    for weight, activation in zip(reversed(weights), reversed(kept), strict=True):
        gradient = made.block(weight.bytes, Part.GRADIENT)
        gradients[gradient.number] = made.events
        made.call("backward", Domain.ROWS, 2 * activation.bytes, weight.number)
        activation.freed = made.events
        made.events += 1
    for weight in weights:
        temporary = made.block(weight.bytes, Part.UPDATE)
        made.call("update", Domain.UPDATE, weight.bytes)
        temporary.freed = made.events
    made.events += 1
    trained = frozenset(weight.number for weight in weights)
    rows = draw(strategies.sampled_from([12, 16, 60, 64, 96]))
    return Step(rows, made.blocks, made.calls, made.events, gradients, trained, (len(states) + 1,))
