"""A step as stages that follow one another, each on devices of its own: repeated layers, with what comes before and after them.

Micro-batches go through the stages in the order that is called 1F1B (Narayanan et al., "Efficient Large-Scale Language Model Training on
GPU Clusters Using Megatron-LM", arXiv 2104.04473, section 2.2).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from forebay.toolkit.planner.profile import Stack, StepProfile
from forebay.toolkit.planner.step import Block, Domain, Part, Stage, Step, StepCall


def forward_stack(profile: StepProfile) -> Stack | None:
    """The repeated layers that a step's stages are made of: the largest that begin before any gradient is complete.

    None where there are no such layers, and where the program divides its batch itself, since layers come several times then."""
    work, first = profile.step.work, min(profile.step.gradients.values(), default=0)
    found = [stack for stack in profile.stacks if work[stack.start].event < first]
    if not found or profile.accumulated > 1:
        return None
    largest = max(found, key=lambda stack: stack.calls * stack.layers)
    return largest if largest.start + largest.calls * largest.layers < len(work) else None


class Units:
    """What a stage is made of: the calls before the layers, each layer, and the calls after them, forward and backward."""

    def __init__(self, step: Step, stack: Stack) -> None:
        self.count = stack.layers + 2
        self.step = step
        self.of_weight: dict[int, set[int]] = defaultdict(set)
        """A weight that is used twice, as one for words and for scores, is on both stages."""
        self.of_call: list[int] = []
        """Of each call but those of updates."""
        self._owner: dict[int, int] = {}
        """Of what the forward pass makes, too."""
        self._assign(stack)
        self.calls: dict[int, list[StepCall]] = defaultdict(list)
        for unit, call in zip(self.of_call, step.work, strict=True):
            self.calls[unit].append(call)
        self._events = [call.event for call in step.work]
        self.middle = self._first_backward_event(stack)
        self.made: dict[int, list[Block]] = defaultdict(list)
        """Blocks that each unit makes."""
        self.left: list[Block] = []
        """Rows that the step before this one left."""
        self.shared: dict[tuple[Part, int, int | None], Block] = {}
        """What is there before the step, and what updates make, but for weights: of each kind and time all together."""
        self._divide_blocks()

    def _assign(self, stack: Stack) -> None:
        last, unit = self.count - 1, 0
        forward, turned = True, False
        for index, call in enumerate(self.step.work):
            begun = index - stack.start
            owners = [self._owner[number] for number in call.given if number in self._owner]
            if begun < stack.calls * stack.layers:
                unit = 0 if begun < 0 else 1 + begun // stack.calls
            elif forward and not any(self._is_weight(number) and self._owner.get(number, last) < last for number in call.given):
                unit = last
            else:
                forward = False
                unit = max(owners, default=unit)
            self.of_call.append(unit)
            turned = turned or (unit == last and "_backward" in call.name)
            for number in (*call.given, *call.made):
                if not turned and number not in self.step.uploaded:
                    self._owner.setdefault(number, unit)
                if self._is_weight(number):
                    self.of_weight[number].add(unit)

    def _is_weight(self, number: int) -> bool:
        return self.step.blocks[number].part in (Part.WEIGHT, Part.CAST)

    def _first_backward_event(self, stack: Stack) -> int:
        """The first event that is after all forward layers."""
        return self._events[stack.start + stack.calls * stack.layers]

    def _divide_blocks(self) -> None:
        for block in self.step.blocks.values():
            event = block.born if block.born >= 0 else self.step.gradients.get(block.number, -1)
            at = bisect_left(self._events, event)
            if event >= 0 and block.part is not Part.UPDATE and at < len(self._events):
                self.made[self.of_call[at]].append(block)  # the call's whose event it is, or the next one's
            elif block.part is Part.ROWS:
                self.left.append(block)
            elif block.part is not Part.WEIGHT:
                kind = block.part, block.born, block.freed
                same = self.shared.setdefault(kind, replace(block, bytes=0))
                same.bytes += block.bytes

    def seconds(self, seconds_of: Callable[[StepCall], float]) -> list[float]:
        """Of each unit."""
        found = [0.0] * self.count
        known: dict[tuple[object, ...], float] = {}
        for unit, call in zip(self.of_call, self.step.work, strict=True):
            alike = call.template, call.domain, call.flops, call.rows_bytes, call.other_bytes
            if alike not in known:
                known[alike] = seconds_of(call)
            found[unit] += known[alike]
        return found


def bounds_of(seconds: Sequence[float], stages: int) -> list[int]:
    """The first unit of each stage, and the end: the slowest stage is as quick as can be. Each stage has a layer at least."""
    low, high = max(seconds), sum(seconds)
    best = _filled(seconds, stages, high)
    for _ in range(50):
        cap = (low + high) / 2
        found = _filled(seconds, stages, cap)
        if found is None:
            low = cap
        else:
            best, high = found, cap
    return best or []


def _filled(seconds: Sequence[float], stages: int, cap: float) -> list[int] | None:
    """Stages of at most so many seconds each, the later ones with as few as the last ones need; none where they are not enough."""
    bounds, last = [0], len(seconds) - 2
    for left in range(stages - 1, 0, -1):
        end = bounds[-1] + (2 if bounds[-1] == 0 else 1)
        spent = sum(seconds[bounds[-1] : end])
        while end < last - left + 1 and spent + seconds[end] <= cap:
            spent += seconds[end]
            end += 1
        bounds.append(end)
    if bounds[-1] > last or sum(seconds[bounds[-1] :]) > cap:
        return None
    return [*bounds, len(seconds)]


def stages_of(units: Units, bounds: Sequence[int]) -> Iterator[Step]:
    """The steps of the stages, one after the other. Those in the middle that have as many layers are alike, and one object."""
    alike: dict[int, Step] = {}
    for place, (begin, end) in enumerate(pairwise(bounds)):
        if place in (0, len(bounds) - 2):
            yield _stage(units, begin, end)
            continue
        if end - begin not in alike:
            alike[end - begin] = _stage(units, begin, end)
        yield alike[end - begin]


def _stage(units: Units, begin: int, end: int) -> Step:
    step, within = units.step, range(begin, end)
    calls = sorted((call for unit in within for call in units.calls[unit]), key=_event)
    weights = {number for number, used in units.of_weight.items() if any(unit in within for unit in used)}
    trained = step.trained & weights
    share = _bytes(step, trained) / max(1, _bytes(step, step.trained))
    blocks = {block.number: block for unit in within for block in units.made[unit]}
    left = {block.bytes for block in blocks.values() if block.part is Part.ROWS and block.freed is None}
    blocks |= {number: step.blocks[number] for number in weights if step.blocks[number].born < 0}
    blocks |= {block.number: replace(block, bytes=round(block.bytes * share)) for block in units.shared.values()}
    blocks |= {block.number: block for block in units.left if block.bytes in left}
    received = {block.number: block for block in _received(step, calls, blocks)}
    blocks |= received
    held = _held_between(blocks, calls, units.middle)
    update = [
        replace(call, other_bytes=round(call.other_bytes * share), rows_bytes=round(call.rows_bytes * share))
        for call in step.calls
        if call.domain is Domain.UPDATE
    ]
    gradients = {number: event for number, event in step.gradients.items() if number in blocks}
    division = replace(step.division, summed_bytes=round(step.division.summed_bytes * share))
    return replace(
        step,
        blocks=blocks,
        calls=sorted((*calls, *update), key=_event),
        gradients=gradients,
        trained=trained,
        division=division,
        stage=Stage(sum(block.bytes for block in received.values()), held),
    )


def _event(call: StepCall) -> int:
    return call.event


def _bytes(step: Step, numbers: frozenset[int]) -> int:
    return sum(step.blocks[number].bytes for number in numbers)


def _received(step: Step, calls: Sequence[StepCall], own: dict[int, Block]) -> Iterator[Block]:
    """What holds rows and comes from other stages, from its first use on."""
    first: dict[int, int] = {}
    last: dict[int, int] = defaultdict(int)
    for call in calls:
        for number in call.given:
            if number not in own and step.blocks[number].part is Part.ROWS and number not in step.uploaded:
                first.setdefault(number, call.event)
                last[number] = call.event
    for number, event in first.items():
        block = step.blocks[number]
        yield replace(block, born=event, freed=max(last[number] + 1, event + 1))


def _held_between(blocks: dict[int, Block], calls: Sequence[StepCall], middle: int) -> int:
    """Bytes of rows that a stage keeps of a micro-batch between its forward and its backward pass."""
    begin = next((call.event for call in calls if call.event >= middle), middle)
    return sum(
        block.bytes
        for block in blocks.values()
        if block.part is Part.ROWS and 0 <= block.born < begin and (block.freed is None or block.freed >= begin)
    )
