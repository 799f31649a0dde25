"""What a node of a Ray cluster offers: the devices of every configured group that fits its labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forebay_pool.model.types import Device
from forebay_pool.settings import DeviceGroup

ACCELERATOR_LABEL = "ray.io/accelerator-type"
"""Set by Ray itself on nodes with an accelerator that it knows."""
MODEL_LABEL = "forebay.io/model"
"""Set by operators, on nodes with devices that Ray does not know."""
NODE_LABEL = "forebay.io/node"
"""A name for the node that outlives a restart; without it, the host's."""
SWITCH_LABEL = "forebay.io/switch"
RELEASE_LABEL = "forebay.io/release"
"""Set by ``forebay node join``: the release of Forebay that is installed there."""
ID_CHARACTERS = 8
NO_RECLAIMS: Mapping[str, int] = {}


@dataclass(frozen=True)
class RayNode:
    """A living node. ``id`` is new at each start of Ray there."""

    id: str
    name: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    reclaim_unix_ms: int | None = None
    """When its provider takes it back, where that was announced; 0: at any moment."""

    @classmethod
    def of(cls, row: Mapping[str, Any], reclaims: Mapping[str, int] = NO_RECLAIMS) -> RayNode:
        """From a row of ``ray.nodes()``; ``reclaims`` has the deadlines of nodes that are to go, by their ids."""
        labels = dict(row.get("Labels") or {})
        name = labels.get(NODE_LABEL, row["NodeManagerHostname"])
        gpus = int(row["Resources"].get("GPU", 0))
        return cls(row["NodeID"], name, row["NodeManagerAddress"], labels, gpus, reclaims.get(row["NodeID"]))

    @property
    def release(self) -> str | None:
        """Of Forebay there, where it is known."""
        return self.labels.get(RELEASE_LABEL)

    @property
    def models(self) -> frozenset[str]:
        """What its labels say it has."""
        return frozenset(self.labels[label] for label in (ACCELERATOR_LABEL, MODEL_LABEL) if label in self.labels)


def named_apart(nodes: Iterable[RayNode], known: Mapping[str, RayNode]) -> list[RayNode]:
    """The living nodes, each under a name of its own, which it keeps while it lives; ``known`` are those of the last time, by id.

    Several of one host carry the end of their id in it. A label names one node: if another bears it, Ray was started again there
    before its end was noticed, and the new one waits for that.
    """
    listed = list(nodes)
    names = Counter(node.name for node in listed)
    named = [replace(node, name=known[node.id].name) for node in listed if node.id in known]
    taken = {node.name for node in named}
    for node in listed:
        if node.id in known:
            continue
        if names[node.name] > 1 and NODE_LABEL not in node.labels:
            node = replace(node, name=f"{node.name}-{node.id[-ID_CHARACTERS:]}")
        if node.name not in taken:
            taken.add(node.name)
            named.append(node)
    return named


def devices_of(node: RayNode, groups: Iterable[DeviceGroup]) -> list[Device]:
    """The node's devices: of each group whose model its labels name, as many as Ray counts there, or else as the group says."""
    devices: list[Device] = []
    indices: Counter[str] = Counter()
    for group in groups:
        if group.model in node.models:
            count = node.gpus if group.kind in ("cuda", "hip") and node.gpus else group.count
            for _ in range(count):
                index = indices[group.kind]
                indices[group.kind] += 1
                devices.append(_device(node, group, index))
    return devices


def _device(node: RayNode, group: DeviceGroup, index: int) -> Device:
    switch = node.labels.get(SWITCH_LABEL, group.switch)
    name = f"{node.name}/{group.kind}:{index}"
    return Device(name, node.name, group.kind, index, group.model, group.memory, group.vendor, group.speed, switch, group.spot)
