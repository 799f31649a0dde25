"""Makes wrong calls natively on the CPU and then on the virtual device, tells when and how each raises, and writes that as JSON.

Usage: ``FOREBAY_URL=local python wrong_calls.py OUTPUT [--sources NAME …] [--only TEXT] [--every N] [--show VERDICT …]``; the process
is its own, because it takes the CUDA key. Sources are the ``catalogue`` (wrong_call_catalogue.py), ``operators``, ``modules`` and
``optimizers`` (``error_inputs`` of PyTorch's databases), and ``dtypes`` and ``ranks``: samples of ``op_db`` with another dtype, or
another rank, in all or one of their tensors, as far as PyTorch refuses them.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils import _pytree
from wrong_call_catalogue import CALLS, WrongCall

SAME, WORDS, CLASS = "at the call", "at the call, in other words", "at the call, of another class"
LATER, NEVER, ALONE = "later", "never", "on the device alone"
VERDICTS = (SAME, WORDS, CLASS, LATER, NEVER, ALONE)
SYNCHRONISATIONS_MAX = 8
OTHER_DTYPES = (torch.float64, torch.float16, torch.int32, torch.int64, torch.bool, torch.complex64)


@dataclass(frozen=True)
class Raised:
    kind: str
    message: str


@dataclass(frozen=True)
class Finding:
    """How one wrong call ends. ``by_value``: natively, with other values in tensors of the same dtypes and sizes, it does not raise."""

    name: str
    source: str
    by_value: bool
    verdict: str
    native: Raised | None
    device: Raised | None


# What is called


def error_inputs(database: str) -> Iterator[tuple[str, Any]]:
    """Each entry of a database with what PyTorch says that it must refuse."""
    from torch.testing._internal import common_methods_invocations

    for op in getattr(common_methods_invocations, database):
        if op.error_inputs_func is None:
            continue
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        torch.manual_seed(0)
        with suppress(Exception):  # a few cannot be made without a GPU
            for index, wrong in enumerate(op.error_inputs("cpu")):
                yield f"{name} {index}", (op, wrong.sample_input)


def operators() -> Iterator[WrongCall]:
    for name, (op, sample) in error_inputs("op_db"):
        yield WrongCall(name, op, (sample.input, *sample.args), dict(sample.kwargs))


def _use_module(kind: type[torch.nn.Module], given: Any, forward: Any, device: torch.Tensor) -> None:
    module = kind(*given.args, **given.kwargs).to(device.device)
    if forward is not None:
        module(*forward.args, **forward.kwargs)


def modules() -> Iterator[WrongCall]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if info.module_error_inputs_func is None:
            continue
        found = info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
        for index, wrong in enumerate(found):
            given = wrong.module_error_input
            forward = given.forward_input
            arguments = (_Inputs(given.constructor_input), forward and _Inputs(forward), torch.ones(1))
            yield WrongCall(f"{info.name} {index}", partial(_made_with, info.module_cls), arguments)


@dataclass
class _Inputs:
    """Arguments of a module, where its tensors can be found."""

    given: Any


def _flatten(inputs: _Inputs) -> tuple[list[Any], None]:
    return [list(inputs.given.args), dict(inputs.given.kwargs)], None


def _unflatten(parts: Any, _context: None) -> _Inputs:
    from torch.testing._internal.common_modules import FunctionInput

    args, kwargs = parts
    return _Inputs(FunctionInput(*args, **kwargs))


_pytree.register_pytree_node(_Inputs, _flatten, _unflatten)


def _made_with(kind: type[torch.nn.Module], constructor: _Inputs, forward: _Inputs | None, device: torch.Tensor) -> None:
    _use_module(kind, constructor.given, forward and forward.given, device)


def _step(kind: type[torch.optim.Optimizer], options: dict[str, Any], parameters: Any) -> None:
    optimizer = kind(parameters, **options)
    optimizer.step(lambda: torch.ones(()))


def optimizers() -> Iterator[WrongCall]:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        for index, wrong in enumerate(info.optim_error_inputs_func(device="cpu", dtype=torch.float32)):
            given = wrong.optimizer_error_input
            yield WrongCall(f"{info.optim_cls.__name__} {index}", partial(_step, info.optim_cls), (given.kwargs, given.params))


def first_sample(op: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The first one of an entry in float32, or of the first dtype that it has, with numbers in its first tensor."""
    supported = op.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in supported else min(supported, key=str, default=None)
    if dtype is None:
        return None
    torch.manual_seed(0)
    with suppress(Exception):
        for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=False), 8):
            arguments = (sample.input, *sample.args)
            tensors = [leaf for leaf in _pytree.tree_leaves((arguments, sample.kwargs)) if isinstance(leaf, torch.Tensor)]
            if tensors and tensors[0].numel() > 0 and all(tensor.layout == torch.strided for tensor in tensors):
                return arguments, dict(sample.kwargs)
    return None


