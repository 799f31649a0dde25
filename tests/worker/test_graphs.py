"""A segment's graph computes what its calls compute, or there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay_wire import steps
from forebay_worker import graphs
from forebay_worker.compiler import compile_to
from forebay_worker.descriptions import Word, WordKind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_segments import Program, programs
from torch._inductor import aot_compile

aten = torch.ops.aten


def check(program: Program, results: list[torch.Tensor]) -> None:
    expected = program.outputs()
    assert len(results) == len(expected)
    for result, one in zip(results, expected, strict=True):
        torch.testing.assert_close(result, one, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(programs())
def test_the_graph_of_a_random_program_computes_what_the_program_did(program: Program) -> None:
    inputs = program.inputs()
    kept = [one.clone() for one in inputs]
    check(program, list(graphs.build(program.description()).module(*inputs)))
    assert all(torch.equal(one, other) for one, other in zip(inputs, kept, strict=True)), "a graph writes to nothing that it is given"


@pytest.mark.full_sweep
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.lists(programs(), min_size=50, max_size=50))
def test_libraries_of_random_programs_compute_what_the_programs_did(many: list[Program]) -> None:
    """Fifty in a library, so that 2,000 are compiled in hours, not days."""
    module = torch.nn.Module()
    parts = [graphs.build(program.description()) for program in many]
    for number, part in enumerate(parts):
        module.add_module(f"part_{number}", part.module)

    graph, inputs, results = torch.fx.Graph(), [one for part in parts for one in part.inputs], []
    given_nodes = [graph.placeholder(f"input_{number}") for number in range(len(inputs))]
    for part in parts:
        places = iter([given_nodes.pop(0) for _ in part.inputs])
        nodes = {node: next(places) for node in part.module.graph.nodes if node.op == "placeholder"}
        results += graph.graph_copy(part.module.graph, nodes)
    graph.output(tuple(results))
    with torch.no_grad():
        library = aot_compile(torch.fx.GraphModule(module, graph), tuple(inputs))
    made = torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1).run([one for program in many for one in program.inputs()])
    for program in many:
        check(program, [made.pop(0) for _ in program.outputs()])


def test_a_number_that_changes_is_an_input() -> None:
    program = Program(changing=True)
    x, three, two = (program.given(torch.full((4, 4), value)) for value in (1.0, 3.0, 2.0))
    program.run(aten._foreach_addcdiv_.ScalarList, [x], [three], [two], [0.5])
    graph = graphs.build(program.description())
    inputs = program.inputs()
    inputs[-1][0] = 1.5
    assert torch.equal(graph.module(*inputs)[0], torch.full((4, 4), 1 + 1.5 * 3 / 2))


def test_a_dropout_is_given_its_mask_and_multiplies_as_pytorch_does() -> None:
    program = Program()
    x = program.given(torch.randn(4, 4).t())
    program.run(aten.native_dropout.default, x, 0.3, True)
    drawn = replace(program.calls[-1], template=replace(program.calls[-1].template, flags=steps.RANDOM))
    drawn = replace(drawn, words=(*drawn.words, Word(WordKind.DRAWN, 0), Word(WordKind.IGNORED, 0)))
    description = replace(program.description(), calls=(drawn,), masks=1)
    expected = program.outputs()
    mask = next(one for one in expected if one.dtype == torch.bool)
    results = graphs.build(description).module(*program.inputs(), mask)
    assert all(torch.equal(one, other) for one, other in zip(results, expected, strict=True))
    with pytest.raises(graphs.Unsupported, match="masks that no dropout makes"):
        graphs.build(replace(description, masks=2))


@pytest.mark.parametrize(
    ("operator", "given", "out"),
    [
        (aten.arange.start_out, (0, 4, 1), lambda: torch.zeros(4, dtype=torch.int64)),
        (aten.where.self_out, (torch.eye(4) > 0, torch.ones(4, 4), torch.zeros(4, 4)), lambda: torch.full((4, 6), 2.0)[:, 1:5]),
        (aten.add.out, (torch.ones(4), torch.ones(4), 2), lambda: torch.zeros(8)[::2]),
    ],
)
def test_what_is_told_where_its_result_goes_writes_there(
    operator: torch._ops.OpOverload, given: tuple[Any, ...], out: Callable[[], torch.Tensor]
) -> None:
    program, target = Program(), out()
    for tensor in (*given, target):
        if isinstance(tensor, torch.Tensor):
            program.given(torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0))
    program.run(operator, *given, target)
    check(program, list(graphs.build(program.description()).module(*program.inputs())))


@pytest.mark.parametrize(
    ("operator", "arguments", "why"),
    [
        (aten.cumprod.default, (torch.ones(4, 4), 0), "aten::cumprod is not compiled"),
        (aten.max.dim_max, (torch.ones(4, 4), 0, False, torch.ones(4), torch.ones(4, dtype=torch.int64)), "writes to an argument"),
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
