"""PyTorch's operator database and its attention, as peers run them; what they compute goes into files that a native peer compares."""

from __future__ import annotations

import itertools
import time
import warnings
from typing import Any

import torch
from torch.utils import _pytree

SAMPLES = 2
"""Of each entry."""
UNINITIALISED = {"resize_", "resize_as_", "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
TOLERANCES = {"float32": (1e-3, 1e-3), "bfloat16": (3e-2, 3e-2)}
"""Relative and absolute: kernels of one device may differ in order where one side takes a composite of another's."""


def entries(device: str, dtype: str, most: int) -> list[str]:
    """The names, with variants, of the entries that have this dtype on such a device; nothing that leaves memory as it was."""
    from torch.testing._internal.common_methods_invocations import op_db

    kind = torch.device(device).type
    wanted = getattr(torch, dtype)
    found = [name_of(entry) for entry in op_db if wanted in entry.supported_dtypes(kind) and entry.name not in UNINITIALISED]
    return found[:: max(1, len(found) // most)][:most]


def name_of(entry: Any) -> str:
    return f"{entry.name}.{entry.variant_test_name}".rstrip(".")


def compute(device: str, dtype: str, names: list[str], path: str, seconds: float, seed: int = 0) -> int:
    """Runs the entries' first samples, made on the host, and writes results and gradients. Returns how many entries it came to in time."""
    from torch.testing._internal.common_methods_invocations import op_db

    ends, results = time.monotonic() + seconds, {}
    wanted = set(names)
    for entry in op_db:
        if name_of(entry) in wanted and time.monotonic() < ends:
            results[name_of(entry)] = _outcomes(entry, device, getattr(torch, dtype), seed)
    torch.save(results, path)
    return len(results)


def _outcomes(entry: Any, device: str, dtype: torch.dtype, seed: int) -> list[list[torch.Tensor] | str]:
    """Of each sample its results on the host, or the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        try:
            samples = list(itertools.islice(entry.sample_inputs("cpu", dtype), SAMPLES))
        except Exception as error:  # a sample that the host cannot make
            return [f"no samples: {type(error).__name__}"]
        return [_outcome(entry, sample, device, seed) for sample in samples]


def _outcome(entry: Any, sample: Any, device: str, seed: int) -> list[torch.Tensor] | str:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device)
        return torch.device(device) if isinstance(leaf, torch.device) else device if leaf == "cpu" and isinstance(leaf, str) else leaf

    moved = _pytree.tree_map(move, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(seed)
    try:
        result = entry.op(moved[0], *moved[1], **moved[2])
        found = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        return [leaf.detach().to_dense().cpu().resolve_conj().resolve_neg().clone() for leaf in found]
    except Exception as error:  # compared like a result
        return f"error: {type(error).__name__}"


def compare(device: str, dtype: str, virtual: str, native: str, again: str) -> dict[str, Any]:
    """Holds what the client computed against the native results; what a second native run with another seed gives otherwise is
    chance, and left out. Returns how many samples were compared and were alike, and the entries that differ."""
    kinds = [torch.load(path, weights_only=True) for path in (virtual, native, again)]
    compared, alike, different = 0, 0, {}
    for name, outcomes in kinds[0].items():
        for mine, theirs, other in zip(outcomes, kinds[1].get(name, []), kinds[2].get(name, []), strict=False):
            if isinstance(theirs, str) or not _alike(theirs, other, dtype):
                continue
            compared += 1
            alike += (same := _alike(mine, theirs, dtype))
            if not same:
                different[name] = mine if isinstance(mine, str) else "other values"
    return {"compared": compared, "alike": alike, "different": different}


def _alike(one: list[torch.Tensor] | str, other: list[torch.Tensor] | str, dtype: str) -> bool:
    if isinstance(one, str) or isinstance(other, str) or len(one) != len(other):
        return one == other
    relative, absolute = TOLERANCES[dtype]
    try:
        torch.testing.assert_close(one, other, rtol=relative, atol=absolute, equal_nan=True)
    except AssertionError:
        return False
    return True


def attention(device: str, case: str, path: str) -> str:
    """Attention and its gradients in one case, written to a file. Returns the name of the function that autograd noted: the kernel's."""
    torch.manual_seed(0)
    dtype = torch.float32 if case == "float32" else torch.bfloat16
    query, key, value = (torch.randn(2, 8, 256, 64).to(device, dtype).requires_grad_() for _ in range(3))
    mask = torch.randn(2, 8, 256, 256).to(device, dtype) if case == "mask" else None
    dropout = 0.1 if case == "dropout" else 0.0
    made = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=case == "causal")
    made.sum().backward()
    gradients = [one.grad for one in (query, key, value) if one.grad is not None]
    torch.save([tensor.detach().float().cpu() for tensor in (made, *gradients)], path)
    name = made.grad_fn.name() if made.grad_fn is not None else ""
    return name if name.startswith("ScaledDotProduct") else "math"


def apart(device: str, one: str, other: str) -> float:
    """The largest difference of two files' tensors, of the largest value of each."""
    pairs = zip(torch.load(one, weights_only=True), torch.load(other, weights_only=True), strict=True)
    return max(float((mine - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6)) for mine, theirs in pairs)
