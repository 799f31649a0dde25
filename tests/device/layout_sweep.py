"""How the results of PyTorch's operators lie, and which overlaps they refuse, on the virtual device and on the CPU; differences as JSON.

Usage: ``python layout_sweep.py ADDRESS TICKET OUTPUT [--dtype NAME] [--samples N] [--part I N] [--only NAME …]``, as
``operator_sweep.py``.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from operator_sweep import (
    DTYPES,
    NotApplicable,
    Sample,
    arguments_of,
    attach,
    chosen,
    compare,
    is_random,
    map_tensors,
    name_of,
    on_cpu,
    outcome,
    run_case,
    transposed,
)
from torch.utils import _pytree

Change = Callable[[torch.Tensor], torch.Tensor]


def rolled(tensor: torch.Tensor) -> torch.Tensor:
    """The same values laid out with the second dimension outermost, and the first innermost."""
    dims = [*range(1, tensor.dim()), 0] if tensor.dim() else []
    return tensor.permute(dims).contiguous().permute([dims.index(dim) for dim in range(tensor.dim())])


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """As large, but all of its first dimension are the same elements of memory."""
    return tensor[:1].clone().expand(tensor.shape) if tensor.dim() and tensor.shape[0] else tensor


def expanded_inside(tensor: torch.Tensor) -> torch.Tensor:
    """The same of the last dimension."""
    return tensor[..., :1].clone().expand(tensor.shape) if tensor.dim() and tensor.shape[-1] else tensor


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Pictures with their channels innermost."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else transposed(tensor)


def single(tensor: torch.Tensor) -> torch.Tensor:
    """Of size 1 in each dimension."""
    return tensor[(slice(0, 1),) * tensor.dim()].clone()


def single_row(tensor: torch.Tensor) -> torch.Tensor:
    """Of size 1 in the first dimension."""
    return transposed(tensor[:1].clone()) if tensor.dim() else tensor


def number(tensor: torch.Tensor) -> torch.Tensor:
    """Without dimensions."""
    return tensor[(0,) * tensor.dim()].clone() if tensor.numel() else tensor


def one_element(tensor: torch.Tensor) -> torch.Tensor:
    """Of one dimension, and one element."""
    return number(tensor).reshape(1)


def all_as(change: Change) -> Callable[[Sample], Sample]:
    return lambda sample: map_tensors(sample, change)


def beside(partner: Change, first: Change) -> Callable[[Sample], Sample]:
    """The sample's first tensor, and the others changed to be broadcast."""

    def changed(sample: Sample) -> Sample:
        places = iter(range(1 << 10))
        others = [leaf for leaf in _pytree.tree_leaves(sample[1:]) if isinstance(leaf, torch.Tensor)]
        if not others or not isinstance(sample[0], torch.Tensor):
            raise NotApplicable
        return map_tensors(sample, lambda tensor: (first if next(places) == 0 else partner)(tensor))

    return changed


LAYOUTS: dict[str, Callable[[Sample], Sample]] = {
    "transposed": all_as(transposed),
    "rolled": all_as(rolled),
    "expanded": all_as(expanded),
    "expanded inside": all_as(expanded_inside),
    "channels last": all_as(channels_last),
    "beside a number": beside(number, transposed),
    "beside one element": beside(one_element, transposed),
    "beside a single": beside(single, rolled),
    "beside a row": beside(single_row, transposed),
    "a number beside": beside(transposed, number),
    "a single beside": beside(transposed, single),
    "contiguous beside transposed": beside(transposed, torch.Tensor.contiguous),
}


