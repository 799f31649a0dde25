"""Sparse tensors come to a worker as their parts: those that lie fail their call alone, and lead into nobody's memory."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import forebay_wire
import pytest
import torch
from conftest import Client
from fenced_worker import FILLS, FencedWorker, compiled_fence
from forebay_wire import stream
from hostile_calls import HostileCall
from sparse_calls import COO, CSR, MATRIX, SQUARE, TALL, TWICE, SparseParts, calls, hostile, parts_of
from test_kernel_contracts import judged

aten = torch.ops.aten
CALLS_OF_EACH, CALLS_OF_EACH_FULL = 12, 400
SEED = 20261122


def listed() -> set[str]:
    lines = (Path(forebay_wire.include_dir()) / "forebay" / "sparse_operators.inc").read_text().splitlines()
    return {line.strip('",') for line in lines if line.startswith('"')}


@pytest.fixture(scope="module")
def workers() -> Iterator[list[FencedWorker]]:
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        library = compiled_fence(Path(folder))
        started = [FencedWorker(library, fill, f"{folder}/{fill}.sock") for fill in FILLS]
        yield started
        for worker in started:
            worker.stop()


def test_every_operator_that_takes_sparse_tensors_answers_a_valid_call(workers: list[FencedWorker]) -> None:
    made = calls()
    assert {name.removeprefix("aten::").removesuffix(".default").removesuffix(".") for name in made} == listed()
    refused = [
        (str(call.op), found) for of_one in made.values() for call in of_one for found in [workers[0].ask(call)] if found[0] != "answered"
    ]
    assert not refused, refused


@pytest.mark.timeout(1800)  # with --full-sweep; seconds without
@pytest.mark.filterwarnings("ignore")  # of the lies, made here
def test_sparse_tensors_that_lie_end_no_worker_and_show_no_memory_but_their_parts(
    workers: list[FencedWorker], pytestconfig: pytest.Config
) -> None:
    count = CALLS_OF_EACH_FULL if pytestconfig.getoption("--full-sweep") else CALLS_OF_EACH
    wrong: list[str] = []
    asked = 0
    for name, made in sorted(calls().items()):
        chance = random.Random(f"{SEED} {name}")
        for _ in range(count):
            call = hostile(chance.choice(made), chance)
            found = judged(workers, call)
            asked += found is not None
            if found:
                wrong.append(f"{name}: {found}: {call.values}")
                print(wrong[-1], flush=True)
    assert asked > count * len(calls()) // 2
    assert not wrong, "\n".join(wrong)


def lied(sparse: torch.Tensor, **changes: Any) -> SparseParts:
    return replace(parts_of(sparse), **changes)


ENDS, COLUMNS, VALUES = CSR.crow_indices(), CSR.col_indices(), CSR.values()
OFFENCES: list[tuple[str, Any, tuple[Any, ...], str]] = [
    ("an index beyond the sizes", aten._coalesce.default, (lied(TWICE, sizes=(2, 4)),), "found index 2"),
    (
        "an index before the first",
        aten._coalesce.default,
        (lied(TWICE, parts=(TWICE._indices() - 1, TWICE._values())),),
        "found negative index -1",
    ),
    ("places said to come once", aten._sparse_softmax.default, (lied(TWICE, coalesced=True), 1, False), "coalesced"),
    (
        "more values than indices",
        aten._coalesce.default,
        (lied(TWICE, parts=(TWICE._indices(), torch.ones(5))),),
        "no sparse tensor of sizes",
    ),
    ("indices of fewer dimensions", aten._coalesce.default, (lied(TWICE, sizes=(3, 4, 2)),), "no sparse tensor of sizes"),
    (
        "indices that are no whole numbers",
        aten._coalesce.default,
        (lied(TWICE, parts=(TWICE._indices().float(), TWICE._values())),),
        "type Float",
    ),
    (
        "rows that end beyond the values",
        aten._sparse_csr_sum.dim_dtype,
        (lied(CSR, parts=(ENDS * 100, COLUMNS, VALUES)), [1], True, None),
        "crow_indices|nnz",
    ),
    (
        "rows that end before they begin",
        aten._sparse_csr_sum.dim_dtype,
        (lied(CSR, parts=(torch.tensor([0, 4, 2, 5]), COLUMNS, VALUES)), [1], True, None),
        "crow_indices",
    ),
    (
        "a column beyond the sizes",
        aten.sparse_sampled_addmm.default,
        (lied(CSR, parts=(ENDS, COLUMNS + 3, VALUES)), torch.ones(3, 2), TALL.t().contiguous(), 1, 1),
        "col_indices",
    ),
    (
        "a vector shorter than the rows",
        aten.addmv.out,
        (torch.ones(3), parts_of(CSR), torch.ones(3), 1, 1, torch.zeros(3)),
        "vec .* does not fit",
    ),
    (
        "a right side of fewer rows",
        aten.triangular_solve.X,
        (torch.ones(2, 2), parts_of(SQUARE.to_sparse_csr()), True, False, True, torch.zeros(3, 2), torch.zeros(0)),
        "A .* does not fit",
    ),
    (
        "largest places beyond the values",
        aten._sparse_mm_reduce_impl_backward.default,
        (parts_of(CSR), torch.ones(3, 2), TALL, "amax", torch.full((3, 2), 6), [True, True]),
        "arg_out holds 6",
    ),
    (
        "fewer largest places than the result has",
        aten._sparse_mm_reduce_impl_backward.default,
        (parts_of(CSR), torch.ones(3, 2), TALL, "max", torch.zeros(0, dtype=torch.int64), [True, True]),
        "arg_out .* does not fit",
    ),
]


@pytest.mark.parametrize(("op", "values", "sentence"), [case[1:] for case in OFFENCES], ids=[case[0] for case in OFFENCES])
def test_what_is_no_sparse_tensor_fails_its_call_alone(
    workers: list[FencedWorker], op: Any, values: tuple[Any, ...], sentence: str
) -> None:
    answer = workers[0].ask(HostileCall(op, values))
    assert answer[0] == "failed", answer
    assert re.search(sentence, answer[1][0][1]), answer[1]
    assert workers[0].ask(HostileCall(aten.neg.default, (torch.ones(4),)))[0] == "answered"


BREACHES: list[tuple[str, Any, tuple[Any, ...], str]] = [
    ("an operator that takes none", aten.neg.default, (parts_of(COO),), "passes a sparse tensor, which it does not take"),
    ("one that takes nothing else", aten._coalesce.default, (MATRIX,), "passes no sparse tensor, which it takes alone"),
    ("one that is written to", aten.add.out, (parts_of(COO), parts_of(COO), 1, parts_of(COO)), "argument out a value that is not"),
    ("an unknown layout", aten._coalesce.default, (lied(COO, layout=3),), "unknown layout 3"),
    ("more places than can be counted", aten._coalesce.default, (lied(COO, sizes=(1 << 40, 1 << 40)),), "more places than can be counted"),
]


@pytest.mark.parametrize(("op", "values", "sentence"), [case[1:] for case in BREACHES], ids=[case[0] for case in BREACHES])
def test_a_template_that_cannot_be_is_refused(workers: list[FencedWorker], op: Any, values: tuple[Any, ...], sentence: str) -> None:
    answer = workers[0].ask(HostileCall(op, values))
    assert answer[0] == "refused" and re.search(sentence, answer[1]), answer


@pytest.mark.parametrize("device", ["cpu:0"])  # the stand-in has no sparse kernels
def test_an_output_that_overwrites_its_sparse_argument_s_indices_leads_nowhere(client: Client) -> None:
    """Its kernel reads the indices while it writes: it gets a copy of what was checked."""
    indices = torch.zeros(2, 64, dtype=torch.int64)
    storage = client.upload(indices)
    values = client.upload(torch.ones(64, dtype=torch.int64))
    geometry = stream.Geometry(4, (2, 64), (64, 1))
    sparse = stream.Argument(
        stream.Tag.SPARSE,
        list=(2, 64),
        layout=1,
        items=tuple(stream.Argument(stream.Tag.TENSOR, geometry=one) for one in (geometry, stream.Geometry(4, (64,), (1,)))),
    )
    dense = stream.Argument(stream.Tag.TENSOR, geometry=geometry)
    scalar = stream.Argument(stream.Tag.SCALAR_INT)
    template = stream.Template(
        client.operator(aten.add.out), (dense, sparse, scalar, dense), (stream.Output(stream.OutputTag.SAME, same=3),)
    )
    bindings = (stream.View(storage), stream.View(storage), stream.View(values), 1 << 40, stream.View(storage))
    client.send(stream.Call(client.template(template), bindings))
    assert isinstance(client.sync(), stream.Done)
    assert client.download(storage, geometry)[0, 0] == 64 << 40
