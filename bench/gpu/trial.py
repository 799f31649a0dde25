"""What a part works with: the device, how much to do on it, a folder, and the report that it fills."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu import peer
from gpu.checks import Report
from gpu.peer import Peer
from gpu.sizes import Sizes
from gpu.worker import Session, Worker, session_on, worker_on

NOT_REHEARSED = "not in a rehearsal"
UNCOUNTED = 4
"""As many times more steps of a block count."""


def blocks_ms(sides: Sequence[Peer], blocks: int, model: str, steps: int) -> list[list[float]]:
    """Blocks of a model's steps by turns, in all orders, each behind a few steps that do not count: while the others had theirs, a side's
    caches went cold and its processors slept, which takes the first step a millisecond and more."""
    turns = []
    for order in itertools.islice(itertools.cycle(itertools.permutations(range(len(sides)))), blocks):
        took = {}
        for side in order:
            sides[side].call("models.block_ms", model=model, steps=max(1, steps // UNCOUNTED))
            took[side] = sides[side].call("models.block_ms", model=model, steps=steps)
        turns.append([took[side] for side in range(len(sides))])
    return turns


@dataclass(frozen=True)
class Trial:
    """One run of a part."""

    device: str
    """The worker's, as ``cuda:0``."""
    memory_bytes: int
    """Of the device."""
    sizes: Sizes
    root: Path
    report: Report
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def is_host(self) -> bool:
        """Whether this is a rehearsal."""
        return self.device.startswith("cpu")

    def native(self) -> Peer:
        """PyTorch on the device itself, to be compared with."""
        return peer.native(self.device, self.root / f"native-{next(self._numbers)}.log")

    def worker(self) -> contextlib.AbstractContextManager[Worker]:
        return worker_on([self.device], self.root)

    def session(
        self, limit_bytes: int | None = None, *others: str, compiles: bool = False, kernels: bool = False
    ) -> contextlib.AbstractContextManager[Session]:
        """A session with an open lease, on the other devices too; its limit is the device's memory at most.

        ``compiles``: it asks for tier 2. ``kernels``: its worker takes kernels of programs.
        """
        limit_bytes = min(limit_bytes or self.sizes.limit_bytes, self.memory_bytes)
        return session_on([self.device, *others], self.root, limit_bytes, compiles, kernels)
