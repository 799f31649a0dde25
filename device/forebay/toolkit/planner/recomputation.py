"""A step whose repeated layers keep their inputs alone, and are computed again just before the backward pass needs them.

That is activation checkpointing by layers (Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174). The result is
a step like any other, so costs and layouts need not know of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from forebay.toolkit.planner.profile import Stack
from forebay.toolkit.planner.step import Block, Domain, Part, Step, StepCall


class _Layer(NamedTuple):
    """What is done again of a layer, and when."""

    calls: Sequence[StepCall]
    dropped: Sequence[Block]
    end: int
    """The event after the layer's last one."""
    again: int
    """The event that is the first to need any of what was dropped."""


@dataclass(frozen=True)
class _Uses:
    """Events that use a storage, ascending."""

    of: dict[int, list[int]]

    def between(self, number: int, begin: int, end: int) -> bool:
        events = self.of[number]
        place = bisect_left(events, begin)
        return place < len(events) and events[place] < end

    def first_from(self, number: int, begin: int) -> int | None:
        events = self.of[number]
        place = bisect_left(events, begin)
        return events[place] if place < len(events) else None


def recomputed(step: Step, stacks: Sequence[Stack]) -> Step | None:
    """The step with its layers computed again; none where no layer keeps anything that could be."""
    layers = [layer for stack in stacks for layer in _layers(step, stack)]
    if not layers:
        return None
    blocks, fresh = dict(step.blocks), max(step.blocks) + 1
    inserted: dict[int, list[StepCall]] = defaultdict(list)
    for layer in layers:
        for block in layer.dropped:
            blocks[block.number] = replace(block, freed=layer.end)
            blocks[fresh] = replace(block, number=fresh, born=layer.again)
            fresh += 1
        blocks[fresh] = Block(fresh, _passing_bytes(step, layer), Part.ROWS, layer.again, layer.again + 1)
        fresh += 1
        inserted[layer.again] += [replace(call, event=layer.again) for call in layer.calls]
    return replace(step, blocks=blocks, calls=list(_with(step.calls, inserted)))


def _with(calls: Sequence[StepCall], inserted: dict[int, list[StepCall]]) -> Iterator[StepCall]:
    """Each before the first call of its event or of a later one."""
    waiting = sorted(inserted)
    for call in calls:
        while waiting and waiting[0] <= call.event:
            yield from inserted[waiting.pop(0)]
        yield call


def _layers(step: Step, stack: Stack) -> Iterator[_Layer]:
    """All but the last: that is the first of which the backward pass needs everything."""
    work = [call for call in step.calls if call.domain is not Domain.UPDATE]
    uses = _Uses(defaultdict(list))
    for call in step.calls:
        for number in call.given:
            uses.of[number].append(call.event)
    starts = [work[stack.start + layer * stack.calls].event for layer in range(stack.layers)]
    end = work[stack.start + stack.calls * stack.layers - 1].event + 1
    for layer, (begins, ends) in enumerate(pairwise(starts)):
        made = [block for block in step.blocks.values() if block.part is Part.ROWS and begins <= block.born < ends]
        held = [block for block in made if (block.freed is None or block.freed > end) and not uses.between(block.number, ends, end)]
        needed = [first for block in held if (first := uses.first_from(block.number, end)) is not None]
        if needed:
            first = stack.start + layer * stack.calls
            yield _Layer(work[first : first + stack.calls], held, ends, min(needed))


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
