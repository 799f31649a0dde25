"""Plans of real recordings are held against a simulation of the step, and against plans by hand; properties against steps of any shape."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fork_server
import pytest
from forebay.errors import ForebayError
from forebay.toolkit.planner import analysis, profile
from forebay.toolkit.planner.calls import CallShapes
from forebay.toolkit.planner.candidates import Search, Steps
from forebay.toolkit.planner.choice import Infeasible, choose
from forebay.toolkit.planner.cost import Cost, cost_of, memory_of
from forebay.toolkit.planner.iteration import IterationFinder
from forebay.toolkit.planner.layout import MIB, Layout, Recomputation, Sharding, layouts
from forebay.toolkit.planner.machine import GIB, MODELS, Machine
from forebay.toolkit.planner.profile import StepProfile
from forebay.toolkit.planner.recomputation import recomputed
from forebay.toolkit.planner.recorder import recording, script_run
from forebay.toolkit.planner.step import Domain, Part
from hypothesis import given, settings
from hypothesis import strategies as some
from made_steps import steps
from planned_programs import LAYERS
from step_simulation import carried_out, simulate

PROGRAMS = Path(__file__).resolve().parent / "planned_programs.py"
ROWS = 64
RECORDED = [("perceptron", "plain"), ("language", "plain"), ("images", "plain"), ("perceptron", "accumulated"), ("perceptron", "kept")]
RECORDED.append(("language", "autocast"))
MESHES = [(2, 8), (4, 2), (8, 8), (16, 8), (32, 4)]
"""Devices, and how many of them to a host."""
SECONDS_MAX = 60.0


def machine_of(devices: int, per_host: int = 8, memory_bytes: int = GIB) -> Machine:
    return Machine(devices, MODELS["mi250"], memory_bytes, per_host)


def recorded(name: str, manner: str = "plain") -> recording.Recording:
    command = [str(fork_server.programs()), str(PROGRAMS), name, str(ROWS), manner]
    return script_run.record(command, 3, SECONDS_MAX, lambda iterations, calls: None)


def prepared(found: recording.Recording) -> StepProfile:
    shapes = CallShapes(found.operators)
    finder = IterationFinder(found.events, shapes)
    finder.finish()
    assert finder.iteration is not None and finder.iterations >= 3
    return profile.prepare(analysis.analyse(found.events, finder.iteration, shapes))


@pytest.fixture(scope="module")
def profiles() -> dict[tuple[str, str], StepProfile]:
    return {key: prepared(recorded(*key)) for key in RECORDED}


@pytest.mark.parametrize("key", RECORDED, ids="-".join)
def test_a_recording_tells_weights_states_and_gradients(profiles: dict[tuple[str, str], StepProfile], key: tuple[str, str]) -> None:
    """Adam keeps two states of a weight, and each has a gradient, whatever the program does. A batch norm's statistics have none."""
    step = profiles[key].step
    trained = sum(step.blocks[number].bytes for number in step.trained)
    statistics = 2 * 16 * 4 if key[0] == "images" else 0
    assert step.rows == ROWS
    assert step.gradient_bytes == trained
    assert step.total(Part.WEIGHT) == trained + statistics
    assert step.total(Part.STATE) == pytest.approx(2 * trained, abs=64)
    assert len(step.gradients) == len(step.trained)


def test_a_device_holds_what_is_predicted_of_weights_states_and_gradients(profiles: dict[tuple[str, str], StepProfile]) -> None:
    """To the byte, once a real worker has trained and the gradients stay."""
    command = [fork_server.programs(), str(PROGRAMS), "language", str(ROWS), "kept"]
    trained = subprocess.run(command, env={**os.environ, "FOREBAY_URL": "local"}, capture_output=True, text=True, timeout=120)
    step = profiles["language", "plain"].step
    predicted = step.total(Part.WEIGHT) + step.total(Part.STATE) + step.gradient_bytes
    assert trained.stdout.splitlines()[-1] == f"held {predicted}", trained.stderr


def test_floating_point_operations_are_those_of_the_products(profiles: dict[tuple[str, str], StepProfile]) -> None:
    """A layer's forward pass is one product, its backward pass two, but for the first layer's input."""
    products = 3 * (8 * 128 * 128 + 128 * 10) - 128 * 128
    assert profiles["perceptron", "plain"].step.flops == 2 * ROWS * products
    assert profiles["perceptron", "accumulated"].step.flops == 4 * 2 * ROWS * products


