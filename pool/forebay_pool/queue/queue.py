"""The queue: who waits, and whose turn it is. The order is quota, then priority, then fair share, then arrival."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from operator import itemgetter

from forebay_wire import messages as wire

from forebay_pool.model.limits import Limits
from forebay_pool.model.types import AGED, Lane, Request, Seat, Session
from forebay_pool.placement.fleet import Fleet
from forebay_pool.queue.accounts import Account, Accounts, Spot
from forebay_pool.queue.competition import Competition
from forebay_pool.queue.crashes import Crashes
from forebay_pool.queue.fair_share import NOTHING, Turns

Rank = tuple[int, float, float, int]
"""What orders requests, least first: minus the level, the tenant's share, the user's share, the order of arrival."""
STALE_MAX = 64
"""Entries of requests that left are dropped when there are more than this, and more than twice as many as wait."""


class Queue:
    """The waiting requests, by lane: a session with a worker waits for its devices, another for any that serve its flavor.

    All of a lane need the same. A lane has levels (priorities), a level the tenants that wait there in the order of their shares, a tenant
    its users likewise, a user the requests in order of arrival; each is a heap, so that the first of a lane is found in O(log n). Whom a
    quota stops is taken out when it comes up, and sits on the bench of the account that stops it. A request that left stays in its heap
    until it comes up.
    """

    def __init__(self, fleet: Fleet, accounts: Accounts, limits: Limits) -> None:
        self.waiting: dict[int, Request] = {}
        self.accounts = accounts
        self.crashes = Crashes(limits)
        self.competition = Competition(fleet)
        self.changes = 0
        """Grows with every change, for who wants to know whether there was one."""
        self._fleet = fleet
        self._lanes: dict[Lane, dict[int, Turns[Rank]]] = {}
        self._at: dict[str, dict[Lane, None]] = {}
        """The lanes of sessions whose tensors are on a device."""
        self._anywhere: dict[str, dict[Lane, None]] = {}
        """By flavor, the lanes of sessions for whom any device will do."""
        self._users: dict[tuple[Lane, int, str], Turns[tuple[float, int]]] = {}
        self._orders: dict[Spot, list[int]] = {}
        self._entries = 0
        self._sizes: Counter[Spot] = Counter()
        """How many wait in each spot, a tenant's spots included."""
        self._ages: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.waiting)

    def has(self, request: Request) -> bool:
        """Whether it waits here."""
        return self.waiting.get(request.order) is request

    def is_barred(self, request: Request, now_ns: int) -> bool:
        """Whether a quota or a budget stops who waits, or its user waits before the next worker."""
        return self.bars(request.session, request.span, self.demand_milli(request.lane), now_ns)

    def bars(self, session: Session, span: wire.Span, demand_milli: int, now_ns: int) -> bool:
        """Whether anything but devices keeps the session from a lease that takes so much."""
        return self.crashes.bars(session) is not None or self.accounts.bar(session, span, demand_milli, now_ns) is not None

    # Coming and going

    def add(self, request: Request) -> None:
        request.lane = self._fleet.lane_of(request.session)
        self.waiting[request.order] = request
        self._count(request, 1)
        heapq.heappush(self._ages, (request.arrived_ns, request.order))
        self._file(request)
        self.changes += 1

    def remove(self, request: Request) -> None:
        if self.waiting.get(request.order) is request:
            del self.waiting[request.order]
            self._count(request, -1)
            self.changes += 1
            if self._entries > STALE_MAX + 2 * len(self.waiting):
                self.rebuild()

    def _file(self, request: Request) -> None:
        session = request.session
        if self._sits_out(request):
            return  # nobody looks at it before its budget changes, or its wait is over: then everybody is filed anew
        spot = Spot(request.lane, request.level, session.tenant, session.user)
        heapq.heappush(self._orders.setdefault(spot, []), request.order)
        self._entries += 1
        self.put_back(spot)

    def put_back(self, spot: Spot) -> None:
        """The spot comes up for a look again: it is new, or off the bench, or may come earlier than was thought."""
        lane, level, tenant, user = spot
        share, orders = NOTHING, self._orders.get(spot)
        if user is not None:
            share = NOTHING if level == AGED else share_of(self.accounts.of(tenant, user))
            self._users.setdefault((lane, level, tenant), Turns()).put(user, (share, orders[0] if orders else 0))
        of_tenant = NOTHING if level == AGED else share_of(self.accounts.of(tenant))
        self._lanes.setdefault(lane, {}).setdefault(level, Turns()).put(tenant, (-level, of_tenant, share, orders[0] if orders else 0))
        for device in lane[0]:
            self._at.setdefault(device, {})[lane] = None
        if not lane[0]:
            self._anywhere.setdefault(lane[1], {})[lane] = None

    def rebuild(self) -> None:
        """Files everybody anew, after a change of weights or of flavors, and to drop what is stale."""
        self._lanes, self._at, self._anywhere, self._users, self._orders, self._entries = {}, {}, {}, {}, {}, 0
        self._ages = [(request.arrived_ns, request.order) for request in self.waiting.values()]
        heapq.heapify(self._ages)
        self.competition, self._sizes = Competition(self._fleet), Counter()
        for account in self.accounts:
            account.clear_bench()
        for request in self.waiting.values():
            request.lane = self._fleet.lane_of(request.session)
            self._count(request, 1)
            self._file(request)
        self.changes += 1

    def _count(self, request: Request, change: int) -> None:
        self.competition.add(request.lane, request.level, change)
        for user in (None, request.session.user):
            spot = Spot(request.lane, request.level, request.session.tenant, user)
            self._sizes[spot] += change
            if not self._sizes[spot]:
                del self._sizes[spot]

    def is_taken(self, spot: Spot) -> bool:
        """Whether anybody waits there."""
        return spot in self._sizes

    def promote(self, before_ns: int) -> list[Request]:
        """Puts those who arrived so long ago before all others: however many arrive later, nobody waits for ever. They are returned."""
        promoted = []
        while self._ages and self._ages[0][0] <= before_ns:
            arrived_ns, order = heapq.heappop(self._ages)
            request = self.waiting.get(order)
            if request is not None and request.arrived_ns == arrived_ns and not request.aged:
                self.remove(request)
                request.aged = True
                self.add(request)
                promoted.append(request)
        return promoted

    # Whose turn it is

    def heads_for(self, seat: Seat, flavors: Iterable[str], now_ns: int) -> list[Request]:
        """The first of each lane that may use the device and that no quota stops, by rank."""
        return self._in_turn([*self._at.get(seat.device.id, ()), *self._lanes_of(flavors)], now_ns)

    def heads_anywhere(self, flavors: Iterable[str], now_ns: int) -> list[Request]:
        """The first of those of each flavor for whom any device will do, and whom no quota stops, by rank."""
        return self._in_turn(self._lanes_of(flavors), now_ns)

    def _lanes_of(self, flavors: Iterable[str]) -> list[Lane]:
        return [lane for flavor in flavors for lane in self._anywhere.get(flavor, ())]

    @property
    def homes(self) -> Iterable[str]:
        """The devices on which tensors of sessions in the queue are."""
        return list(self._at)

    def _in_turn(self, lanes: list[Lane], now_ns: int) -> list[Request]:
        heads = [head for head in (self.head(lane, now_ns) for lane in lanes if lane in self._lanes) if head is not None]
        return [request for _, request in sorted(heads, key=itemgetter(0))]

    def head(self, lane: Lane, now_ns: int) -> tuple[Rank, Request] | None:
        """The first of the lane, and its rank."""
        levels = self._lanes.get(lane, {})
        for level in sorted(levels, reverse=True):
            found = levels[level].first(lambda tenant, level=level: self._tenant_rank(lane, level, tenant, now_ns))  # type: ignore[misc]
            if found is not None:
                return found[1], self.waiting[found[1][3]]
            del levels[level]
        if lane in self._lanes:
            del self._lanes[lane]
            for device in lane[0]:
                del self._at[device][lane]
                if not self._at[device]:
                    del self._at[device]
            if not lane[0]:
                del self._anywhere[lane[1]][lane]
        return None

    def heads_above(self, level: int, now_ns: int) -> list[Request]:
        """The first of each lane where somebody waits at this level or above, by rank."""
        return self._in_turn([lane for lane, levels in self._lanes.items() if max(levels) >= level], now_ns)

    def _tenant_rank(self, lane: Lane, level: int, tenant: str, now_ns: int) -> Rank | None:
        account = self.accounts.of(tenant)
        users = self._users.get((lane, level, tenant))
        first = None if users is None else users.first(lambda user: self._user_rank(Spot(lane, level, tenant, user), now_ns))
        if first is None:
            self._users.pop((lane, level, tenant), None)
            return None
        share, order = first[1]
        if self._benches(account, Spot(lane, level, tenant, None), order, now_ns):
            return None
        return (-level, NOTHING if level == AGED else share_of(account, now_ns), share, order)

    def _user_rank(self, spot: Spot, now_ns: int) -> tuple[float, int] | None:
        orders = self._orders.get(spot)
        while orders and not self._is_filed(orders[0], spot):
            heapq.heappop(orders)
            self._entries -= 1
        if not orders:
            self._orders.pop(spot, None)
            return None
        account = self.accounts.of(spot.tenant, spot.user)
        if self._benches(account, spot, orders[0], now_ns):
            return None
        return (NOTHING if spot.level == AGED else share_of(account, now_ns), orders[0])

    def _sits_out(self, request: Request) -> bool:
        """Whether its notebook's budget stops it, or its user waits before the next worker."""
        by_budget = self.accounts.notebook_of(request.session, request.span) is not None
        return by_budget or self.crashes.bars(request.session) is not None

    def _is_filed(self, order: int, spot: Spot) -> bool:
        request = self.waiting.get(order)
        return request is not None and request.lane == spot.lane and request.level == spot.level

    def _benches(self, account: Account, spot: Spot, order: int, now_ns: int) -> bool:
        demand_milli = self.demand_milli(spot.lane)
        if account.bars(demand_milli, now_ns) is None:
            return False
        account.bench(spot, demand_milli, order)
        return True

    def is_reachable(self, request: Request) -> bool:
        """Whether the request's turn can come: each part of the queue that it is in comes up, or sits on a bench. For checks."""
        lane, level, tenant, user = request.lane, request.level, request.session.tenant, request.session.user
        if self._sits_out(request):
            return True
        users, tenants = self._users.get((lane, level, tenant), Turns()), self._lanes.get(lane, {}).get(level, Turns())
        by_user = user in users or Spot(lane, level, tenant, user) in self.accounts.of(tenant, user).benched
        by_tenant = tenant in tenants or Spot(lane, level, tenant, None) in self.accounts.of(tenant).benched
        alone = Spot(lane, level, tenant, user) in self.accounts.of(tenant, user).benched
        return request.order in self._orders.get(Spot(lane, level, tenant, user), ()) and by_user and (by_tenant or alone)

    def demand_milli(self, lane: Lane) -> int:
        """The least, in thousandths of devices, that one of the lane needs: its group's members together, where it starts with them."""
        return lane[3][1] or self._fleet.demand_milli(lane)

    def rank(self, request: Request, now_ns: int) -> Rank:
        """Where the request stands at present, quotas apart: where the first of its group does. So of two groups one is before the other
        on all devices, and they never wait for each other."""
        group = request.session.group
        first = request if group is None else min(group.waiting, key=lambda one: (-one.level, one.order), default=request)
        tenant, user = (NOTHING if first.aged else share_of(account, now_ns) for account in self.accounts.both(first.session))
        return (-first.level, tenant, user, first.order)


def share_of(account: Account, now_ns: int | None = None) -> float:
    """log2 of the decayed usage for each part of the weight; who has less goes first. Without a time: what it is at least."""
    level = account.usage.floor if now_ns is None else account.usage.level(now_ns)
    return level - account.weight_log
