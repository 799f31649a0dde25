"""How a step may be spread over devices: a mesh with named axes, and what lies in parts along which.

The axes are ``stage`` (devices that compute some layers each), ``copy`` (devices that hold the same parts), ``shard`` (devices that hold
different ones) and ``tensor`` (devices that compute the same rows together). A batch's rows are divided over copies and shards. An axis of
stages or tensor groups of one device is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from math import gcd

from forebay.toolkit.planner.machine import Group, Machine

MIB = 1 << 20
BUCKETS = (0, 25 * MIB, 256 * MIB)
"""Bytes of gradients that are summed together; 0: each by itself, in place."""
STAGE_BUCKET = 25 * MIB
KEPT_TENTHS = (0, 5, 10)
"""How much of the weights stays gathered for the backward pass."""


class Sharding(IntEnum):
    """What is in parts, each level with those before it; the numbers are those of ZeRO's stages (Rajbhandari et al., arXiv:1910.02054)."""

    NONE = 0
    STATES = 1
    GRADIENTS = 2
    WEIGHTS = 3


class Recomputation(Enum):
    """What of repeated layers is computed again (recomputation.py), as people read it."""

    NOTHING = "nothing computed again"
    CHEAP = "all but products computed again"
    LAYERS = "layers computed again"


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
    recomputation: Recomputation = Recomputation.NOTHING
    """What is not kept, and computed again in the backward pass."""
    chunks: int = 1
    """Into how many parts the layers of a stage are divided, which take turns with those of the others (interleaved 1F1B)."""

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
    def tensor(self) -> int:
        return self.mesh.get("tensor", 1)

    @property
    def stages(self) -> int:
        return self.mesh.get("stage", 1)

    @property
    def data(self) -> int:
        """Into how many parts the rows are divided."""
        return self.copies * self.shards

    @property
    def devices(self) -> int:
        return self.data * self.tensor * self.stages

    @property
    def sums(self) -> int:
        """How often in a step gradients are summed among devices: gradients in parts have no room for those of the next micro-batch."""
        return self.micro_batches if self.sharding >= Sharding.GRADIENTS else 1

    @property
    def name(self) -> str:
        parts = [self._spread]
        if self.tensor > 1:
            parts.append(f"tensor parallel over {self.tensor}")
        if self.stages > 1:
            parts.append(f"{self.stages} stages" + (f" in {self.chunks} chunks each" if self.chunks > 1 else ""))
        if self.micro_batches > 1:
            parts.append(f"{self.micro_batches} micro-batches")
        if self.recomputation is not Recomputation.NOTHING:
            parts.append(self.recomputation.value)
        return ", ".join(parts)

    @property
    def _spread(self) -> str:
        if self.sharding is Sharding.NONE:
            return f"{NAMES[self.sharding]} x {self.data}" if self.data > 1 else "one device" if self.devices == 1 else "one batch"
        copies = f", {self.copies} copies of that" if self.copies > 1 else ""
        kept = f", {self.kept_tenths * 10} % kept gathered" if self.kept_tenths else ""
        return f"{NAMES[self.sharding]} over {self.shards}{copies}{kept}"

    def group(self, axis: str, machine: Machine) -> Group:
        """The devices of one collective along an axis."""
        inner = {"stage": self.data * self.tensor, "copy": self.shards * self.tensor, "shard": self.tensor, "tensor": 1}[axis]
        return group_of(self.mesh.get(axis, 1), inner, machine)


def group_of(size: int, inner: int, machine: Machine) -> Group:
    """So many devices, of which two neighbours in the group are ``inner`` devices apart."""
    within = gcd(size, max(1, machine.per_host // inner))
    return Group(within, size // within)


def tensor_sizes(machine: Machine) -> Iterator[int]:
    """How many devices may compute rows together: those of a host, or a part of them, since they wait for each other's sums."""
    return (size for size in range(1, machine.per_host + 1) if machine.per_host % size == 0 and machine.devices % size == 0)


def least_memory(machine: Machine, tensor: int) -> Layout:
    """The layout that takes least memory."""
    inner = (("tensor", tensor),) if tensor > 1 else ()
    return Layout((("copy", 1), ("shard", machine.devices // tensor), *inner), Sharding.WEIGHTS, 0)


def layouts(machine: Machine, tensor: int = 1) -> Iterator[Layout]:
    """All that are considered, whatever memory they need, with the batch of a device as one."""
    data, inner = machine.devices // tensor, (("tensor", tensor),) if tensor > 1 else ()
    for bucket in BUCKETS if data > 1 else (0,):
        yield Layout((("copy", data), ("shard", 1), *inner), Sharding.NONE, bucket)
    for shards in (size for size in range(2, data + 1) if data % size == 0 and _follows_hosts(size * tensor, machine)):
        axes = (("copy", data // shards), ("shard", shards), *inner)
        for bucket in BUCKETS:
            yield Layout(axes, Sharding.STATES, bucket)
            yield Layout(axes, Sharding.GRADIENTS, bucket)
            for kept in KEPT_TENTHS:
                yield Layout(axes, Sharding.WEIGHTS, bucket, kept)


def stage_layouts(machine: Machine, tensor: int, stages: int) -> Iterator[Layout]:
    """Of a pipeline: weights whole on their stage, optimizer states whole or in parts."""
    data, inner = machine.devices // tensor // stages, (("tensor", tensor),) if tensor > 1 else ()
    yield Layout((("stage", stages), ("copy", data), ("shard", 1), *inner), Sharding.NONE, STAGE_BUCKET if data > 1 else 0)
    if data > 1:
        yield Layout((("stage", stages), ("copy", 1), ("shard", data), *inner), Sharding.STATES, STAGE_BUCKET)


def _follows_hosts(devices: int, machine: Machine) -> bool:
    """Whether a group is a part of a host, some whole hosts, or all there is."""
    return machine.per_host % devices == 0 or devices % machine.per_host == 0 or devices == machine.devices
