"""A step whose repeated layers keep their inputs alone, and are computed again just before the backward pass needs them.

That is activation checkpointing by layers (Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174). The result is
a step like any other, so costs and layouts need not know of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import count, pairwise
from typing import NamedTuple

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


def recomputed(step: Step, stacks: Sequence[Stack]) -> Step | None:
    """The step with its layers computed again; none where no layer keeps anything that could be."""
    work, uses = step.work, _uses(step)
    layers = [layer for stack in stacks for layer in _layers(step, work, uses, stack)]
    if not layers:
        return None
    blocks, fresh = dict(step.blocks), count(max(step.blocks) + 1)
    again: list[StepCall] = []
    for layer in layers:
        for block in layer.dropped:
            blocks[block.number] = replace(block, freed=layer.end)
            number = next(fresh)
            blocks[number] = replace(block, number=number, born=layer.again)
        number = next(fresh)
        blocks[number] = Block(number, _passing_bytes(step, layer), Part.ROWS, layer.again, layer.again + 1)
        again += [replace(call, event=layer.again) for call in layer.calls]

    def event(call: StepCall) -> int:
        return call.event

    return replace(step, blocks=blocks, calls=list(merge(sorted(again, key=event), step.calls, key=event)))


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


def _layers(step: Step, work: Sequence[StepCall], uses: dict[int, list[int]], stack: Stack) -> Iterator[_Layer]:
    """All but the last: that is the first of which the backward pass needs everything."""
    places = range(stack.start, stack.start + stack.calls * stack.layers, stack.calls)
    end = work[places[-1] + stack.calls - 1].event + 1
    for place, following in pairwise(places):
        calls, ends = work[place:following], work[following].event
        made = [block for block in step.blocks.values() if block.part is Part.ROWS and calls[0].event <= block.born < ends]
        past = [(block, _first_use(uses, block, ends)) for block in made if block.freed is None or block.freed > end]
        held = [(block, first) for block, first in past if first is None or first >= end]  # no other layer is given it
        needed = [first for _, first in held if first is not None]
        if needed:
            yield _Layer(calls, [block for block, _ in held], ends, min(needed))


def _passing_bytes(step: Step, layer: _Layer) -> int:
    """The most that a layer's forward pass has at a time of what it frees itself."""
    begins, dropped = layer.calls[0].event, {block.number for block in layer.dropped}
    changes: dict[int, int] = defaultdict(int)
    for block in step.blocks.values():
        if block.part is Part.ROWS and begins <= block.born < layer.end and block.number not in dropped and block.freed is not None:
            changes[block.born] += block.bytes
            changes[min(block.freed, layer.end)] -= block.bytes
    now = most = 0
    for event in sorted(changes):
        now += changes[event]
        most = max(most, now)
    return most
