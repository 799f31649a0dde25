"""What is free of one model, filed so that placing looks at few nodes however many there are.

Nodes with the same devices free (the same profile) are alike to every strategy but for memory and order, so they are filed together, once
for each share that a device of theirs has free, and of each file only the first few are looked at. Where many different shares are leased
there are many files: each size that is asked for has them in the order in which they may be best for it (:class:`Way`), so a placement
ends where no other file can be better. Switches and nodes are filed by their whole devices that are free, for gangs that fit on no node.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from sortedcontainers import SortedDict

from forebay_pool.fragmentation import Demand, Profile
from forebay_pool.policies import Policy
from forebay_pool.ranking import Rank, Ranking
from forebay_pool.types import WHOLE_MILLI, Kind, Make, Seat
from forebay_pool.ways import File, Key, Order, Size, Way, drop

FILES_MAX = 128
"""Files that are looked at for a placement."""
STALE_MAX = 4
"""Nodes that have changed, and are not filed anew before somebody looks; beyond, each change has one filed, so that no look files many."""
WAYS_MAX = 256
"""Sizes that files are ordered for."""


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
    sort: tuple[int, int] = (0, 0)
    """Memory and speed of its devices; devices of one model in a node are taken to be alike."""
    profile: Profile = ()
    best: dict[int, Seat] = field(default_factory=dict)
    """Of the devices with the same free share, the one with the fewest failures, and the least set aside."""
    orders: dict[int, Order] = field(default_factory=dict)
    """Where it is filed for each of these."""
    free: int = 0
    """Devices of which something may be leased."""
    closed: int = 0
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
        self._files: SortedDict[Key, File] = SortedDict()
        self._numbered: dict[int, Group] = {}
        self._shares: Counter[int] = Counter()
        """How many groups have a device with just so much free."""
        self._wholes: dict[str | None, list[tuple[int, int]]] = {None: []}
        """Groups with whole devices free as (minus how many, number): all of them, and those of each switch."""
        self._switch_wholes: dict[str, int] = {}
        self._switches: list[tuple[int, str]] = []
        self._stale: dict[str, Group] = {}
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
        self._stale[device.node] = group

    def changed(self, seat: Seat) -> None:
        """Something about the seat is not as it was."""
        self._stale[seat.device.node] = self.groups[seat.device.node]
        if len(self._stale) > STALE_MAX:
            self._file(self._stale.pop(next(iter(self._stale))))

    def refresh(self) -> None:
        """Files anew what has changed."""
        while self._stale:
            _, group = self._stale.popitem()
            self._file(group)

    def _file(self, group: Group) -> None:
        free = [seat for seat in group.seats if seat.open_milli]
        if len(free) > 1:
            free.sort(key=seat_order, reverse=True)
        profile, known = tuple(sorted([seat.open_milli for seat in free])), group.profile
        group.best = best = {seat.open_milli: seat for seat in free}
        closed = 0 if len(free) == len(group.seats) else sum(not seat.open_milli and not seat.is_open for seat in group.seats)
        self.closed += closed - group.closed
        group.closed = closed
        number, order_of = group.number, self._ranking.order
        orders = {share_milli: (seat.failures, order_of(seat), number) for share_milli, seat in best.items()}
        for share_milli, order in group.orders.items():
            if profile != known or orders[share_milli] != order:
                self._take_out((known, share_milli, group.sort), order)
        for share_milli, order in orders.items():
            if profile != known or group.orders[share_milli] != order:
                self._put_in((profile, share_milli, group.sort), order)
        group.orders = orders
        if profile != known:
            group.profile = profile
            self.free_milli += sum(profile) - sum(known)
            self.free += len(free) - group.free
            group.free = len(free)
            self._file_wholes(group, profile.count(WHOLE_MILLI))

    def _put_in(self, key: Key, order: Order) -> None:
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = File(*key[:2])
        insort(file.orders, order)
        self._shares[key[1]] += 1
        self._first_changed(key)

    def _take_out(self, key: Key, order: Order) -> None:
        file = self._files[key]
        drop(file.orders, order)
        if not file.orders:
            del self._files[key]
        self._shares[key[1]] -= 1
        self._first_changed(key)

    def _first_changed(self, key: Key) -> None:
        for way in self._ways.values():
            way.stale[key] = None

    def _file_wholes(self, group: Group, whole: int) -> None:
        """Files the group by how many whole devices it has free."""
        if group.switch not in self._wholes:
            self._wholes[group.switch] = []
        if whole != group.whole:
            for filed in (self._wholes[None], self._wholes[group.switch]):
                if group.whole:
                    drop(filed, (-group.whole, group.number))
                if whole:
                    insort(filed, (-whole, group.number))
            self._count_wholes(group, whole - group.whole)
            group.whole = whole

    def _count_wholes(self, group: Group, change: int) -> None:
        self.whole += change
        before = self._switch_wholes.get(group.switch, 0)
        if before:
            drop(self._switches, (before, group.switch))
        self._switch_wholes[group.switch] = after = before + change
        if after:
            insort(self._switches, (after, group.switch))

    def has_free(self, share_milli: int, count: int) -> bool:
        """Whether so much is free on some device, or so many whole devices are."""
        self.refresh()
        return self.whole >= count if count > 1 else any(groups and free >= share_milli for free, groups in self._shares.items())

    def with_whole(self) -> Iterator[Group]:
        """Nodes with whole devices free, file by file; the first of each file are the best."""
        self.refresh()
        files = (file for file in self._files.values() if file.share_milli == WHOLE_MILLI)
        return (group for file in islice(files, FILES_MAX) for group in self.in_order(file))

    def best_for(self, size: Size, policy: Policy) -> Iterator[tuple[Rank, File]]:
        """The files of devices with so much free, those first that may be best, and the least rank that a device of each may have."""
        self.refresh()
        way = self._ways.get(size)
        if way is None:
            if len(self._ways) >= WAYS_MAX:
                self._ways.clear()
            way = self._ways[size] = Way(size, self._ranking, self._demand)
            way.stale |= dict.fromkeys(self._files)
        way.refresh(policy, self._best_of)
        return ((floor, self._files[key]) for floor, key in islice(way.order, FILES_MAX))

    def _best_of(self, key: Key) -> Seat | None:
        file = self._files.get(key)
        return None if file is None else self._numbered[file.orders[0][2]].best[file.share_milli]

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
        at = bisect_left(self._switches, (count, ""))
        return self._switches[at][1] if at < len(self._switches) else None

    def fullest(self, switch: str | None) -> Iterator[Group]:
        """The nodes with whole devices free, most first: under the switch, or everywhere."""
        self.refresh()
        return (self._numbered[number] for _, number in self._wholes.get(switch, ()))