def test_repeated_layers_are_found_and_gathered_one_by_one(profiles: dict[tuple[str, str], StepProfile]) -> None:
    found = profiles["language", "plain"]
    assert sorted(stack.layers for stack in found.stacks)[-2:] == [5, 6], "forward, and backward but for the layer where it begins"
    block = 4 * (2 * 64 + 64 * 192 + 192 + 64 * 256 + 256 + 256 * 64 + 64)
    assert list(found.groups).count(block) >= 5
    assert sum(found.groups) == found.step.total(Part.WEIGHT)


def test_what_holds_rows_shrinks_with_the_batch(profiles: dict[tuple[str, str], StepProfile]) -> None:
    """Of calls on rows, which are nearly all that is not the update."""
    for key, found in profiles.items():
        domains = [call.domain for call in found.step.calls]
        assert domains.count(Domain.ROWS) > 2 * domains.count(Domain.COPY), key


def in_micro_batches(name: str, machine: Machine) -> Iterator[Layout]:
    """Every layout with a device's batch as one, and where nothing needs it so, in two and four parts."""
    for layout in layouts(machine):
        for count in (1,) if name == "images" else (1, 2, 4):
            if ROWS // machine.devices % count == 0:
                yield replace(layout, micro_batches=count)


@pytest.mark.parametrize("key", RECORDED, ids="-".join)
def test_memory_and_traffic_are_those_of_the_simulation(profiles: dict[tuple[str, str], StepProfile], key: tuple[str, str]) -> None:
    """Memory is never below what is simulated, and at most a quarter above, beside the room that is kept for two buckets."""
    found = profiles[key]
    for devices, per_host in MESHES:
        machine = machine_of(devices, per_host, 64 * MIB)
        for layout in [*in_micro_batches(key[0], machine)][:: 3 if devices > 4 else 1]:
            cost, simulated = cost_of(found, layout, machine), simulate(found, layout, machine)
            buckets = 2 * min(layout.bucket_bytes, found.step.gradient_bytes)
            assert 0.999 * simulated.peak_bytes <= cost.memory.total <= 1.25 * simulated.peak_bytes + buckets, layout
            for axis, sent in cost.traffic.items():
                assert sent == pytest.approx(simulated.sent[axis], rel=1e-6, abs=1024), layout


