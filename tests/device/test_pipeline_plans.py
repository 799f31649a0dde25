"""Stages of layers on paper: held against a simulation of their order, against Megatron-LM's formulas, and against what it published."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import fork_server
import pytest
from forebay.toolkit.planner.candidates import Search, Steps
from forebay.toolkit.planner.layout import Layout, Recomputation, Sharding
from forebay.toolkit.planner.machine import MODELS, Machine
from forebay.toolkit.planner.parallel.pipeline import bounds_of
from forebay.toolkit.planner.profile import StepProfile
from forebay.toolkit.planner.recorder import script_run
from forebay.toolkit.planner.step import Part
from hypothesis import given, settings
from hypothesis import strategies as some
from step_simulation import carried_out, finish
from test_planner import prepared, recorded

PROGRAM = Path(__file__).resolve().parent / "megatron_gpt.py"
TOKENS, WIDTH, HEADS, LAYERS, ROWS, WORDS = 2048, 256, 8, 4, 16, 51200 + 2048
A100 = MODELS["a100"]


def megatron(size: str, rows: int) -> StepProfile:
    command = [str(fork_server.programs()), str(PROGRAM), size, str(rows)]
    return prepared(script_run.record(command, 3, 120.0, lambda iterations, calls: None))


def machine_of(devices: int) -> Machine:
    return Machine(devices, A100, A100.memory_bytes, 8, A100.network)


def layout_of(
    stages: int = 1, tensor: int = 1, micro_batches: int = 1, what: Recomputation = Recomputation.NOTHING, chunks: int = 1, copies: int = 1
) -> Layout:
    axes = (("stage", stages), ("copy", copies), ("shard", 1), ("tensor", tensor))
    kept = tuple((name, size) for name, size in axes if size > 1 or name in ("copy", "shard"))
    return Layout(kept, Sharding.NONE, 0, 0, micro_batches, what, chunks)


@pytest.fixture(scope="module")
def small() -> StepProfile:
    return megatron("small", ROWS)


@given(some.lists(some.integers(0, 20), min_size=4, max_size=10), some.integers(2, 5))
@settings(max_examples=150, deadline=None)
def test_the_slowest_stage_is_as_quick_as_can_be(seconds: list[int], stages: int) -> None:
    """Of all ways to divide the units, each stage with a layer at least."""
    layers = len(seconds) - 2
    if layers < stages:
        return
    bounds = bounds_of([float(one) for one in seconds], stages)
    assert bounds[0] == 0 and bounds[-1] == len(seconds) and bounds[1] >= 2 and bounds[-2] <= layers

    def slowest(cuts: tuple[int, ...]) -> int:
        return max(sum(seconds[begin:end]) for begin, end in pairwise((0, *cuts, len(seconds))))

    assert slowest(tuple(bounds[1:-1])) == min(slowest(cuts) for cuts in combinations(range(2, layers + 1), stages - 1))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("tensor", [1, 2])
def test_stages_have_all_of_the_step_between_them(small: StepProfile, stages: int, tensor: int) -> None:
    """Weights, gradients, operations and layers, each once."""
    steps = Steps(small)
    whole = steps.of(tensor, Recomputation.NOTHING)
    assert whole is not None
    found = [stage.step for stage in steps.stages(tensor, Recomputation.NOTHING, stages, machine_of(8))]
    assert len(found) == stages
    assert sum(step.total(Part.WEIGHT) for step in found) == whole.step.total(Part.WEIGHT)
    assert sum(step.gradient_bytes for step in found) == whole.step.gradient_bytes
    assert sum(step.total(Part.STATE) for step in found) == pytest.approx(whole.step.total(Part.STATE), rel=1e-6)
    assert sum(step.flops for step in found) == pytest.approx(whole.step.flops)
    each = ROWS * TOKENS * WIDTH * 2 // tensor
    assert [step.stage.received_bytes for step in found] == [each, *[2 * each] * (stages - 2), each], "of one neighbour, or of two"


def test_gradients_that_stay_are_on_their_stage() -> None:
    """To the byte, in the step's own order."""
    whole = prepared(recorded("transformer", "kept"))
    assert whole.step.staying_gradient_bytes == whole.step.gradient_bytes > 0
    found = [stage.step for stage in Steps(whole).stages(1, Recomputation.NOTHING, 3, machine_of(3))]
    for of_whole, of_stages in (
        (whole.step.gradient_bytes, [step.gradient_bytes for step in found]),
        (whole.step.total(Part.WEIGHT), [step.total(Part.WEIGHT) for step in found]),
    ):
        assert sum(of_stages) == of_whole and min(of_stages) > 0
    assert all([call.event for call in step.calls] == sorted(call.event for call in step.calls) for step in found)


KEPT = {Recomputation.NOTHING: 34 + 5 * HEADS * TOKENS / WIDTH, Recomputation.CHEAP: 20, Recomputation.LAYERS: 2}


@pytest.mark.parametrize("what", Recomputation)
@pytest.mark.parametrize("tensor", [1, 4])
def test_a_layer_keeps_what_is_published(small: StepProfile, what: Recomputation, tensor: int) -> None:
    """Bytes of a layer, over positions, rows and width (Korthikanti et al., arXiv 2205.05198, sections 4.1 and 4.2).

    If all but products is computed again, these are left: 2 of the layer's input, 6 of queries, keys and values, 2 of the projection, 8 of
    the wide product, and 2 of the narrow one. If all is, the input is left alone."""
    stage = Steps(small).stages(tensor, what, 2, machine_of(8))[0].step
    layers = round(stage.total(Part.WEIGHT) / (12 * WIDTH * WIDTH * 2 / tensor) - WORDS / (12 * WIDTH) * tensor)
    assert layers == LAYERS - 1, "scores of words take as long as some layers"
    assert stage.stage.held_bytes * tensor / (ROWS * TOKENS * WIDTH * layers) == pytest.approx(KEPT[what], rel=0.02, abs=0.7)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 8), (4, 2), (4, 16)])
def test_time_and_memory_of_stages_are_those_of_their_order(small: StepProfile, stages: int, micro_batches: int) -> None:
    """In the simulation each turn waits for its input: as long as predicted, if stages are equal, and no longer if not."""
    machine = machine_of(stages)
    layout = layout_of(stages, micro_batches=micro_batches)
    cost = Search(Steps(small), machine).cost(layout)
    paces = Search(Steps(small), machine).seconds_of_stages(layout)
    simulated = finish([one / 3 for one in paces], [2 * one / 3 for one in paces], micro_batches)
    predicted = micro_batches * max(paces) + cost.time.idle
    assert 0.98 * simulated <= predicted <= 1.1 * simulated
    equal = [max(paces)] * stages
    assert finish(equal, equal, micro_batches) == pytest.approx(2 * (micro_batches + stages - 1) * max(paces))
    peak = carried_out(small, layout, machine).peak_bytes
    assert 0.999 * peak <= cost.memory.total <= 1.3 * peak
    assert sum(cost.time.__dict__.values()) - cost.time.hidden == pytest.approx(cost.time.total)


def test_a_program_that_divides_its_batch_itself_gets_no_stages() -> None:
    """Its micro-batches are repeated with the same weights, and are no layers."""
    found = prepared(recorded("perceptron", "accumulated"))
    assert found.accumulated == 4
    assert Steps(found).layers == 0
