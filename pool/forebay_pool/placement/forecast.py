"""Which flavors will be short of devices, if the demand of the last quarter of an hour goes on.

For each flavor, with arrivals per second *r*, mean length of a lease *s* seconds, and *n* devices (or parts of one) to a lease, the
offered load is ``r * s * n`` devices that are busy at a time on average (Little's law). Flavors that the same devices serve are added up.
Against the open devices *c* of the flavor's models that gives the utilisation, what is missing (load above *c*), and the probability
that a request waits, by Erlang's C formula for ``c / n`` servers: arrivals at random, lengths exponential, first come first served.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MEMORY_SECONDS = 900.0
"""An arrival counts for exp(-age / this)."""


class Arrivals:
    """How many requests a second came lately, by flavor."""

    def __init__(self) -> None:
        self._began_ns: int | None = None
        self._weights: dict[str, tuple[float, int]] = {}

    def add(self, flavor: str, now_ns: int) -> None:
        if self._began_ns is None:
            self._began_ns = now_ns
        self._weights[flavor] = (self._weight(flavor, now_ns) + 1.0, now_ns)

    def _weight(self, flavor: str, now_ns: int) -> float:
        weight, since_ns = self._weights.get(flavor, (0.0, now_ns))
        return weight * math.exp((since_ns - now_ns) / 1e9 / MEMORY_SECONDS)

    def seen_per_second(self, flavor: str, now_ns: int) -> float:
        """The rate as far as it was seen: too low at first, never too high."""
        return self._weight(flavor, now_ns) / MEMORY_SECONDS

    def per_second(self, flavor: str, now_ns: int) -> float:
        """The rate; what could not be seen yet, as watching began only lately, is made up for."""
        if self._began_ns is None:
            return 0.0
        watched_seconds = max(1.0, (now_ns - self._began_ns) / 1e9)
        return self._weight(flavor, now_ns) / (MEMORY_SECONDS * (1.0 - math.exp(-watched_seconds / MEMORY_SECONDS)))


@dataclass(frozen=True, slots=True)
class Load:
    """What a flavor asks for, and what there is for it."""

    flavor: str
    arrivals_per_second: float
    lease_seconds: float
    devices_per_lease: float
    devices: float
    """Open devices of its models."""
    rivals: tuple[str, ...]
    """The flavors that the same devices serve, itself included."""

    @property
    def offered_devices(self) -> float:
        return self.arrivals_per_second * self.lease_seconds * self.devices_per_lease


@dataclass(frozen=True, slots=True)
class Forecast:
    """What to expect for a flavor."""

    flavor: str
    offered_devices: float
    """Its own load."""
    rival_devices: float
    """The load of all flavors on the same devices."""
    devices: float
    utilisation: float | None
    """None where there is no open device."""
    missing_devices: float
    wait_probability: float


def forecast(loads: Iterable[Load]) -> list[Forecast]:
    """The forecast of each flavor."""
    known = {load.flavor: load for load in loads}
    result = []
    for load in known.values():
        rival = sum(known[name].offered_devices for name in load.rivals if name in known)
        utilisation = rival / load.devices if load.devices else None
        servers = int(load.devices / load.devices_per_lease) if load.devices_per_lease else 0
        waits = erlang_c(servers, rival / load.devices_per_lease) if load.devices_per_lease else 0.0
        missing = max(0.0, rival - load.devices)
        result.append(Forecast(load.flavor, load.offered_devices, rival, load.devices, utilisation, missing, waits))
    return result


def servers_for(load: float, wait_share_max: float) -> int:
    """The fewest servers on which at most such a share of the requests waits, where ``load`` of them are busy on average."""
    blocked, servers = 1.0, 0
    while servers <= load or blocked / (1.0 - load / servers * (1.0 - blocked)) > wait_share_max:
        servers += 1
        blocked = load * blocked / (servers + load * blocked)
    return servers


def erlang_c(servers: int, load: float) -> float:
    """The probability that a request waits, where ``load`` of so many servers are busy on average; 1 where they cannot keep up."""
    if load <= 0:
        return 0.0
    if load >= servers:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1.0 - load / servers * (1.0 - blocked))