def _steps(tensor: torch.Tensor) -> list[int]:
    """From element to element, of the dimensions that have more than one."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1] if tensor.numel() else []


def check_strides(op: Any, sample: Sample, layout: Callable[[Sample], Sample]) -> None:
    """Values and strides."""
    given = on_cpu(lambda: layout(sample))
    moved = arguments_of(op, given)
    expected = on_cpu(lambda: op(given[0], *given[1], **given[2]))
    results = op(moved[0], *moved[1], **moved[2])
    compare(op, expected, results, not is_random(op, given))
    for host, there in zip(_pytree.tree_leaves(expected), _pytree.tree_leaves(results), strict=True):
        if isinstance(host, torch.Tensor) and host.layout == torch.strided and _steps(there) != _steps(host):
            raise AssertionError(f"strides {there.stride()}, not {host.stride()}")


# What is written to and read, or written to twice: whether it is refused, and what comes of it.


def _ran(run: Callable[[], Any]) -> bool:
    try:
        run()
    except Exception:
        return False
    return True


def check_overlap(op: Any, sample: Sample, first: Change) -> None:
    """In place."""
    inplace = op.get_inplace()
    if inplace is None or not isinstance(sample[0], torch.Tensor):
        raise NotApplicable
    given: Sample = (on_cpu(lambda: first(sample[0].detach())), *sample[1:])
    moved = arguments_of(op, given)
    if not _ran(lambda: op.get_inplace()(sample[0].detach().clone(), *sample[1], **sample[2])):
        raise NotApplicable
    ran, ran_there = (_ran(lambda one=one: inplace(one[0], *one[1], **one[2])) for one in (given, moved))
    if ran != ran_there:
        raise AssertionError(f"it is {'done' if ran_there else 'refused'} in place, and {'done' if ran else 'refused'} on the CPU")


def check_out(op: Any, sample: Sample, of_input: Change) -> None:
    """``out`` shares memory with what is read."""
    if not op.supports_out or not isinstance(sample[0], torch.Tensor):
        raise NotApplicable
    result, *others = _pytree.tree_leaves(on_cpu(lambda: op(sample[0], *sample[1], **sample[2])))
    if others or not isinstance(result, torch.Tensor) or result.layout != torch.strided:
        raise NotApplicable
    if (result.dtype, result.shape) != (sample[0].dtype, sample[0].shape):
        raise NotApplicable
    given: Sample = (sample[0].detach().clone(), *sample[1:])
    out = on_cpu(lambda: of_input(given[0]))
    moved = arguments_of(op, given)
    there = of_input(moved[0])
    ran = _ran(lambda: op(given[0], *given[1], **given[2], out=out))
    ran_there = _ran(lambda: op(moved[0], *moved[1], **moved[2], out=there))
    if ran != ran_there:
        raise AssertionError(f"it is {'done' if ran_there else 'refused'} with such an out, and {'done' if ran else 'refused'} on the CPU")
    reads_what_it_wrote = not torch.equal(out.nan_to_num(), result.nan_to_num())
    if ran and not is_random(op, sample) and not reads_what_it_wrote:
        compare(op, result, there)


def _shifted(tensor: torch.Tensor) -> torch.Tensor:
    """As large, one element on in the same memory."""
    tensor.untyped_storage().resize_((tensor.numel() + 1) * tensor.element_size())
    return tensor.new_empty(0).set_(tensor.untyped_storage(), 1, tensor.shape, tensor.stride())


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


VARIANTS: dict[str, Callable[[Any, Sample], None]] = {
    **{f"laid {name}": lambda op, sample, layout=layout: check_strides(op, sample, layout) for name, layout in LAYOUTS.items()},
    "in place expanded": lambda op, sample: check_overlap(op, sample, expanded),
    "in place expanded inside": lambda op, sample: check_overlap(op, sample, expanded_inside),
    "out is the input": lambda op, sample: check_out(op, sample, _same),
    "out is shifted": lambda op, sample: check_out(op, sample, _shifted),
}


def cases(op: Any, dtype: torch.dtype, count: int) -> Iterator[tuple[str, Callable[[], None]]]:
    samples = chosen(op, dtype, count, False)
    for variant, check in VARIANTS.items():
        yield variant, lambda check=check: run_case(op, samples, check)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("ticket")
    parser.add_argument("output")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--part", type=int, nargs=2, default=[0, 1], help="every OFth entry, from the Ith on")
    parser.add_argument("--only", nargs="*", default=[])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    attach(asked.address, asked.ticket)
    from torch.testing._internal.common_methods_invocations import op_db

    dtype = DTYPES[asked.dtype]
    first, step = asked.part
    results: dict[str, str] = {}
    for op in op_db[first::step]:
        name = name_of(op)
        if (asked.only and name not in asked.only and op.name not in asked.only) or dtype not in op.supported_dtypes("cpu"):
            continue
        for variant, check in cases(op, dtype, asked.samples):
            found = outcome(check)
            if found is not None:
                results[f"{name} {variant}"] = found
            if asked.only and found:
                print(name, variant, found, flush=True)
    with open(asked.output, "w") as file:
        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
