"""A segment's graph computes what its calls compute, or there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay_worker import _executor, graphs
from forebay_worker.compiler import compile_to, default_dtype_of, make
from forebay_worker.descriptions import Description, form_of
from forebay_worker.libraries import Libraries
from forebay_worker.pure_operators import PURE
from hypothesis import HealthCheck, Phase, given, settings
from random_segments import Program, lists, programs, reading_and_writing_by_indices
from torch._inductor import aot_compile

assert _executor.TORCH_VERSION, "it defines operators of our own"
aten = torch.ops.aten
LSTM = 2


PROGRAMS, PROGRAMS_FULL = 40, 2000
LAST_BITS = 2.0**-21
"""Of a number in single precision: four of them."""


def check(program: Program, description: Description, results: list[torch.Tensor]) -> None:
    """Whole numbers and truths are the same, and the rest is within what a library's proof takes for rounding: of its own largest value,
    or, where it is what is left between larger ones, of theirs."""
    expected = program.outputs(description)
    if description.tells_astray:
        *results, astray = results
        assert (astray.shape, astray.dtype, int(astray)) == ((), torch.int64, 0)
    largest = max((float(one.abs().max()) for one in expected if one.dtype == torch.float32), default=0.0)
    assert len(results) == len(expected)
    for result, one in zip(results, expected, strict=True):
        assert (result.shape, result.dtype) == (one.shape, one.dtype)
        if one.is_floating_point():
            bound = 2.0 ** (-6 if program.lowest == torch.bfloat16 else -16)
            atol = max(float(one.abs().max()) * bound, largest * LAST_BITS)
            torch.testing.assert_close(result, one, rtol=0, atol=atol, equal_nan=True)
        else:
            assert torch.equal(result, one)


def check_graph(program: Program, description: Description) -> None:
    check(program, description, list(graphs.build(description).module(*program.inputs(description))))


@pytest.fixture(scope="module")
def many_examples(full_sweep: bool) -> settings:
    return settings(deadline=None, max_examples=PROGRAMS_FULL if full_sweep else PROGRAMS, suppress_health_check=list(HealthCheck))


@pytest.mark.timeout(24 * 3600)
def test_the_graph_of_a_random_program_computes_what_the_program_did(many_examples: settings) -> None:
    @many_examples
    @given(programs())
    def run(program: Program) -> None:
        description = program.description()
        inputs = program.inputs(description)
        kept = [one.clone() for one in inputs]
        check(program, description, list(graphs.build(description).module(*inputs)))
        assert all(torch.equal(one, other) for one, other in zip(inputs, kept, strict=True)), "a graph writes to nothing that it is given"

    run()


@pytest.mark.full_sweep
@pytest.mark.filterwarnings("ignore")  # of what the compiler imports
@pytest.mark.timeout(24 * 3600)
@settings(deadline=None, max_examples=40, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck))
@given(lists(50))
def test_libraries_of_random_programs_compute_what_the_programs_did(many: list[Program]) -> None:
    """Fifty in a library, so that 2,000 are compiled in hours, not days."""
    module = torch.nn.Module()
    descriptions = [program.description() for program in many]
    parts = [graphs.build(description) for description in descriptions]
    for number, part in enumerate(parts):
        module.add_module(f"part_{number}", part.module)

    graph, inputs, results = torch.fx.Graph(), [one for part in parts for one in part.inputs], []
    given_nodes = [graph.placeholder(f"input_{number}") for number in range(len(inputs))]
    for part in parts:
        places = iter([given_nodes.pop(0) for _ in part.inputs])
        nodes = {node: next(places) for node in part.module.graph.nodes if node.op == "placeholder"}
        results += graph.graph_copy(part.module.graph, nodes)
    graph.output(tuple(results))
    for node in graph.nodes:
        node.meta.pop("val", None)  # each part has a mode of its own, of which the compiler takes one alone
    with torch.no_grad():
        library = aot_compile(torch.fx.GraphModule(module, graph), tuple(inputs))
    given = [one for program, description in zip(many, descriptions, strict=True) for one in program.inputs(description)]
    made = torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1).run(given)
    for program, description in zip(many, descriptions, strict=True):
        check(program, description, [made.pop(0) for _ in range(len(program.outputs(description)) + description.tells_astray)])


def training_a_layer() -> Program:
    """A recurrent layer's results and gradients, and a sum of some."""
    program = Program()
    layer = torch.nn.LSTM(4, 4)
    inputs, state, weights = torch.randn(5, 2, 4), [torch.randn(1, 2, 4) for _ in range(2)], [one.detach() for one in layer.parameters()]
    for one in (inputs, *state, *weights):
        program.given(one)
    results = program.run(torch.ops.forebay.recurrent_layer.default, inputs, state, weights, LSTM, False, True)
    gradients = program.run(
        torch.ops.forebay.recurrent_layer_backward.default, [results[0], None, results[2]], results, inputs, state, weights, LSTM, False
    )
    program.free(results[-1])
    program.run(aten.add.Tensor, gradients[0], inputs, 0.5)
    return program


