"""What the devices can serve at all, and why where they cannot. Kept until devices, flavors or policies change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from forebay_pool.model.causes import Cause
from forebay_pool.model.elastic import Growth, NodeGroup
from forebay_pool.model.policies import Policy
from forebay_pool.model.types import WHOLE_MILLI, Device, Equivalent, Flavor, Seat
from forebay_pool.placement.free_index import FreeIndex, Group


class Estate(Protocol):
    """What capacities are worked out from."""

    policy: Policy

    @property
    def growth(self) -> Mapping[str, Growth]: ...

    @property
    def seats(self) -> Mapping[str, Seat]: ...

    @property
    def indexes(self) -> Mapping[str, FreeIndex]: ...


NO_MODELS: frozenset[str] = frozenset()
NAMED_MAX = 3
"""A sentence names so many of the ways that there are not."""


class Capacity:
    """Answers about the devices that are here, whoever holds them; cordoned and lost ones may come back, and count. So do nodes that could
    be started."""

    def __init__(self, estate: Estate) -> None:
        self._estate = estate
        self._answers: dict[tuple[Flavor, frozenset[str]], Cause | None] = {}

    def forget(self) -> None:
        """Devices, flavors or policies have changed."""
        self._answers.clear()

    def why_not(self, flavor: Flavor, tenant: str | None) -> Cause | None:
        """Why nothing here can ever serve the flavor, to the tenant if one is named; None if something can."""
        policy = self._estate.policy
        barred = NO_MODELS
        if tenant is not None and policy.models:
            barred = frozenset(e.model for e in flavor.equivalents if not policy.allows(e.model, tenant))
        key = (flavor, barred)
        if key not in self._answers:
            self._answers[key] = self._judge(flavor, barred)
        return self._answers[key]

    def _judge(self, flavor: Flavor, barred: frozenset[str]) -> Cause | None:
        indexes = self._estate.indexes
        if any(can_start(growth.group, flavor) for name, growth in self._estate.growth.items() if name not in barred):
            return None
        here = [e for e in flavor.equivalents if e.model in indexes]
        absent = [e for e in flavor.equivalents if e.model not in indexes]
        reasons = []
        for equivalent in here:
            reason = self._why_not_by(flavor, equivalent, indexes[equivalent.model], barred)
            if reason is None:
                return None
            reasons.append(reason)
        if reasons:
            reasons += [Cause("none_here", *_some([e.model for e in absent], "models_more"))] if absent else []
            return Cause("flavor_unfit", *reasons, flavor=flavor.name)
        wanted = _some([way(e) for e in absent], "ways_more") or [Cause("way_unnamed")]
        counts = {model: sum(len(group.seats) for group in index.groups.values()) for model, index in indexes.items()}
        found = ", ".join(f"{count} {model}" for model, count in sorted(counts.items()))
        if not found:
            return Cause("flavor_no_devices", *wanted, flavor=flavor.name)
        return Cause("flavor_absent", *wanted, flavor=flavor.name, found=found)

    def _why_not_by(self, flavor: Flavor, equivalent: Equivalent, index: FreeIndex, barred: frozenset[str]) -> Cause | None:
        model, count = equivalent.model, equivalent.count
        if model in barred:
            return Cause("kept_for_others", model=model)
        devices = [seat.device for group in index.groups.values() for seat in group.seats]
        fitting = sum(suits(device, flavor, equivalent) for device in devices)
        if fitting < count:
            if fitting or len(devices) < count:
                return Cause("too_few", takes=count, model=model, found=fitting or len(devices))
            most = max(device.memory_bytes for device in devices)
            if count > 1:
                sizes = {"devices_bytes": count * most, "flavor_bytes": flavor.memory_bytes}
                return Cause("too_small_together", takes=count, model=model, **sizes)
            return Cause("too_small", model=model, device_bytes=most, flavor_bytes=flavor.memory_bytes)
        together = _most_together(index, flavor, equivalent, self._estate.policy)
        if together < count:
            code = "too_few_in_node" if self._estate.policy.gang_spread == "node" else "too_few_under_switch"
            return Cause(code, takes=count, model=model, found=together)
        return None


def _most_together(index: FreeIndex, flavor: Flavor, equivalent: Equivalent, policy: Policy) -> int:
    """How many devices that suit are as close together as a gang's must be."""
    near: Counter[str] = Counter()
    for group in index.groups.values():
        near[_place_name(group, policy)] += sum(suits(seat.device, flavor, equivalent) for seat in group.seats)
    return max(near.values())


def _place_name(group: Group, policy: Policy) -> str:
    return {"node": group.node, "switch": group.switch, "any": ""}[policy.gang_spread]


class Size(Protocol):
    """Devices of one make: one of them, or a group of nodes that could be started."""

    @property
    def model(self) -> str: ...

    @property
    def memory_bytes(self) -> int: ...


def suits(device: Size, flavor: Flavor, equivalent: Equivalent) -> bool:
    """Whether the device can be one of those that serve the flavor this way: the gang's memory together holds the flavor's."""
    return equivalent.model == device.model and flavor.memory_bytes <= equivalent.count * device.memory_bytes


def can_start(group: NodeGroup, flavor: Flavor) -> bool:
    """Whether nodes of the group could be started that serve the flavor."""
    return any(suits(group, flavor, e) and e.count <= group.nodes_max * group.devices for e in flavor.equivalents)


def equivalents_for(devices: tuple[Device, ...], flavor: Flavor) -> list[Equivalent]:
    """The ways in which exactly these devices serve the flavor, best first."""
    count = len(devices)
    if count == 1:
        return [e for e in flavor.equivalents if e.count == 1 and suits(devices[0], flavor, e)]
    return [e for e in flavor.equivalents if e.count == count and all(suits(device, flavor, e) for device in devices)]


def part_of(memory_bytes: int, count: int) -> int:
    """What each of so many devices holds of that together."""
    return -(-memory_bytes // count)


def _some(names: Sequence[str], others: str) -> list[str]:
    """The choice among these; of many, some and a cause of the code ``others`` for how many more there are."""
    if len(names) <= NAMED_MAX:
        return list(names)
    return [*names[:NAMED_MAX], Cause(others, more=len(names) - NAMED_MAX)]


def way(equivalent: Equivalent) -> Cause:
    """The equivalent for people."""
    if equivalent.share_milli < WHOLE_MILLI:
        return Cause("way_share", percent=f"{equivalent.share_milli / 10:g}", model=equivalent.model)
    return Cause("way", count=equivalent.count, model=equivalent.model)