def changed_samples(every: int, changes: dict[str, Callable[[torch.Tensor], torch.Tensor]]) -> Iterator[WrongCall]:
    """Samples of every so many entries, with one change in all of their tensors, and in each one alone."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db[::every]:
        sample = first_sample(op)
        if sample is None:
            continue
        leaves, tree = _pytree.tree_flatten(sample)
        places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        choices = [places, *([place] for place in places if len(places) > 1)]
        entry = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        for (what, change), chosen in ((item, chosen) for item in changes.items() for chosen in choices):
            with suppress(Exception):
                given = [change(leaf) if index in chosen else leaf for index, leaf in enumerate(leaves)]
                arguments, options = _pytree.tree_unflatten(given, tree)
                which = "all" if chosen is places else f"tensor {places.index(chosen[0])}"
                yield WrongCall(f"{entry}, {which} {what}", op, arguments, options)


def dtypes(every: int) -> Iterator[WrongCall]:
    return changed_samples(every, {f"of {dtype}": lambda tensor, dtype=dtype: tensor.to(dtype) for dtype in OTHER_DTYPES})


def ranks(every: int) -> Iterator[WrongCall]:
    return changed_samples(
        every,
        {
            "with one more dimension": lambda tensor: tensor.unsqueeze(0),
            "with one dimension less": lambda tensor: tensor[0].clone(),
            "with one row more": lambda tensor: torch.cat([tensor, tensor[:1]]),
        },
    )


SOURCES: dict[str, Callable[[int], Iterator[WrongCall]]] = {
    "catalogue": lambda _every: iter(CALLS),
    "operators": lambda _every: operators(),
    "modules": lambda _every: modules(),
    "optimizers": lambda _every: optimizers(),
    "dtypes": dtypes,
    "ranks": ranks,
}


# Calling


Change = Callable[[torch.Tensor], torch.Tensor]


def copied(given: Any, device: str, change: Change | None = None) -> Any:
    """A copy there. Tensors that share memory share it again; leaves of autograd stay leaves; modules are copied whole."""
    storages: dict[int, torch.Tensor] = {}

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, torch.nn.Module):
            return _copied_module(leaf, device)
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return torch.device(device)
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta:
            return leaf
        plain = leaf.detach()
        if plain.layout != torch.strided:
            return plain.clone().to(device).requires_grad_(leaf.requires_grad)
        place = plain.untyped_storage().data_ptr() or id(leaf)
        if place not in storages:
            flat = torch.empty(0, dtype=torch.uint8).set_(plain.untyped_storage())
            storages[place] = flat.clone().to(device)
        moved = torch.empty(0, dtype=leaf.dtype, device=device)
        moved = moved.set_(storages[place].untyped_storage(), plain.storage_offset(), plain.shape, plain.stride())
        moved = torch._conj(moved) if plain.is_conj() else torch._neg_view(moved) if plain.is_neg() else moved
        if change is not None:
            moved = change(moved)
        return (
            torch.nn.Parameter(moved, leaf.requires_grad)
            if isinstance(leaf, torch.nn.Parameter)
            else moved.requires_grad_(leaf.requires_grad)
        )

    return _pytree.tree_map(copy, given)


def _copied_module(module: torch.nn.Module, device: str) -> torch.nn.Module:
    from copy import deepcopy

    return deepcopy(module).to(device)


def attempt(wrong: WrongCall, device: str, change: Change | None = None) -> Raised | None:
    """What the call raises there, before anything is waited for."""
    arguments, options = copied((wrong.arguments, wrong.options), device, change)
    torch.manual_seed(0)
    try:
        wrong.function(*arguments, **options)
    except Exception as error:
        return _raised(error)
    return None


def _raised(error: Exception) -> Raised:
    return Raised(type(error).__name__, str(error))


def settle() -> Raised | None:
    """Waits for the device until nothing raises any more; the first of what raised."""
    first: Raised | None = None
    for _ in range(SYNCHRONISATIONS_MAX):
        try:
            torch.cuda.synchronize()
            return first
        except Exception as error:
            first = first or _raised(error)
    sys.exit(f"the device raises at each synchronisation: {first}")


def identity(tensor: torch.Tensor) -> torch.Tensor:
    """Ones on the last two dimensions' diagonal, zeros elsewhere."""
    filled = torch.zeros_like(tensor)
    if tensor.dim() >= 2:
        filled.diagonal(dim1=-2, dim2=-1).fill_(1)
    return filled


