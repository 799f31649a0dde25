"""What is free of one model, filed so that placing looks at few nodes however many there are.

Nodes with the same devices free (the same profile) are alike to every strategy but for memory and order, so they are filed together,
and of each file only the first few are looked at. There are hardly more files than devices in a node; where many different shares are
leased there are more, and only so many are looked at. Switches and nodes are filed by how many whole devices they have free, for gangs
that fit on no node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from sortedcontainers import SortedDict, SortedList

from forebay_pool.fragmentation import Profile
from forebay_pool.ranking import Ranking
from forebay_pool.types import WHOLE_MILLI, Kind, Make, Seat

FILES_MAX = 128
"""Files that are looked at for a placement."""


def seat_order(seat: Seat) -> tuple[int, int, int]:
    """Which of a node's devices with the same free share is better: the one with less."""
    return (seat.failures, seat.taken_bytes, seat.number)


@dataclass(slots=True, eq=False)
class Group:
    """The devices of one model in one node."""

    number: int
    node: str
    switch: str
    seats: list[Seat] = field(default_factory=list)
    profile: Profile = ()
    order: tuple[int, int, int] = (0, 0, 0)
    best: dict[int, Seat] = field(default_factory=dict)
    """Of the devices with the same free share, the one with the fewest failures, and the least set aside."""
    free: int = 0
    """Devices of which something may be leased."""
    closed: int = 0
    whole: int = 0
    """Devices of which everything is free."""


class Stock:
    """All devices of one model."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self.groups: dict[str, Group] = {}
        self.kinds: set[Kind] = set()
        self.makes: set[Make] = set()
        self._files: SortedDict[Profile, SortedList[tuple[int, int, int]]] = SortedDict()
        self._numbered: dict[int, Group] = {}
        self._tops: Counter[int] = Counter()
        """How many groups have at most so much free on a device."""
        self._wholes: dict[str | None, SortedList[tuple[int, int]]] = {None: SortedList()}
        """Groups with whole devices free as (minus how many, number): all of them, and those of each switch."""
        self._switch_wholes: dict[str, int] = {}
        self._switches: SortedList[tuple[int, str]] = SortedList()
        self._stale: dict[str, Group] = {}
        self.count = 0
        """Devices, free or not."""
        self.free = 0
        self.closed = 0
        self.whole = 0
        self.free_milli = 0

    def add(self, seat: Seat) -> None:
        device = seat.device
        self.kinds.add(device.kind)
        self.makes.add(device.make)
        self.count += 1
        group = self.groups.get(device.node)
        if group is None:
            group = self.groups[device.node] = Group(len(self._numbered), device.node, device.switch)
            self._numbered[group.number] = group
        group.seats.append(seat)
        self._stale[device.node] = group

    def changed(self, seat: Seat) -> None:
        """Something about the seat is not as it was."""
        self._stale[seat.device.node] = self.groups[seat.device.node]

    def refresh(self) -> None:
        """Files anew what has changed."""
        while self._stale:
            _, group = self._stale.popitem()
            self._unfile(group)
            self._file(group)

    def _file(self, group: Group) -> None:
        free = [seat for seat in group.seats if seat.open_milli]
        free.sort(key=seat_order, reverse=True)
        group.best = {seat.open_milli: seat for seat in free}
        group.profile = tuple(sorted(seat.open_milli for seat in free))
        group.whole = group.profile.count(WHOLE_MILLI)
        group.free, group.closed = len(free), sum(not seat.is_open for seat in group.seats)
        self.free += group.free
        self.closed += group.closed
        self.free_milli += sum(group.profile)
        if not free:
            return
        failures, order = min((seat.failures, self._ranking.order(seat)) for seat in free)
        group.order = (failures, order, group.number)
        filed = self._files.get(group.profile)
        if filed is None:
            filed = self._files[group.profile] = SortedList()
        filed.add(group.order)
        self._tops[group.profile[-1]] += 1
        if group.whole:
            self._count_wholes(group, group.whole)
            if group.switch not in self._wholes:
                self._wholes[group.switch] = SortedList()
            for switch in (None, group.switch):
                self._wholes[switch].add((-group.whole, group.number))

    def _unfile(self, group: Group) -> None:
        self.free -= group.free
        self.closed -= group.closed
        self.free_milli -= sum(group.profile)
        if not group.profile:
            return
        self._tops[group.profile[-1]] -= 1
        filed = self._files[group.profile]
        filed.remove(group.order)
        if not filed:
            del self._files[group.profile]
        if group.whole:
            self._count_wholes(group, -group.whole)
            for switch in (None, group.switch):
                self._wholes[switch].remove((-group.whole, group.number))

    def _count_wholes(self, group: Group, change: int) -> None:
        self.whole += change
        before = self._switch_wholes.get(group.switch, 0)
        if before:
            self._switches.remove((before, group.switch))
        self._switch_wholes[group.switch] = after = before + change
        if after:
            self._switches.add((after, group.switch))

    def has_free(self, share_milli: int, count: int) -> bool:
        """Whether so much is free on some device, or so many whole devices are."""
        self.refresh()
        return self.whole >= count if count > 1 else any(groups and top >= share_milli for top, groups in self._tops.items())

    def groups_with(self, share_milli: int, count: int) -> Iterator[Iterator[Group]]:
        """File by file, the nodes with so much free on a device, or with so many whole devices free; the first of each are the best."""
        self.refresh()
        looked = 0
        for profile, filed in self._files.items():
            if profile[-1] < share_milli or (count > 1 and profile.count(WHOLE_MILLI) < count):
                continue
            yield (self._numbered[number] for _, _, number in filed)
            looked += 1
            if looked == FILES_MAX:
                return

    def free_seats(self) -> Iterator[Seat]:
        """Every device of which something may be leased."""
        self.refresh()
        return (seat for group in self.groups.values() if group.free for seat in group.seats if seat.open_milli)

    def switch_for(self, count: int) -> str | None:
        """The switch with the fewest whole devices free that has so many."""
        self.refresh()
        at = self._switches.bisect_left((count, ""))
        return self._switches[at][1] if at < len(self._switches) else None

    def fullest(self, switch: str | None) -> Iterator[Group]:
        """The nodes with whole devices free, most first: under the switch, or everywhere."""
        self.refresh()
        return (self._numbered[number] for _, number in self._wholes.get(switch, ()))