@pytest.fixture
def quotients() -> Iterator[Program]:
    """Of whole numbers, in double precision by default."""
    torch.set_default_dtype(torch.float64)
    program = Program()
    whole = program.given(torch.arange(1, 8))
    roots = program.run(aten.sqrt.default, program.run(aten.div.Tensor, whole, 3))
    program.run(aten.add.Tensor, program.run(aten.mul.Tensor, whole, 0.1), roots)
    torch.set_default_dtype(torch.float32)
    yield program
    assert torch.get_default_dtype() == torch.float32


def test_a_graph_is_made_under_the_default_dtype_of_its_calls(quotients: Program) -> None:
    description = quotients.description()
    with default_dtype_of(description):
        graph = graphs.build(description)
        results = list(graph.module(*quotients.inputs(description)))
    assert all(torch.equal(one, other) for one, other in zip(results, quotients.outputs(description), strict=True))
    first, *rest = description.calls
    mixed = replace(description, calls=(replace(first, template=replace(first.template, flags=0)), *rest))
    with default_dtype_of(mixed), pytest.raises(graphs.Unsupported, match="under several default dtypes"):
        graphs.build(mixed)
    assert form_of(mixed) != form_of(description)


@pytest.mark.full_sweep
@pytest.mark.filterwarnings("ignore")  # of what the compiler imports
def test_a_library_computes_under_the_default_dtype_of_its_calls(quotients: Program, tmp_path: Path) -> None:
    description, made = quotients.description(), tmp_path / "segment.so"
    with default_dtype_of(description):
        graph = graphs.build(description)
        make(made, graph.module, graph.inputs)
    results = torch._C._aoti.AOTIModelContainerRunnerCpu(str(made), 1).run(quotients.inputs(description))
    for one, other in zip(results, quotients.outputs(description), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-15, atol=0)


def test_a_recurrent_layer_is_called_as_it_is() -> None:
    program = training_a_layer()
    description = program.description()
    results = graphs.build(description).module(*program.inputs(description))
    assert all(torch.equal(one, other) for one, other in zip(results, program.outputs(description), strict=True))


@pytest.mark.full_sweep
@pytest.mark.filterwarnings("ignore")  # of what the compiler imports
def test_a_library_calls_a_recurrent_layer_by_its_note(tmp_path: Path) -> None:
    program = training_a_layer()
    description, made = program.description(), tmp_path / "made" / "segment.so"
    made.parent.mkdir()
    graph = graphs.build(description)
    make(made, graph.module, graph.inputs)
    library = Libraries(tmp_path / "kept").keep("key", made, 1)
    with torch.no_grad():
        check(program, description, torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1).run(program.inputs(description)))


def test_a_number_that_changes_is_an_input() -> None:
    program = Program(changing=True)
    x, three, two = (program.given(torch.full((4, 4), value)) for value in (1.0, 3.0, 2.0))
    program.run(aten._foreach_addcdiv_.ScalarList, [x], [three], [two], [0.5])
    graph = graphs.build(program.description())
    inputs = program.inputs(program.description())
    inputs[-1][0] = 1.5
    assert torch.equal(graph.module(*inputs)[0], torch.full((4, 4), 1 + 1.5 * 3 / 2))


@pytest.mark.parametrize("wrong", [8, -1, -9, 1 << 62, -(1 << 62)])
def test_indices_that_lead_nowhere_are_counted_and_none_is_used(wrong: int) -> None:
    program = reading_and_writing_by_indices()
    description = program.description()
    graph = graphs.build(description)
    inputs = program.inputs(description)
    check(program, description, list(graph.module(*inputs)))
    (places,) = [one for one in inputs if one.dtype == torch.int64]
    places[2] = wrong
    looked_at = 4 + 8  # as three kinds of indices, as a column, and for each column
    assert int(graph.module(*inputs)[-1]) == 3 * (looked_at - (wrong == -1)), "one operator takes some from the end"


def test_a_dropout_is_given_its_mask_and_multiplies_as_pytorch_does() -> None:
    program = Program()
    program.run(aten.native_dropout.default, program.given(torch.randn(4, 4).t()), 0.3, True)
    description = program.description()
    results = graphs.build(description).module(*program.inputs(description))
    assert all(torch.equal(one, other) for one, other in zip(results, program.outputs(description), strict=True))
    with pytest.raises(graphs.Unsupported, match="draws that no call makes"):
        graphs.build(replace(description, draws=2))


