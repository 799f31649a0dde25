"""Runs PyTorch's operator database on the virtual device again and again, as a loop does, and writes what differs from the CPU as JSON.

Usage: ``python repeated_sweep.py ADDRESS TICKET OUTPUT --dtype NAME [--samples N] [--part N OF] [--described DIR | --batch FILE]``.
A case is an entry of ``op_db``, its gradient or not, and a sample. It is called in rounds, each time with other inputs of the same
shapes; each round's results are the CPU's. From the second round on its calls are carried out as steps that are known (tier 1).

With ``--described`` the worker's compiler keeps in that folder what it is told, and makes nothing: the output also says which cases'
graphs could be compiled. ``--batch`` takes such cases: all of them are one loop's body, of which the worker makes a library, proves it
(tier 2), and weighs it by turns; the output says how that ended.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from forebay import _C
from operator_sweep import (
    DTYPES,
    UNDEFINED,
    NotApplicable,
    Sample,
    arguments_of,
    attach,
    chosen,
    compare,
    gradients,
    is_random,
    name_of,
    on_cpu,
    outcome,
)
from torch.utils import _pytree

ROUNDS = 6
BATCH_ROUNDS = 24
"""Three that come before the library, three proofs, and two turns and more by which it is weighed."""
PADDING = 20
"""Calls that make a segment long enough for a library."""
NOT_MADE, BEING_MADE, NOTHING_MADE = "no library was made", "is being made", "none is made here"
MAKE_SECONDS_MAX = 1500


@dataclass
class Case:
    """What is called in a round. ``samples``: one for each round."""

    name: str
    op: Any
    gradient: bool
    samples: list[Sample]
    reads: bool = True
    """Whether each call so far waited for the device, which cuts its segment."""

    def call(self, sample: Sample) -> Any:
        return gradients(self.op, sample) if self.gradient else self.op(sample[0], *sample[1], **sample[2])

    def expect(self, sample: Sample) -> Any:
        """The CPU's answer. Raises NotApplicable."""
        return on_cpu(lambda: self.call(sample))

    def check(self, sample: Sample, expected: Any, found: Any) -> None:
        """Raises AssertionError where it is not what is expected."""
        values = not is_random(self.op, sample) and not (self.gradient and self.op.gradcheck_nondet_tol > 1e-3)
        compare(self.op, expected, found, values)


def form(sample: Sample) -> list[Any]:
    """What must be the same in each round."""
    leaves, spec = _pytree.tree_flatten(sample)
    told = [
        (leaf.shape, leaf.dtype, leaf.stride() if leaf.layout == torch.strided else leaf.layout, leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)
        for leaf in leaves
    ]
    return [*told, str(spec)]


def cases(entries: Sequence[Any], dtype: torch.dtype, count: int, rounds: int) -> Iterator[Case]:
    """Where a round's inputs would have another form, it has the first one's."""
    for op in entries:
        has_gradient = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        for gradient in (False, True) if has_gradient else (False,):
            if "forward" in UNDEFINED.get(op.name, ()):
                continue
            drawn = [chosen(op, dtype, count, gradient, seed) for seed in range(rounds)]
            for number, first in enumerate(drawn[0]):
                others = [samples[number] if number < len(samples) else first for samples in drawn]
                same = [one if form(one) == form(first) else first for one in others]
                yield Case(f"{name_of(op)} {'gradient' if gradient else 'forward'} {number}", op, gradient, same)


def put_padding(padding: torch.Tensor) -> None:
    for _ in range(PADDING):
        padding.mul_(0.5)


def run_round(body: Sequence[Case], number: int, padding: torch.Tensor | None = None) -> None:
    """All calls of the body, and then what they gave: so they are one segment, as far as they read nothing themselves."""
    given = [case.samples[number % len(case.samples)] for case in body]
    moved = [arguments_of(case.op, sample) for case, sample in zip(body, given, strict=True)]
    expected = [case.expect(sample) for case, sample in zip(body, given, strict=True)]
    torch.cuda.synchronize()
    if padding is not None:
        put_padding(padding)
    found = []
    for case, sample in zip(body, moved, strict=True):
        waits = _C.statistics()["syncs"]
        found.append(case.call(sample))
        case.reads &= _C.statistics()["syncs"] > waits
    for case, sample, answer, result in zip(body, given, expected, found, strict=True):
        try:
            case.check(sample, answer, result)
        except AssertionError as error:
            raise AssertionError(f"{case.name}, round {number}: {error}") from error


