"""What is free of one model, filed so that placing looks at few nodes however many there are.

Nodes with the same devices free (the same profile) are alike to every strategy but for memory and order, so they are filed together, once
for each share that a device of theirs has free, and of each file only the first few are looked at. Where many different shares are leased
there are many files: each size that is asked for has them in the order in which they may be best for it (:class:`Way`), so a placement
ends where no other file can be better. Switches and nodes are filed by their whole devices that are free, for gangs that fit on no node.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from forebay_pool.model.policies import Policy
from forebay_pool.model.types import WHOLE_MILLI, Kind, Make, Seat
from forebay_pool.placement.candidates import File, Key, Order, Size, Way, drop
from forebay_pool.placement.fragmentation import Demand, Profile
from forebay_pool.placement.ranking import Rank, Ranking

FILES_MAX = 128
"""Files that are looked at for a placement."""
STALE_MAX = 4
"""Nodes that have changed, and are not filed anew before somebody looks; beyond, each change has one filed, so that no look files many."""
STALE_SHARE = 16
"""Of so many nodes one may have changed for each to be filed by itself: beyond, it takes less to sort all of them."""
NUMBER_MASK = 2**32 - 1
WAYS_MAX = 256
"""Sizes that files are ordered for."""


seat_order = attrgetter("order")
"""Which of a node's devices with the same free share is better: the one with less."""


@dataclass(slots=True, eq=False)
class Group:
    """The devices of one model in one node."""

    number: int
    node: str
    switch: str
    seats: list[Seat] = field(default_factory=list)
    sort: tuple[int, int] = (0, 0)
    """Memory and speed of its devices; devices of one model in a node are taken to be alike."""
    profile: Profile = ()
    best: dict[int, Seat] = field(default_factory=dict)
    """Of the devices with the same free share, the one with the fewest failures, and the least set aside."""
    filed: dict[int, tuple[File, Order]] = field(default_factory=dict)
    """Where it is filed for each of these."""
    free: int = 0
    """Devices of which something may be leased."""
    whole: int = 0
    """Devices of which everything is free."""


