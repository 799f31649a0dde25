"""A step whose repeated layers keep less, and compute it again just before the backward pass needs it.

Either they keep their inputs alone, and all of a layer is computed again (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
arXiv 1604.06174). Or they keep what products make, and all else is computed again, which takes little time: attention by scores as well
(Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 5). The result is a step
like any other, so costs and layouts need not know of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import count, pairwise
from typing import NamedTuple

from forebay.toolkit.planner.layout import Recomputation
from forebay.toolkit.planner.profile import Stack
from forebay.toolkit.planner.step import Block, Part, Step, StepCall


class _Layer(NamedTuple):
    """What is done again of a layer, and when."""

    calls: Sequence[StepCall]
    dropped: Sequence[Block]
    end: int
    """The event after the layer's last one."""
    again: int
    """The event that is the first to need any of what was dropped."""
    longer: frozenset[int] = frozenset()
    """Blocks that are kept for these calls, and would not be otherwise."""


SCORES = frozenset({"bmm", "baddbmm"})
"""Products without a weight, as attention's are where it is no operator of its own."""


def recomputed(step: Step, stacks: Sequence[Stack], what: Recomputation = Recomputation.LAYERS) -> Step | None:
    """The step with its layers, or what is cheap of them, computed again; none where no layer keeps anything that could be."""
    work, uses = step.work, _uses(step)
    rows = sorted((block for block in step.blocks.values() if block.part is Part.ROWS and block.born >= 0), key=_born)
    layers = [layer for stack in stacks for layer in _layers(rows, work, uses, stack)]
    if what is Recomputation.CHEAP:
        layers = [cheap for layer in layers if (cheap := _cheap(step, uses, layer)) is not None]
    if not layers:
        return None
    blocks, fresh = dict(step.blocks), count(max(step.blocks) + 1)
    repeated: list[StepCall] = []
    for layer in layers:
        for block in layer.dropped:
            blocks[block.number] = replace(block, freed=layer.end)
            number = next(fresh)
            blocks[number] = replace(block, number=number, born=layer.again)
        number = next(fresh)
        passing = _passing_bytes(rows, layer, what is Recomputation.LAYERS)
        blocks[number] = Block(number, passing, Part.ROWS, layer.again, layer.again + 1)
        for number in layer.longer:
            blocks[number] = replace(blocks[number], freed=layer.again + 1)
        repeated += [replace(call, event=layer.again) for call in layer.calls]

    def event(call: StepCall) -> int:
        return call.event

    return replace(step, blocks=blocks, calls=list(merge(sorted(repeated, key=event), step.calls, key=event)))


def _born(block: Block) -> int:
    return block.born


def _made_between(rows: Sequence[Block], begin: int, end: int) -> Sequence[Block]:
    """Of blocks in their order those that events from ``begin`` to before ``end`` make."""
    return rows[bisect_left(rows, begin, key=_born) : bisect_left(rows, end, key=_born)]


def _uses(step: Step) -> dict[int, list[int]]:
    """The events that use each block, ascending."""
    found: dict[int, list[int]] = defaultdict(list)
    for call in step.calls:
        for number in call.given:
            found[number].append(call.event)
    return found


def _first_use(uses: dict[int, list[int]], block: Block, begin: int) -> int | None:
    """The first event from ``begin`` on that uses the block."""
    events = uses[block.number]
    place = bisect_left(events, begin)
    return events[place] if place < len(events) else None


def _layers(rows: Sequence[Block], work: Sequence[StepCall], uses: dict[int, list[int]], stack: Stack) -> Iterator[_Layer]:
    """All but the last: that is the first of which the backward pass needs everything."""
    places = range(stack.start, stack.start + stack.calls * stack.layers, stack.calls)
    end = work[places[-1] + stack.calls - 1].event + 1
    for place, following in pairwise(places):
        calls, ends = work[place:following], work[following].event
        made = _made_between(rows, calls[0].event, ends)
        past = [(block, _first_use(uses, block, ends)) for block in made if block.freed is None or block.freed > end]
        held = [(block, first) for block, first in past if first is None or first >= end]  # no other layer is given it
        needed = [first for _, first in held if first is not None]
        if needed:
            yield _Layer(calls, [block for block, _ in held], ends, min(needed))


def _cheap(step: Step, uses: dict[int, list[int]], layer: _Layer) -> _Layer | None:
    """Of a layer what no product with a weight makes; none where it keeps nothing of that."""
    dear = {number for call in layer.calls if _is_dear(call) for number in _written(step, call)}
    dropped = [block for block in layer.dropped if block.number not in dear]
    needs = [first for block in dropped if (first := _first_use(uses, block, layer.end)) is not None]
    if not needs:
        return None
    wanted, made, calls = {block.number for block in dropped}, set[int](), list[StepCall]()
    for call in reversed(layer.calls):
        written = _written(step, call)
        if written & wanted and not _is_dear(call):
            calls.insert(0, call)
            wanted |= set(call.given)
            made |= written
    again = min(needs)
    longer = (step.blocks[number] for number in wanted - made)
    kept = frozenset(block.number for block in longer if block.part is Part.ROWS and block.freed is not None and block.freed <= again)
    return _Layer(calls, dropped, layer.end, again, kept)


def _is_dear(call: StepCall) -> bool:
    return call.flops > 0 and call.name not in SCORES


def _written(step: Step, call: StepCall) -> set[int]:
    shape = step.shapes.get(call.template)
    if shape is None:
        return set(call.made)
    return {*call.made, *(number for number, use in zip(call.given, shape.tensors, strict=True) if use.written)}


def _passing_bytes(rows: Sequence[Block], layer: _Layer, whole: bool) -> int:
    """The most that a layer's forward pass has at a time of what it frees itself; and if it is done whole, of what it gives to others."""
    begins, dropped = layer.calls[0].event, {block.number for block in layer.dropped}
    changes: dict[int, int] = defaultdict(int)
    for block in _made_between(rows, begins, layer.end):
        if block.number not in dropped and block.freed is not None and (whole or block.freed <= layer.end):
            changes[block.born] += block.bytes
            changes[min(block.freed, layer.end)] -= block.bytes
    now = most = 0
    for event in sorted(changes):
        now += changes[event]
        most = max(most, now)
    return most
