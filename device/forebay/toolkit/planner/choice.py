"""Which layout is taken, which are rejected and why, and what would do where none fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from forebay.errors import ForebayError
from forebay.toolkit.planner.cost import Cost, Pace, cost_of, memory_of
from forebay.toolkit.planner.layout import Layout, Sharding, layouts, least_memory, tensor_sizes
from forebay.toolkit.planner.machine import GIB, MEMORY_SHARE, Machine
from forebay.toolkit.planner.parallel.tensor import divided
from forebay.toolkit.planner.profile import StepProfile, prepare
from forebay.toolkit.planner.recomputation import recomputed
from forebay.toolkit.planner.step import Step

DEVICES_TRIED_MAX = 65_536
WITH = {Sharding.NONE: "nothing", Sharding.STATES: "states", Sharding.GRADIENTS: "gradients", Sharding.WEIGHTS: "weights"}


@dataclass(frozen=True)
class Candidate:
    layout: Layout
    cost: Cost


@dataclass(frozen=True)
class Rejection:
    """Of a layout, with its best cost: of its kind the one that lacks least, or is slower least."""

    candidate: Candidate
    why: str


@dataclass(frozen=True)
class Plan:
    machine: Machine
    chosen: Candidate
    why: str
    rejected: tuple[Rejection, ...]


class Infeasible(ForebayError):
    """Nothing fits; the message has the numbers that would do."""


class _Steps:
    """The step whole and in parts, with and without recomputation, each made once."""

    def __init__(self, profile: StepProfile) -> None:
        self.whole = profile
        self._made: dict[tuple[int, bool], StepProfile | None] = {(1, False): profile}

    def of(self, tensor: int, recomputes: bool) -> StepProfile | None:
        """None where the step's products cannot be divided so, or its layers cannot be computed again."""
        key = tensor, recomputes
        if key not in self._made:
            self._made[key] = self._make(tensor, recomputes)
        return self._made[key]

    def _make(self, tensor: int, recomputes: bool) -> StepProfile | None:
        step: Step | None
        if recomputes:
            before = self.of(tensor, recomputes=False)
            step = None if before is None else recomputed(before.step, before.stacks)
        else:
            step = divided(self.whole.step, tensor)
        return None if step is None else prepare(step)

    def on(self, machine: Machine) -> Iterator[tuple[StepProfile, bool]]:
        """Those whose rows the machine's devices can have equal parts of; and whether they recompute."""
        for tensor in tensor_sizes(machine):
            if self.whole.step.rows % (machine.devices // tensor) == 0:
                for recomputes in (False, True):
                    found = self.of(tensor, recomputes)
                    if found is not None:
                        yield found, recomputes


def choose(profile: StepProfile, machine: Machine) -> Plan:
    """The fastest layout that fits. Raises Infeasible."""
    steps = _Steps(profile)
    candidates = [one for step, recomputes in steps.on(machine) for one in _candidates(step, recomputes, machine)]
    if not candidates:
        raise Infeasible(_no_equal_parts(profile, machine))
    fitting = [one for one in candidates if one.cost.memory.total <= machine.budget_bytes]
    if not fitting:
        raise Infeasible(_too_small(steps, machine, candidates))
    chosen = min(fitting, key=lambda one: (one.cost.time.total, one.cost.link_seconds, one.cost.memory.total))
    return Plan(machine, chosen, _why(chosen, fitting), tuple(_rejections(chosen, candidates, machine)))


def _candidates(profile: StepProfile, recomputes: bool, machine: Machine) -> Iterator[Candidate]:
    pace = cache(lambda micro_batches: Pace(profile, machine, micro_batches))
    for one in layouts(machine, profile.step.division.parts):
        layout = _with_micro_batches(profile, replace(one, recomputes=recomputes), machine)
        if layout is not None:
            yield Candidate(layout, cost_of(profile, layout, machine, pace(layout.micro_batches)))


def _micro_batches(profile: StepProfile, data: int) -> list[int]:
    """Into how many equal parts the rows of each of so many batches can be divided, ascending."""
    rows, division = profile.step.rows // data, profile.step.division
    least = division.parts if division.by_rows else 1
    return [count for count in range(1, (1 if profile.has_batch_norm else rows) + 1) if rows % (count * least) == 0]


def _with_micro_batches(profile: StepProfile, layout: Layout, machine: Machine) -> Layout | None:
    """The layout with as few micro-batches as memory allows, since each takes time of its own; with the most where none is enough."""
    counts = _micro_batches(profile, layout.data)
    if not counts:
        return None
    one, *several = (replace(layout, micro_batches=count) for count in counts)

    def fits(tried: Layout) -> bool:
        return memory_of(profile, tried, machine).total <= machine.budget_bytes

    if fits(one) or not several:
        return one
    return several[min(bisect_left(several, True, key=fits), len(several) - 1)]  # more never need more


def _no_equal_parts(profile: StepProfile, machine: Machine) -> str:
    rows, devices = profile.step.rows, machine.devices
    fewer = max((count for count in range(1, min(rows, devices) + 1) if rows % count == 0), default=1)
    more = -(-rows // devices) * devices
    less = rows // devices * devices
    sizes = f"{less} or {more} rows" if less else f"{more} rows"
    return (
        f"The batch has {rows} rows, which {devices} devices cannot have equal parts of, and a plan changes no batch: "
        f"{sizes} would do, or {_devices(fewer)}."
    )


def _devices(count: int) -> str:
    return f"{count} device" + ("s" if count != 1 else "")


def _too_small(steps: _Steps, machine: Machine, candidates: list[Candidate]) -> str:
    least = min(candidates, key=lambda one: one.cost.memory.total)
    memory = least.cost.memory
    part, size = max(memory.__dict__.items(), key=lambda item: item[1])
    needed = -(-int(memory.total / MEMORY_SHARE) // GIB)
    return (
        f"No layout fits {_devices(machine.devices)} of {machine.memory_bytes / GIB:.0f} GiB: {least.layout.name} needs least, "
        f"{memory.total / GIB:.1f} GiB of the {machine.budget_bytes / GIB:.1f} GiB that may be taken of each, most of it {part} "
        f"({size / GIB:.1f} GiB). {_what_would_do(steps, machine, needed)}"
    )


def _what_would_do(steps: _Steps, machine: Machine, needed_gib: int) -> str:
    enough = f"{_devices(machine.devices)} of {needed_gib} GiB would do"
    rows = steps.whole.step.rows
    for count in range(machine.devices + 1, min(rows * machine.per_host, DEVICES_TRIED_MAX) + 1):
        larger = replace(machine, devices=count)
        if any(_fits(step, recomputes, larger) for step, recomputes in steps.on(larger)):
            return f"{enough}, or {count} devices of {machine.memory_bytes / GIB:.0f} GiB."
    return f"{enough}; with {rows} rows no number of devices of {machine.memory_bytes / GIB:.0f} GiB does."


def _fits(profile: StepProfile, recomputes: bool, machine: Machine) -> bool:
    """Whether what takes least memory does."""
    least = replace(least_memory(machine, profile.step.division.parts), recomputes=recomputes)
    layout = _with_micro_batches(profile, least, machine)
    return layout is not None and memory_of(profile, layout, machine).total <= machine.budget_bytes


def _why(chosen: Candidate, fitting: list[Candidate]) -> str:
    others = [one for one in fitting if one.layout.sharding is not chosen.layout.sharding]
    if not others:
        return f"the fastest that fits; nothing fits without {WITH[chosen.layout.sharding]} in parts"
    best = min(others, key=lambda one: one.cost.time.total)
    return f"the fastest that fits; {best.layout.name} is {_slower(best, chosen)}"


def _rejections(chosen: Candidate, candidates: list[Candidate], machine: Machine) -> Iterator[Rejection]:
    """The best of each other level, of each other mesh of the chosen one's, and of that mesh with or without recomputation."""

    def kind_of(one: Candidate) -> tuple[Sharding, object, bool | None]:
        level = one.layout.sharding is chosen.layout.sharding
        mesh = level and one.layout.axes == chosen.layout.axes
        return one.layout.sharding, one.layout.axes if level else None, one.layout.recomputes if mesh else None

    kinds: dict[tuple[Sharding, object, bool | None], list[Candidate]] = {}
    for one in candidates:
        kinds.setdefault(kind_of(one), []).append(one)
    for kind, members in kinds.items():
        if kind == kind_of(chosen):
            continue
        fitting = [one for one in members if one.cost.memory.total <= machine.budget_bytes]
        if fitting:
            best = min(fitting, key=lambda one: one.cost.time.total)
            yield Rejection(best, _slower(best, chosen))
        else:
            best = min(members, key=lambda one: one.cost.memory.total)
            yield Rejection(best, f"needs {best.cost.memory.total / GIB:.1f} GiB of {machine.budget_bytes / GIB:.1f} GiB")


def _slower(one: Candidate, chosen: Candidate) -> str:
    slower = one.cost.time.total / chosen.cost.time.total - 1
    if slower > 0.0005:
        return f"{slower:.1%} slower"
    more = one.cost.link_seconds / chosen.cost.link_seconds - 1 if chosen.cost.link_seconds else 0.0
    return f"as fast, and sends {more:.0%} more" if more > 0.0005 else "no better in anything"
