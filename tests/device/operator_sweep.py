"""Runs PyTorch's operator database on the virtual device and on the CPU, and writes what differs as JSON.

Usage: ``python operator_sweep.py ADDRESS TICKET OUTPUT --dtype NAME [--samples N] [--only NAME …]``; the process is its own,
because it takes the CUDA key. A case is an entry of ``op_db``, a dtype and a variant; it holds up to N samples, and counts where
the CPU can do at least one of them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils import _pytree

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int64": torch.int64, "bool": torch.bool, "complex64": torch.complex64}
SAMPLES_SEEN = 24
SECONDS_MAX = 60
RANDOM = set(
    """
    bernoulli cauchy exponential geometric log_normal multinomial nn.functional.alpha_dropout nn.functional.dropout
    nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
    nn.functional.rrelu normal normal_in_place pca_lowrank rand_like randint
    randint_like randn randn_like svd_lowrank uniform
    """.split()
)
UNINITIALISED = {"resize_", "resize_as_", "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
UNDEFINED = {  # what the CPU does there is no result
    "_chunk_cat": ("scalar",),  # it reads past the sizes of a tensor without dimensions
    "nn.functional.multi_margin_loss": ("empty",),  # it leaves the loss as the memory was
    # it reads each row as if its elements were neighbours, and takes any mask where there is nothing to compute
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": ("transposed", "empty"),
}
ON_HOST = {"tensor_split"}  # tensors among their arguments stay on the CPU, as CUDA wants it

Sample = tuple[Any, tuple[Any, ...], dict[str, Any]]
Expected = Callable[[], Any]


class NotApplicable(Exception):
    """The CPU cannot do this, so there is nothing to compare with."""


def attach(address: str, ticket: str) -> None:
    """Gives this process the virtual device, served by a worker that opened its own lease."""
    from forebay import _C, facade
    from forebay.virtual_device import VirtualDevices

    importlib.import_module("torch.fx.experimental.symbolic_shapes")  # once, and in no operator's time
    served: list[object] = []

    def connect(_device: int) -> None:
        if not _C.connected():
            if served:
                sys.exit("the worker ended the session")
            served.append(_C.connect(address, bytes.fromhex(ticket)))
        _C.lease_opened(1, 1 << 40)

    devices = VirtualDevices()
    devices.start()
    facade.install(devices)
    _C.set_lease_callback(connect)


# Samples and what is made of them


def to_device(value: Any) -> Any:
    """The same arguments with their tensors on the virtual device, in the same layout; leaves of autograd stay leaves."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            plain = leaf.detach()
            whole = torch.empty(0, dtype=leaf.dtype).set_(plain.untyped_storage())
            moved = whole.to("cuda").as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())
            if plain.is_conj():
                moved = torch._conj(moved)
            if plain.is_neg():
                moved = torch._neg_view(moved)
            return moved.requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to("cuda").requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.device):
            return torch.device("cuda")
        return "cuda" if isinstance(leaf, str) and leaf == "cpu" else leaf

    return _pytree.tree_map(move, value)


