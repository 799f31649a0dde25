"""How many nodes of each elastic group it takes, so that those who ask for leases seldom wait. No I/O.

What is needed of devices that serve the same flavors is the larger of what is held and waited for now, and of what the forecast says: the
fewest devices on which no greater a share of requests that come at random would wait (Erlang's C formula). What is beyond the present need
is shared out as the flavors' loads are. The leases are then laid onto the devices that are always there, and onto nodes of the groups, in
the order of the groups; leases of several devices take whole parts of nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forebay_pool.model.elastic import NodeGroup
from forebay_pool.model.types import Equivalent, Flavor
from forebay_pool.placement.capacity import suits
from forebay_pool.placement.forecast import servers_for

COMING_MIN = 0.5
"""Nothing is kept ready where fewer requests are to be expected."""


@dataclass(frozen=True, slots=True)
class FlavorDemand:
    """What a flavor asks for."""

    flavor: Flavor
    present: int
    """Leases that are open, being opened, or waited for."""
    offered: float = 0.0
    """Leases that are open at a time on average, if the demand goes on."""
    coming: float = 0.0
    """Requests to expect before nodes that are not needed are given back."""

    @property
    def each(self) -> float:
        """Devices to a lease, where it takes the fewest."""
        return min(e.count * e.share_milli for e in self.flavor.equivalents) / 1000


def nodes_needed(
    demands: Iterable[FlavorDemand], groups: Sequence[NodeGroup], fixed_milli: Mapping[str, int], wait_share_max: float
) -> dict[str, int]:
    """How many nodes of each group, by its model; ``fixed_milli`` are thousandths of devices, by model, that no group starts or ends."""
    room = Counter(fixed_milli)
    taken: dict[str, float] = dict.fromkeys((group.model for group in groups), 0.0)
    wanted = [(demand, leases) for rivals in _rivals(demands) for demand, leases in _leases_of(rivals, wait_share_max)]
    for demand, leases in sorted(wanted, key=lambda pair: -pair[0].each):
        left = leases
        for equivalent in demand.flavor.equivalents:
            each = equivalent.count * equivalent.share_milli
            fits = min(left, room[equivalent.model] / each)
            room[equivalent.model] -= math.ceil(fits * each)
            left -= fits
        for group in groups:
            left -= _lay(left, demand.flavor, group, taken)
    return {group.model: _nodes(taken[group.model], group) for group in groups}


def _rivals(demands: Iterable[FlavorDemand]) -> list[list[FlavorDemand]]:
    """Those that the same models serve, directly or by way of others, together."""
    found: list[tuple[set[str], list[FlavorDemand]]] = []
    for demand in demands:
        models, together = {e.model for e in demand.flavor.equivalents}, [demand]
        if not models or not (demand.present or demand.offered):
            continue
        for other in [other for other in found if other[0] & models]:
            found.remove(other)
            models, together = models | other[0], [*other[1], *together]
        found.append((models, together))
    return [together for _, together in found]


def _leases_of(rivals: Sequence[FlavorDemand], wait_share_max: float) -> Iterable[tuple[FlavorDemand, float]]:
    """How many leases of each there should be room for."""
    load = sum(demand.offered * demand.each for demand in rivals)
    if not load or sum(demand.coming for demand in rivals) < COMING_MIN:
        return [(demand, float(demand.present)) for demand in rivals]
    each = load / sum(demand.offered for demand in rivals)
    devices = each * servers_for(load / each, wait_share_max)
    beyond = max(0.0, devices - sum(demand.present * demand.each for demand in rivals))
    return [(demand, demand.present + beyond * demand.offered / load) for demand in rivals]


def _lay(leases: float, flavor: Flavor, group: NodeGroup, taken: dict[str, float]) -> float:
    """Lays as many of the leases as there is room for onto nodes of the group; how many that were."""
    for equivalent in flavor.equivalents:
        if leases > 0 and suits(group, flavor, equivalent):
            each = _charge_milli(equivalent, group)
            fits = max(0.0, min(leases, (group.nodes_max * group.node_milli - taken[group.model]) / each))
            taken[group.model] += fits * each
            return fits
    return 0.0


def _charge_milli(equivalent: Equivalent, group: NodeGroup) -> float:
    """What a lease takes of the group's nodes, with what it leaves that no other like it could take."""
    if equivalent.count == 1:
        return equivalent.share_milli
    together = group.devices // equivalent.count
    return group.node_milli / together if together else -(-equivalent.count // group.devices) * group.node_milli


def _nodes(taken_milli: float, group: NodeGroup) -> int:
    return min(group.nodes_max, max(group.nodes_min, math.ceil(taken_milli / group.node_milli - 1e-9)))
