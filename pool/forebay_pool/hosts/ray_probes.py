"""The health of devices on a Ray cluster: on each node with accelerators an actor asks the drivers there.

The nodes need the drivers' libraries (see :mod:`forebay_pool.hosts.probes`), and no package of ours. Imported only where the setting
``launcher`` says ``ray``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError

from forebay_pool import errors
from forebay_pool.errors import one_line
from forebay_pool.hosts import probes
from forebay_pool.hosts.probes import DRIVERS, Drivers, HostWatch, NamedDevice
from forebay_pool.hosts.ray_launcher import SHARE_OF_A_CPU, on_node
from forebay_pool.hosts.ray_nodes import RayNode
from forebay_pool.model import health
from forebay_pool.model.health import Reading
from forebay_pool.model.types import Device

READ_SECONDS = 5.0
"""A node that takes longer says nothing this time, and is heard the next."""
PATIENCE_SECONDS = 120.0
"""A node that takes longer than that gets another actor."""

log = logging.getLogger(__name__)
for module in (errors, health, probes):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


@dataclass
class _Watch:
    """An actor, and its answer that is waited for."""

    actor: Any
    answer: Any
    asked: float


class RayProbe:
    """Reads the accelerators of all nodes of the cluster; ``nodes`` tells which there are now, each with its devices."""

    def __init__(self, nodes: Callable[[], Iterable[tuple[RayNode, Iterable[Device]]]], drivers: Drivers = DRIVERS) -> None:
        self._nodes = nodes
        self._drivers = drivers
        self._watches: dict[str, _Watch] = {}
        """By the node's id."""

    def read(self) -> list[Reading]:
        watched = {node.id: (node, found) for node, devices in self._nodes() if (found := _accelerators(devices))}
        for gone in set(self._watches) - set(watched):
            ray.kill(self._watches.pop(gone).actor)
        asked = {self._ask(node, devices).answer: node for node, devices in watched.values()}
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=READ_SECONDS) if asked else ([], [])
        for answer in late:
            if time.monotonic() - self._watches[asked[answer].id].asked > PATIENCE_SECONDS:
                self._give_up(asked[answer], f"no answer within {PATIENCE_SECONDS:g} s")
        return [reading for answer in done for reading in self._readings(asked[answer])]

    def _ask(self, node: RayNode, devices: list[NamedDevice]) -> _Watch:
        """The actor on the node, asked once until it answers."""
        watch = self._watches.get(node.id)
        if watch is None:
            host: Any = ray.remote(HostWatch)
            where = {"num_cpus": SHARE_OF_A_CPU, "num_gpus": 0, "label_selector": on_node(node)}
            watch = self._watches[node.id] = _Watch(host.options(**where).remote(devices, self._drivers), None, 0.0)
        if watch.answer is None:
            watch.answer, watch.asked = watch.actor.read.remote(), time.monotonic()
        return watch

    def _readings(self, node: RayNode) -> list[Reading]:
        watch = self._watches[node.id]
        try:
            return [Reading(**asdict(reading)) for reading in ray.get(watch.answer)]  # the node has a class of its own
        except RayError as error:
            self._give_up(node, one_line(error))
            return []
        finally:
            watch.answer = None

    def _give_up(self, node: RayNode, why: str) -> None:
        """The next reading begins with a new actor, if the node is still there."""
        log.warning("node %s does not tell its devices' health: %s", node.name, why, extra={"action": "probe_failed", "node": node.name})
        ray.kill(self._watches.pop(node.id).actor)


def _accelerators(devices: Iterable[Device]) -> list[NamedDevice]:
    return [NamedDevice(device.id, device.kind, device.index) for device in devices if device.kind in ("cuda", "hip")]
