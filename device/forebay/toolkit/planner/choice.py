"""Which layout is taken, which are rejected and why, and what would do where none fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from forebay.errors import ForebayError
from forebay.toolkit.planner.candidates import Option, Search, Steps, with_micro_batches
from forebay.toolkit.planner.cost import Cost, memory_of
from forebay.toolkit.planner.layout import Layout, Recomputation, Sharding, least_memory, tensor_sizes
from forebay.toolkit.planner.machine import GIB, MEMORY_SHARE, Machine
from forebay.toolkit.planner.profile import StepProfile

DEVICES_TRIED_MAX = 65_536
WITH = {Sharding.NONE: "nothing", Sharding.STATES: "states", Sharding.GRADIENTS: "gradients", Sharding.WEIGHTS: "weights"}


@dataclass(frozen=True)
class Candidate:
    layout: Layout
    cost: Cost


@dataclass(frozen=True)
class Rejection:
    """Of a layout, the best of its kind: the one that lacks least, or is slower least."""

    layout: Layout
    why: str
    cost: Cost | None
    """None where that was not worked out, since it cannot be the best."""


@dataclass(frozen=True)
class Plan:
    machine: Machine
    chosen: Candidate
    why: str
    rejected: tuple[Rejection, ...]


class Infeasible(ForebayError):
    """Nothing fits; the message has the numbers that would do."""


def choose(profile: StepProfile, machine: Machine) -> Plan:
    """The fastest layout that fits. Raises Infeasible."""
    steps = Steps(profile)
    options = _options(Search(steps, machine), machine)
    if not options:
        raise Infeasible(_no_equal_parts(profile, machine))
    best = _best(options, machine)
    if best is None:
        raise Infeasible(_too_small(steps, machine, options))
    fitting = [one for one in options if one.least_bytes <= machine.budget_bytes]
    return Plan(machine, Candidate(best.layout, best.cost), _why(best, fitting), tuple(_rejections(best, options, machine)))


def _options(search: Search, machine: Machine) -> list[Option]:
    """All, but for layers that are computed again where that takes longer than what fits without."""
    sizes = list(tensor_sizes(machine))
    options = [one for what in (Recomputation.NOTHING, Recomputation.CHEAP) for size in sizes for one in search.options(size, what)]
    best = _best(options, machine)
    for size in sizes:
        if best is None or search.least_seconds_of_layers(size) <= best.cost.time.total:
            options += search.options(size, Recomputation.LAYERS)
    return options


def _best(options: Sequence[Option], machine: Machine) -> Option | None:
    """Costs are worked out from those that take least time at least, until no other one can be quicker."""
    best: Option | None = None
    for one in sorted((one for one in options if one.bytes <= machine.budget_bytes), key=lambda one: one.seconds):
        if best is not None and one.seconds > best.cost.time.total:
            break
        if one.cost.memory.total <= machine.budget_bytes and (best is None or _order(one.cost) < _order(best.cost)):
            best = one
    return best


def _order(cost: Cost) -> tuple[float, float, int]:
    return cost.time.total, cost.link_seconds, cost.memory.total


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


def _too_small(steps: Steps, machine: Machine, options: Sequence[Option]) -> str:
    least = min(options, key=_lack)
    memory = least.cost.memory
    part, size = max(memory.__dict__.items(), key=lambda item: item[1])
    needed = -(-int(memory.total / MEMORY_SHARE) // GIB)
    return (
        f"No layout fits {_devices(machine.devices)} of {machine.memory_bytes / GIB:.0f} GiB: {least.layout.name} needs least, "
        f"{memory.total / GIB:.1f} GiB of the {machine.budget_bytes / GIB:.1f} GiB that may be taken of each, most of it {part} "
        f"({size / GIB:.1f} GiB). {_what_would_do(steps, machine, needed)}"
    )


def _lack(one: Option) -> tuple[bool, int, int, bool]:
    """What is known comes first; of the rest what is likely to take least."""
    layout = one.layout
    return not (one.exact or one.is_known), one.least_bytes, -layout.micro_batches, layout.recomputation is not Recomputation.LAYERS


def _what_would_do(steps: Steps, machine: Machine, needed_gib: int) -> str:
    enough = f"{_devices(machine.devices)} of {needed_gib} GiB would do"
    rows = steps.whole.step.rows
    for count in range(machine.devices + 1, min(rows * machine.per_host, DEVICES_TRIED_MAX) + 1):
        larger = replace(machine, devices=count)
        if any(_fits(step, recomputation, larger) for step, recomputation in steps.on(larger)):
            return f"{enough}, or {count} devices of {machine.memory_bytes / GIB:.0f} GiB."
    return f"{enough}; with {rows} rows no number of devices of {machine.memory_bytes / GIB:.0f} GiB does."


def _fits(profile: StepProfile, recomputation: Recomputation, machine: Machine) -> bool:
    """Whether what takes least memory does."""
    layout = with_micro_batches(profile, replace(least_memory(machine, profile.step.division.parts), recomputation=recomputation), machine)
    return layout is not None and memory_of(profile, layout, machine).total <= machine.budget_bytes


def _why(chosen: Option, fitting: Sequence[Option]) -> str:
    others = [one for one in fitting if one.layout.sharding is not chosen.layout.sharding]
    if not others:
        return f"the fastest that fits; nothing fits without {WITH[chosen.layout.sharding]} in parts"
    best = min(others, key=lambda one: one.least_seconds)
    return f"the fastest that fits; {best.layout.name} is {_slower(best, chosen.cost)}"


Kind = tuple[Sharding, bool, object, object]


def _kind_of(layout: Layout, chosen: Layout) -> Kind:
    """The level, and whether there are stages; of the chosen one's level its mesh, and of that what is computed again."""
    level = layout.sharding, layout.stages > 1
    alike = level == (chosen.sharding, chosen.stages > 1)
    mesh = alike and layout.axes == chosen.axes
    return *level, layout.axes if alike else None, layout.recomputation if mesh else None


