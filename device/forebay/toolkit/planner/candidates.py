"""The layouts that are considered, with what each takes at least, and all of its cost where that is asked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from forebay.toolkit.planner.cost import Cost, Pace, call_seconds, cost_of, memory_of, stages_cost
from forebay.toolkit.planner.layout import Layout, Recomputation, Sharding, layouts, stage_layouts, tensor_sizes
from forebay.toolkit.planner.machine import Machine
from forebay.toolkit.planner.parallel.pipeline import Units, bounds_of, forward_stack, stages_of
from forebay.toolkit.planner.parallel.tensor import Way, divided
from forebay.toolkit.planner.profile import Stack, StepProfile, prepare
from forebay.toolkit.planner.recomputation import recomputed
from forebay.toolkit.planner.step import Domain, Step

STAGES_MAX = 128
CHUNKS = (1, 2, 3, 4)
"""Into how many parts the layers of a stage may be divided."""


class Steps:
    """The step whole, in parts, with recomputation and in stages, each made once."""

    def __init__(self, profile: StepProfile) -> None:
        self.whole = profile
        self._made: dict[tuple[int, Recomputation], StepProfile | None] = {(1, Recomputation.NOTHING): profile}
        self._way = Way()
        self._stages: dict[tuple[int, Recomputation, int], list[StepProfile]] = {}

    def of(self, tensor: int, recomputation: Recomputation) -> StepProfile | None:
        """None where the step's products cannot be divided so, or nothing can be computed again."""
        key = tensor, recomputation
        if key not in self._made:
            self._made[key] = self._make(tensor, recomputation)
        return self._made[key]

    def _make(self, tensor: int, recomputation: Recomputation) -> StepProfile | None:
        step: Step | None
        if recomputation is Recomputation.NOTHING:
            step = divided(self.whole.step, tensor, self._way)
        else:
            before = self.of(tensor, Recomputation.NOTHING)
            step = None if before is None else recomputed(before.step, before.stacks, recomputation)
        return None if step is None else prepare(step, self.whole.stacks)

    def on(self, machine: Machine) -> Iterator[tuple[StepProfile, Recomputation]]:
        """Those whose rows the machine's devices can have equal parts of."""
        for tensor in tensor_sizes(machine):
            if self.whole.step.rows % (machine.devices // tensor) == 0:
                for recomputation in Recomputation:
                    found = self.of(tensor, recomputation)
                    if found is not None:
                        yield found, recomputation

    @cached_property
    def stack(self) -> Stack | None:
        """The layers of which stages may be made."""
        return forward_stack(self.whole)

    @property
    def layers(self) -> int:
        return 0 if self.stack is None else self.stack.layers

    def stages(self, tensor: int, recomputation: Recomputation, count: int, machine: Machine) -> list[StepProfile]:
        """Those that are alike are one object."""
        key = tensor, recomputation, count
        profile = self.of(tensor, recomputation)
        if profile is None or self.stack is None:
            return []
        if key not in self._stages:
            units = Units(profile.step, self.stack)
            bounds = bounds_of(units.seconds(lambda call: call_seconds(call, machine, 1, 1)), count)
            steps = list(stages_of(units, bounds))
            prepared = {number: prepare(step) for number, step in {id(step): step for step in steps}.items()}
            self._stages[key] = [prepared[id(step)] for step in steps]
        return self._stages[key]


@dataclass
class Option:
    """A layout, with what it takes at least."""

    layout: Layout
    bytes: int
    """Of memory: just so many where ``exact``."""
    seconds: float
    """Of time, if nothing waits for the network but layers."""
    exact: bool
    search: Search

    @cached_property
    def cost(self) -> Cost:
        return self.search.cost(self.layout)

    @property
    def is_known(self) -> bool:
        return "cost" in self.__dict__

    @property
    def least_seconds(self) -> float:
        return self.cost.time.total if self.is_known else self.seconds

    @property
    def least_bytes(self) -> int:
        return self.cost.memory.total if self.is_known else self.bytes


class Search:
    """Of layouts for a step on a machine."""

    def __init__(self, steps: Steps, machine: Machine) -> None:
        self._steps, self._machine = steps, machine
        self._known: dict[tuple[int, int], Pace] = {}

    def options(self, tensor: int, recomputation: Recomputation) -> Iterator[Option]:
        """Those of a size of tensor groups, with what is computed again; those in stages last."""
        profile = self._steps.of(tensor, recomputation)
        if profile is None:
            return
        if profile.step.rows % (self._machine.devices // tensor) == 0:
            for one in layouts(self._machine, tensor):
                layout = with_micro_batches(profile, replace(one, recomputation=recomputation), self._machine)
                if layout is not None:
                    pace = self._speed(profile, layout)
                    parts = layout.shards if layout.sharding >= Sharding.STATES else 1
                    least = layout.micro_batches * pace.seconds + pace.update(parts)
                    yield Option(layout, memory_of(profile, layout, self._machine).total, least, True, self)
        yield from self._in_stages(profile, tensor, recomputation)

    def least_seconds_of_layers(self, tensor: int) -> float:
        """If layers are computed again, without making that step: it computes what the others do, and all layers but the last again."""
        profile = self._steps.of(tensor, Recomputation.NOTHING)
        stack = self._steps.stack
        if profile is None or stack is None:
            return 0.0
        parts = max(1, self._machine.devices // tensor)
        layers = profile.step.work[stack.start : stack.start + stack.calls * (stack.layers - 1)]
        seconds = sum(call_seconds(call, self._machine, parts if call.domain is Domain.ROWS else 1, 1) for call in layers)
        return Pace(profile, self._machine, parts).seconds + seconds

    def _in_stages(self, profile: StepProfile, tensor: int, recomputation: Recomputation) -> Iterator[Option]:
        devices, layers = self._machine.devices // tensor, self._steps.layers
        for count in range(2, min(layers, devices, STAGES_MAX) + 1):
            if devices % count or profile.step.rows % (devices // count):
                continue
            for one in stage_layouts(self._machine, tensor, count):
                for micro_batches in _enough(micro_batches_of(profile, one.data), count):
                    for chunks in (size for size in CHUNKS if size == 1 or (layers % (count * size), micro_batches % count) == (0, 0)):
                        layout = replace(one, recomputation=recomputation, micro_batches=micro_batches, chunks=chunks)
                        yield self._in_so_many(profile, layout)

    def _in_so_many(self, profile: StepProfile, layout: Layout) -> Option:
        """If all stages were equal, and activations and what they send were nothing."""
        kept, parts = profile.kept_bytes, layout.shards if layout.sharding >= Sharding.STATES else 1
        seconds = self._speed(profile, layout).seconds / layout.stages
        idle = (layout.stages - 1) / layout.chunks
        least = (kept.weights + kept.gradients + kept.states // parts) // layout.stages
        return Option(layout, least, (layout.micro_batches + idle) * seconds, False, self)

    def cost(self, layout: Layout) -> Cost:
        if layout.stages == 1:
            profile = self._steps.of(layout.tensor, layout.recomputation)
            if profile is None:
                raise ValueError(layout)
            return cost_of(profile, layout, self._machine, self._speed(profile, layout))
        stages = self._stages(layout)
        return stages_cost(stages, layout, self._machine, [self._speed(stage, layout) for stage in stages])

    def seconds_of_stages(self, layout: Layout) -> list[float]:
        """What each stage takes of a micro-batch, forward and backward."""
        return [self._speed(stage, layout).seconds for stage in self._stages(layout)]

    def _stages(self, layout: Layout) -> list[StepProfile]:
        return self._steps.stages(layout.tensor, layout.recomputation, layout.stages, self._machine)

    def _speed(self, profile: StepProfile, layout: Layout) -> Pace:
        key = id(profile), layout.data * layout.micro_batches
        if key not in self._known:
            self._known[key] = Pace(profile, self._machine, key[1])
        return self._known[key]


def _enough(counts: list[int], stages: int) -> list[int]:
    """Of numbers of micro-batches those that keep all stages busy; the largest where none does."""
    return [count for count in counts if count >= stages] or counts[-1:]


def micro_batches_of(profile: StepProfile, data: int) -> list[int]:
    """Into how many equal parts the rows of each of so many batches can be divided, ascending."""
    rows, division = profile.step.rows // data, profile.step.division
    least = division.parts if division.by_rows else 1
    return [count for count in range(1, (1 if profile.has_batch_norm else rows) + 1) if rows % (count * least) == 0]


def with_micro_batches(profile: StepProfile, layout: Layout, machine: Machine) -> Layout | None:
    """The layout with as few micro-batches as memory allows, since each takes time of its own; with the most where none is enough."""
    counts = micro_batches_of(profile, layout.data)
    if not counts:
        return None
    one, *several = (replace(layout, micro_batches=count) for count in counts)

    def fits(tried: Layout) -> bool:
        return memory_of(profile, tried, machine).total <= machine.budget_bytes

    if fits(one) or not several:
        return one
    return several[min(bisect_left(several, True, key=fits), len(several) - 1)]  # more never need more