def check_case(case: Case, padding: torch.Tensor | None) -> None:
    """Raises NotApplicable where the CPU cannot do it."""
    for number in range(len(case.samples)):
        run_round([case], number, padding)


def times_of_segments() -> dict[int, int]:
    """How often each came, by what it is."""
    return {one["identity"]: one["times"] for one in _C.segments()}


def last_segment(before: dict[int, int]) -> dict[str, Any]:
    """The longest of those that came since."""
    return dict(max((one for one in _C.segments() if one["times"] > before.get(one["identity"], 0)), key=lambda one: one["calls"]))


def reason(before: dict[int, int], described: Path, reasons: dict[int, str]) -> str:
    """Why no graph of the case's segment could be compiled; empty where one could. ``reasons``: of segments, as cases may be the same."""
    from forebay_worker import descriptions, graphs

    identity = last_segment(before)["identity"]
    if identity in reasons:
        return reasons[identity]
    deadline = time.monotonic() + 60
    while any(word in (why := last_segment(before)["why"]) for word in (NOT_MADE, BEING_MADE)):
        if time.monotonic() > deadline:
            return str(why)
        time.sleep(0.01)
    reasons[identity] = str(why)
    if why != NOTHING_MADE:
        return reasons[identity]
    newest = max(described.glob("[0-9]*"), key=lambda path: int(path.name))
    try:
        graphs.build(descriptions.read(newest.read_bytes()))
        reasons[identity] = ""
    except graphs.Unsupported as error:
        reasons[identity] = str(error)
    return reasons[identity]


def sweep(body: Iterator[Case], described: Path | None) -> dict[str, Any]:
    """By case what went wrong, if anything; which cases came as known steps; and why none of their graphs could be compiled."""
    results: dict[str, str] = {}
    known, reasons, by_segment = [], {}, dict[int, str]()
    padding = torch.zeros(16).cuda() if described else None
    for case in body:
        before = times_of_segments()
        found = outcome(lambda case=case: check_case(case, padding))
        if found is None:
            continue
        results[case.name] = found
        if any(times - before.get(one, 0) >= len(case.samples) - 1 for one, times in times_of_segments().items()):
            known.append(case.name)
        if described and not found:
            reasons[case.name] = "it waits for the device" if case.reads else reason(before, described, by_segment)
    return {"results": results, "known": known, "reasons": reasons}


def batch(body: list[Case]) -> dict[str, Any]:
    """How the library of all these cases as one body ended: what the worker says of it, and what went wrong."""
    padding, before = torch.zeros(16).cuda(), times_of_segments()
    deadline, rounds = time.monotonic() + MAKE_SECONDS_MAX, 0
    error, why = "", ""

    def run() -> None:
        nonlocal rounds, why
        while rounds < BATCH_ROUNDS and time.monotonic() < deadline:
            run_round(body, rounds, padding)
            rounds += 1
            why = last_segment(before)["why"]
            while BEING_MADE in why and time.monotonic() < deadline:
                time.sleep(0.5)
                why = last_segment(before)["why"]

    try:
        run()
    except (AssertionError, NotApplicable, RuntimeError) as problem:
        error = " | ".join(str(problem).split("\n"))[:600]
    found = last_segment(before)
    return {"why": found["why"], "tier": found["tier"], "calls": found["calls"], "error": error, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("address", "ticket", "output"):
        parser.add_argument(name)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("N", "OF"))
    parser.add_argument("--described", type=Path)
    parser.add_argument("--batch", type=Path, help="a file with names of cases, a line of JSON")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    attach(asked.address, asked.ticket)
    from torch.testing._internal.common_methods_invocations import op_db

    dtype = DTYPES[asked.dtype]
    entries = [op for op in op_db if dtype in op.supported_dtypes("cpu")]
    if asked.batch:
        names = set(json.loads(asked.batch.read_text()))
        chosen_entries = [op for op in entries if any(name.startswith(f"{name_of(op)} ") for name in names)]
        told = batch([case for case in cases(chosen_entries, dtype, asked.samples, ROUNDS) if case.name in names])
    else:
        part, parts = asked.part
        told = sweep(cases(entries[part::parts], dtype, asked.samples, ROUNDS), asked.described)
    Path(asked.output).write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
