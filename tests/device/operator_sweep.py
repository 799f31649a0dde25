"""Runs PyTorch's operator database on the virtual device and on the CPU, and writes what differs as JSON.

Usage: ``python operator_sweep.py ADDRESS TICKET OUTPUT [NAME …]``; the process is its own, because it takes the CUDA key.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

SAMPLES_MAX = 4
SECONDS_MAX = 60
RANDOM = set(
    """
    bernoulli cauchy exponential geometric log_normal multinomial nn.functional.alpha_dropout nn.functional.dropout
    nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.functional.multi_head_attention_forward
    nn.functional.rrelu nn.functional.scaled_dot_product_attention normal normal_in_place pca_lowrank rand_like randint
    randint_like randn randn_like svd_lowrank uniform
    """.split()
)
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


def attach(address: str, ticket: str) -> None:
    """Gives this process the virtual device, served by a worker that opened its own lease."""
    import torch  # noqa: F401 the extension needs its libraries loaded
    from forebay import _C, facade
    from forebay.virtual_device import VirtualDevices

    served: list[object] = []

    def connect(_device: int) -> None:
        if not _C.connected():
            if served:
                sys.exit("the worker ended the session")
            served.append(_C.connect(address, bytes.fromhex(ticket)))
        _C.lease_opened(1)

    devices = VirtualDevices()
    devices.start()
    facade.install(devices)
    _C.set_lease_callback(connect)


def to_device(value: Any) -> Any:
    """The same arguments with their tensors on the virtual device."""
    import torch
    from torch.utils import _pytree

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            whole = torch.empty(0, dtype=leaf.dtype).set_(leaf.untyped_storage())
            return whole.to("cuda").as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to("cuda")
        if isinstance(leaf, torch.device):
            return torch.device("cuda")
        return "cuda" if isinstance(leaf, str) and leaf == "cpu" else leaf

    return _pytree.tree_map(move, value)


def compare(expected: Any, actual: Any, values: bool) -> None:
    """Raises AssertionError where results differ; ``values`` False compares geometry and type only."""
    import torch
    from torch.utils import _pytree

    leaves, others = _pytree.tree_leaves(expected), _pytree.tree_leaves(actual)
    if len(leaves) != len(others):
        raise AssertionError(f"{len(others)} results, not {len(leaves)}")
    for one, other in zip(leaves, others, strict=True):
        if not isinstance(one, torch.Tensor):
            if values and not (one == other or one is other):
                raise AssertionError(f"{other!r}, not {one!r}")
            continue
        if not other.is_cuda:
            raise AssertionError(f"a result on {other.device}")
        if one.shape != other.shape or one.dtype != other.dtype:
            raise AssertionError(f"{other.dtype} {tuple(other.shape)}, not {one.dtype} {tuple(one.shape)}")
        if values:
            if one.dtype.itemsize == 1 and one.dtype.is_floating_point:
                one, other = one.float(), other.float()
            torch.testing.assert_close(other.cpu(), one, rtol=2e-4, atol=2e-5, equal_nan=True)


def run_entry(op: Any) -> None:
    """Up to SAMPLES_MAX samples of an entry of op_db; raises what goes wrong."""
    import torch

    supported = op.supported_dtypes("cpu")
    dtype = next((dtype for dtype in (torch.float32, torch.int64, torch.complex64, torch.bool) if dtype in supported), torch.float32)
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES_MAX):
        moved = to_device((sample.input, sample.args, sample.kwargs))
        expected = op(sample.input, *sample.args, **sample.kwargs)
        actual = op(moved[0], *moved[1], **moved[2])
        compare(expected, actual, op.name not in RANDOM | UNINITIALISED)


def outcome(check: Callable[[], None]) -> str | None:
    """None, or the error's last line."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"took longer than {SECONDS_MAX} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS_MAX)
    try:
        check()
        return None
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:300]
    finally:
        signal.alarm(0)


def main() -> None:
    address, ticket, output, *only = sys.argv[1:]
    warnings.simplefilter("ignore")
    attach(address, ticket)
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    torch.manual_seed(0)
    results = {}
    for op in op_db:
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        if only and name not in only and op.name not in only:
            continue
        results[name] = outcome(lambda op=op: run_entry(op))
        if only:
            print(name, results[name], flush=True)
    with open(output, "w") as file:
        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