def lengths(beyond: int) -> Change:
    """Ones, but for the first element, so that the sum is by ``beyond`` larger than the number of elements."""

    def filled(tensor: torch.Tensor) -> torch.Tensor:
        ones = torch.ones_like(tensor)
        ones.view(-1)[:1] = 1 + beyond
        return ones

    return filled


HARMLESS: tuple[Change, ...] = (torch.zeros_like, torch.ones_like, identity, lengths(1), lengths(2))


def depends_on_values(wrong: WrongCall) -> bool:
    return any(attempt(wrong, "cpu", change) is None for change in HARMLESS)


def as_on_any_device(message: str) -> str:
    """Without the device's name, and without what its types are called after it."""
    for there, here in (("torch.cuda.", "torch."), ("cuda:0", "cpu"), ("CUDA", "CPU"), ("cuda", "cpu")):
        message = message.replace(there, here)
    return message.strip()


def verdict_of(native: Raised | None, device: Raised | None, later: Raised | None) -> str | None:
    """None where neither raises."""
    if native is None:
        return ALONE if device or later else None
    if device is None:
        return LATER if later else NEVER
    if device.kind != native.kind:
        return CLASS
    return SAME if as_on_any_device(device.message) == as_on_any_device(native.message) else WORDS


def has_dense_arguments(wrong: WrongCall) -> bool:
    """What else there is has tests of its own."""
    leaves = _pytree.tree_leaves((wrong.arguments, wrong.options))
    return all(leaf.layout == torch.strided for leaf in leaves if isinstance(leaf, torch.Tensor))


def judge(wrong: WrongCall, source: str, also_right: bool) -> Finding | None:
    """None where there is nothing to tell: PyTorch takes the call, and the device too."""
    native = attempt(wrong, "cpu")
    if native is None and not also_right:
        return None
    if not has_dense_arguments(wrong):
        return None
    device, later = attempt(wrong, "cuda"), settle()
    verdict = verdict_of(native, device, later)
    if verdict is None:
        return None
    by_value = native is not None and verdict != SAME and depends_on_values(wrong)
    return Finding(wrong.name, source, by_value, verdict, native, device or later)


# Telling


def summary(findings: list[Finding]) -> str:
    """Counts of verdicts, a row for each source; what depends on values is counted apart."""
    lines = [f"{'':24}" + "".join(f"{verdict.removeprefix('at the call, '):>20}" for verdict in VERDICTS)]
    for by_value in (False, True):
        lines.append("by value:" if by_value else "by dtypes and arguments:")
        for source in SOURCES:
            counts = Counter(one.verdict for one in findings if one.source == source and one.by_value == by_value)
            if counts:
                lines.append(f"  {source:22}" + "".join(f"{counts[verdict]:20,}" for verdict in VERDICTS))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--sources", nargs="*", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--only", default="", help="only calls whose name holds this text")
    parser.add_argument("--every", type=int, default=1, help="change samples of only every so many entries of op_db")
    parser.add_argument("--show", nargs="*", choices=VERDICTS, default=[], help="print the findings with these verdicts, too")
    parser.add_argument("--verbose", action="store_true", help="name each call before it is made")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.cuda.init()
    findings: list[Finding] = []
    for source in asked.sources:
        for wrong in SOURCES[source](asked.every):
            if asked.only not in wrong.name:
                continue
            if asked.verbose:
                print(source, wrong.name, flush=True)
            found = judge(wrong, source, source == "operators")
            findings += [found] if found else []
    with open(asked.output, "w") as file:
        json.dump([asdict(one) for one in findings], file, indent=1)
    for one in findings:
        if one.verdict in asked.show:
            print(f"{one.source}: {one.name}: {one.verdict}{' (by value)' if one.by_value else ''}\n  {one.native}\n  {one.device}")
    print(summary(findings))


if __name__ == "__main__":
    main()
