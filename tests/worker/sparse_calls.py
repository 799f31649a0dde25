"""Calls of the operators that take sparse tensors: what PyTorch's own kernels are called with, and the same with lies."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from hostile_calls import HostileCall, lie, lying

torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
aten = torch.ops.aten
LAYOUTS = {torch.sparse_coo: 1, torch.sparse_csr: 2, torch.sparse_csc: 4, torch.sparse_bsr: 5, torch.sparse_bsc: 6}


@dataclass(frozen=True)
class SparseParts:
    """A sparse tensor as the stream carries it, whether it is one or not."""

    layout: int
    coalesced: bool
    sizes: tuple[int, ...]
    parts: tuple[torch.Tensor, ...]


def parts_of(value: Any) -> Any:
    """Sparse tensors as their parts, all else as it is."""
    if not isinstance(value, torch.Tensor) or value.layout == torch.strided:
        return value
    if value.layout == torch.sparse_coo:
        parts = (value._indices(), value._values())
    elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (value.crow_indices(), value.col_indices(), value.values())
    else:
        parts = (value.ccol_indices(), value.row_indices(), value.values())
    coalesced = value.layout == torch.sparse_coo and value.is_coalesced()
    return SparseParts(LAYOUTS[value.layout], coalesced, tuple(value.shape), tuple(part.contiguous() for part in parts))


MATRIX = torch.tensor([[0.0, 2.0, 0.0, 1.5], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, -1.0, 0.5]])
SQUARE = MATRIX @ MATRIX.t() * torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that they are in beta
    COO, CSR, CSC = MATRIX.to_sparse(), MATRIX.to_sparse_csr(), MATRIX.to_sparse_csc()
    BLOCKS = torch.arange(16.0).reshape(4, 4).to_sparse_bsr((2, 2))
TWICE = torch.sparse_coo_tensor([[2, 0, 2, 1], [1, 1, 1, 0]], [1.0, 2.0, 3.0, 4.0], (3, 4))
HYBRID = torch.sparse_coo_tensor([[2, 0, 2]], torch.arange(6.0).reshape(3, 2), (3, 2))
CUBE = torch.stack([COO, TWICE])
TALL, WIDE, ROWS = torch.arange(8.0).reshape(4, 2), torch.arange(6.0).reshape(3, 2) / 7, torch.ones(3, 2)
SOFT = torch.sparse.softmax(COO, 1)

VALID: list[tuple[Any, tuple[Any, ...]]] = [
    (aten._coalesce.default, (TWICE,)),
    (aten._coalesce.default, (HYBRID,)),
    (aten._sparse_csr_prod.dim_dtype, (CSR, [1], True)),
    (aten._sparse_csr_sum.dim_dtype, (CSR, [0], True)),
    (aten._sparse_csr_sum.dim_dtype, (CSR, [0, 1], True)),
    (aten._sparse_log_softmax.default, (COO, 1, False)),
    (aten._sparse_softmax.default, (COO, 0, False)),
    (aten._sparse_softmax.default, (HYBRID, 1, False)),
    (aten._sparse_softmax_backward_data.default, (COO, SOFT, 1, COO)),
    (aten._sparse_log_softmax_backward_data.default, (COO, SOFT, 1, COO)),
    (aten._sparse_mask_projection.default, (COO, TWICE.coalesce(), False)),
    (aten._sparse_mask_projection.default, (TWICE, COO, True)),
    (aten.sparse_mask.default, (MATRIX, COO)),
    (aten.sparse_mask.default, (TWICE, COO)),
    (aten._sparse_mm_reduce_impl.default, (CSR, TALL, "amax")),
    (aten._sparse_mm_reduce_impl.default, (CSR, TALL, "mean")),
    (aten._sparse_mm_reduce_impl_backward.default, (CSR, ROWS, TALL, "amax", torch.tensor([[0, 1], [5, 5], [2, 4]]), [True, True])),
    (aten._sparse_mm_reduce_impl_backward.default, (CSR, ROWS, TALL, "sum", None, [True, True])),
    (aten._sparse_sparse_matmul.default, (COO, COO.t())),
    (aten._sparse_sum_backward.default, (torch.sparse.sum(COO, 0), COO, [0])),
    (aten._sparse_sum_backward.default, (torch.ones(2), HYBRID, [0])),
    (aten._to_sparse_bsc.default, (CSR, [1, 2])),
    (aten._to_sparse_bsr.default, (CSR, [3, 2])),
    (aten._to_sparse_csc.default, (CSR,)),
    (aten._to_sparse_csr.default, (CSC,)),
    (aten.add.Tensor, (COO, TWICE, 2)),
    (aten.add.Tensor, (CSR, CSR, 2)),
    (aten.add.out, (MATRIX, TWICE, 1, torch.zeros(3, 4))),
    (aten.add.out, (MATRIX, CSR, 1, torch.zeros(3, 4))),
    (aten.addmm.default, (ROWS, TWICE, TALL, 1, 2)),
    (aten.addmm.out, (ROWS, CSR, TALL, 1, 2, torch.zeros(3, 2))),
    (aten.addmm.out, (torch.ones(4, 2), BLOCKS, TALL, 1, 1, torch.zeros(4, 2))),
    (aten.addmm.default, (SQUARE.to_sparse_csr(), CSR, MATRIX.t().contiguous().to_sparse_csr(), 1, 1)),
    (aten.addmm_.default, (WIDE, COO, TALL, 1, 1)),
    (aten.addmv.out, (torch.ones(3), CSR, torch.ones(4), 1, 1, torch.zeros(3))),
    (aten.bmm.default, (CUBE, torch.ones(2, 4, 2))),
    (aten.bmm.out, (CUBE, torch.ones(2, 4, 2), torch.zeros(2, 3, 2))),
    (aten.hspmm.default, (COO, TALL)),
    (aten.index_select.default, (COO, 0, torch.tensor([2, 0, 2]))),
    (aten.index_select.default, (HYBRID, 1, torch.tensor([1]))),
    (aten.mul.Tensor, (COO, TWICE)),
    (aten.mul.Tensor, (COO, MATRIX)),
    (aten.sparse_sampled_addmm.default, (CSR, WIDE, TALL.t().contiguous(), 1, 0.5)),
    (aten.sspaddmm.default, (torch.zeros(3, 2).to_sparse(), COO, TALL, 1, 1)),
    (aten.triangular_solve.X, (ROWS, SQUARE.to_sparse_csr(), True, False, True, torch.zeros(3, 2), torch.zeros(0))),
]


def calls() -> dict[str, list[HostileCall]]:
    """None of them hostile yet, by operator; values in the schema's order."""
    found: dict[str, list[HostileCall]] = {}
    for op, given in VALID:
        defaults = [argument.default_value for argument in op._schema.arguments[len(given) :]]
        call = HostileCall(op, tuple(parts_of(value) for value in (*given, *defaults)))
        found.setdefault(op._schema.name + "." + op._schema.overload_name, []).append(call)
    return found


