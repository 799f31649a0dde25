"""*Operator*: the map of devices by node."""

from __future__ import annotations

import time
from dataclasses import dataclass

from forebay_dashboards.access import View
from forebay_dashboards.http.handler import PageHandler
from forebay_dashboards.live.pool_copy import PoolCopy
from forebay_dashboards.rows import Device, Lease, Node
from forebay_dashboards.tables.overview import Use, use_of
from forebay_dashboards.tables.table import pace_ms

NODES_SHOWN = 40
"""On one page; the others are a search away."""


@dataclass(frozen=True)
class Seat:
    """A device on the map, its use, and the leases that hold it."""

    device: Device
    use: Use
    leases: tuple[Lease, ...]


@dataclass(frozen=True)
class Host:
    """A node with its devices."""

    node: Node
    seats: tuple[Seat, ...]

    def count(self, use: Use) -> int:
        """How many of its devices are in this use."""
        return sum(seat.use == use for seat in self.seats)


def device_map(pool_copy: PoolCopy, search: str) -> tuple[list[Host], int]:
    """The first nodes on which every word of the search occurs, with their devices, and how many there are."""
    words = search.casefold().split()
    seats: dict[str, list[Seat]] = {}
    texts: dict[str, list[str]] = {}
    for seen in pool_copy.seen_devices():
        device = seen.row
        leases = [pool_copy.lease(name) for name in device.leases]
        seats.setdefault(device.node, []).append(Seat(device, use_of(device), tuple(lease for lease in leases if lease is not None)))
        texts.setdefault(device.node, []).append(seen.text)
    found = [node for node in pool_copy.nodes() if _holds(node, texts.get(node.node, []), words)]
    hosts = [Host(node, tuple(sorted(seats.get(node.node, ()), key=lambda seat: seat.device.device))) for node in found[:NODES_SHOWN]]
    return hosts, len(found)


def _holds(node: Node, texts: list[str], words: list[str]) -> bool:
    text = "\n".join((node.node.casefold(), node.switch.casefold(), node.state, *texts))
    return all(word in text for word in words)


class NodesPage(PageHandler):
    """``GET operator/nodes?q=``, and its fragment ``operator/nodes/map``."""

    view: View = "operator"
    page = "operator_nodes"

    async def get(self, part: str | None = None) -> None:
        begun = time.process_time()
        search = " ".join(self.get_query_argument("q", "")[:200].split())
        hosts, count = device_map(self.services.feed.pool_copy, search)
        template = "operator_nodes.html" if part is None else "fragments/device_map.html"
        body = self.rendered(template, hosts=hosts, count=count, search=search)
        self.set_header("X-Pace-Milliseconds", str(pace_ms(time.process_time() - begun)))
        self.finish(body)
