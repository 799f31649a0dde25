"""Which devices serve what sessions have done, as the workers there say."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set

from forebay_wire.remote.runtimes import RUNTIMES, Runtime

from forebay_pool.model.types import Device, Node, Worker


class ServedRuntimes:
    """All devices serve all runtimes, until a worker on their host and of their kind says that it does not."""

    def __init__(self) -> None:
        self._lacking: dict[Runtime, set[str]] = {runtime: set() for runtime in RUNTIMES}
        """By runtime, the ids of the devices that do not serve it."""

    def learn(self, worker: Worker, nodes: Iterable[Node], served: Collection[Runtime] | None) -> bool:
        """The worker says what devices of its kind on its nodes serve; None: all. Whether that is news."""
        news, devices = False, [seat.device for node in nodes for seat in node.seats if seat.device.kind == worker.device.kind]
        for runtime, lacking in self._lacking.items():
            serve = served is None or runtime in served
            changed = [device.id for device in devices if (device.id in lacking) is serve]
            (lacking.difference_update if serve else lacking.update)(changed)
            news = news or bool(changed)
        return news

    def forget(self, devices: Iterable[Device]) -> None:
        """They are gone."""
        for lacking in self._lacking.values():
            lacking.difference_update(device.id for device in devices)

    def lacking(self, runtime: Runtime) -> Set[str]:
        """The ids of the devices that do not serve it."""
        return self._lacking[runtime]

    def serve(self, devices: Iterable[Device], runtime: Runtime) -> bool:
        """Whether all the devices do."""
        lacking = self._lacking[runtime]
        return not lacking or not any(device.id in lacking for device in devices)