@pytest.mark.parametrize(
    ("operator", "given", "out"),
    [
        (aten.arange.start_out, (0, 4, 1), lambda: [torch.zeros(4, dtype=torch.int64)]),
        (aten.linspace.out, (0, 4, 9), lambda: [torch.zeros(9)]),
        (aten.where.self_out, (torch.eye(4) > 0, torch.ones(4, 4), torch.zeros(4, 4)), lambda: [torch.full((4, 6), 2.0)[:, 1:5]]),
        (aten.add.out, (torch.ones(4), torch.ones(4), 2), lambda: [torch.zeros(8)[::2]]),
        (aten.huber_loss_backward.out, (torch.ones(4), torch.rand(4), torch.rand(4), 0, 0.5), lambda: [torch.zeros(4)]),
        (aten.max.dim_max, (torch.rand(4, 6), 1, False), lambda: [torch.zeros(4), torch.zeros(4, dtype=torch.int64)]),
    ],
)
def test_what_is_told_where_its_results_go_writes_there(
    operator: torch._ops.OpOverload, given: tuple[Any, ...], out: Callable[[], list[torch.Tensor]]
) -> None:
    program, targets = Program(), out()
    for tensor in (*given, *targets):
        if isinstance(tensor, torch.Tensor):
            program.given(torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0))
    program.run(operator, *given, *targets)
    check_graph(program, program.description())


@pytest.mark.parametrize(
    ("operator", "rest"),
    [(aten.pow_.Scalar, (2,)), (aten.masked_fill_.Scalar, (torch.eye(4) > 0, 0.5)), (aten.remainder_.Tensor, (torch.full((4, 4), 3.0),))],
)
def test_what_writes_in_place_is_made_of_the_overload_that_takes_the_same(operator: torch._ops.OpOverload, rest: tuple[Any, ...]) -> None:
    program = Program()
    others = [program.given(one) if isinstance(one, torch.Tensor) else one for one in rest]
    program.run(operator, program.given(torch.rand(4, 4)), *others)
    check_graph(program, program.description())


@pytest.mark.parametrize("operator", [aten.remainder.Tensor, aten.fmod.Tensor, aten.floor_divide.default])
def test_a_number_in_place_of_a_tensor_is_one(operator: torch._ops.OpOverload) -> None:
    """Few operators take numbers where they say tensors."""
    program = Program()
    program.run(operator, program.given(torch.arange(8)), 3)
    check_graph(program, program.description())


def test_indices_of_every_operator_that_a_graph_has_are_held_against_their_bounds() -> None:
    """By ranges or by contracts: what is in neither, nobody looks at in a library."""
    sources = Path(__file__).parents[2] / "worker" / "csrc" / "call"
    looked_at = set(re.findall(r'{"(\w+)"', (sources / "ranges.cpp").read_text() + (sources / "contracts.inc").read_text()))
    taking = set()
    for name in PURE | graphs._SPECIAL.keys():
        packets = [getattr(aten, one) for one in (name, f"{name}_") if hasattr(aten, one)]
        given = {
            one.name
            for packet in packets
            for overload in packet.overloads()
            for one in getattr(packet, overload)._schema.arguments
            if "Tensor" in str(one.type) and not one.is_out
        }
        if given & {"index", "indices"} or (name.startswith("nll_loss") and "target" in given):
            taking.add(name)
    assert len(taking) > 15
    assert taking <= looked_at, taking - looked_at


@pytest.mark.parametrize("is_decoupled", [True, False])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True, "maximize": True}, {"found": 0.0}, {"found": 1.0}])
def test_a_fused_adam_is_made_of_other_operators(is_decoupled: bool, options: dict[str, Any]) -> None:
    program = Program(changing=True)
    groups = [[program.given(torch.rand(4, 4)), program.given(torch.rand(3))] for _ in range(5)]
    steps = [program.given(torch.tensor(3.0)) for _ in range(2)]
    groups[4] = groups[4] if options.get("amsgrad") else []
    scales = [program.given(torch.tensor(one)) for one in (2.0, options["found"])] if "found" in options else [None, None]
    switches = (options.get("amsgrad", False), options.get("maximize", False))
    operator = aten._fused_adamw_.default if is_decoupled else aten._fused_adam_.default
    program.run(operator, *groups, steps, 0.25, 0.9, 0.95, 0.01, 1e-8, *switches, *scales)
    description = program.description()
    assert description.numbers == 1, "the learning rate changes"
    check_graph(program, description)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("tells_bags", [True, False])
