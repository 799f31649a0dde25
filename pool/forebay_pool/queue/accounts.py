"""Quotas: how much a tenant, and each user of it, may hold at a time and within a sliding window. All integers.

A claim counts from the moment a device is taken for it, so that what is being opened cannot exceed the quota either; device time counts
as long as a device is held. A grant never exceeds a quota: whoever would, waits on the bench of the account that stops it, and is looked at
again only when that account has got room.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from forebay_wire import messages as wire

from forebay_pool.model.causes import Cause
from forebay_pool.model.history import History, Spent
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import BudgetState, Lane, Lease, Quota, Session
from forebay_pool.queue.fair_share import Usage

Bar = Literal["quota", "budget"]
"""What an account is stopped by."""
STEPS = 1_000
"""A window forgets in so many steps of its length at least: use may leave it by a thousandth of its length too late, never too early."""
NO_QUOTA = Quota()


class Window:
    """Device time held within the last ``length_ns``, in milli-devices times nanoseconds; memory is bounded by STEPS."""

    def __init__(self, length_ns: int) -> None:
        self.length_ns = length_ns
        self.rate_milli = 0
        self._total = 0
        self._since_ns = 0
        self._marks: deque[tuple[int, int, int]] = deque()
        """Times, the total at each, and the least rate from there to the next."""

    def hold(self, change_milli: int, now_ns: int) -> None:
        self._total, self._since_ns = self._total_at(now_ns), now_ns
        self.rate_milli += change_milli
        if len(self._marks) > 1 and now_ns - self._marks[-2][0] < self.length_ns // STEPS:
            _, _, last_rate = self._marks.pop()
            time_ns, total, rate = self._marks[-1]
            self._marks[-1] = (time_ns, total, min(rate, last_rate))
        self._marks.append((now_ns, self._total, self.rate_milli))
        self._forget(now_ns)

    def spend(self, amount: int, now_ns: int) -> None:
        """So much was used at once."""
        self._total += amount
        self.hold(0, now_ns)

    def used(self, now_ns: int) -> int:
        """What was held since ``now_ns - length_ns``; never less."""
        self._forget(now_ns)
        edge_ns = now_ns - self.length_ns
        before = 0
        if self._marks and self._marks[0][0] <= edge_ns:
            time_ns, total, rate = self._marks[0]
            before = total + rate * (edge_ns - time_ns)
        return self._total_at(now_ns) - before

    def _total_at(self, now_ns: int) -> int:
        return self._total + self.rate_milli * (now_ns - self._since_ns)

    def _forget(self, now_ns: int) -> None:
        """Drops the marks that lie before the window, but the last of them."""
        while len(self._marks) > 1 and self._marks[1][0] <= now_ns - self.length_ns:
            self._marks.popleft()


class Spot(NamedTuple):
    """A part of the queue that an account keeps out of it: a user's requests in a lane at a level, or all of a tenant's (user None)."""

    lane: Lane
    level: int
    tenant: str
    user: str | None


class Account:
    """What a tenant, or a user of one, holds, used, and may."""

    def __init__(self, tenant: str, user: str | None, half_life_ns: int, notebook: str | None = None) -> None:
        self.tenant = tenant
        self.user = user
        self.notebook = notebook
        """The label whose spans' cost counts; such an account has a budget and nothing else."""
        self.quota = NO_QUOTA
        self.weight_log = 0.0
        """log2 of the quota's weight."""
        self.budget: BudgetState = "open"
        self.budget_cause = ""
        """What billing says to those whom it stops."""
        self.held_milli = 0
        """Claimed or leased now."""
        self.usage = Usage(half_life_ns)
        self.window: Window | None = None
        self.leases: dict[str, Lease] = {}
        """The open leases that count for the account."""
        self._bench: list[tuple[int, int, int, Spot]] = []
        self._benched: dict[Spot, int] = {}

    @property
    def name(self) -> Cause:
        """Whose it is, as a part of a cause."""
        if self.user is None:
            return Cause("account_tenant", tenant=self.tenant)
        if self.notebook is not None:
            return Cause("account_notebook", notebook=self.notebook, user=self.user)
        return Cause("whom_user", user=self.user, tenant=self.tenant)

    @property
    def device_time_max(self) -> int:
        """In milli-devices times nanoseconds."""
        return (self.quota.device_seconds or 0) * 1000 * SECOND

    def set_quota(self, quota: Quota, now_ns: int) -> None:
        """What was held before a window was first set, or its length changed, is not in it; what is held now counts from now."""
        self.quota = quota
        self.weight_log = math.log2(quota.weight)
        length_ns = None if quota.device_seconds is None else (quota.window_seconds or 0) * SECOND
        if length_ns is None:
            self.window = None
        elif self.window is None or self.window.length_ns != length_ns:
            self.window = Window(length_ns)
            self.window.hold(self.held_milli, now_ns)

    def begin_with(self, all_spent: Iterable[Spent], now_ns: int) -> None:
        """What was used before this pool began; asked before anything is held."""
        if self.window is None:
            return
        self.window = Window(self.window.length_ns)
        changes = []
        for spent in all_spent:
            if spent.amount:
                changes.append((spent.end_ns, 0, spent.amount))
            if spent.milli and spent.end_ns > spent.start_ns:
                changes += [(spent.start_ns, spent.milli, 0), (spent.end_ns, -spent.milli, 0)]
        for at_ns, change_milli, amount in sorted(changes):
            if amount:
                self.window.spend(amount, at_ns)
            else:
                self.window.hold(change_milli, at_ns)
        self.window.hold(0, now_ns)

    def hold(self, change_milli: int, now_ns: int) -> None:
        self.held_milli += change_milli
        self.usage.hold(change_milli, now_ns)
        if self.window is not None:
            self.window.hold(change_milli, now_ns)

    @property
    def room_milli(self) -> int | None:
        """How much more it may hold at a time; None: as much as there is."""
        return None if self.quota.devices_milli is None else self.quota.devices_milli - self.held_milli

    def bars(self, demand_milli: int, now_ns: int) -> Bar | None:
        """What keeps it from holding so much more now."""
        if self.budget != "open":
            return "budget"
        most_milli = self.quota.devices_milli
        if most_milli is not None and demand_milli > most_milli - self.held_milli:
            return "quota"
        return "quota" if self.window is not None and self.is_exhausted(now_ns) else None

    def is_exhausted(self, now_ns: int) -> bool:
        """Whether its device time within the window is used up."""
        return self.window is not None and self.window.used(now_ns) >= self.device_time_max

    def never_fits(self, demand_milli: int) -> Cause | None:
        """Why it can never hold so much, with the quota that it has; None if it can."""
        most_milli = self.quota.devices_milli
        if most_milli is not None and demand_milli > most_milli:
            return Cause("quota_small", self.name, needed_milli=demand_milli, most_milli=most_milli)
        return Cause("quota_zero", self.name) if self.quota.device_seconds == 0 else None

    def why(self, bar: Bar, demand_milli: int, now_ns: int) -> Cause:
        """Why the bar is there."""
        if bar == "budget":
            cause = self.budget_cause
            return cause if isinstance(cause, Cause) else Cause("text", text=cause) if cause else Cause("no_budget", self.name)
        room, whom = self.room_milli, self.user or self.tenant
        if room is not None and demand_milli > room:
            most_milli = self.quota.devices_milli or 0
            return Cause("quota_held", self.name, whom=whom, held_milli=self.held_milli, most_milli=most_milli)
        seconds, window = self.quota.device_seconds or 0, self.quota.window_seconds or 0
        return Cause("quota_used", self.name, whom=whom, seconds=seconds, window=window)

    # The bench

    def bench(self, spot: Spot, demand_milli: int, order: int) -> None:
        """Keeps the spot out of the queue until there is room for so much."""
        if spot not in self._benched:
            self._benched[spot] = demand_milli
            heapq.heappush(self._bench, (-spot.level, order, demand_milli, spot))

    def next_benched(self, now_ns: int, most_milli: int | None, is_taken: Callable[[Spot], bool]) -> tuple[Spot, int] | None:
        """Takes the first spot, and what it needs, off the bench, if it has room for that and it is not more than ``most_milli``."""
        while self._bench and not is_taken(self._bench[0][3]):
            del self._benched[heapq.heappop(self._bench)[3]]
        if not self._bench:
            return None
        _, _, demand_milli, spot = self._bench[0]
        if (most_milli is not None and demand_milli > most_milli) or self.bars(demand_milli, now_ns) is not None:
            return None
        heapq.heappop(self._bench)
        del self._benched[spot]
        return spot, demand_milli

    def clear_bench(self) -> None:
        """All its spots are filed in the queue anew."""
        self._bench.clear()
        self._benched.clear()

    @property
    def next_demand_milli(self) -> int | None:
        """What the first on the bench needs; the others wait for it."""
        return self._bench[0][2] if self._bench else None

    @property
    def benched(self) -> dict[Spot, int]:
        """The spots on the bench with what each needs."""
        return self._benched


