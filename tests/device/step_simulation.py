"""One device of many that carry out a step by a layout: event by event, each storage in a ledger, each collective as moves of a ring.

It knows the step's events and what the layout says, and none of the planner's sums: a check of them. All devices do alike, so one
stands for all.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from forebay.toolkit.planner.candidates import Steps
from forebay.toolkit.planner.cost import WORKSPACE_BYTES, WORKSPACE_SHARE, kept_groups
from forebay.toolkit.planner.layout import Layout, Sharding
from forebay.toolkit.planner.machine import Group, Machine
from forebay.toolkit.planner.profile import StepProfile
from forebay.toolkit.planner.step import Block, Domain, Part, StepCall


@dataclass
class Simulated:
    """What one device did in a step."""

    peak_bytes: int = 0
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes by axis."""

    def link_seconds(self, machine: Machine) -> float:
        links = machine.network.links()
        return sum(count / links[axis].bytes_per_second for axis, count in self.sent.items())


def share(size: int, parts: int) -> int:
    return -(-size // parts)


class _Device:
    def __init__(self, profile: StepProfile, layout: Layout, machine: Machine) -> None:
        self.found = Simulated()
        self._profile, self._layout = profile, layout
        self._shard, self._copy, self._tensor = (layout.group(axis, machine) for axis in ("shard", "copy", "tensor"))
        self._held = 0
        self._sizes: dict[int, int] = {}
        self._whole: list[int] = []
        self._kept = kept_groups(profile, layout)
        self._bucket: list[int] = []
        self._uses = self._order_of_uses()
        self._added_to = layout.micro_batches > 1
        self._take(min(WORKSPACE_BYTES, machine.memory_bytes // WORKSPACE_SHARE))
        if self._added_to:
            self._keep_gradients()

    def _keep_gradients(self) -> None:
        """Of micro-batches before this one: all there, those that stay from step to step are counted where they are made."""
        step, parts = self._profile.step, self._layout.shards if self._layout.sharding >= Sharding.GRADIENTS else 1
        self._take(sum(share(step.blocks[number].bytes, parts) for number in step.gradients if step.blocks[number].born >= 0))

    # Memory

    def _take(self, size: int) -> None:
        self._held += size
        self.found.peak_bytes = max(self.found.peak_bytes, self._held)

    def make(self, block: Block) -> None:
        layout, size = self._layout, block.bytes
        old = block.born < 0 and block.number not in self._profile.step.gradients
        parts = {
            Part.ROWS: layout.data * layout.micro_batches,
            Part.WEIGHT: layout.shards if layout.sharding is Sharding.WEIGHTS else 1,
            Part.CAST: layout.shards if layout.sharding is Sharding.WEIGHTS else 1,
            Part.STATE: layout.shards if layout.sharding >= Sharding.STATES else 1,
            Part.UPDATE: layout.shards if layout.sharding >= Sharding.STATES else 1,
            Part.GRADIENT: layout.shards if old and layout.sharding >= Sharding.GRADIENTS else 1,
            Part.COPY: 1,
        }[block.part]
        self._sizes[block.number] = share(size, parts)
        self._take(self._sizes[block.number])

    def free(self, number: int) -> None:
        self._held -= self._sizes.pop(number)

    # Weights that lie in parts

    def _order_of_uses(self) -> list[tuple[int, int]]:
        """Events with the group of weights that each begins to use."""
        found: list[tuple[int, int]] = []
        for call in self._profile.step.calls:
            for weight in call.weights:
                group = self._profile.group_of[weight]
                if not found or found[-1][1] != group:
                    found.append((call.event, group))
        return found

    def use(self, call: StepCall) -> None:
        if self._layout.sharding is not Sharding.WEIGHTS:
            return
        for weight in call.weights:
            group = self._profile.group_of[weight]
            coming = [later for event, later in self._uses if event > call.event]
            following = next((later for later in coming if later != group), None)
            wanted = [group] if following is None else [group, following]
            for gone in [one for one in self._whole if one not in wanted and not (one in self._kept and one in coming)]:
                self._whole.remove(gone)
                self._held -= self._foreign(gone)
            for one in wanted:
                if one not in self._whole:
                    self._whole.append(one)
                    self._take(self._foreign(one))
                    self._gather(self._profile.groups[one], self._shard, self._layout.micro_batches)

    def _foreign(self, group: int) -> int:
        size = self._profile.groups[group]
        return size - share(size, self._layout.shards)

    def exchange(self, call: StepCall) -> None:
        """Of a call that a tensor group computes together, in each micro-batch."""
        for size in call.exchanged:
            self._gather(size / self._layout.data, self._tensor, 1)

    def sum_whole_gradients(self) -> None:
        """Over the tensor group, of those that each of its devices has whole."""
        size = self._profile.step.division.summed_bytes
        self._scatter(size, self._tensor, 1)
        self._gather(size, self._tensor, 1)

    # Gradients

    def complete(self, number: int) -> None:
        self._bucket.append(number)
        block = self._profile.step.blocks[number]
        if self._added_to and block.born >= 0 and self._layout.sharding < Sharding.GRADIENTS:
            self._held -= self._sizes[number]
            self._sizes[number] = 0
        if sum(self._profile.step.blocks[one].bytes for one in self._bucket) >= self._layout.bucket_bytes:
            self.flush()

    def flush(self) -> None:
        size = sum(self._profile.step.blocks[one].bytes for one in self._bucket)
        if size and self._layout.data > 1:
            packed = min(size, self._layout.bucket_bytes)
            self._take(packed)
            self._scatter(size, self._shard, self._layout.sums)
            part = share(size, self._layout.shards)
            self._scatter(part, self._copy, self._layout.sums)
            self._gather(part, self._copy, self._layout.sums)
            self._held -= packed
        if self._layout.sharding >= Sharding.GRADIENTS:
            for number in self._bucket:
                if number in self._sizes:
                    added = self._added_to and self._profile.step.blocks[number].born >= 0
                    kept = 0 if added else share(self._sizes[number], self._layout.shards)
                    self._held -= self._sizes[number] - kept
                    self._sizes[number] = kept
        self._bucket = []

    def bring_weights(self) -> None:
        if self._layout.sharding in (Sharding.STATES, Sharding.GRADIENTS):
            for number in self._profile.step.trained:
                self._gather(self._profile.step.blocks[number].bytes, self._shard, 1)

    # Moves: a ring between hosts for what the host's own ring then passes on, or the other way around

    def _gather(self, size: float, group: Group, times: int) -> None:
        piece = size / group.size
        for _ in range(group.switch - 1):
            self.found.sent["switch"] += times * piece
        for _ in range(group.host - 1):
            self.found.sent["host"] += times * piece * group.switch

    def _scatter(self, size: int, group: Group, times: int) -> None:
        for _ in range(group.host - 1):
            self.found.sent["host"] += times * size / group.host
        for _ in range(group.switch - 1):
            self.found.sent["switch"] += times * size / group.host / group.switch


def simulate(profile: StepProfile, layout: Layout, machine: Machine) -> Simulated:
    """One step."""
    step, device = profile.step, _Device(profile, layout, machine)
    born, freed, complete = defaultdict(list), defaultdict(list), defaultdict(list)
    for block in step.blocks.values():
        born[block.born].append(block)
        if block.freed is not None:
            freed[block.freed].append(block.number)
    for number, event in step.gradients.items():
        complete[event].append(number)
    calls = {call.event: call for call in step.calls}
    updates = [call.event for call in step.calls if call.domain is Domain.UPDATE]
    for event in range(-1, step.events):
        call = calls.get(event)
        if call is not None:
            device.use(call)
            device.exchange(call)
        for block in born[event]:
            device.make(block)
        for number in freed[event]:
            device.free(number)
        for number in complete[event]:
            device.complete(number)
        if event == max(step.gradients.values()):
            device.flush()
        if updates and event == updates[-1]:
            device.bring_weights()
    device.sum_whole_gradients()
    return device.found


def turns(stages: int, place: int, micro_batches: int) -> list[bool]:
    """What a stage does in the order 1F1B: True for the forward pass of a micro-batch, False for the backward pass of the oldest."""
    ahead = min(stages - place - 1, micro_batches)
    return [True] * ahead + [True, False] * (micro_batches - ahead) + [False] * ahead


def finish(forward: list[float], backward: list[float], micro_batches: int) -> float:
    """Seconds until all stages are through with all micro-batches: each turn waits for the one before it, and for its input."""
    count = len(forward)
    orders = [turns(count, place, micro_batches) for place in range(count)]
    done: dict[tuple[int, bool, int], float] = {}
    now, at, begun = [0.0] * count, [0] * count, [[0, 0] for _ in range(count)]
    while any(at[place] < len(orders[place]) for place in range(count)):
        for place in range(count):
            if at[place] == len(orders[place]):
                continue
            ahead = orders[place][at[place]]
            number = begun[place][not ahead]
            source = (place - 1, True, number) if ahead else (place + 1, False, number)
            if 0 <= source[0] < count and source not in done:
                continue
            now[place] = max(now[place], done.get(source, 0.0)) + (forward if ahead else backward)[place]
            done[place, ahead, number] = now[place]
            begun[place][not ahead] += 1
            at[place] += 1
    return max(now)


def carried_out(found: StepProfile, layout: Layout, machine: Machine) -> Simulated:
    """One device of a plan for a step: in stages that of the stage which takes most memory, and what the stage that sends most does."""
    steps = Steps(found)
    if layout.stages == 1:
        step = steps.of(layout.tensor, layout.recomputation)
        assert step is not None
        return simulate(step, layout, machine)
    whole = Simulated()
    link = layout.group("stage", machine)
    for place, stage in enumerate(steps.stages(layout.tensor, layout.recomputation, layout.stages, machine)):
        one = simulate(stage, layout, machine)
        held, most = 0, 0
        for ahead in turns(layout.stages, place, layout.micro_batches):
            held += 1 if ahead else -1
            most = max(most, held)
        kept = share(stage.step.stage.held_bytes, layout.data * layout.micro_batches)
        whole.peak_bytes = max(whole.peak_bytes, one.peak_bytes + (most - 1) * kept)
        one.sent["host" if link.switch == 1 else "switch"] += share(stage.step.stage.received_bytes, layout.data)
        whole.sent = max(whole.sent, one.sent, key=lambda sent: sum(sent.values()))
    return whole