def _rejections(chosen: Option, options: Sequence[Option], machine: Machine) -> Iterator[Rejection]:
    """The best of each other kind: what fits by time, then what does not by memory."""
    kinds: dict[Kind, list[Option]] = {}
    for one in options:
        kinds.setdefault(_kind_of(one.layout, chosen.layout), []).append(one)
    del kinds[_kind_of(chosen.layout, chosen.layout)]
    fitting = ([one for one in members if one.least_bytes <= machine.budget_bytes] for members in kinds.values())
    slower = [min(members, key=lambda one: one.least_seconds) for members in fitting if members]
    larger = [min(members, key=lambda one: one.least_bytes) for members in kinds.values()]
    for one in sorted(slower, key=lambda one: one.least_seconds):
        yield Rejection(one.layout, _slower(one, chosen.cost), one.cost if one.is_known else None)
    for one in sorted(larger, key=lambda one: one.least_bytes):
        if one.least_bytes > machine.budget_bytes:
            least = "" if one.exact or one.is_known else "at least "
            why = f"needs {least}{one.least_bytes / GIB:.1f} GiB of {machine.budget_bytes / GIB:.1f} GiB"
            yield Rejection(one.layout, why, one.cost if one.is_known else None)


def _slower(one: Option, chosen: Cost) -> str:
    slower = one.least_seconds / chosen.time.total - 1
    if not one.is_known:
        return f"at least {slower:.1%} slower" if slower > 0.0005 else "no quicker"
    if slower > 0.0005:
        return f"{slower:.1%} slower"
    more = one.cost.link_seconds / chosen.link_seconds - 1 if chosen.link_seconds else 0.0
    return f"as fast, and sends {more:.0%} more" if more > 0.0005 else "no better in anything"
