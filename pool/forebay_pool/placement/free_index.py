"""What is free of one model, indexed so that a placement looks at few nodes however many there are.

Nodes with the same devices free (the same profile) are alike to every strategy but for memory and order, so they are in one bucket, once
for each share that a device of theirs has free, and of each bucket only the first few are looked at. Where many different shares are leased
there are many buckets: each size that is asked for has them in the order in which they may be best for it (``CandidateOrder``), so a
placement ends where no other bucket can be better. Switches and nodes are indexed by their whole free devices, for gangs that span nodes.
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
from forebay_pool.placement.candidates import Bucket, CandidateOrder, Key, Order, Size, drop
from forebay_pool.placement.fragmentation import Demand, Profile
from forebay_pool.placement.ranking import Rank, Ranking

BUCKETS_MAX = 128
"""Buckets that are looked at for a placement."""
STALE_MAX = 4
"""Nodes that have changed and are indexed anew at the next look; beyond, each change has one indexed, so that no look indexes many."""
STALE_SHARE = 16
"""Up to one changed node in so many, each is indexed by itself; where more have changed, it takes less to sort all of them."""
NUMBER_MASK = 2**32 - 1
SIZES_MAX = 256
"""Sizes that buckets are ordered for."""


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
    filed: dict[int, tuple[Bucket, Order]] = field(default_factory=dict)
    """By free share, the bucket that the node is in, and its place there."""
    free: int = 0
    """Devices of which something may be leased."""
    whole: int = 0
    """Devices of which everything is free."""


class FreeIndex:
    """All devices of one model."""

    def __init__(self, ranking: Ranking, demand: Demand) -> None:
        self._ranking = ranking
        self._demand = demand
        self.groups: dict[str, Group] = {}
        self.kinds: set[Kind] = set()
        self.makes: set[Make] = set()
        self._buckets: dict[Key, Bucket] = {}
        self._buckets_begun = 0
        self._numbered: dict[int, Group] = {}
        self._numbers = 0
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
        self._candidates: dict[Size, CandidateOrder] = {}
        self.count = 0
        """Devices, free or not."""
        self.slowest: int | None = None
        """The least speed class of them."""
        self.free = 0
        self.closed = 0
        self.whole = 0
        self.free_milli = 0

    def add(self, seat: Seat) -> None:
        device = seat.device
        self.kinds.add(device.kind)
        self.makes.add(device.make)
        self.count += 1
        self.slowest = device.speed if self.slowest is None else min(self.slowest, device.speed)
        group = self.groups.get(device.node)
        if group is None:
            group = self.groups[device.node] = Group(
                self._numbers, device.node, device.switch, sort=(device.memory_bytes, device.speed)
            )
            self._numbers += 1
            self._numbered[group.number] = group
        group.seats.append(seat)
        self.changed(seat)

    def remove(self, node: str) -> None:
        """Forgets the node, none of whose devices is open."""
        self.refresh()
        self._file_wholes()
        group = self.groups.pop(node)
        del self._numbered[group.number]
        self.count -= len(group.seats)
        self.closed -= len(group.seats)

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
                bucket, before = filed[share_milli]
                order = (seat.failures, order_of(seat), number)
                if order != before:
                    self._take_out(bucket, before)
                    bucket = self._put_in((profile, share_milli, group.sort), order)
                now[share_milli] = (bucket, order)
            return
        for bucket, before in filed.values():
            self._take_out(bucket, before)
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

    def _put_in(self, key: Key, order: Order) -> Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets_begun += 1
            bucket = self._buckets[key] = Bucket(key, self._buckets_begun)
        insort(bucket.orders, order)
        self._shares[bucket.share_milli] += 1
        if bucket.orders[0] is order:
            self._first_changed(bucket)
        return bucket

    def _take_out(self, bucket: Bucket, order: Order) -> None:
        orders = bucket.orders
        at = bisect_left(orders, order)
        del orders[at]
        if not orders:
            del self._buckets[bucket.key]
        self._shares[bucket.share_milli] -= 1
        if not at:
            self._first_changed(bucket)

    def _first_changed(self, bucket: Bucket) -> None:
        for candidates in self._candidates.values():
            if bucket.share_milli >= candidates.least_milli:
                candidates.stale[bucket] = None

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
        """Nodes with whole devices free, bucket by bucket; the first of each bucket are the best."""
        self.refresh()
        buckets = [bucket for bucket in self._buckets.values() if bucket.share_milli == WHOLE_MILLI]
        return (group for bucket in heapq.nsmallest(BUCKETS_MAX, buckets, key=attrgetter("key")) for group in self.in_order(bucket))

    def best_for(self, size: Size, policy: Policy) -> Iterator[tuple[Rank, Bucket]]:
        """The buckets of devices with so much free, those first that may be best, and the least rank that a device of each may have."""
        self.refresh()
        candidates = self._candidates.get(size)
        if candidates is None:
            if len(self._candidates) >= SIZES_MAX:
                self._candidates.clear()
            candidates = self._candidates[size] = CandidateOrder(size, self._ranking, self._demand)
            candidates.stale |= dict.fromkeys(self._buckets.values())
        candidates.refresh(policy, self._best_of)
        return ((floor, bucket) for floor, _, _, bucket in islice(candidates.order, BUCKETS_MAX))

    def forget_candidates(self) -> None:
        """Other sizes are asked for from now on."""
        self._candidates.clear()

    def _best_of(self, bucket: Bucket) -> Seat:
        return self._numbered[bucket.orders[0][2]].best[bucket.share_milli]

    def in_order(self, bucket: Bucket) -> Iterator[Group]:
        """The bucket's nodes, the best first."""
        return (self._numbered[number] for _, _, number in bucket.orders)

    def buckets(self) -> list[Bucket]:
        """All of them. For checks."""
        return list(self._buckets.values())

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
