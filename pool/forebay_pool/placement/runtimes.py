"""Which devices serve what sessions have done, as the workers there say."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set

from forebay_wire.remote.runtimes import RUNTIMES, Runtime

from forebay_pool.model.causes import Cause
from forebay_pool.model.types import Device, Node, Worker


class ServedRuntimes:
    """All devices serve all runtimes, until a worker on their host and of their kind says that it does not."""

    def __init__(self) -> None:
        self._lacking: dict[Runtime, set[str]] = {runtime: set() for runtime in RUNTIMES}
        """By runtime, the ids of the devices that do not serve it."""
        self._unconfined: dict[str, tuple[Node, set[str]]] = {}
        """Hosts that could not confine a process, by name, and the ids of their devices that serve ``exec`` otherwise."""

    def learn(self, worker: Worker, nodes: Iterable[Node], served: Collection[Runtime] | None) -> bool:
        """The worker says what devices of its kind on its nodes serve; None: all. Whether that is news."""
        news, devices = False, [seat.device for node in nodes for seat in node.seats if seat.device.kind == worker.device.kind]
        for runtime, lacking in self._lacking.items():
            serve = served is None or runtime in served
            changed = [device.id for device in devices if (device.id in lacking) is serve and not self._is_unconfined(device, runtime)]
            (lacking.difference_update if serve else lacking.update)(changed)
            news = news or bool(changed)
        return news

    def _is_unconfined(self, device: Device, runtime: Runtime) -> bool:
        return runtime == "exec" and device.node in self._unconfined and device.id in self._unconfined[device.node][1]

    def fail_to_confine(self, worker: Worker, node: Node, why: Cause, until_ns: int) -> None:
        """The worker could not confine a process: none is started beside devices of its kind on the node, until then."""
        _, before = self._unconfined.get(node.name, (node, set()))
        found = {seat.device.id for seat in node.seats if seat.device.kind == worker.device.kind} - self._lacking["exec"]
        self._unconfined[node.name] = node, before | found
        self._lacking["exec"] |= found
        node.unconfined, node.retry_ns = why, until_ns

    def due(self, now_ns: int) -> list[Node]:
        """Hosts that could not confine a process, and whose time is over."""
        return [node for node, _ in self._unconfined.values() if node.retry_ns <= now_ns]

    def trust(self, node: Node) -> None:
        """The node is taken for one that confines processes, until a worker there says otherwise."""
        _, devices = self._unconfined.pop(node.name, (node, set()))
        self._lacking["exec"] -= devices
        node.unconfined = None

    def forget(self, devices: Collection[Device]) -> None:
        """They are gone, and their hosts are."""
        for device in devices:
            self._unconfined.pop(device.node, None)
        for lacking in self._lacking.values():
            lacking.difference_update(device.id for device in devices)

    def lacking(self, runtime: Runtime) -> Set[str]:
        """The ids of the devices that do not serve it."""
        return self._lacking[runtime]

    def serve(self, devices: Iterable[Device], runtime: Runtime) -> bool:
        """Whether all the devices do."""
        lacking = self._lacking[runtime]
        return not lacking or not any(device.id in lacking for device in devices)
