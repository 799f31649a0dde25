"""The map of devices: all of them as small signs, by model and node, and those of some nodes one by one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from forebay_dashboards.live.pool_copy import PoolCopy
from forebay_dashboards.rows.pool import Device, Lease, Node
from forebay_dashboards.tables.overview import USES, Use, use_of
from forebay_dashboards.tables.scale import natural

NODES_SHOWN = 40
"""With their devices one by one; the others are a search away."""
DEVICES_ENOUGH = 64
"""More than so many devices are shown one by one only once somebody looks for some of them."""
SIGNS_PER_ROW = 8


@dataclass(frozen=True)
class Seat:
    """A device on the map, its use, and the leases that hold it."""

    device: Device
    use: Use
    leases: tuple[Lease, ...]


@dataclass(frozen=True)
class Host:
    """A node with its devices, all or those of one model."""

    node: Node
    seats: tuple[Seat, ...]

    def count(self, use: Use) -> int:
        """How many of its devices are in this use."""
        return sum(seat.use == use for seat in self.seats)

    @property
    def rows(self) -> int:
        """Of signs."""
        return -(-len(self.seats) // SIGNS_PER_ROW)


@dataclass(frozen=True)
class Make:
    """All devices of a model, by node."""

    model: str
    count: int
    uses: dict[Use, int]
    hosts: tuple[Host, ...]


@dataclass(frozen=True)
class Fleet:
    """``hosts`` are shown one by one, of ``nodes`` that were found."""

    makes: tuple[Make, ...]
    hosts: tuple[Host, ...]
    nodes: int


def fleet(pool_copy: PoolCopy, search: str) -> Fleet:
    """The nodes on which every word of the search occurs."""
    words = search.casefold().split()
    seats: dict[str, list[Seat]] = {}
    texts: dict[str, list[str]] = {}
    for seen in pool_copy.seen_devices():
        device = seen.row
        leases = [pool_copy.lease(name) for name in device.leases]
        seats.setdefault(device.node, []).append(Seat(device, use_of(device), tuple(lease for lease in leases if lease is not None)))
        texts.setdefault(device.node, []).append(seen.text)
    nodes = sorted((one for one in pool_copy.nodes() if _holds(one, texts.get(one.node, []), words)), key=lambda one: natural(one.node))
    hosts = [Host(node, tuple(sorted(seats.get(node.node, ()), key=lambda seat: natural(seat.device.device)))) for node in nodes]
    shown = hosts[:NODES_SHOWN] if words or sum(len(host.seats) for host in hosts) <= DEVICES_ENOUGH else []
    return Fleet(_makes(hosts), tuple(shown), len(hosts))


def _makes(hosts: Sequence[Host]) -> tuple[Make, ...]:
    """The model with the most devices comes first."""
    of_model: dict[str, dict[str, list[Seat]]] = {}
    for host in hosts:
        for seat in host.seats:
            of_model.setdefault(seat.device.model, {}).setdefault(host.node.node, []).append(seat)
    known = {host.node.node: host.node for host in hosts}
    makes = []
    for model, by_node in of_model.items():
        uses = Counter(seat.use for found in by_node.values() for seat in found)
        of_nodes = tuple(Host(known[name], tuple(found)) for name, found in by_node.items())
        makes.append(Make(model, uses.total(), {use: uses[use] for use in USES}, of_nodes))
    return tuple(sorted(makes, key=lambda make: (-make.count, make.model)))


def _holds(node: Node, texts: list[str], words: list[str]) -> bool:
    text = "\n".join((node.node.casefold(), node.switch.casefold(), node.state, *texts))
    return all(word in text for word in words)
