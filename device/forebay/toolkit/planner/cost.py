"""What a layout costs each device: memory by part, time by part, and bytes over each axis of the network. Predictions, all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from forebay.toolkit.planner.layout import Layout, Sharding, group_of
from forebay.toolkit.planner.machine import BANDWIDTH_SHARE, CALL_SECONDS, Group, Machine
from forebay.toolkit.planner.profile import GATHERED_AHEAD, Alive, StepProfile
from forebay.toolkit.planner.step import Domain, StepCall

WORKSPACE_BYTES = 256 << 20
"""Of libraries, for matrix products and convolutions. Assumed, not measured; at most a hundredth of the device's memory."""
WORKSPACE_SHARE = 100


@dataclass(frozen=True)
class Memory:
    """Bytes on each device where most is alive."""

    weights: int
    states: int
    gradients: int
    activations: int
    update: int
    casts: int
    copies: int
    gathered: int
    """Weights of others, for a layer's time, and buckets of gradients under way."""
    workspace: int

    @property
    def total(self) -> int:
        return sum(self.__dict__.values())


@dataclass(frozen=True)
class Time:
    """Seconds of a step."""

    compute: float
    """Forward and backward."""
    exchanged: float
    """What layers wait for: collectives of devices that compute the same rows together, and what stages send each other."""
    idle: float
    """A stage has no micro-batch to compute (the bubble of a pipeline), or waits for a slower one."""
    update: float
    exposed: float
    """Waiting for collectives."""
    hidden: float
    """Collectives beside computing: in no sum."""

    @property
    def total(self) -> float:
        return self.compute + self.exchanged + self.idle + self.update + self.exposed


@dataclass(frozen=True)
class Cost:
    memory: Memory
    time: Time
    traffic: dict[str, float]
    """Bytes that each device sends in a step, by axis."""
    link_seconds: float
    """What that takes at the links' full rates, one after the other: traffic, weighed by what it costs."""


