"""Runs PyTorch's databases through its function transforms, and with wrong arguments, on the virtual device; writes what differs as JSON.

Usage: ``python function_sweep.py ADDRESS TICKET OUTPUT [--variants NAME …] [--every N] [--only NAME …]``; the process is its own, because
it takes the CUDA key. A case is an entry and a variant: ``dual`` (forward-mode derivatives), ``vmap``, ``error`` (arguments that must be
refused) of ``op_db``, and ``hop`` of ``hop_db``. All but ``error`` are held against the CPU.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
from operator_sweep import RANDOM, NotApplicable, Sample, arguments_of, attach, compare, is_random, name_of, on_cpu, outcome, to_device
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import BlockMask
from torch.utils import _pytree

BATCH = 3


def first_sample(op: Any) -> Sample:
    """The first one that has numbers in its first tensor, or the first."""
    torch.manual_seed(0)
    samples = [(s.input, tuple(s.args), dict(s.kwargs)) for s in islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), 8)]
    if not samples:
        raise NotApplicable
    return next((sample for sample in samples if isinstance(sample[0], torch.Tensor) and sample[0].numel() > 0), samples[0])


# Forward-mode derivatives


def tangents_of(op: Any, sample: Sample) -> list[torch.Tensor | None]:
    """One for each leaf of the sample that may have one."""

    def tangent(leaf: Any) -> torch.Tensor | None:
        return torch.randn_like(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else None

    return [tangent(leaf) for leaf in _pytree.tree_leaves(sample)]


def derivative(op: Any, sample: Sample, tangents: list[torch.Tensor | None]) -> Any:
    """Values and tangents of the results; None where there is no tangent."""
    leaves, tree = _pytree.tree_flatten(sample)
    with forward_ad.dual_level():
        pairs = zip(leaves, tangents, strict=True)
        dual = _pytree.tree_unflatten([leaf if slope is None else forward_ad.make_dual(leaf, slope) for leaf, slope in pairs], tree)
        results = _pytree.tree_leaves(op(dual[0], *dual[1], **dual[2]))
        return [tuple(forward_ad.unpack_dual(one)) if isinstance(one, torch.Tensor) else one for one in results]


def check_dual(op: Any) -> None:
    if not op.supports_forward_ad:
        raise NotApplicable
    sample = first_sample(op)
    tangents = tangents_of(op, sample)
    moved, slopes = arguments_of(op, sample), to_device(tangents)
    expected = on_cpu(lambda: derivative(op, sample, tangents))
    compare(op, expected, derivative(op, moved, slopes), not is_random(op, sample))


# vmap


def mapped(op: Any, sample: Sample) -> Any:
    """The entry mapped over its first tensor's new leading dimension; the other arguments are the same for all."""
    batched, rest, options = sample
    return torch.vmap(lambda one: op(one, *rest, **options), randomness="different")(batched)


def check_vmap(op: Any) -> None:
    given, rest, options = first_sample(op)
    if not isinstance(given, torch.Tensor) or given.layout != torch.strided:
        raise NotApplicable
    sample = (torch.stack([given.roll(shift) for shift in range(BATCH)]), rest, options)
    expected = on_cpu(lambda: mapped(op, sample))
    compare(op, expected, mapped(op, arguments_of(op, sample)), not is_random(op, sample))


# Arguments that must be refused


def pytorch_takes(op: Any, sample: Any) -> bool:
    """Whether PyTorch itself computes on the CPU what its database says must be refused; some of it only a GPU's kernel refuses."""
    if "out" in sample.kwargs:
        return False  # what it shares memory with is lost on the way
    here = sample.transform(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf)
    with suppress(Exception):
        op(here.input, *here.args, **here.kwargs)
        return True
    return False


def check_error(op: Any) -> None:
    """Each wrong call raises what it must, at once or at the next wait, and what was there before is still there."""
    if op.error_inputs_func is None:
        raise NotApplicable
    torch.manual_seed(0)
    kept = torch.arange(4.0, device="cuda")
    count = 0
    for wrong in op.error_inputs("cuda"):
        sample = wrong.sample_input
        try:
            op(sample.input, *sample.args, **sample.kwargs)
            torch.cuda.synchronize()
        except wrong.error_type:
            count += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}, not {wrong.error_type}: {error}") from error
        else:
            if not pytorch_takes(op, sample):
                raise AssertionError(f"nothing raised: {wrong.error_regex}")
        if (kept + 1).tolist() != [1, 2, 3, 4]:
            raise AssertionError("an older tensor changed")
    if count == 0:
        raise NotApplicable


# Higher-order operators


def copied_to(device: str, sample: Sample) -> Sample:
    """A sample of its own there: a few of these operators change what they are given."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.clone().to(device)
        return leaf.to(device) if isinstance(leaf, BlockMask) else leaf

    return _pytree.tree_map(move, sample, is_leaf=lambda leaf: isinstance(leaf, BlockMask))  # type: ignore[no-any-return]


def check_hop(op: Any) -> None:
    torch.manual_seed(0)
    device = "cpu" if torch.float32 in op.dtypes else "cuda"  # some are for CUDA alone: they run or are refused by name
    with torch.no_grad():
        for found in op.sample_inputs(device, torch.float32):
            given = (found.input, tuple(found.args), dict(found.kwargs))
            there = copied_to("cuda", given)
            actual = op(there[0], *there[1], **there[2])
            if device == "cpu":
                here = copied_to("cpu", given)
                compare(op, op(here[0], *here[1], **here[2]), actual)


VARIANTS: dict[str, Callable[[Any], None]] = {"dual": check_dual, "vmap": check_vmap, "error": check_error, "hop": check_hop}


def cases(variant: str) -> list[tuple[str, Callable[[], None]]]:
    """The named cases of a variant, in the order of the database."""
    from torch.testing._internal.common_methods_invocations import op_db

    check = VARIANTS[variant]
    if variant == "hop":
        from torch.testing._internal.hop_db import hop_db

        return [(f"{name_of(op)} hop", lambda op=op: check(op)) for op in hop_db]
    if variant == "error":
        return [(f"{name_of(op)} error", lambda op=op: check(op)) for op in op_db if op.error_inputs_func is not None]
    fit = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu") and op.name not in RANDOM]
    return [(f"{name_of(op)} {variant}", lambda op=op: check(op)) for op in fit]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("ticket")
    parser.add_argument("output")
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--every", type=int, default=1, help="only every so many of a variant's cases")
    parser.add_argument("--only", nargs="*", default=[])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    attach(asked.address, asked.ticket)
    results: dict[str, str] = {}
    for variant in asked.variants:
        for name, check in cases(variant)[:: 1 if asked.only else asked.every]:
            if asked.only and name.rsplit(" ", 1)[0] not in asked.only:
                continue
            found = outcome(check)
            if found is not None:
                results[name] = found
            if asked.only and found:
                print(name, found, flush=True)
    with open(asked.output, "w") as file:
        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
