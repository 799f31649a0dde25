"""Runs PyTorch's operator database with sparse tensors on the virtual device and on the CPU, and writes what differs as JSON.

Usage: ``python sparse_sweep.py ADDRESS TICKET OUTPUT [--only NAME …]``. A case is an entry, a layout, a dtype and a variant: *forward*
and *gradient* take the samples that PyTorch has for the layout, *given* takes the entry's usual samples with their first tensor made
sparse. It counts where the CPU can do at least one.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from operator_sweep import DTYPES, UNINITIALISED, NotApplicable, Sample, attach, compare, gradients, is_random, name_of, on_cpu, outcome
from torch.utils import _pytree

LAYOUTS = {
    "coo": torch.sparse_coo,
    "csr": torch.sparse_csr,
    "csc": torch.sparse_csc,
    "bsr": torch.sparse_bsr,
    "bsc": torch.sparse_bsc,
}
SAMPLES_SEEN, SAMPLES, SAMPLES_GIVEN = 60, 8, 2
BLOCK = (1, 1)
UNFIT = UNINITIALISED | {"new_ones", "new_full"}
"""Of a compressed tensor PyTorch makes all of these of indices that nothing has written."""


def to_device(value: Any) -> Any:
    """The same arguments with their tensors on the virtual device; leaves of autograd stay leaves."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to("cuda").requires_grad_(leaf.requires_grad)
        return torch.device("cuda") if isinstance(leaf, torch.device) else leaf

    return _pytree.tree_map(move, value)


def as_plain(value: Any) -> Any:
    """What autograd can weigh: sparse results as dense ones."""
    return _pytree.tree_map(lambda leaf: leaf.to_dense() if is_sparse(leaf) and leaf.requires_grad else leaf, value)


def is_sparse(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout in LAYOUTS.values()


def compare_layouts(expected: Any, actual: Any) -> None:
    for one, other in zip(_pytree.tree_leaves(expected), _pytree.tree_leaves(actual), strict=True):
        if not is_sparse(one):
            continue
        if one.layout != other.layout:
            raise AssertionError(f"a {other.layout} tensor, not {one.layout}")
        if one.layout == torch.sparse_coo and one.is_coalesced() != other.is_coalesced():
            raise AssertionError(f"coalesced: {other.is_coalesced()}, not {one.is_coalesced()}")


def check_forward(op: Any, sample: Sample) -> None:
    expected = on_cpu(lambda: op(sample[0], *sample[1], **sample[2]))
    if op.name in UNFIT:
        raise NotApplicable
    moved: Sample = to_device(sample)
    actual = op(moved[0], *moved[1], **moved[2])
    compare_layouts(expected, actual)
    compare(op, expected, actual, not is_random(op, sample))


def check_gradient(op: Any, sample: Sample) -> None:
    def plain(first: Any, *rest: Any, **named: Any) -> Any:
        return as_plain(op(first, *rest, **named))

    expected = on_cpu(lambda: gradients(plain, sample))
    moved: Sample = to_device(sample)
    actual = gradients(plain, moved)
    compare_layouts(expected, actual)
    compare(op, expected, actual, not is_random(op, sample))


def spread(samples: list[Any], count: int) -> list[Sample]:
    """As many of them, evenly."""
    step = max(1, -(-len(samples) // count))
    return [(sample.input, tuple(sample.args), dict(sample.kwargs)) for sample in samples[::step]]


def samples_of(op: Any, layout: str, dtype: torch.dtype, gradient: bool) -> list[Sample]:
    """What PyTorch has for the layout; none where it has nothing."""
    torch.manual_seed(0)
    try:
        made = list(islice(getattr(op, f"sample_inputs_sparse_{layout}")("cpu", dtype, requires_grad=gradient), SAMPLES_SEEN))
    except Exception:
        return []
    return spread(made, SAMPLES)


def sparsified(value: torch.Tensor, layout: str) -> torch.Tensor:
    """Most places of a tensor emptied."""
    plain = value.detach() * (torch.arange(value.numel()).reshape(value.shape) % 3 == 0)
    blocks = {"blocksize": BLOCK} if layout in ("bsr", "bsc") else {}
    return plain.to_sparse(layout=LAYOUTS[layout], **blocks).requires_grad_(value.requires_grad)


def given(op: Any, layout: str, dtype: torch.dtype) -> list[Sample]:
    """The entry's own samples with their first tensor made sparse."""
    torch.manual_seed(0)
    try:
        seen = list(islice(op.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES))
        usable = [sample for sample in seen if isinstance(sample.input, torch.Tensor) and sample.input.dim() == 2 and sample.input.numel()]
        return [(sparsified(first, layout), *rest) for first, *rest in spread(usable, SAMPLES_GIVEN)]
    except Exception:
        return []


def run_case(op: Any, samples: list[Sample], check: Callable[[Any, Sample], None]) -> None:
    """Raises what goes wrong with any sample, and NotApplicable where the CPU can do none."""
    done = 0
    for sample in samples:
        try:
            check(op, sample)
            done += 1
        except NotApplicable:
            continue
    if done == 0:
        raise NotApplicable


def cases(op: Any, dtype_name: str, layouts: list[str], only: list[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    dtype = DTYPES[dtype_name]
    for layout in layouts:
        name = f"{name_of(op)} {layout} {dtype_name}"
        if "forward" in only and (samples := samples_of(op, layout, dtype, False)):
            yield f"{name} forward", lambda samples=samples: run_case(op, samples, check_forward)
        differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        if "gradient" in only and differentiable and (samples := samples_of(op, layout, dtype, True)):
            yield f"{name} gradient", lambda samples=samples: run_case(op, samples, check_gradient)
        if "given" in only and op.name not in UNFIT and (samples := given(op, layout, dtype)):
            yield f"{name} given", lambda samples=samples: run_case(op, samples, check_forward)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("ticket")
    parser.add_argument("output")
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=["float32", "int64", "complex64"])
    parser.add_argument("--layouts", nargs="*", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--variants", nargs="*", default=["forward", "gradient", "given"])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--verbose", action="store_true", help="name each case as it begins")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    attach(asked.address, asked.ticket)
    from torch.testing._internal.common_methods_invocations import op_db

    results: dict[str, str] = {}
    for op in op_db:
        if asked.only and name_of(op) not in asked.only and op.name not in asked.only:
            continue
        for dtype in asked.dtypes:
            if DTYPES[dtype] not in op.supported_dtypes("cpu"):
                continue
            for case, check in cases(op, dtype, asked.layouts, asked.variants):
                if asked.verbose:
                    print(case, flush=True)
                found = outcome(check)
                if found is not None:
                    results[case] = found
                if asked.only and found:
                    print(case, found, flush=True)
    with open(asked.output, "w") as file:
        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