@pytest.mark.parametrize("padding", [-1, 2])
def test_the_gradient_of_bags_is_made_of_other_operators(mode: int, tells_bags: bool, padding: int) -> None:
    program = Program()
    indices, offsets = torch.tensor([2, 0, 4, 2, 1, 3]), torch.tensor([0, 2, 2, 5])
    _, bags, sizes, largest = torch._embedding_bag(torch.rand(5, 3), indices, offsets, False, mode, False, None, False, padding)
    bags = torch.tensor([0, 0, 2, 2, 2, 3]) if tells_bags else torch.zeros(0, dtype=torch.int64)
    given = [program.given(one.clone()) for one in (torch.rand(4, 3), indices, offsets, bags, sizes, largest)]
    program.run(aten._embedding_bag_backward.default, *given, 5, False, mode, False, None, padding)
    check_graph(program, program.description())


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("steps", [1, 5])
def test_what_scales_gradients_is_made_of_other_operators(found: float, steps: int) -> None:
    program = Program()
    gradients = [program.given(torch.rand(4, 4)), program.given(torch.tensor([1.0, torch.inf if found else 2.0]))]
    told, factor, scale = (program.given(torch.tensor(one)) for one in (0.0, 0.25, 4.0))
    program.run(aten._amp_foreach_non_finite_check_and_unscale_.default, gradients, told, factor)
    program.run(aten._amp_update_scale_.default, scale, program.given(torch.tensor(steps, dtype=torch.int32)), told, 2.0, 0.5, 2)
    check_graph(program, program.description())
    assert float(told) == found


@pytest.mark.parametrize(("momentum", "is_first", "nesterov"), [(0.0, False, False), (0.9, True, False), (0.9, False, True)])
def test_a_fused_sgd_is_made_of_other_operators(momentum: float, is_first: bool, nesterov: bool) -> None:
    program = Program()
    parameters, gradients, buffers = ([program.given(torch.rand(4, 4)), program.given(torch.rand(3))] for _ in range(3))
    numbers = {"weight_decay": 0.01, "momentum": momentum, "lr": 0.2, "dampening": 0.0 if nesterov else 0.3}
    switches = {"nesterov": nesterov, "maximize": False, "is_first_step": is_first}
    program.run(aten._fused_sgd_.default, parameters, gradients, buffers if momentum else [], *numbers.values(), *switches.values())
    check_graph(program, program.description())


@pytest.mark.parametrize(
    ("operator", "arguments", "why"),
    [
        (aten.floor_divide.default, (torch.ones(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)), "by some that may be 0"),
        (aten.special_airy_ai.default, (torch.ones(4, 4),), "aten::special_airy_ai is not compiled"),
        (aten._cummax_helper.default, (*torch.ones(2, 4), torch.ones(4, dtype=torch.int64), 0), "writes to an argument"),
        (aten.upsample_nearest2d.default, (torch.ones(1, 1, 4, 4), [8, 8], 0.01, 2.0), "a scale that is not that of its sizes"),
        (aten.nll_loss_forward.default, (torch.ones(4, 4), torch.ones(4, dtype=torch.uint8), None, 1, -100), "indices of few bits"),
        (aten.relu.default, (torch.ones(20).unfold(0, 4, 3),), "no slice of its storage"),
        (aten.relu_.default, (torch.ones(20).unfold(0, 5, 5).t()[:, :3].unfold(0, 2, 1),), "no slice of its storage"),
    ],
)
def test_what_a_graph_does_not_take_is_refused_by_name(operator: torch._ops.OpOverload, arguments: tuple[Any, ...], why: str) -> None:
    program = Program()
    for tensor in arguments:
        if isinstance(tensor, torch.Tensor):
            program.given(torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0))
    program.run(operator, *arguments)
    with pytest.raises(graphs.Unsupported, match=why):
        graphs.build(program.description())


def test_a_description_that_is_none_makes_no_library(tmp_path: Path) -> None:
    assert "the frame ends before" in str(compile_to(tmp_path / "none.so", b"\x00\x7f\x01"))


def relu_of_four() -> Description:
    program = Program()
    given = torch.ones(4, 4)
    program.given(given)
    program.run(aten.relu.default, given)
    return program.description()


@pytest.mark.parametrize(("operator", "overload"), [("aten::is_none_of_pytorchs", ""), ("aten::relu", "nothing"), ("other::relu", "")])
def test_an_operator_that_is_not_known_is_refused_by_name(operator: str, overload: str) -> None:
    description = relu_of_four()
    (call,) = description.calls
    with pytest.raises(graphs.Unsupported, match=f"{operator} is not compiled"):
        graphs.build(replace(description, calls=[replace(call, operator=operator, overload=overload)]))


@pytest.mark.parametrize("fault", [TypeError, AttributeError, KeyError])
def test_a_fault_of_ours_is_not_taken_for_a_segment_that_is_not_compiled(fault: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise fault("wrong")

    monkeypatch.setitem(graphs._SPECIAL, "relu", fail)
    with pytest.raises(fault, match="wrong"):
        graphs.build(relu_of_four())
