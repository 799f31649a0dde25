"""How many wait for the same devices, without looking at each."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from forebay_pool.model.types import Lane, Make
from forebay_pool.placement.fleet import Fleet


class Competition:
    """Amounts of requests (a count, or their work) by lane and level. Two lanes compete where some device may serve both."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._anywhere: dict[str, Counter[int]] = {}
        """By flavor: those that any device will do for."""
        self._near: dict[str, Counter[int]] = {}
        """By flavor: those that wait for one device that serves it."""
        self._at: dict[str, Counter[int]] = {}
        """By device: those that wait for just this one."""

    def add(self, lane: Lane, level: int, amount: int = 1) -> None:
        devices, flavor, *_ = lane
        if not devices:
            self._anywhere.setdefault(flavor, Counter())[level] += amount
            return
        self._at.setdefault(devices[0], Counter())[level] += amount
        for served in self._fleet.flavors_of(self._fleet.seats[devices[0]]):
            self._near.setdefault(served, Counter())[level] += amount

    def rivals(self, lane: Lane, level: int) -> int:
        """The amount at this level or above that competes with the lane, the lane's own included."""
        devices, flavor, *_ = lane
        if devices:
            flavors = self._fleet.flavors_of(self._fleet.seats[devices[0]])
            found = [self._at.get(devices[0]), *(self._anywhere.get(served) for served in flavors)]
        else:
            found = [self._near.get(flavor), *(self._anywhere.get(rival) for rival in self._fleet.rivals_of(flavor))]
        return sum(amount for levels in found if levels is not None for known, amount in levels.items() if known >= level)


class Ahead:
    """How many of those who come before compete for the same devices, and the work of their leases, in nanoseconds."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._at: dict[str, tuple[int, int]] = {}
        """By device: those that wait for just this one."""
        self._near: dict[Make, tuple[int, int]] = {}
        """By make: those that wait for one device of it."""
        self._anywhere: dict[str, tuple[int, int]] = {}
        """By flavor: those that any device will do for."""
        self._over: dict[Make, tuple[int, int]] = {}
        """By make: those of them whom it serves."""

    def add(self, lane: Lane, work_ns: int) -> None:
        devices, flavor, *_ = lane
        if devices:
            _count(self._at, devices[0], work_ns)
            _count(self._near, self._fleet.seats[devices[0]].device.make, work_ns)
            return
        _count(self._anywhere, flavor, work_ns)
        for make in self._fleet.makes_of(flavor):
            _count(self._over, make, work_ns)

    def of(self, lane: Lane) -> tuple[int, int]:
        """The count and the work of those who compete with the lane."""
        devices, flavor, *_ = lane
        if devices:
            here, over = self._at.get(devices[0], NOBODY), self._over.get(self._fleet.seats[devices[0]].device.make, NOBODY)
            return here[0] + over[0], here[1] + over[1]
        near = [self._near[make] for make in self._fleet.makes_of(flavor) if make in self._near]
        rivals = [self._anywhere[rival] for rival in self._fleet.rivals_of(flavor) if rival in self._anywhere]
        return sum(count for count, _ in (*near, *rivals)), sum(work_ns for _, work_ns in (*near, *rivals))


NOBODY = (0, 0)
Name = TypeVar("Name", str, Make)


def _count(amounts: dict[Name, tuple[int, int]], key: Name, work_ns: int) -> None:
    count, known_ns = amounts.get(key, NOBODY)
    amounts[key] = (count + 1, known_ns + work_ns)