def plans_by_hand(machine: Machine, rows: int, stages: int = 2) -> list[Layout]:
    """As people write them: ten, of which those are left out that the machine or the batch has no room for."""
    devices, bucket = machine.devices, 25 * MIB
    within = min(machine.per_host, devices)
    half = max(2, within // 2)
    data = max(1, devices // (half * stages))

    def axes(shards: int, tensor: int = 1, stages: int = 1) -> tuple[tuple[str, int], ...]:
        copies = devices // (shards * tensor * stages)
        sizes = (("stage", stages), ("copy", copies), ("shard", shards), ("tensor", tensor))
        return tuple((name, size) for name, size in sizes if size > 1 or name in ("copy", "shard"))

    plans = [
        Layout(axes(1), Sharding.NONE, bucket),
        Layout(axes(devices), Sharding.STATES, bucket),
        Layout(axes(devices), Sharding.WEIGHTS, bucket),
        Layout(axes(within), Sharding.WEIGHTS, bucket),
        Layout(axes(devices), Sharding.WEIGHTS, bucket, 10),
        Layout(axes(devices), Sharding.WEIGHTS, bucket, recomputation=Recomputation.LAYERS),
        Layout(axes(1, half), Sharding.NONE, bucket),
        Layout(axes(max(1, devices // half), half), Sharding.STATES, bucket),
        Layout(axes(1, 1, stages), Sharding.NONE, bucket, micro_batches=stages),
        Layout(axes(data, half, stages), Sharding.STATES, bucket, 0, max(1, rows // data), Recomputation.LAYERS),
    ]
    return [one for one in plans if one.devices == devices and rows % (one.data * one.micro_batches) == 0]


@pytest.mark.parametrize("key", RECORDED, ids="-".join)
def test_a_plan_is_as_quick_as_ten_by_hand_and_sends_no_more(profiles: dict[tuple[str, str], StepProfile], key: tuple[str, str]) -> None:
    """Of those that fit: quicker than any, and sends no more than those that divide rows alone, and than any that is as quick.

    In the simulation, bytes weighed by what their links take, in ample, short and shortest memory."""
    found = profiles[key]
    for devices, per_host in MESHES:
        smallest = machine_of(devices, per_host, 64 * MIB)
        least = min(memory_of(found, layout, smallest).total for layout in layouts(smallest))
        for memory_bytes in (GIB, least * 3 // 2, least * 10 // 8):
            machine = machine_of(devices, per_host, memory_bytes)
            chosen = choose(found, machine).chosen
            carried = carried_out(found, chosen.layout, machine)
            assert carried.peak_bytes <= machine.budget_bytes
            by_hand = [(cost, one) for one in plans_by_hand(machine, ROWS) if (cost := cost_by_hand(found, one, machine)) is not None]
            assert chosen.cost.time.total <= min((cost.time.total for cost, _ in by_hand), default=float("inf"))
            rivals = [one for cost, one in by_hand if one.data == devices or cost.time.total <= 1.001 * chosen.cost.time.total]
            sent = min((carried_out(found, one, machine).link_seconds(machine) for one in rivals), default=float("inf"))
            assert carried.link_seconds(machine) <= sent * 1.001, (devices, memory_bytes)


def cost_by_hand(found: StepProfile, layout: Layout, machine: Machine) -> Cost | None:
    """None where it does not fit, or the step cannot be divided so."""
    steps = Steps(found)
    if steps.of(layout.tensor, layout.recomputation) is None or steps.layers < layout.stages > 1:
        return None
    if found.has_batch_norm and layout.micro_batches > 1:
        return None
    cost = Search(steps, machine).cost(layout)
    return cost if cost.memory.total <= machine.budget_bytes else None


def test_short_memory_is_met_by_as_few_micro_batches_as_suffice_and_by_none_where_a_batch_norm_needs_the_batch(
    profiles: dict[tuple[str, str], StepProfile],
) -> None:
    ample = machine_of(2, memory_bytes=256 * GIB)
    halved = Layout((("copy", 1), ("shard", 2)), Sharding.WEIGHTS, 0, micro_batches=2)
    found = with_more_rows(profiles["perceptron", "plain"])
    assert choose(found, ample).chosen.layout.micro_batches == 1
    machine = replace(ample, memory_bytes=just_enough(found, halved, ample))
    chosen = choose(found, machine).chosen
    assert chosen.layout.micro_batches > 1 and chosen.cost.memory.total <= machine.budget_bytes
    fewer = [count for count in range(1, chosen.layout.micro_batches) if ROWS // 2 % count == 0]
    assert fewer and all(memory_of(found, replace(chosen.layout, micro_batches=one), machine).total > machine.budget_bytes for one in fewer)
    images = with_more_rows(profiles["images", "plain"])
    with pytest.raises(Infeasible):
        choose(images, replace(ample, memory_bytes=just_enough(images, halved, ample)))


def just_enough(found: StepProfile, layout: Layout, machine: Machine) -> int:
    """Bytes of a device; 90 % may be taken, and a hundredth is the workspace."""
    memory = memory_of(found, layout, machine)
    return int((memory.total - memory.workspace) / 0.88)


def with_more_rows(found: StepProfile) -> StepProfile:
    """The same step with 256 times as much of activations."""
    blocks = found.step.blocks.items()
    larger = {number: replace(block, bytes=block.bytes << (8 if block.part is Part.ROWS else 0)) for number, block in blocks}
    return profile.prepare(replace(found.step, blocks=larger))


def test_layers_that_are_computed_again_keep_their_inputs_alone(profiles: dict[tuple[str, str], StepProfile]) -> None:
    """Less than half of all activations for a third of the computing at most; what is predicted is what is simulated."""
    found = profiles["language", "plain"]
    layout = Layout((("copy", 2), ("shard", 1)), Sharding.NONE, MIB, recomputation=Recomputation.LAYERS)
    step, machine = recomputed(found.step, found.stacks), machine_of(2)
    assert step is not None
    again = profile.prepare(step)
    before, after = cost_of(found, layout, machine), cost_of(again, layout, machine)
    assert after.memory.activations < 0.5 * before.memory.activations
    assert found.step.flops < again.step.flops < 1.34 * found.step.flops
    assert again.step.gradients == found.step.gradients and again.step.trained == found.step.trained
    for devices, per_host in MESHES:
        for layout in [*layouts(machine_of(devices, per_host, 64 * MIB))][::3]:
            machine = machine_of(devices, per_host, 64 * MIB)
            peak, buckets = simulate(again, layout, machine).peak_bytes, 2 * min(layout.bucket_bytes, found.step.gradient_bytes)
            assert 0.999 * peak <= memory_of(again, layout, machine).total <= 1.25 * peak + buckets, layout
    perceptron = profiles["perceptron", "plain"]
    assert recomputed(perceptron.step, ()) is None


def test_what_a_layer_keeps_is_made_again_before_it_is_used(profiles: dict[tuple[str, str], StepProfile]) -> None:
    """Each use of a block falls into one of its lives, and the calls that make it come again no later."""
    found = profiles["language", "plain"].step
    again = recomputed(found, profiles["language", "plain"].stacks)
    assert again is not None and len(again.calls) > len(found.calls)
    kept = [block for number, block in again.blocks.items() if number in found.blocks]
    made_again = [block for number, block in again.blocks.items() if number not in found.blocks]
    for block in kept:
        whole = found.blocks[block.number]
        second = [one for one in made_again if block.freed != whole.freed and one.freed == whole.freed and one.bytes == whole.bytes]
        assert block.freed == whole.freed or second, block
        begins = min((one.born for one in second), default=0)
        uses = [call.event for call in found.calls if block.number in call.given]
        assert block.freed == whole.freed or all(use < (block.freed or 0) or use >= begins for use in uses), block
    events = [call.event for call in again.calls]
    assert events == sorted(events)


def test_casts_of_weights_lie_in_parts_as_the_weights_do(profiles: dict[tuple[str, str], StepProfile]) -> None:
    """Autocast keeps one of half the bytes of each matrix until the backward pass is done."""
    step = profiles["language", "autocast"].step
    matrices = LAYERS * (64 * 192 + 2 * 64 * 256) + 64 * 512
    casts = [block for block in step.blocks.values() if block.part is Part.CAST]
    assert sum(block.bytes for block in casts) >= 2 * matrices
    assert not any(block.part is Part.CAST for block in profiles["language", "plain"].step.blocks.values())
    machine = machine_of(4)
    in_parts, whole = (Layout((("copy", 1), ("shard", 4)), sharding, 0) for sharding in (Sharding.WEIGHTS, Sharding.GRADIENTS))
    found = profiles["language", "autocast"]
    assert memory_of(found, in_parts, machine).casts < memory_of(found, whole, machine).casts / 3


def test_a_stream_that_was_saved_gives_the_same_plan_and_holds_no_contents(tmp_path: Path) -> None:
    found = recorded("perceptron")
    path = tmp_path / "perceptron.stream"
    found.save(path)
    assert choose(prepared(recording.load(path)), machine_of(4)) == choose(prepared(found), machine_of(4))
    assert path.stat().st_size < 20_000
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ForebayError, match="is damaged"):
        recording.load(path)
    path.write_bytes(b"something else")
    with pytest.raises(ForebayError, match="is no stream"):
        recording.load(path)


def test_rows_that_cannot_be_divided_are_refused_with_the_numbers_that_would_do(profiles: dict[tuple[str, str], StepProfile]) -> None:
    with pytest.raises(Infeasible, match=r"The batch has 64 rows, which 12 devices .* 60 or 72 rows would do, or 8 devices\."):
        choose(profiles["perceptron", "plain"], machine_of(12))


def test_too_little_memory_is_refused_with_the_numbers_that_would_do(profiles: dict[tuple[str, str], StepProfile]) -> None:
    """They do."""
    found = prepare_larger(profiles["perceptron", "plain"])
    machine = machine_of(2, memory_bytes=2 * GIB)
    with pytest.raises(Infeasible) as refusal:
        choose(found, machine)
    told = re.search(r"2 devices of (\d+) GiB would do, or (\d+) devices of 2 GiB\.", str(refusal.value))
    assert told is not None, refusal.value
    needed, more = int(told[1]), int(told[2])
    assert choose(found, replace(machine, memory_bytes=needed * GIB)).chosen.cost.memory.total <= 0.9 * needed * GIB
    assert choose(found, replace(machine, devices=more)).chosen.layout.sharding is Sharding.WEIGHTS
    with pytest.raises(Infeasible):
        choose(found, replace(machine, devices=more // 2))


def prepare_larger(found: StepProfile) -> StepProfile:
    """The same step with weights of 4,096 times as much."""
    step = found.step
    blocks = {number: replace(block, bytes=block.bytes << 12) for number, block in step.blocks.items()}
    return profile.prepare(replace(step, blocks=blocks))


FEW = settings(max_examples=60, deadline=None)
MEMORIES = some.integers(1 << 20, 1 << 27)
COUNTS = some.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 32])


@FEW
@given(steps(), COUNTS, MEMORIES)
def test_a_plan_never_takes_more_memory_than_it_was_told(step: object, devices: int, memory_bytes: int) -> None:
    found, machine = profile.prepare(step), machine_of(devices, memory_bytes=memory_bytes)  # type: ignore[arg-type]
    try:
        plan = choose(found, machine)
    except Infeasible:
        return
    assert plan.chosen.cost.memory.total <= 0.9 * memory_bytes
    assert carried_out(found, plan.chosen.layout, machine).peak_bytes <= 0.9 * memory_bytes
    assert plan.chosen.layout.devices == devices


@FEW
@given(steps(), COUNTS, MEMORIES, some.integers(0, 1 << 27))
def test_more_memory_never_makes_a_step_slower(step: object, devices: int, memory_bytes: int, more: int) -> None:
    found, machine = profile.prepare(step), machine_of(devices, memory_bytes=memory_bytes)  # type: ignore[arg-type]
    try:
        before = choose(found, machine)
    except Infeasible:
        return
    after = choose(found, replace(machine, memory_bytes=memory_bytes + more))
    assert after.chosen.cost.time.total <= before.chosen.cost.time.total


@FEW
@given(steps(), COUNTS, MEMORIES)
def test_plans_of_one_step_are_equal_and_their_parts_sum_to_the_whole(step: object, devices: int, memory_bytes: int) -> None:
    machine = machine_of(devices, memory_bytes=memory_bytes)
    try:
        plan = choose(profile.prepare(step), machine)  # type: ignore[arg-type]
    except Infeasible as refusal:
        with pytest.raises(Infeasible, match=re.escape(str(refusal))):
            choose(profile.prepare(step), machine)  # type: ignore[arg-type]
        return
    assert choose(profile.prepare(step), machine) == plan  # type: ignore[arg-type]
    memory, time = plan.chosen.cost.memory, plan.chosen.cost.time
    assert sum(memory.__dict__.values()) == memory.total and min(memory.__dict__.values()) >= 0
    assert sum(time.__dict__.values()) - time.hidden == pytest.approx(time.total) and min(time.__dict__.values()) >= 0


@pytest.mark.parametrize("key", [("language", "plain"), ("perceptron", "plain")], ids="-".join)
def test_more_devices_are_never_slower(profiles: dict[tuple[str, str], StepProfile], key: tuple[str, str]) -> None:
    """Twice as many, where computing takes long: with rows of 4,096 times as much to compute and to move."""
    calls = [replace(call, flops=call.flops * 4096, rows_bytes=call.rows_bytes << 12) for call in profiles[key].step.calls]
    found = profile.prepare(replace(profiles[key].step, calls=calls))
    seconds = [choose(found, machine_of(devices)).chosen.cost.time.total for devices in (1, 2, 4, 8, 16, 32, 64)]
    assert seconds == sorted(seconds, reverse=True)


@FEW
@given(steps(), COUNTS, COUNTS, MEMORIES)
def test_more_devices_are_feasible_where_fewer_were(step: object, fewer: int, more: int, memory_bytes: int) -> None:
    found = profile.prepare(step)  # type: ignore[arg-type]
    fewer, more = sorted((fewer, more))
    if found.step.rows % more:
        return
    machine = machine_of(fewer, memory_bytes=memory_bytes)
    try:
        choose(found, machine)
    except Infeasible:
        return
    assert choose(found, replace(machine, devices=more)).chosen.layout.devices == more
