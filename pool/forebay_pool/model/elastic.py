"""Groups of equal nodes that an autoscaler starts and ends, and what the pool has asked for of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from forebay_pool.model.metering import SECOND_NS
from forebay_pool.model.types import WHOLE_MILLI, Kind, Make


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Equal nodes, all of whose devices are of one model."""

    model: str
    kind: Kind
    memory_bytes: int
    """Of each device."""
    devices: int
    """Of each node."""
    nodes_min: int
    nodes_max: int
    start_seconds: float
    """From the demand until a node lends its devices."""

    @property
    def node_milli(self) -> int:
        return self.devices * WHOLE_MILLI

    @property
    def make(self) -> Make:
        return self.model, self.memory_bytes


@dataclass(slots=True)
class Growth:
    """How many nodes of a group are wanted, and which of them are on their way."""

    group: NodeGroup
    wanted: int = 0
    asked_ns: deque[int] = field(default_factory=deque)
    """Since when each node that is missing has been asked for, the first one first."""
    _needs: deque[tuple[int, int]] = field(default_factory=deque)
    """When so many nodes were needed: each fewer than the one before it."""

    def need(self, nodes: int, now_ns: int, release_ns: int) -> None:
        """So many nodes are needed now; as many are wanted as were needed at any moment of the last ``release_ns``."""
        while self._needs and self._needs[-1][1] <= nodes:
            self._needs.pop()
        self._needs.append((now_ns, nodes))
        while self._needs[0][0] < now_ns - release_ns:
            self._needs.popleft()
        self.wanted = self._needs[0][1]

    def await_nodes(self, missing: int, now_ns: int) -> None:
        """So many of those that are wanted are not there: whoever came was asked for first."""
        while len(self.asked_ns) > missing:
            self.asked_ns.popleft()
        self.asked_ns.extend([now_ns] * (missing - len(self.asked_ns)))

    def starts_left_ns(self, now_ns: int) -> Iterator[int]:
        """What is left until each missing node is there; one that is late is expected to be as late again."""
        start_ns = int(self.group.start_seconds * SECOND_NS)
        return (abs(asked_ns + start_ns - now_ns) for asked_ns in self.asked_ns)
