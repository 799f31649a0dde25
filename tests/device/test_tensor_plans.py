"""Steps that several devices compute together, on paper: held against PyTorch, against what Megatron-LM sends, and against a simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from forebay.toolkit.planner.calls import CallShape, TensorUse
from forebay.toolkit.planner.choice import choose
from forebay.toolkit.planner.cost import cost_of
from forebay.toolkit.planner.layout import MIB, layouts
from forebay.toolkit.planner.parallel.dimensions import divides
from forebay.toolkit.planner.parallel.tensor import Way, divided
from forebay.toolkit.planner.profile import StepProfile, prepare
from forebay.toolkit.planner.recomputation import recomputed
from forebay.toolkit.planner.rows import result_dimension
from forebay.toolkit.planner.step import Part
from forebay_wire.stream import Argument, Geometry, Tag
from planned_programs import LAYERS, TOKENS, WIDTH, WORDS
from step_simulation import carried_out, simulate
from test_planner import ROWS, machine_of, prepared, recorded

A, B, C = torch.randn(4, 6, 8), torch.randn(4, 6, 8), torch.randn(4, 8, 6)
Q = torch.randn(2, 4, 6, 8)
Call = tuple[str, Callable[..., torch.Tensor], Sequence[torch.Tensor], Sequence[int | tuple[int, ...]]]
CALLS: list[Call] = [
    ("add", torch.add, (A, B), ()),
    ("add", torch.add, (A, B[0]), ()),
    ("mul", torch.mul, (A, B[:, :, :1]), ()),
    ("gelu", torch.nn.functional.gelu, (A,), ()),
    ("where", torch.where, (A > 0, A, B), ()),
    ("_softmax", lambda x, at: torch.softmax(x, at), (A,), (-1,)),
    ("_softmax", lambda x, at: torch.softmax(x, at), (A,), (1,)),
    ("_log_softmax", lambda x, at: torch.log_softmax(x, at), (A,), (0,)),
    ("native_layer_norm", lambda x, over: torch.nn.functional.layer_norm(x, over), (A,), ((8,),)),
    ("native_layer_norm", lambda x, over: torch.nn.functional.layer_norm(x, over), (A,), ((6, 8),)),
    ("bmm", torch.bmm, (A, C), ()),
    ("cat", lambda x, y, at: torch.cat((x, y), at), (A, B), (1,)),
    ("sum", torch.sum, (A,), ((1,),)),
    ("mean", torch.mean, (A,), ((-1,),)),
    ("_scaled_dot_product_flash_attention", torch.nn.functional.scaled_dot_product_attention, (Q, Q.sin(), Q.cos()), ()),
    ("embedding", lambda table, at: torch.nn.functional.embedding(at, table), (A[0], torch.tensor([[1, 5, 0, 3], [2, 2, 4, 1]])), ()),
    ("select_backward", lambda x, _: torch.ops.aten.select_backward(x, (3, *x.shape), 0, 1), (A,), (0,)),
    ("slice_backward", lambda x, at: torch.ops.aten.slice_backward(x, (x.shape[0], 12, x.shape[2]), at, 6, 12, 1), (A,), (1,)),
    ("cumsum", torch.cumsum, (A,), (1,)),
    ("tril", torch.tril, (A,), ()),
]
"""Operators with what they are given; the last two mix all, as what is not known does."""


def geometry_of(tensor: torch.Tensor) -> Geometry:
    return Geometry(6, tuple(tensor.shape), tensor.stride())


def shape_of(name: str, tensors: Sequence[torch.Tensor], numbers: Sequence[int | tuple[int, ...]]) -> CallShape:
    uses = [TensorUse(2 * place, geometry_of(tensor), place, 0, False) for place, tensor in enumerate(tensors)]
    constants = [Argument(Tag.INT, integer=one) if isinstance(one, int) else Argument(Tag.INT_LIST, list=one) for one in numbers]
    return CallShape(0, name, (*(Argument(Tag.TENSOR) for _ in tensors), *constants), uses)


@pytest.mark.parametrize("number", range(len(CALLS)), ids=lambda number: f"{CALLS[number][0]}-{number}")
def test_an_operator_that_is_said_to_be_divisible_gives_the_same_in_two_parts(number: int) -> None:
    """Whatever dimension of its first tensor is divided, and all others whose sizes go with it; where a sum is divided, parts add up."""
    name, compute, tensors, numbers = CALLS[number]
    shape, whole = shape_of(name, tensors, numbers), compute(*tensors, *numbers)
    place = 1 if name == "embedding" else 0
    said = []
    for dimension in range(tensors[place].dim()):
        if not divides(shape, place, dimension):
            continue
        said.append(dimension)
        to = result_dimension(shape, 0, geometry_of(whole), place, dimension)
        if to is None:
            continue
        halves = [compute(*(part(name, one, tensors[place], dimension, half) for one in tensors), *numbers) for half in (0, 1)]
        torch.testing.assert_close(torch.cat(halves, to), whole)
    assert said or name in ("cumsum", "tril")


def part(name: str, one: torch.Tensor, led: torch.Tensor, dimension: int, half: int) -> torch.Tensor:
    """The half of a tensor that goes with the half of the one that leads: whole where it has no such dimension, or one of size 1."""
    at = dimension if name in ("bmm", "embedding") or "attention" in name else dimension - led.dim() + one.dim()
    if (name == "embedding" and one is not led) or at < 0 or one.shape[at] != led.shape[dimension]:
        return one
    return one.chunk(2, at)[half]


@pytest.fixture(scope="module")
def whole() -> StepProfile:
    return prepared(recorded("transformer", "autocast"))


@pytest.fixture(scope="module")
def halves(whole: StepProfile) -> StepProfile:
    found = divided(whole.step, 2)
    assert found is not None
    return prepare(found)


def test_what_is_sent_is_what_megatron_sends(whole: StepProfile, halves: StepProfile) -> None:
    """Two inputs are gathered and two sums scattered in the forward pass of a layer, and as many backward.

    Two inputs are gathered once more, for the gradients of weights (Korthikanti et al., arXiv 2205.05198, section 4.2.2).
    """
    each = ROWS * TOKENS * WIDTH * 2
    exchanged = [size for call in halves.step.calls for size in call.exchanged]
    assert exchanged == [each] * (10 * LAYERS)
    assert not halves.step.division.by_rows, "positions are in parts between the products"


def test_a_device_has_its_part_of_matrices_gradients_states_and_operations(whole: StepProfile, halves: StepProfile) -> None:
    """Embedding, head and norms are whole on each device: their gradients are summed."""
    matrices = LAYERS * (WIDTH * (3 + 1 + 4 + 4) * WIDTH + (3 + 4) * WIDTH) * 4
    kept = whole.step.total(Part.WEIGHT)
    assert halves.step.total(Part.WEIGHT) == kept - matrices // 2
    assert halves.step.gradient_bytes == kept - matrices // 2
    assert halves.step.total(Part.STATE) == pytest.approx(2 * (kept - matrices // 2), abs=512)
    assert halves.step.division.summed_bytes == kept - matrices == 4 * (2 * WORDS * WIDTH + WORDS + LAYERS * 6 * WIDTH + 2 * WIDTH)
    assert halves.step.flops == whole.step.flops / 2
    assert halves.peaks[0].rows < 0.6 * whole.peaks[0].rows


def test_pytorchs_own_layers_are_divided_by_heads() -> None:
    """What it makes of queries, keys and values is copied before heads are seen; their gradients are put together again."""
    step = prepared(recorded("layers")).step
    found = divided(step, 4)
    assert found is not None and not found.division.by_rows
    matrices = LAYERS * (12 * WIDTH * WIDTH + 7 * WIDTH) * 4
    assert step.total(Part.WEIGHT) - found.total(Part.WEIGHT) == matrices * 3 // 4
    eight = divided(step, 8)
    assert eight is not None and eight.division.by_rows, "of four heads each has its rows instead; the wide layers are divided"
    assert step.total(Part.WEIGHT) - eight.total(Part.WEIGHT) == LAYERS * (8 * WIDTH * WIDTH + 4 * WIDTH) * 4 * 7 // 8


def test_heads_of_queries_go_with_those_of_their_keys() -> None:
    """Two heads of keys have two devices. In float32 GPUs take attention by scores here, with keys repeated, which stays whole."""
    step = prepared(recorded("grouped", "autocast")).step
    found = divided(step, 2)
    assert found is not None and not found.division.by_rows
    products = LAYERS * (3 * WIDTH * WIDTH + 2 * WIDTH) * 4
    assert step.total(Part.WEIGHT) - found.total(Part.WEIGHT) == products // 2
    assert divided(step, 4) is None
    by_scores = prepared(recorded("grouped")).step
    assert any(call.name == "_softmax" for call in by_scores.calls) and divided(by_scores, 2) is None


def test_heads_that_cannot_be_divided_leave_the_step_whole(whole: StepProfile) -> None:
    assert divided(whole.step, 4) is not None
    assert divided(whole.step, 8) is None, "four heads"


def test_more_parts_are_found_from_fewer_as_from_the_beginning(whole: StepProfile) -> None:
    way = Way()
    fewer = divided(whole.step, 2, way)
    assert fewer == divided(whole.step, 2)
    assert divided(whole.step, 4, way) == divided(whole.step, 4) != fewer
    assert divided(whole.step, 8, way) is None


def test_memory_and_traffic_of_a_tensor_group_are_those_of_the_simulation(halves: StepProfile) -> None:
    for devices, per_host in ((2, 8), (4, 2), (16, 8)):
        machine = machine_of(devices, per_host, 64 * MIB)
        for layout in [replace(one, micro_batches=count) for one in layouts(machine, 2) for count in (1, 4)][:: 5 if devices > 4 else 1]:
            cost, simulated = cost_of(halves, layout, machine), simulate(halves, layout, machine)
            buckets = 2 * min(layout.bucket_bytes, halves.step.gradient_bytes)
            assert 0.999 * simulated.peak_bytes <= cost.memory.total <= 1.25 * simulated.peak_bytes + buckets, layout
            for axis, sent in cost.traffic.items():
                assert sent == pytest.approx(simulated.sent[axis], rel=1e-6, abs=1024), layout


def test_layers_in_parts_are_computed_again_with_what_they_exchange(halves: StepProfile) -> None:
    again = recomputed(halves.step, halves.stacks)
    assert again is not None
    sent = [sum(len(call.exchanged) for call in step.calls) for step in (again, halves.step)]
    assert sent == [10 * LAYERS + 4 * (LAYERS - 1), 10 * LAYERS], "all layers but the last"


def test_more_devices_than_rows_compute_rows_together(whole: StepProfile) -> None:
    """64 rows have 128 devices: in tensor groups, or in stages."""
    machine = machine_of(2 * ROWS)
    chosen = choose(whole, machine).chosen
    assert chosen.layout.data <= ROWS and chosen.layout.devices == 2 * ROWS
    assert carried_out(whole, chosen.layout, machine).peak_bytes <= chosen.cost.memory.total <= machine.budget_bytes
