"""Searches for calls that several devices divide by a rule that does not hold for all values.

``division_search.py ADDRESS TICKET COUNT SEED [OPERATOR …]`` holds so many sequences of calls of PyTorch's operators on the virtual device
against the CPU, element by element, and prints as JSON what differs, how many calls were divided, and of which operators. In a
sequence one sample of an operator is called with values that change (value_sequences.py): its tensors are uploaded anew each time, as
batches are, or stay, by chance, and their dimensions lie in memory in any order, so that any of them is divided. The samples'
sizes are multiples of 2 and 3, so that devices have equal parts of them.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import warnings
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
import operator_sweep

if __name__ == "__main__":
    operator_sweep.attach(sys.argv[1], sys.argv[2])

import pytorch_databases  # noqa: F401
import torch
from forebay import gang_work
from torch.testing._internal.opinfo import core
from torch.utils import _pytree
from value_sequences import alike, filled

core.S, core.M, core.L = 6, 12, 24  # of the samples; before the database takes them over
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

SAMPLES_SEEN = 24
ROUNDS = 5
"""Of a sequence. From the third one on uploads are taken for batches."""
DEGENERATE_ROUNDS = 3
LARGEST = 1 << 16
LOSSES = ("nn.functional.cross_entropy", "nn.functional.nll_loss")
LEFT_OUT = {
    # what they give depends on the last bits of what they are given, or on chance
    *("empty", "geqrf", "linalg.eig", "linalg.eigvals", "linalg.lstsq", "pca_lowrank", "svd_lowrank"),
    # they draw, or copy without waiting
    *("nn.functional.multi_head_attention_forward", "to"),
    # kernels of the host that give for NaN what depends on its place: those of the last elements differ from those of the others
    *("nn.functional.celu", "nn.functional.elu", "nn.functional.selu", "nn.functional.hardshrink", "nn.functional.softshrink"),
    *("nn.functional.hardswish", "logit"),
    # the host's kernel for gradients ends the process for places that are no numbers
    *("grid_sampler_2d", "grid_sampler_3d", "nn.functional.grid_sample"),
    # the host's kernels read what nothing wrote, or trust numbers of elements
    *("_segment_reduce", "segment_reduce", "special.chebyshev_polynomial_w"),
}


class Sample:
    """An operator, what it is called with, and how: all tensors on the CPU."""

    def __init__(self, op: Any, sample: Any, chance: random.Random) -> None:
        self.op, self.chance = op, chance
        self.leaves, self.tree = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.tensors = [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]
        self.batches = {place for place in self.tensors if chance.random() < 0.7} or set(self.tensors[:1])
        self.orders = {place: self.order(self.leaves[place].ndim) for place in self.tensors}
        self.differentiates = op.supports_autograd and chance.random() < 0.4

    def order(self, rank: int) -> list[int] | None:
        """In which a tensor's dimensions lie in memory, from the outermost; devices have rows of that one. None: as they are."""
        dims = list(range(rank))
        if self.chance.random() < 0.5:
            return None
        self.chance.shuffle(dims)
        return dims

    def laid_out(self, place: int, value: torch.Tensor) -> torch.Tensor:
        order = self.orders[place]
        if order is None or value.ndim != len(order):
            return value
        return value.permute(order).contiguous().permute([order.index(dim) for dim in range(value.ndim)])

    def drawn(self, ordinary: bool, kept: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Values of all tensors; those that stay are in ``kept`` once they are there."""
        values = {}
        for place in self.tensors:
            if place not in kept or place in self.batches:
                value = filled(self.leaves[place].detach(), self.chance, ordinary, classes=self.op.name in LOSSES)
                kept[place] = self.laid_out(place, value)
            values[place] = kept[place]
        return values

    def call(self, values: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        """Results, and gradients of what may have one."""
        values = {place: value.detach() for place, value in values.items()}
        leaves = [value for value in values.values() if self.differentiates and (value.is_floating_point() or value.is_complex())]
        for leaf in leaves:
            leaf.requires_grad_()
        given = [values.get(place, leaf) for place, leaf in enumerate(self.leaves)]
        first, args, kwargs = _pytree.tree_unflatten(given, self.tree)
        results = [leaf for leaf in _pytree.tree_leaves(self.op.op(first, *args, **kwargs)) if isinstance(leaf, torch.Tensor)]
        outputs = [result for result in results if result.requires_grad]
        gradients: Iterable[torch.Tensor | None] = ()
        if outputs:
            weights = [torch.linspace(0.5, 1.5, max(output.numel(), 1), dtype=torch.float64)[: output.numel()] for output in outputs]
            directions = [
                weight.view(output.shape).to(output.dtype).to(output.device) for weight, output in zip(weights, outputs, strict=True)
            ]
            gradients = torch.autograd.grad(outputs, leaves, directions, allow_unused=True)
        return [*(result.detach() for result in results), *(gradient for gradient in gradients if gradient is not None)]


def on_device(sample: Sample, values: dict[int, torch.Tensor], held: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    for place, value in values.items():
        if place in sample.batches or place not in held:
            held[place] = value.to("cuda")
    return [result.cpu() for result in sample.call(held)]


def difference(sample: Sample) -> str | None:
    """What is wrong in a sequence."""
    kept: dict[int, torch.Tensor] = {}
    held: dict[int, torch.Tensor] = {}
    for number in range(ROUNDS):
        values = sample.drawn(ordinary=number >= DEGENERATE_ROUNDS, kept=kept)
        try:
            theirs = sample.call(values)
        except Exception:  # noqa: S112 what the CPU does not do says nothing
            continue
        if any(result.numel() > LARGEST or result.device.type != "cpu" or result.layout != torch.strided for result in theirs):
            return None
        try:
            ours = on_device(sample, values, held)
        except Exception as error:
            return f"round {number}: {type(error).__name__}: {error}"
        if len(ours) != len(theirs):
            return f"round {number}: {len(ours)} results, not {len(theirs)}"
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if not alike(one, other):
                return f"round {number}, result {place}: {one.flatten()[:6].tolist()}, not {other.flatten()[:6].tolist()}"
    return None


class Samples:
    """Of all operators that give the same each time, made when they are asked for."""

    def __init__(self, only: list[str]) -> None:
        left_out = LEFT_OUT | operator_sweep.RANDOM | operator_sweep.UNINITIALISED
        left_out |= operator_sweep.ON_HOST | operator_sweep.UNDEFINED.keys()
        left_out |= {op.name for op in op_db if op.name.startswith("sparse.")}  # some of their arguments stay on the CPU
        self.ops = [op for op in op_db if op.name not in left_out and (not only or op.name in only)]
        self.made: dict[tuple[int, torch.dtype], list[Any]] = {}

    def make(self, place: int, dtype: torch.dtype) -> Iterable[Any]:
        """Of one operator, up to the first whose sizes do not fit each other, as some are written for 5 rows."""
        torch.manual_seed(place)
        with contextlib.suppress(IndexError, RuntimeError, ValueError):
            yield from islice(self.ops[place].sample_inputs("cpu", dtype, requires_grad=False), SAMPLES_SEEN)

    def draw(self, chance: random.Random) -> Sample | None:
        place = chance.randrange(len(self.ops))
        op = self.ops[place]
        dtypes = [dtype for dtype in (torch.float64, torch.int64, torch.float32, torch.bool) if op.supports_dtype(dtype, "cpu")]
        if not dtypes:
            return None
        dtype = dtypes[0] if chance.random() < 0.7 else chance.choice(dtypes)
        samples = self.made.get((place, dtype))
        if samples is None:
            samples = self.made[place, dtype] = list(self.make(place, dtype))
        if not samples:
            return None
        chosen = chance.choice(samples)
        if chosen.kwargs.get("dropout_p"):
            return None
        sample = Sample(op, chosen, chance)
        small = all(sample.leaves[one].numel() <= LARGEST for one in sample.tensors)
        return sample if sample.tensors and small else None


def divided_calls(after: str) -> int:
    told = gang_work.read(0)
    if told is None:
        raise SystemExit(f"the session ended in {after}")
    return told.divided.calls


def search(count: int, seed: int, only: list[str]) -> dict[str, Any]:
    samples, found, divided, done = Samples(only), [], {}, 0
    torch.ones(1).to("cuda").sum().item()
    before = divided_calls("the first call")
    for number in range(count):
        chance = random.Random(seed * 1_000_003 + number)
        sample = samples.draw(chance)
        if sample is None:
            continue
        done += 1
        wrong = difference(sample)
        if wrong:
            found.append(f"{sample.op.name}, seed {number}: {wrong}")
        now = divided_calls(f"{sample.op.name}, seed {number}")
        divided[sample.op.name] = divided.get(sample.op.name, 0) + now - before
        before = now
    return {"sequences": done, "differences": found, "divided": {name: calls for name, calls in divided.items() if calls}}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(json.dumps(search(int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])))