class Pace:
    """How long the calls of a micro-batch take on each of a machine's devices, whatever the layout, and updates, which may be in parts."""

    def __init__(self, profile: StepProfile, machine: Machine, rows_parts: int) -> None:
        division = profile.step.division
        rows = {Domain.ROWS: rows_parts}
        tensor = group_of(division.parts, 1, machine)
        computing: dict[int, float] = {}
        exchanging: dict[int, float] = {}
        for stretch in profile.stretches:
            if stretch.kind not in computing:
                calls = stretch.calls
                computing[stretch.kind] = sum(call_seconds(call, machine, rows.get(call.domain, 1), 1) for call in calls)
                sizes = (size // rows[Domain.ROWS] for call in calls for size in call.exchanged)
                exchanging[stretch.kind] = sum(tensor.seconds(size, machine.network) for size in sizes)
        self.computing = [computing[stretch.kind] for stretch in profile.stretches]
        self.exchanging = [exchanging[stretch.kind] for stretch in profile.stretches]
        """Of each stretch, too."""
        self._profile, self._machine = profile, machine

    @property
    def seconds(self) -> float:
        """Of a micro-batch."""
        return sum(self.computing) + sum(self.exchanging)

    def update(self, parts: int) -> float:
        """Seconds of all updates, of which a device has one of so many parts."""
        known, key = self._profile.update_seconds, (self._machine.model, parts)
        if key not in known:
            known[key] = sum(call_seconds(call, self._machine, parts, parts) for call in self._profile.update)
        return known[key]


def cost_of(profile: StepProfile, layout: Layout, machine: Machine, pace: Pace | None = None) -> Cost:
    """Of one step."""
    traffic = _traffic(profile, layout, machine)
    links = machine.network.links()
    return Cost(
        memory_of(profile, layout, machine),
        _time(profile, layout, machine, pace or Pace(profile, machine, layout.data * layout.micro_batches)),
        traffic,
        sum(sent / links[axis].bytes_per_second for axis, sent in traffic.items()),
    )


def stages_cost(stages: Sequence[StepProfile], layout: Layout, machine: Machine, paces: Sequence[Pace]) -> Cost:
    """Of the stages of a pipeline, one after the other: the memory of the one that takes most, the time of the slowest."""
    known: dict[int, Cost] = {}
    memories: list[Memory] = []
    for place, (profile, pace) in enumerate(zip(stages, paces, strict=True)):
        if id(profile) not in known:
            known[id(profile)] = cost_of(profile, layout, machine, pace)
        held = _part(profile.step.stage.held_bytes, layout.data * layout.micro_batches)
        memory = known[id(profile)].memory
        memories.append(replace(memory, activations=memory.activations + round((in_flight(layout, place) - 1) * held)))
    slowest = max(known.values(), key=lambda cost: cost.time.total)
    link = layout.group("stage", machine)
    received = max(profile.step.stage.received_bytes for profile in stages) / layout.data
    rate = machine.network.host if link.switch == 1 else machine.network.switch
    sends = layout.chunks * layout.micro_batches * 2
    sent = sends * rate.latency_seconds + layout.chunks * received / rate.bytes_per_second
    paced = [pace.seconds for pace in paces]
    time = replace(slowest.time, exchanged=slowest.time.exchanged + sent, idle=(sum(paced) - max(paced)) / layout.chunks)
    traffic = dict(slowest.traffic)
    traffic["host" if link.switch == 1 else "switch"] += layout.chunks * received
    link_seconds = slowest.link_seconds + layout.chunks * received / rate.bytes_per_second
    return Cost(max(memories, key=lambda one: one.total), time, traffic, link_seconds)


def in_flight(layout: Layout, place: int) -> float:
    """Micro-batches of which a stage holds activations at most; of chunks, parts of them (arXiv 2205.05198, section 4.2.3)."""
    after = layout.stages - place - 1
    if layout.chunks == 1:
        return min(layout.micro_batches, after + 1)
    return min(layout.micro_batches, (2 * after + (layout.chunks - 1) * layout.stages + 1) / layout.chunks)


def _part(size: int, parts: int) -> int:
    return -(-size // parts)


def memory_of(profile: StepProfile, layout: Layout, machine: Machine) -> Memory:
    """Where most is alive."""
    shards, kept = layout.shards, profile.kept_bytes
    weight_parts = shards if layout.sharding >= Sharding.WEIGHTS else 1
    state_parts = shards if layout.sharding >= Sharding.STATES else 1
    gradient_parts = shards if layout.sharding >= Sharding.GRADIENTS else 1

    parts = layout.data * layout.micro_batches, gradient_parts, state_parts, weight_parts, layout.micro_batches > 1
    if parts not in profile.most_alive:
        profile.most_alive[parts] = _most_alive(profile, *parts)
    gradients, activations, update, casts, copies = profile.most_alive[parts]
    return Memory(
        weights=_part(kept.weights, weight_parts),
        states=_part(kept.states, state_parts),
        gradients=gradients,
        activations=activations,
        update=update,
        casts=casts,
        copies=copies,
        gathered=_gathered(profile, layout) + _buckets(profile, layout),
        workspace=min(WORKSPACE_BYTES, machine.memory_bytes // WORKSPACE_SHARE),
    )


def _most_alive(
    profile: StepProfile, rows_parts: int, gradient_parts: int, state_parts: int, weight_parts: int, added: bool
) -> tuple[int, int, int, int, int]:
    """Of gradients, activations, updates, casts and copies, where they are most together. ``added``: to those of micro-batches before."""
    kept = profile.kept_bytes
    added_bytes = kept.gradients - kept.staying_gradients

    def at(alive: Alive) -> tuple[int, int, int, int, int]:
        # From the first micro-batch on all gradients are there; those that stay from step to step are among what is alive anyhow.
        complete = added_bytes + min(alive.gradients, kept.staying_gradients) if added else alive.gradients
        return (
            alive.sums - complete // -gradient_parts,
            -(alive.rows // -rows_parts),
            -(alive.update // -state_parts),
            -(alive.casts // -weight_parts),
            alive.copies,
        )

    return max(map(at, profile.peaks), key=sum)


def _gathered(profile: StepProfile, layout: Layout) -> int:
    """Of weights that lie in parts: others' parts of the groups that are whole."""
    if layout.sharding < Sharding.WEIGHTS:
        return 0
    groups = profile.groups
    kept = kept_groups(profile, layout)
    whole = min(sum(groups), sum(groups[group] for group in kept) + profile.gathered_ahead)
    return whole - whole // layout.shards


def kept_groups(profile: StepProfile, layout: Layout) -> frozenset[int]:
    """Groups of weights that stay whole from the forward pass on: the last ones, which are used again first."""
    count = len(profile.groups)
    return frozenset(range(count - count * layout.kept_tenths // 10, count)) if layout.sharding is Sharding.WEIGHTS else frozenset()


def _buckets(profile: StepProfile, layout: Layout) -> int:
    """One fills while another is summed."""
    if layout.data == 1:
        return 0
    return 2 * min(layout.bucket_bytes, profile.summed_bytes)


def call_seconds(call: StepCall, machine: Machine, rows_parts: int, other_parts: int) -> float:
    """Of a call, where what holds rows is in so many parts, and all else in so many."""
    model = machine.model
    rate = (model.half_flops if call.half else model.single_flops) * model.flops_share
    moved = call.rows_bytes / rows_parts + call.other_bytes / other_parts
    return max(CALL_SECONDS, call.flops / max(rows_parts, other_parts) / rate, moved / (model.bytes_per_second * BANDWIDTH_SHARE))


def _time(profile: StepProfile, layout: Layout, machine: Machine, pace: Pace) -> Time:
    compute, exchanged = (layout.micro_batches * sum(seconds) for seconds in (pace.computing, pace.exchanging))
    finished = spent = 0.0
    for summed, times in ((True, layout.sums), (False, layout.micro_batches - layout.sums)):
        if times:
            one_finished, one_spent = _timeline(profile, layout, machine, pace, summed)
            finished, spent = finished + times * one_finished, spent + times * one_spent
    waited = max(0.0, finished - compute - exchanged)
    whole = 2 * layout.group("tensor", machine).seconds(profile.step.division.summed_bytes, machine.network)
    after = _after_update(profile, layout, machine) + whole
    update = pace.update(layout.shards if layout.sharding >= Sharding.STATES else 1)
    return Time(compute, exchanged, 0.0, update, waited + after, max(0.0, spent - waited))


def _timeline(profile: StepProfile, layout: Layout, machine: Machine, pace: Pace, summed: bool) -> tuple[float, float]:
    """When a micro-batch is done, and how long its collectives took, but for those that layers wait for.

    One goes on at a time; weights come one group ahead, and what layers wait for goes first. ``summed`` says whether its gradients are
    summed among devices, or only added to those of the micro-batches before.
    """
    gathers = gathers_of(profile, layout)
    shard, sum_seconds = layout.group("shard", machine), cache(partial(_sum_seconds, layout=layout, machine=machine))
    waiting = [shard.seconds(profile.groups[group], machine.network) if group >= 0 else 0.0 for group in gathers]
    now = wire = spent = 0.0
    filled = 0
    if waiting:
        wire = spent = waiting[0]
    arrived = wire
    for place, (seconds, exchanging) in enumerate(zip(pace.computing, pace.exchanging, strict=True)):
        begins = max(now, arrived)
        wire = max(wire, begins) + exchanging if exchanging else wire
        if place + 1 < len(waiting):
            wire = max(wire, begins) + waiting[place + 1]
            spent += waiting[place + 1]
            arrived = wire if waiting[place + 1] else arrived
        now = begins + seconds + exchanging
        for size in profile.stretches[place].gradients if summed else ():
            filled += size
            if filled >= layout.bucket_bytes:
                took = sum_seconds(filled)
                wire, spent, filled = max(wire, now) + took, spent + took, 0
    took = sum_seconds(filled) if filled else 0.0
    return max(now, max(wire, now) + took if took else wire), spent + took


def gathers_of(profile: StepProfile, layout: Layout) -> list[int]:
    """For each stretch the group of weights that is gathered for it, -1 for none: those of the last groups are still there."""
    if layout.sharding < Sharding.WEIGHTS:
        return [-1] * len(profile.stretches)
    kept, gathered = kept_groups(profile, layout), set[int]()
    whole: list[int] = []
    found: list[int] = []
    for stretch in profile.stretches:
        group = stretch.group
        there = group < 0 or group in whole or (group in kept and group in gathered)
        found.append(-1 if there else group)
        gathered.add(group)
        whole = [group, *(one for one in whole if one != group)][:GATHERED_AHEAD]
    return found


def _sum_seconds(size: int, layout: Layout, machine: Machine) -> float:
    """Of gradients of so many bytes: summed and scattered among shards, then summed among copies."""
    shard, copy = layout.group("shard", machine), layout.group("copy", machine)
    part = _part(size, layout.shards)
    return shard.seconds(size, machine.network) + 2 * copy.seconds(part, machine.network)


def _after_update(profile: StepProfile, layout: Layout, machine: Machine) -> float:
    """Weights that are kept whole come from the devices that updated them."""
    if layout.sharding not in (Sharding.STATES, Sharding.GRADIENTS):
        return 0.0
    return layout.group("shard", machine).seconds(profile.trained_bytes, machine.network)


def _traffic(profile: StepProfile, layout: Layout, machine: Machine) -> dict[str, float]:
    shard, copy = layout.group("shard", machine), layout.group("copy", machine)
    summed = profile.summed_bytes
    moves: list[tuple[Group, int, int]] = [(shard, summed, layout.sums), (copy, _part(summed, layout.shards), 2 * layout.sums)]
    moves += [(shard, profile.groups[group], layout.micro_batches) for group in gathers_of(profile, layout) if group >= 0]
    if layout.sharding in (Sharding.STATES, Sharding.GRADIENTS):
        moves.append((shard, profile.trained_bytes, 1))
    tensor = layout.group("tensor", machine)
    moves.append((tensor, _part(profile.exchanged_bytes, layout.data), 1))
    moves.append((tensor, profile.step.division.summed_bytes, 2))
    sent = {"host": 0.0, "switch": 0.0}
    for group, size, times in moves:
        for axis, part in group.traffic(size).items():
            sent[axis] += times * part
    return sent