def map_tensors(sample: Sample, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
    """A sample with its strided tensors changed."""

    def apply(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            return leaf
        return change(leaf.detach()).requires_grad_(leaf.requires_grad)

    mapped: Sample = _pytree.tree_map(apply, sample)
    return mapped


def copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


def spaced(tensor: torch.Tensor) -> torch.Tensor:
    """The same values at every other element of a larger storage, not at its beginning."""
    if tensor.dim() == 0:
        return torch.stack([tensor, tensor])[1]
    return torch.stack([tensor, tensor], dim=-1)[..., 1]


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values laid out with the first dimension innermost."""
    dims = tuple(reversed(range(tensor.dim())))
    return tensor.permute(dims).contiguous().permute(dims)


def first_element(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without dimensions."""
    if tensor.numel() == 0:
        raise NotApplicable
    return tensor[(0,) * tensor.dim()].clone()


def emptied(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of no elements: the first dimension is 0."""
    return tensor if tensor.dim() == 0 else tensor[:0].clone()


def without_elements(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty(0)


def strided_zeros(tensor: torch.Tensor) -> torch.Tensor:
    return transposed(torch.zeros_like(tensor))


def arguments_of(op: Any, sample: Sample) -> Sample:
    """The sample on the device."""
    moved: Sample = to_device(sample) if op.name not in ON_HOST else (to_device(sample[0]), *sample[1:])
    return moved


# Comparing


def tolerances(op: Any, dtype: torch.dtype) -> tuple[float, float]:
    """rtol and atol of PyTorch's tests for this dtype and entry (its widest override)."""
    from torch.testing._comparison import default_tolerances
    from torch.testing._internal.common_device_type import toleranceOverride

    rtol, atol = default_tolerances(dtype)
    for decorator in op.decorators:
        for single in getattr(decorator, "decorators", [decorator]):
            if isinstance(single, toleranceOverride) and dtype in single.d:
                atol, rtol = max(atol, single.d[dtype].atol), max(rtol, single.d[dtype].rtol)
    return rtol, atol


def compare(op: Any, expected: Any, actual: Any, values: bool = True, strides: bool = False) -> None:
    """Raises AssertionError where results differ; ``values`` False compares geometry and type only."""
    leaves, others = _pytree.tree_leaves(expected), _pytree.tree_leaves(actual)
    if len(leaves) != len(others):
        raise AssertionError(f"{len(others)} results, not {len(leaves)}")
    for one, other in zip(leaves, others, strict=True):
        if not isinstance(one, torch.Tensor):
            if values and not (one == other or one is other or one != one):
                raise AssertionError(f"{other!r}, not {one!r}")
            continue
        if not other.is_cuda and op.name not in ON_HOST:
            raise AssertionError(f"a result on {other.device}")
        if one.shape != other.shape or one.dtype != other.dtype:
            raise AssertionError(f"{other.dtype} {tuple(other.shape)}, not {one.dtype} {tuple(one.shape)}")
        if strides and one.numel() > 1 and one.stride() != other.stride():
            raise AssertionError(f"strides {other.stride()}, not {one.stride()}")
        if values:
            rtol, atol = tolerances(op, one.dtype)
            if one.dtype.itemsize == 1 and one.dtype.is_floating_point:
                one, other = one.float(), other.float()
            torch.testing.assert_close(other.detach().cpu(), one.detach().cpu(), rtol=rtol, atol=atol, equal_nan=True)


def is_random(op: Any, sample: Sample) -> bool:
    if op.name in RANDOM | UNINITIALISED:
        return True
    return bool(sample[2].get("dropout_p")) or op.name == "nn.functional.multi_head_attention_forward"


def on_cpu(run: Callable[[], Any]) -> Any:
    """The CPU's answer; NotApplicable where it has none."""
    try:
        return run()
    except NotApplicable:
        raise
    except Exception as error:
        raise NotApplicable from error


# The variants: each checks one sample


def check_forward(op: Any, sample: Sample) -> None:
    moved = arguments_of(op, sample)
    expected = on_cpu(lambda: op(sample[0], *sample[1], **sample[2]))
    compare(op, expected, op(moved[0], *moved[1], **moved[2]), not is_random(op, sample))


def with_tensors(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Sample], None]:
    return lambda op, sample: check_forward(op, on_cpu(lambda: map_tensors(sample, change)))


def _weights(result: torch.Tensor) -> torch.Tensor:
    """From 0.5 to 1.5, made where the result is: what is brought to the device cuts a loop's segment."""
    count = result.numel()
    places = torch.arange(count, dtype=torch.float32, device=result.device)
    return (places * (1 / max(count - 1, 1)) + 0.5).reshape(result.shape).to(result.dtype)


def gradients(op: Any, sample: Sample) -> Any:
    """Those of the leaves that ask for one, of the sum of all results, each weighted by its place."""
    leaves = [leaf for leaf in _pytree.tree_leaves(sample) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    results = [
        leaf
        for leaf in _pytree.tree_leaves(op(sample[0], *sample[1], **sample[2]))
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not leaves or not results:
        raise NotApplicable
    weights = [_weights(result) for result in results]
    return [gradient for gradient in torch.autograd.grad(results, leaves, weights, allow_unused=True)]


def check_gradient(op: Any, sample: Sample) -> None:
    moved = arguments_of(op, sample)
    expected = on_cpu(lambda: gradients(op, sample))
    compare(op, expected, gradients(op, moved), not is_random(op, sample) and not op.gradcheck_nondet_tol > 1e-3)


def check_inplace(op: Any, sample: Sample) -> None:
    inplace = op.get_inplace()
    if inplace is None or not isinstance(sample[0], torch.Tensor):
        raise NotApplicable
    for layout in (copied, spaced, transposed):
        given = on_cpu(lambda layout=layout: map_tensors(sample, layout))
        moved = arguments_of(op, given)
        expected = on_cpu(lambda given=given: inplace(given[0], *given[1], **given[2]))
        if expected.shape != moved[0].shape:
            raise NotApplicable  # the CPU broadcasts a few in place (addbmm_), against PyTorch's rule
        actual = inplace(moved[0], *moved[1], **moved[2])
        if actual is not moved[0]:
            raise AssertionError("the result is not the tensor itself")
        compare(op, expected, actual, not is_random(op, sample), strides=True)


def check_out(op: Any, sample: Sample) -> None:
    """``out`` of the right size, of none, and in another layout."""
    if not op.supports_out:
        raise NotApplicable
    result = on_cpu(lambda: op(sample[0], *sample[1], **sample[2]))
    if not all(isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided for leaf in _pytree.tree_leaves(result)):
        raise NotApplicable
    moved = arguments_of(op, sample)
    for prepare in (torch.zeros_like, without_elements, strided_zeros):
        out = _pytree.tree_map(prepare, result)
        out = tuple(out) if isinstance(out, (list, tuple)) else out
        there = to_device(out)
        if prepare is torch.zeros_like:  # the only one tried there: lu_unpack of the CPU writes past an out of another layout
            on_cpu(lambda out=out: op(sample[0], *sample[1], **sample[2], out=out))
        op(moved[0], *moved[1], **moved[2], out=there)
        compare(op, result, there, not is_random(op, sample))
        if prepare is strided_zeros:
            compare(op, out, there, values=False, strides=True)


VARIANTS: dict[str, Callable[[Any, Sample], None]] = {
    "forward": check_forward,
    "spaced": with_tensors(spaced),
    "transposed": with_tensors(transposed),
    "scalar": with_tensors(first_element),
    "empty": with_tensors(emptied),
    "gradient": check_gradient,
    "inplace": check_inplace,
    "out": check_out,
}


# Running


def name_of(op: Any) -> str:
    return str(op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""))


def chosen(op: Any, dtype: torch.dtype, count: int, gradient: bool, seed: int = 0) -> list[Sample]:
    """Samples spread evenly over the entry's first ones, always the same of a seed."""
    torch.manual_seed(seed)
    seen = list(islice(op.sample_inputs("cpu", dtype, requires_grad=gradient), SAMPLES_SEEN))
    step = max(1, -(-len(seen) // count))
    return [(sample.input, tuple(sample.args), dict(sample.kwargs)) for sample in seen[::step]]


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


def outcome(check: Callable[[], None]) -> str | None:
    """Empty, or the error's last line; None where there was nothing to check."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"took longer than {SECONDS_MAX} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS_MAX)
    try:
        check()
        return ""
    except NotApplicable:
        return None
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:300]
    finally:
        signal.alarm(0)


def cases(op: Any, dtype: torch.dtype, count: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """The variants that an entry has, each with its check."""
    plain: list[Sample] = chosen(op, dtype, count, False)
    for variant, check in VARIANTS.items():
        if variant in UNDEFINED.get(op.name, ()):
            continue
        if variant == "gradient":
            if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
                yield variant, lambda check=check: run_case(op, chosen(op, dtype, count, True), check)
        else:
            yield variant, lambda check=check: run_case(op, plain, check)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("ticket")
    parser.add_argument("output")
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--verbose", action="store_true", help="name each case as it begins")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    attach(asked.address, asked.ticket)
    from torch.testing._internal.common_methods_invocations import op_db

    dtype = DTYPES[asked.dtype]
    results: dict[str, str] = {}
    for op in op_db:
        name = name_of(op)
        if (asked.only and name not in asked.only and op.name not in asked.only) or dtype not in op.supported_dtypes("cpu"):
            continue
        for variant, check in cases(op, dtype, asked.samples):
            if variant not in asked.variants:
                continue
            if asked.verbose:
                print(name, variant, flush=True)
            found = outcome(check)
            if found is not None:
                results[f"{name} {variant}"] = found
            if asked.only and found:
                print(name, variant, found, flush=True)
    with open(asked.output, "w") as file:
        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
