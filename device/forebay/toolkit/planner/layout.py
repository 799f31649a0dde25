"""How a step may be spread over devices: a mesh with named axes, and what lies in parts along which.

Today's axes are ``copy`` (devices that hold the same parts) and ``shard`` (devices that hold different ones); a batch's rows are divided
over both. Tensor and pipeline axes would come after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import gcd

from forebay.toolkit.planner.machine import Group, Machine

MIB = 1 << 20
BUCKETS = (0, 25 * MIB, 64 * MIB, 256 * MIB)
"""Bytes of gradients that are summed together; 0: each by itself, in place."""
KEPT_TENTHS = (0, 5, 10)
"""How much of the weights stays gathered for the backward pass."""


class Sharding(IntEnum):
    """What is in parts, each level with those before it; the numbers are those of ZeRO's stages (Rajbhandari et al., arXiv:1910.02054)."""

    NONE = 0
    STATES = 1
    GRADIENTS = 2
    WEIGHTS = 3


NAMES = {Sharding.NONE: "data parallel", Sharding.STATES: "ZeRO-1", Sharding.GRADIENTS: "ZeRO-2", Sharding.WEIGHTS: "ZeRO-3"}


@dataclass(frozen=True)
class Layout:
    """One way to spread a step."""

    axes: tuple[tuple[str, int], ...]
    """Names and sizes, the outermost first: devices of the last axis are nearest to each other."""
    sharding: Sharding
    bucket_bytes: int
    kept_tenths: int = 0
    """Of the layers, from the last one on, that stay gathered from the forward pass to the backward one."""
    micro_batches: int = 1
    """Equal parts of a device's rows that are computed one after the other; their gradients are added."""
    recomputes: bool = False
    """Whether repeated layers keep their inputs alone, and are computed again in the backward pass (recomputation.py)."""

    @property
    def mesh(self) -> Mapping[str, int]:
        return dict(self.axes)

    @property
    def shards(self) -> int:
        return self.mesh["shard"]

    @property
    def copies(self) -> int:
        return self.mesh["copy"]

    @property
    def devices(self) -> int:
        return self.copies * self.shards

    @property
    def sums(self) -> int:
        """How often in a step gradients are summed among devices: gradients in parts have no room for those of the next micro-batch."""
        return self.micro_batches if self.sharding >= Sharding.GRADIENTS else 1

    @property
    def name(self) -> str:
        parts = f", {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        return self._spread + parts + (", layers computed again" if self.recomputes else "")

    @property
    def _spread(self) -> str:
        if self.sharding is Sharding.NONE:
            return f"{NAMES[self.sharding]} x {self.devices}" if self.devices > 1 else "one device"
        copies = f", {self.copies} copies of that" if self.copies > 1 else ""
        kept = f", {self.kept_tenths * 10} % kept gathered" if self.kept_tenths else ""
        return f"{NAMES[self.sharding]} over {self.shards}{copies}{kept}"

    def group(self, axis: str, machine: Machine) -> Group:
        """The devices of one collective along an axis."""
        size, inner = self.mesh[axis], self.shards if axis == "copy" else 1
        within = gcd(size, max(1, machine.per_host // inner)) if machine.devices > 1 else 1
        return Group(within, size // within)


def layouts(machine: Machine) -> Iterator[Layout]:
    """All that are considered, whatever memory they need, with the batch of a device as one."""
    for bucket in BUCKETS if machine.devices > 1 else (0,):
        yield Layout((("copy", machine.devices), ("shard", 1)), Sharding.NONE, bucket)
    for shards in (size for size in range(2, machine.devices + 1) if machine.devices % size == 0):
        axes = (("copy", machine.devices // shards), ("shard", shards))
        for bucket in BUCKETS:
            yield Layout(axes, Sharding.STATES, bucket)
            yield Layout(axes, Sharding.GRADIENTS, bucket)
            for kept in KEPT_TENTHS:
                yield Layout(axes, Sharding.WEIGHTS, bucket, kept)