class Stock:
    """All devices of one model."""

    def __init__(self, ranking: Ranking, demand: Demand) -> None:
        self._ranking = ranking
        self._demand = demand
        self.groups: dict[str, Group] = {}
        self.kinds: set[Kind] = set()
        self.makes: set[Make] = set()
        self._files: dict[Key, File] = {}
        self._files_begun = 0
        self._numbered: dict[int, Group] = {}
        self._shares: Counter[int] = Counter()
        """How many groups have a device with just so much free."""
        self._wholes: dict[str | None, list[int]] = {None: []}
        """Groups with whole devices free, those with most first (as :func:`_fullness`): all of them, and those of each switch; but for
        those that changed since somebody looked."""
        self._stale_wholes: dict[Group, int] = {}
        """Those, and how many whole devices they are filed with."""
        self._switch_wholes: dict[str, int] = {}
        self._switches: list[tuple[int, str]] = []
        """The switches with whole devices free, by how many, but for those that changed since somebody looked."""
        self._switches_filed: dict[str, int] = {}
        self._stale_switches: dict[str, None] = {}
        self._stale: dict[Group, None] = {}
        self._ways: dict[Size, Way] = {}
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
            group = self.groups[device.node] = Group(
                len(self._numbered), device.node, device.switch, sort=(device.memory_bytes, device.speed)
            )
            self._numbered[group.number] = group
        group.seats.append(seat)
        self.changed(seat)

    def changed(self, seat: Seat) -> None:
        """Something about the seat may not be as it was."""
        open_milli, filed = seat.open_milli, seat.filed
        is_open = bool(open_milli) or seat.is_open
        now = (open_milli, seat.taken_bytes if open_milli else 0, seat.failures, is_open)
        if now == filed:
            return
        seat.filed = now
        seat.order = (seat.failures, seat.taken_bytes, seat.number)
        self.closed += filed[3] - is_open
        self._stale[self.groups[seat.device.node]] = None
        if len(self._stale) > STALE_MAX:
            group = next(iter(self._stale))
            del self._stale[group]
            self._file(group)

    def refresh(self) -> None:
        """Files anew what has changed."""
        while self._stale:
            self._file(self._stale.popitem()[0])

    def _file(self, group: Group) -> None:
        shares, best = _stand(group)
        group.best = best
        profile, known, filed = tuple(shares), group.profile, group.filed
        number, order_of = group.number, self._ranking.order
        group.filed = now = {}
        if profile == known:
            for share_milli, seat in best.items():
                file, before = filed[share_milli]
                order = (seat.failures, order_of(seat), number)
                if order != before:
                    self._take_out(file, before)
                    file = self._put_in((profile, share_milli, group.sort), order)
                now[share_milli] = (file, order)
            return
        for file, before in filed.values():
            self._take_out(file, before)
        for share_milli, seat in best.items():
            order = (seat.failures, order_of(seat), number)
            now[share_milli] = (self._put_in((profile, share_milli, group.sort), order), order)
        group.profile = profile
        self.free_milli += sum(shares) - sum(known)
        self.free += len(shares) - group.free
        group.free = len(shares)
        whole = shares.count(WHOLE_MILLI)
        if whole != group.whole:
            self._wholes_changed(group, whole)

    def _put_in(self, key: Key, order: Order) -> File:
        file = self._files.get(key)
        if file is None:
            self._files_begun += 1
            file = self._files[key] = File(key, self._files_begun)
        insort(file.orders, order)
        self._shares[file.share_milli] += 1
        if file.orders[0] is order:
            self._first_changed(file)
        return file

    def _take_out(self, file: File, order: Order) -> None:
        orders = file.orders
        at = bisect_left(orders, order)
        del orders[at]
        if not orders:
            del self._files[file.key]
        self._shares[file.share_milli] -= 1
        if not at:
            self._first_changed(file)

    def _first_changed(self, file: File) -> None:
        for way in self._ways.values():
            if file.share_milli >= way.least_milli:
                way.stale[file] = None

    def _wholes_changed(self, group: Group, whole: int) -> None:
        """The group has so many whole devices free, which are not as many as before."""
        self._stale_wholes.setdefault(group, group.whole)
        self._stale_switches[group.switch] = None
        self._switch_wholes[group.switch] = self._switch_wholes.get(group.switch, 0) + whole - group.whole
        self.whole += whole - group.whole
        group.whole = whole

    def _file_wholes(self) -> None:
        """Files anew the groups that changed; all of them at once if many did."""
        if len(self._stale_wholes) > len(self.groups) // STALE_SHARE:
            self._wholes = {None: [], **{group.switch: [] for group in self.groups.values()}}
            for group in self.groups.values():
                if group.whole:
                    for filed in self._wholes_with(group):
                        filed.append(_fullness(group, group.whole))
            for filed in self._wholes.values():
                filed.sort()
        else:
            for group, before in self._stale_wholes.items():
                for filed in self._wholes_with(group):
                    if before:
                        drop(filed, _fullness(group, before))
                    if group.whole:
                        insort(filed, _fullness(group, group.whole))
        self._stale_wholes.clear()

    def _wholes_with(self, group: Group) -> tuple[list[int], list[int]]:
        """The lists that have the group as long as it has whole devices free."""
        return self._wholes[None], self._wholes.setdefault(group.switch, [])

    def has_free(self, share_milli: int, count: int) -> bool:
        """Whether so much is free on some device, or so many whole devices are."""
        self.refresh()
        if count > 1:
            return self.whole >= count
        for free_milli, groups in self._shares.items():
            if groups and free_milli >= share_milli:
                return True
        return False

    def with_whole(self) -> Iterator[Group]:
        """Nodes with whole devices free, file by file; the first of each file are the best."""
        self.refresh()
        files = [file for file in self._files.values() if file.share_milli == WHOLE_MILLI]
        return (group for file in heapq.nsmallest(FILES_MAX, files, key=attrgetter("key")) for group in self.in_order(file))

    def best_for(self, size: Size, policy: Policy) -> Iterator[tuple[Rank, File]]:
        """The files of devices with so much free, those first that may be best, and the least rank that a device of each may have."""
        self.refresh()
        way = self._ways.get(size)
        if way is None:
            if len(self._ways) >= WAYS_MAX:
                self._ways.clear()
            way = self._ways[size] = Way(size, self._ranking, self._demand)
            way.stale |= dict.fromkeys(self._files.values())
        way.refresh(policy, self._best_of)
        return ((floor, file) for floor, _, _, file in islice(way.order, FILES_MAX))

    def forget_ways(self) -> None:
        """Other sizes are asked for from now on."""
        self._ways.clear()

    def _best_of(self, file: File) -> Seat:
        return self._numbered[file.orders[0][2]].best[file.share_milli]

    def in_order(self, file: File) -> Iterator[Group]:
        """The file's nodes, the best first."""
        return (self._numbered[number] for _, _, number in file.orders)

    def files(self) -> list[File]:
        """All of them. For checks."""
        return list(self._files.values())

    def free_seats(self) -> Iterator[Seat]:
        """Every device of which something may be leased."""
        self.refresh()
        return (seat for group in self.groups.values() if group.free for seat in group.seats if seat.open_milli)

    def switch_for(self, count: int) -> str | None:
        """The switch with the fewest whole devices free that has so many."""
        self.refresh()
        for switch in self._stale_switches:
            before, now = self._switches_filed.pop(switch, 0), self._switch_wholes[switch]
            if before:
                drop(self._switches, (before, switch))
            if now:
                insort(self._switches, (now, switch))
                self._switches_filed[switch] = now
        self._stale_switches.clear()
        at = bisect_left(self._switches, (count, ""))
        return self._switches[at][1] if at < len(self._switches) else None

    def fullest(self, switch: str | None) -> Iterator[Group]:
        """The nodes with whole devices free, most first: under the switch, or everywhere."""
        self.refresh()
        self._file_wholes()
        return (self._numbered[fullness & NUMBER_MASK] for fullness in self._wholes.get(switch, ()))


def _fullness(group: Group, whole: int) -> int:
    """What orders groups by whole devices, most first, then by number; one integer, as it is compared often."""
    return group.number - whole * (NUMBER_MASK + 1)


def _stand(group: Group) -> tuple[list[int], dict[int, Seat]]:
    """What is free on its devices, least first; of those with the same free share the best, by :func:`seat_order`."""
    shares: list[int] = []
    best: dict[int, Seat] = {}
    for seat in group.seats:
        free_milli = seat.open_milli
        if free_milli:
            shares.append(free_milli)
            if free_milli not in best or seat.order < best[free_milli].order:
                best[free_milli] = seat
    shares.sort()
    return shares, best
