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
        devices, flavor = lane
        if not devices:
            self._anywhere.setdefault(flavor, Counter())[level] += amount
            return
        self._at.setdefault(devices[0], Counter())[level] += amount
        for served in self._fleet.flavors_of(self._fleet.seats[devices[0]]):
            self._near.setdefault(served, Counter())[level] += amount

    def rivals(self, lane: Lane, level: int) -> int:
        """The amount at this level or above that competes with the lane, the lane's own included."""
        devices, flavor = lane
        if devices:
            flavors = self._fleet.flavors_of(self._fleet.seats[devices[0]])
            found = [self._at.get(devices[0]), *(self._anywhere.get(served) for served in flavors)]
        else:
            found = [self._near.get(flavor), *(self._anywhere.get(rival) for rival in self._fleet.rivals_of(flavor))]
        return sum(amount for levels in found if levels is not None for known, amount in levels.items() if known >= level)
