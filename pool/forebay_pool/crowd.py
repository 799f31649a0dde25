"""How many wait for the same devices, without looking at each."""

from __future__ import annotations

from collections import Counter

from forebay_pool.fleet import Fleet
from forebay_pool.types import Lane


class Crowd:
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
        devices, flavor, _ = lane
        if not devices:
            self._anywhere.setdefault(flavor, Counter())[level] += amount
            return
        self._at.setdefault(devices[0], Counter())[level] += amount
        for served in self._fleet.flavors_of(self._fleet.seats[devices[0]]):
            self._near.setdefault(served, Counter())[level] += amount

    def rivals(self, lane: Lane, level: int) -> int:
        """The amount at this level or above that competes with the lane, the lane's own included."""
        devices, flavor, _ = lane
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
        self._anywhere: dict[str, tuple[int, int]] = {}
        self._near: dict[str, tuple[int, int]] = {}
        self._at: dict[str, tuple[int, int]] = {}

    def add(self, lane: Lane, work_ns: int) -> None:
        devices, flavor, _ = lane
        if not devices:
            _count(self._anywhere, flavor, work_ns)
            return
        _count(self._at, devices[0], work_ns)
        for served in self._fleet.flavors_of(self._fleet.seats[devices[0]]):
            _count(self._near, served, work_ns)

    def of(self, lane: Lane) -> tuple[int, int]:
        """The count and the work of those who compete with the lane."""
        devices, flavor, _ = lane
        rivals = self._fleet.flavors_of(self._fleet.seats[devices[0]]) if devices else self._fleet.rivals_of(flavor)
        count, work_ns = self._at.get(devices[0], NOBODY) if devices else self._near.get(flavor, NOBODY)
        for rival in rivals:
            some, their_ns = self._anywhere.get(rival, NOBODY)
            count += some
            work_ns += their_ns
        return count, work_ns


NOBODY = (0, 0)


def _count(amounts: dict[str, tuple[int, int]], key: str, work_ns: int) -> None:
    count, known_ns = amounts.get(key, NOBODY)
    amounts[key] = (count + 1, known_ns + work_ns)
