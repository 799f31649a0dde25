"""What of a step does not depend on the layout, prepared once: peaks of what is alive, layers of weights, and the order of their uses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from forebay.toolkit.planner.machine import DeviceModel
from forebay.toolkit.planner.step import Domain, Part, Step, StepCall

LAYER_BYTES = 512 << 20
"""Weights outside of repeated layers are gathered in groups of at least so many bytes, or of as many as the largest layer has."""
STACKS_MAX = 8
"""Runs of repeated layers that are looked for, as an encoder and a decoder."""
PERIODS_TRIED = 24
GATHERED_AHEAD = 2
"""Groups of weights that are there whole at a time: the one in use and the next."""
ALIVE_STEPS = 128
"""To as many parts of the most that is alive are bytes rounded up."""


class Alive(NamedTuple):
    """Bytes that are alive at one time, beside weights and states."""

    rows: int
    sums: int
    """Gradients that more is to be added to, and other sums over the rows: whole on each device."""
    gradients: int
    """Those that are complete."""
    update: int
    casts: int
    copies: int


FIELDS = {Part.ROWS: 0, Part.GRADIENT: 2, Part.UPDATE: 3, Part.CAST: 4, Part.COPY: 5}
SUMS = 1
"""Places among the fields of what is alive."""


@dataclass(frozen=True)
class Stack:
    """Layers that come one after the other, by the numbers of calls."""

    start: int
    calls: int
    """Of one layer."""
    layers: int


@dataclass(frozen=True)
class Stretch:
    """Calls that use the weights of one group, between those of others."""

    kind: int
    """The same of those that cost the same, as those of layers that are alike."""
    group: int
    calls: Sequence[StepCall]
    gradients: tuple[int, ...]
    """Bytes of the gradients that are complete at its end."""


class KeptBytes(NamedTuple):
    """Of a step, whatever the layout."""

    weights: int
    states: int
    gradients: int
    staying_gradients: int
    """Those that stay from step to step."""


@dataclass(frozen=True)
class StepProfile:
    """A step with all that costs are made of."""

    step: Step
    peaks: tuple[Alive, ...]
    """Of which no one is at least as large in everything as another."""
    stacks: tuple[Stack, ...]
    groups: tuple[int, ...]
    """Bytes of weights that are gathered together, in the order of their first use."""
    group_of: dict[int, int]
    """The number of each weight's group."""
    stretches: tuple[Stretch, ...]
    update: tuple[StepCall, ...]
    """The calls of updates."""

    @cached_property
    def has_batch_norm(self) -> bool:
        """Which needs the batch of a device as one."""
        return any("batch_norm" in call.name for call in self.step.calls)

    @cached_property
    def accumulated(self) -> int:
        """Into how many micro-batches the program divides its batch itself: what is repeated with the same weights; 1 where it does not."""
        work = self.step.work
        for stack in self.stacks:
            first, second = (work[stack.start + turn * stack.calls : stack.start + (turn + 1) * stack.calls] for turn in (0, 1))
            used = [{weight for call in turn for weight in call.weights} for turn in (first, second)]
            if used[0] and used[0] == used[1]:
                return stack.layers
        return 1

    @cached_property
    def gathered_ahead(self) -> int:
        """The most that neighbouring groups of weights have together, as many as are whole at a time."""
        return max((sum(self.groups[place : place + GATHERED_AHEAD]) for place in range(len(self.groups))), default=0)

    @cached_property
    def summed_bytes(self) -> int:
        """Of gradients, as they are summed among devices."""
        return sum(size for stretch in self.stretches for size in stretch.gradients)

    @cached_property
    def exchanged_bytes(self) -> int:
        """Of all rows, among the devices of a tensor group."""
        return sum(size for call in self.step.calls for size in call.exchanged)

    @cached_property
    def trained_bytes(self) -> int:
        return sum(self.step.blocks[number].bytes for number in self.step.trained)

    @cached_property
    def most_alive(self) -> dict[tuple[int, int, int, int, bool], tuple[int, int, int, int, int]]:
        """What is known of peaks, by the parts of a layout; the cost's own."""
        return {}

    @cached_property
    def update_seconds(self) -> dict[tuple[DeviceModel, int], float]:
        """What is known of updates in so many parts; the cost's own."""
        return {}

    @cached_property
    def kept_bytes(self) -> KeptBytes:
        step = self.step
        return KeptBytes(step.total(Part.WEIGHT), step.total(Part.STATE), step.gradient_bytes, step.staying_gradient_bytes)


def prepare(step: Step, stacks: tuple[Stack, ...] | None = None) -> StepProfile:
    """The profile of a step. Of one that is another one with calls done again its repeated layers may be told."""
    work = step.work
    if stacks is None:
        stacks = tuple(find_stacks([call.template for call in work]))
    groups, group_of = _groups(step, work, stacks)
    return StepProfile(
        step,
        tuple(_largest(_alive(step))),
        stacks,
        groups,
        group_of,
        tuple(_stretches(step, work, group_of)),
        tuple(call for call in step.calls if call.domain is Domain.UPDATE),
    )