class Accounts:
    """All tenants' and users' accounts."""

    def __init__(self, half_life_seconds: float) -> None:
        self._half_life_ns = int(half_life_seconds * SECOND)
        self._accounts: dict[tuple[str, str | None], Account] = {}
        self._notebooks: dict[tuple[str, str, str], Account] = {}
        """By tenant, user and label: those whose budgets are not open."""
        self.windowed: dict[Account, None] = {}
        """Accounts with a window: what they may hold changes as time passes."""
        self.bound_parking: dict[Account, None] = {}
        """Accounts with a bound on parked bytes."""

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def of(self, tenant: str, user: str | None = None) -> Account:
        """The account of the tenant, or of its user."""
        key = (tenant, user)
        found = self._accounts.get(key)
        if found is None:
            found = self._accounts[key] = Account(tenant, user, self._half_life_ns)
        return found

    def find(self, tenant: str, user: str | None) -> Account | None:
        """The account, if anybody ever needed it."""
        return self._accounts.get((tenant, user))

    def set_quota(self, tenant: str, user: str | None, quota: Quota, now_ns: int) -> Account:
        account = self.of(tenant, user)
        account.set_quota(quota, now_ns)
        self.windowed.pop(account, None)
        if account.window is not None:
            self.windowed[account] = None
        self.bound_parking.pop(account, None)
        if quota.parked_bytes is not None:
            self.bound_parking[account] = None
        return account

    def begin_with(self, history: History, open_leases: Iterable[Spent], now_ns: int) -> None:
        """What was used before this pool began; the leases that it left open are in no record yet."""
        still = list(open_leases)
        for spent in (*history.shares, *still):
            for account in (self.of(spent.tenant), self.of(spent.tenant, spent.user)):
                account.usage.spent(spent.milli, spent.start_ns, spent.end_ns)
                account.usage.spent_at_once(spent.amount, spent.end_ns)
        for account in self.windowed:
            own = [spent for spent in still if spent.tenant == account.tenant and account.user in (None, spent.user)]
            account.begin_with((*history.windows.get((account.tenant, account.user), ()), *own), now_ns)

    def both(self, session: Session) -> tuple[Account, Account]:
        """The accounts that the session's leases count for: its tenant's, and its user's."""
        found = session.accounts
        if found is None:
            found = session.accounts = (self.of(session.tenant), self.of(session.tenant, session.user))
        return found

    def set_budget(
        self, tenant: str, user: str | None, notebook: str | None, state: BudgetState, cause: str
    ) -> tuple[Account, bool]:
        """The account that the budget is for, and whether it lets in, or keeps out, other requests than before."""
        if notebook is None or user is None:
            account = self.of(tenant, user)
        else:
            key = (tenant, user, notebook)
            account = self._notebooks.get(key) or Account(tenant, user, self._half_life_ns, notebook)
            self._notebooks[key] = account
            if state == "open":
                del self._notebooks[key]
        changed = account.budget != state
        account.budget, account.budget_cause = state, cause
        return account, changed

    def notebook_of(self, session: Session, span: wire.Span) -> Account | None:
        """The account of what the user's spans of this label cost, if its budget is not open."""
        return self._notebooks.get((session.tenant, session.user, span.label)) if self._notebooks else None

    def priority_of(self, session: Session, asked: int) -> int:
        """The priority that a request gets: what was asked for, capped by what the quotas allow."""
        tenant, user = (account.quota.priority_max for account in self.both(session))
        cap = 0 if tenant is None else tenant
        return min(asked, cap if user is None else min(cap, user))

    def room_milli(self, session: Session) -> float:
        """How much more the session's accounts may hold at a time."""
        tenant, user = self.both(session)
        room, own_room = tenant.room_milli, user.room_milli
        if room is None:
            return math.inf if own_room is None else own_room
        return room if own_room is None or room < own_room else own_room

    def bar(self, session: Session, span: wire.Span, demand_milli: int, now_ns: int) -> tuple[Account, Bar] | None:
        """The account that keeps the session from holding so much more for the span now, and by what."""
        if self._notebooks and (notebook := self.notebook_of(session, span)) is not None:
            return notebook, "budget"
        for account in self.both(session):
            bar = account.bars(demand_milli, now_ns)
            if bar is not None:
                return account, bar
        return None