def lying_parts(sparse: SparseParts, chance: random.Random) -> SparseParts:
    """As the sparse tensor, with something wrong about it."""
    match chance.randrange(8):
        case 0:
            sizes = list(sparse.sizes)
            sizes[chance.randrange(len(sizes))] = chance.choice((0, 1, 2, 7, 1000, 1 << 40))
            return replace(sparse, sizes=tuple(sizes))
        case 1:
            return replace(sparse, coalesced=not sparse.coalesced)
        case 2:
            return replace(sparse, layout=chance.choice([layout for layout in LAYOUTS.values() if (layout == 1) == (sparse.layout == 1)]))
        case 3:
            return replace(sparse, sizes=(*sparse.sizes, chance.choice((0, 1, 2))) if chance.random() < 0.5 else sparse.sizes[1:])
    parts = list(sparse.parts)
    where = chance.randrange(len(parts))
    parts[where] = lie(parts[where], chance)
    return replace(sparse, parts=tuple(parts))


def hostile(call: HostileCall, chance: random.Random) -> HostileCall:
    """The call with a lie in a sparse tensor, in all else, or in both."""
    dense = [index for index, value in enumerate(call.values) if not isinstance(value, SparseParts)]
    values = list(call.values)
    if chance.random() < 0.6:
        among = [index for index in range(len(values)) if index not in dense]
        for where in chance.sample(among, chance.randint(1, len(among))):
            values[where] = lying_parts(values[where], chance)
        if chance.random() < 0.7:
            return HostileCall(call.op, tuple(values))
    told = lying(HostileCall(call.op, tuple(values)), chance)
    return HostileCall(
        call.op, tuple(values[index] if isinstance(values[index], SparseParts) else value for index, value in enumerate(told.values))
    )