def _alive(step: Step) -> list[Alive]:
    """After each event that makes or frees something, or completes a gradient."""
    changes: dict[int, list[int]] = defaultdict(lambda: [0] * len(Alive._fields))
    for block in step.blocks.values():
        field = FIELDS.get(block.part)
        if field is None:
            continue
        size = block.bytes
        if block.part is Part.GRADIENT:
            complete = step.gradients.get(block.number)
            if complete is not None:
                changes[block.born][SUMS] += size
                changes[complete + 1][SUMS] -= size
                changes[complete + 1][field] += size
            else:
                field = SUMS if block.born >= 0 else field
                changes[block.born][field] += size
        else:
            changes[block.born][field] += size
        if block.freed is not None:
            changes[block.freed][field] -= size
    now, found = [0] * len(Alive._fields), [Alive(0, 0, 0, 0, 0, 0)]
    for event in sorted(changes):
        more = changes[event]
        now = [one + other for one, other in zip(now, more, strict=True)]
        if min(more) >= 0:  # what was alive before is no more in anything
            found.pop()
        found.append(Alive(*now))
    return found


def _largest(times: Sequence[Alive]) -> Iterator[Alive]:
    """Those of which no one is at least as large in everything, their bytes rounded up, so that they are few."""
    steps = [max(1, max(column) // ALIVE_STEPS) for column in zip(*times, strict=True)]
    a, b, c, d, e, f = steps  # written out, as what follows is, since they are most of the work
    rounded = {
        Alive(-(rows // -a) * a, -(sums // -b) * b, -(made // -c) * c, -(update // -d) * d, -(casts // -e) * e, -(copies // -f) * f)
        for rows, sums, made, update, casts, copies in times
    }
    kept: list[Alive] = []
    for time in sorted(rounded, key=sum, reverse=True):
        rows, sums, gradients, update, casts, copies = time
        for known in kept:
            if (
                known[0] >= rows
                and known[1] >= sums
                and known[2] >= gradients
                and known[3] >= update
                and known[4] >= casts
                and known[5] >= copies
            ):
                break
        else:
            kept.append(time)
            yield time


def find_stacks(templates: Sequence[int]) -> Iterator[Stack]:
    """The longest runs of calls that come again at once, and then those in what is left."""
    left = [(0, len(templates))]
    runs: dict[tuple[int, int], Stack | None] = {}
    for _ in range(STACKS_MAX):
        runs |= {(start, end): _longest_run(templates[start:end]) for start, end in left if (start, end) not in runs}
        found = max(
            ((start, best) for start, end in left if (best := runs[start, end])),
            key=lambda pair: pair[1].calls * pair[1].layers,
            default=None,
        )
        if found is None:
            return
        start, run = found
        stack = Stack(start + run.start, run.calls, run.layers)
        yield stack
        begin, end = next(one for one in left if one[0] <= stack.start < one[1])
        left.remove((begin, end))
        left += [(begin, stack.start), (stack.start + stack.calls * stack.layers, end)]


def _longest_run(templates: Sequence[int]) -> Stack | None:
    """Of at least two rounds; of the frequent distances between equal calls those that cover most, and of these the shortest."""
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for index, template in enumerate(templates):
        if template in last:
            gaps[index - last[template]] += 1
        last[template] = index
    best: Stack | None = None
    for period in sorted(gap for gap, _ in gaps.most_common(PERIODS_TRIED) if gap >= 4):
        run = 0
        for index in range(period, len(templates) + 1):
            if index < len(templates) and templates[index] == templates[index - period]:
                run += 1
                continue
            rounds = run // period + 1
            if rounds >= 2 and (best is None or rounds * period > best.calls * best.layers):
                best = Stack(index - run - period, period, rounds)
            run = 0
    return best


def _groups(step: Step, work: Sequence[StepCall], stacks: Sequence[Stack]) -> tuple[tuple[int, ...], dict[int, int]]:
    """Weights that are gathered together: those of a layer, else those that are used first one after the other."""
    layer_of = {}
    for number, stack in enumerate(stacks):
        for layer in range(stack.layers):
            for index in range(stack.calls):
                layer_of[stack.start + layer * stack.calls + index] = (number, layer)
    sizes: list[int] = []
    group_of: dict[int, int] = {}
    at: tuple[int, int] | None = None
    for index, call in enumerate(work):
        for weight in call.weights:
            if weight in group_of:
                continue
            place = layer_of.get(index)
            if not sizes or place != at or (place is None and sizes[-1] >= LAYER_BYTES):
                sizes.append(0)
                at = place
            group_of[weight] = len(sizes) - 1
            sizes[-1] += step.blocks[weight].bytes
    return tuple(sizes), group_of


def _stretches(step: Step, work: Sequence[StepCall], group_of: dict[int, int]) -> Iterator[Stretch]:
    """In their order; calls without weights belong to what came before them."""
    complete = sorted((event, step.blocks[number].bytes) for number, event in step.gradients.items())
    calls: list[StepCall] = []
    kinds: dict[tuple[object, ...], int] = {}
    group, place = -1, 0

    def kind() -> int:
        alike = tuple((call.domain, call.half, call.flops, call.rows_bytes, call.other_bytes, call.exchanged) for call in calls)
        return kinds.setdefault(alike, len(kinds))

    for call in work:
        used = [group_of[weight] for weight in call.weights]
        if used and group not in (-1, used[0]):
            ready, place = _complete_before(complete, place, call.event)
            yield Stretch(kind(), group, calls, ready)
            calls = []
        group = used[-1] if used else group
        calls.append(call)
    yield Stretch(kind(), group, calls, tuple(size for _, size in complete[place:]))


def _complete_before(complete: Sequence[tuple[int, int]], place: int, event: int) -> tuple[tuple[int, ...], int]:
    end = place
    while end < len(complete) and complete[end][0] < event:
        end += 1
    return tuple(size for _, size in complete[place:end]), end
