"""Segments that differ in a size have one graph, which computes what each of them does; those that differ otherwise have none."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forebay_worker import descriptions, graphs
from forebay_worker.libraries import Found, Libraries, Sizes
from forebay_worker.symbolic_graphs import Alike, Expression, SeveralSizes, whole_expression
from random_segments import Program
from test_graphs import check

aten = torch.ops.aten


def rows(size: int, rate: float = 0.1) -> Program:
    """A batch of a classifier, forward and backward, with dropout, and with numbers and views that follow from its size."""
    program = Program()
    x, weight, bias = (program.given(torch.randn(*sizes)) for sizes in ((size, 6), (5, 6), (5,)))
    labels = program.given(torch.randint(0, 5, (size,)))
    hidden = program.run(aten.addmm.default, bias, x, weight.t())
    dropped, mask = program.run(aten.native_dropout.default, hidden, 0.5, True)
    likely = program.run(aten._log_softmax.default, dropped, 1, False)
    loss, total = program.run(aten.nll_loss_forward.default, likely, labels, None, 1, -100)
    one = program.run(aten.ones_like.default, loss)
    gradient = program.run(aten.nll_loss_backward.default, one, likely, labels, None, 1, -100, total)
    gradient = program.run(aten._log_softmax_backward_data.default, gradient, likely, 1, torch.float32)
    gradient = program.run(aten.native_dropout_backward.default, gradient, mask, 2.0)
    program.run(aten.mm.default, gradient.t(), x)
    summed = program.run(aten.sum.dim_IntList, gradient, [0], True)
    for mean in (size, float(size), 5.0 * size):
        program.run(aten.div.Tensor, summed.expand(size, 5), mean)
    program.run(aten.mul.Tensor, summed, 1 / size)
    program.run(aten.add_.Tensor, hidden[1:].view(-1), 1.5)
    program.run(aten.add_.Tensor, hidden[: size - 2, 1:3], rate)
    return program


def sequences(size: int) -> Program:
    """Attention over sequences of that length, by hand, and a normalization."""
    program = Program()
    x, mask = program.given(torch.randn(2, size, 8)), program.given(torch.ones(size, size).tril())
    scale, shift, *weights = (program.given(torch.randn(*sizes)) for sizes in ((8,), (8,), (8, 8), (8, 8), (8, 8)))
    normal = program.run(aten.native_layer_norm.default, x, [8], scale, shift, 1e-5)[0].view(2 * size, 8)
    query, key, value = (program.run(aten.mm.default, normal, weight.t()).view(2, size, 8) for weight in weights)
    scores = program.run(aten.mul.Tensor, program.run(aten.bmm.default, query, key.transpose(1, 2)), mask)
    shares = program.run(aten._softmax.default, scores, -1, False)
    program.run(aten.bmm.default, shares, value)
    program.run(aten.mul.Tensor, shares.view(2, size * size), 1 / (size * size))
    return program


def batches(size: int) -> Program:
    """Of a data set: as many rows of it, from another one on each time."""
    program = Program()
    data, weight = program.given_data(torch.randn(64, 6), 6), program.given(torch.randn(5, 6))
    x = data[3 : 3 + size]
    scores = program.run(aten.mm.default, x, weight.t())
    program.run(aten.mm.default, program.run(aten.tanh.default, scores).t(), x)
    program.run(aten.mul.Tensor, program.run(aten.sum.dim_IntList, data[:size, ::2], [0], True), 1 / size)
    return program


def halves(size: int) -> Program:
    """Two neighbours together."""
    program = Program()
    x = program.given(torch.randn(size, 3))
    program.run(aten.sum.dim_IntList, program.run(aten.relu.default, x).view(size // 2, 2, 3), [1], False)
    return program


def table(rows: int, columns: int) -> Program:
    program = Program()
    x, weight = program.given(torch.randn(rows, columns)), program.given(torch.randn(4, columns))
    program.run(aten.mul.Tensor, program.run(aten.relu.default, x.view(-1)), 1 / (rows * columns))
    program.run(aten.mm.default, x, weight.t())
    return program


def graph_of(program: Program) -> graphs.SegmentGraph:
    return graphs.build(program.description())


@pytest.mark.parametrize("program_of", [rows, sequences, batches])
def test_the_graph_of_two_sizes_computes_what_segments_of_others_do(program_of: Callable[[int], Program]) -> None:
    alike = Alike(graph_of(program_of(12)), graph_of(program_of(20)))
    sized = alike.graph()
    ((first, last),) = sized.sizes()
    assert first <= 5 and last >= 4096
    for size in (12, 20, 5, 33):
        program = program_of(size)
        description = program.description()
        assert alike.size_of(graphs.build(description)) == size
        check(program, description, list(sized.module(*program.inputs(description))))


def test_segments_whose_other_numbers_differ_have_none() -> None:
    with pytest.raises(graphs.Unsupported, match="numbers do not follow"):
        Alike(graph_of(rows(12, 0.1)), graph_of(rows(20, 0.2)))
    alike = Alike(graph_of(rows(12)), graph_of(rows(20)))
    for other, why in ((rows(33, 0.2), "numbers are not as those"), (sequences(33), "not as that"), (halves(12), "not as that")):
        with pytest.raises(graphs.Unsupported, match=why):
            alike.size_of(graph_of(other))
    with pytest.raises(graphs.Unsupported, match="not as that"):
        Alike(graph_of(rows(12)), graph_of(sequences(20)))


def test_segments_that_differ_in_several_sizes_are_told_from_those_whose_other_numbers_do() -> None:
    """Whether the second one does, or a further one."""
    with pytest.raises(SeveralSizes, match="differs from an earlier segment of the same calls in more than one size"):
        Alike(graph_of(table(8, 48)), graph_of(table(11, 25)))
    alike = Alike(graph_of(table(8, 48)), graph_of(table(11, 48)))
    assert alike.size_of(graph_of(table(20, 48))) == 20
    with pytest.raises(SeveralSizes):
        alike.size_of(graph_of(table(20, 25)))


def test_sizes_for_which_the_compiler_takes_something_else_for_granted_are_told() -> None:
    ranges = Alike(graph_of(halves(12)), graph_of(halves(20))).graph().sizes()
    assert ranges[:3] == [(4, 4), (6, 6), (8, 8)], "of pairs there are no halves, and one row is no several"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((12, 20), Expression(1, 1)),
        ((84, 140), Expression(7, 1)),
        ((288, 800), Expression(2, 2)),
        ((13, 21), Expression(1, 1, 1)),
        ((-84, -140), Expression(-7, 1)),
        ((5, 9), Expression(1, 1, -1, 2)),
        ((6, 10), Expression(1, 1, 0, 2)),
        ((4, 7), Expression(1, 1, 2, 3)),
    ],
)
def test_numbers_follow_from_a_size(values: tuple[int, int], expected: Expression) -> None:
    """The simplest that gives both."""
    assert [expected.at(size) for size in (12, 20)] == list(values)
    assert whole_expression((12, 20), values) == expected


def test_segments_that_differ_in_numbers_alone_have_one_form() -> None:
    forms = [descriptions.form_of(program.description()) for program in (rows(12), rows(20), rows(20, 0.2), halves(12))]
    assert forms[0] == forms[1] == forms[2] != forms[3]
    changed = rows(12).description()
    renamed = replace(changed, calls=(replace(changed.calls[0], overload="out"), *changed.calls[1:]))
    assert descriptions.form_of(renamed) != forms[0]


def test_a_library_for_several_sizes_is_found_for_each_until_it_is_barred(tmp_path: Path) -> None:
    libraries = Libraries(tmp_path / "libraries")
    (tmp_path / "made.so").write_bytes(b"a library")
    sizes = Sizes(((2, 40), (42, 64)), (20, 12), (b"one", base64.b64encode(b"other")))
    alone = tmp_path / "alone.so"
    alone.write_bytes(b"a library")
    libraries.keep("alone", alone, 1, alone="it differs in rows and columns")
    made = libraries.keep("form", tmp_path / "made.so", 1, sizes)
    libraries.share("key", "form")
    found = libraries.find("key")
    assert found is not None and (found.library, found.sizes, found.note) == (made, sizes, f"it took 1 s to make; {sizes}")
    assert libraries.find("alone") == Found(libraries.folder / "alone.so", alone="it differs in rows and columns", made_seconds=1)
    assert 40 in sizes and 41 not in sizes
    assert str(sizes) == "it is for some sizes from 2 to 64, and was made of 12 and 20"
    libraries.refuse("form", "its library is wrong")
    assert libraries.find("key") is None, "it may get one of its own"
