"""The auditor's books of what operators set: quotas and budgets, closed devices, workers that died, who holds what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from forebay_pool.model.events import BudgetSet, QuotaSet
from forebay_pool.model.node_events import DeviceSet, NodeDrain
from forebay_pool.model.snapshot import Snapshot
from forebay_pool.model.types import Device, Flavor, Price, Quota

from simulation.agenda import SECOND_NS

WHOLE_MILLI = 1000
REPLAYS_MAX = 2
"""So many workers in a row that die while they do a session's work again are its own doing."""
REPLAY_TIMES_MAX = 2
"""A replay that takes so many times the limit is billed from then on."""
Who = tuple[str, str | None]
"""A tenant, or a user of one."""


@dataclass(eq=False)
class Use:
    """Devices that somebody holds, or held."""

    tenant: str
    user: str
    notebook: str
    milli: int
    since_ns: int
    until_ns: int | None = None

    def is_of(self, who: Who) -> bool:
        return self.tenant == who[0] and who[1] in (None, self.user)

    def within(self, begin_ns: int, now_ns: int) -> int:
        """What was held since ``begin_ns``, in milli-devices times nanoseconds."""
        return self.milli * max(0, (now_ns if self.until_ns is None else self.until_ns) - max(begin_ns, self.since_ns))


@dataclass
class QuotaBook:
    """What tenants and users may hold, and what they hold and held."""

    quotas: dict[Who, tuple[Quota, int]] = field(default_factory=dict)
    """Each with the moment from which its window counts: what was held before it was first set, or its length changed, does not."""
    budgets: dict[tuple[str, str | None, str | None], str] = field(default_factory=dict)
    """Also of notebooks."""
    uses: dict[str, Use] = field(default_factory=dict)
    """By lease."""

    def set_quota(self, event: QuotaSet, now_ns: int) -> None:
        known, since_ns = self.quotas.get((event.tenant, event.user), (Quota(), now_ns))
        same = known.device_seconds is not None and known.window_seconds == event.quota.window_seconds
        self.quotas[event.tenant, event.user] = (event.quota, since_ns if same else now_ns)

    def set_budget(self, event: BudgetSet) -> None:
        self.budgets[event.tenant, event.user, event.notebook] = event.state

    def exceeded_by(self, use: Use) -> str | None:
        """What forbids that this is held as well from now on, in words; None if nothing does."""
        for who in ((use.tenant, None), (use.tenant, use.user)):
            name, now_ns = "/".join(filter(None, who)), use.since_ns
            quota, since_ns = self.quotas.get(who, (Quota(), 0))
            mine = [other for other in self.uses.values() if other.is_of(who)]
            held = use.milli + sum(other.milli for other in mine if other.until_ns is None)
            if quota.devices_milli is not None and held > quota.devices_milli:
                return f"{name} holds {held} thousandths of devices, and may hold {quota.devices_milli}"
            if quota.device_seconds is not None and quota.window_seconds is not None:
                begin_ns = max(since_ns, now_ns - quota.window_seconds * SECOND_NS)
                spent = sum(other.within(begin_ns, now_ns) for other in mine)
                if spent >= quota.device_seconds * WHOLE_MILLI * SECOND_NS:
                    return f"{name} held {spent} within its window, and may hold {quota.device_seconds} device-seconds"
        for whose in ((use.tenant, None, None), (use.tenant, use.user, None), (use.tenant, use.user, use.notebook)):
            if self.budgets.get(whose, "open") != "open":
                return f"{'/'.join(filter(None, whose))} has no budget left"
        return None

    def pool_died(self, now_ns: int) -> None:
        """Another pool knows the quotas, and neither what was held before it began nor anything of budgets."""
        self.quotas = {who: (quota, now_ns) for who, (quota, _) in self.quotas.items()}
        self.budgets.clear()

    def opens(self, lease: str, use: Use) -> None:
        self.uses[lease] = use

    def closes(self, lease: str, now_ns: int) -> None:
        self.uses[lease].until_ns = now_ns

    def forgets(self, lease: str) -> None:
        """The lease was never written down when the pool died: it is free."""
        del self.uses[lease]

    def revives(self, lease: str) -> None:
        """The lease's end was not written down when the pool died."""
        self.uses[lease].until_ns = None


@dataclass
class ClosureBook:
    """Nodes that are being emptied, and devices that are closed."""

    drains: dict[str, int | None] = field(default_factory=dict)
    """By node: when its leases are taken back, if ever."""
    cordoned: set[str] = field(default_factory=set)

    def set_drain(self, event: NodeDrain, now_ns: int) -> None:
        if not event.drains:
            self.drains.pop(event.node, None)
            return
        self.drains[event.node] = None if event.grace_seconds is None else now_ns + int(event.grace_seconds * SECOND_NS)

    def set_device(self, event: DeviceSet) -> None:
        (self.cordoned.add if event.cordoned else self.cordoned.discard)(event.device)

    def closed_of(self, devices: Iterable[Device]) -> str | None:
        """The first of the devices that nothing may begin on."""
        return next((device.id for device in devices if device.node in self.drains or device.id in self.cordoned), None)

    def is_due(self, devices: Iterable[Device], now_ns: int) -> bool:
        """Whether a lease there must have been taken back by now."""
        deadlines = (self.drains[device.node] for device in devices if device.node in self.drains)
        return any(deadline_ns is not None and now_ns >= deadline_ns for deadline_ns in deadlines)


@dataclass
class Account:
    """What the book knows of one session."""

    keeps: bool = False
    """Its client keeps what it sends."""
    moved: bool = False
    """It was at another worker before, and what that one was sent is not kept."""
    undone: bool = False
    """What a dead worker did is not known to be done again."""
    was_to_close: bool = False
    """That worker had been told to close its lease: its program may have kept it from that."""
    dead: str = ""
    """The worker that died last."""
    epoch: int = 0
    """The session's latest lease by then."""
    tries: int = 0
    """Workers in a row that died while they did its work again."""
    worked_least_ns: int = 0
    worked_most_ns: int = 0
    """Between these lies how long its leases lasted, but for replays: how long one of a dead worker did is not told to the nanosecond."""


@dataclass(eq=False)
class LossBook:
    """Of workers that died under sessions whose clients keep what they send: such a session goes on, and what is done again is free. It is
    lost only if that would take too long, or if a worker died while it did its work again. ``demand`` raises if its argument is false."""

    limit_ns: int
    demand: Callable[..., None]
    accounts: dict[str, Account] = field(default_factory=dict)
    known: dict[str, list[tuple[int, Account]]] = field(default_factory=dict)
    """All that was ever known of each session, and since when: a pool may die before it wrote the last of it."""
    bereft: set[str] = field(default_factory=set)
    """Sessions whose worker died in this step, and that were not told yet what becomes of them."""

    def of(self, session: str) -> Account:
        return self.accounts.setdefault(session, Account())

    def keeps(self, session: str) -> None:
        """The client says that it keeps what it sends; that is not all if it was at another worker before."""
        account = self.of(session)
        account.keeps = not account.moved

    def moves(self, session: str) -> None:
        account = self.of(session)
        account.keeps, account.moved = False, True

    def loses_worker(self, session: str, worker: str, epoch: int, in_replay: bool, was_to_close: bool) -> bool:
        """Its worker died, with its lease in a replay or not. ``was_to_close``: it was told to, and may have been killed since it did not.
        False if its client keeps nothing."""
        account = self.of(session)
        if not account.keeps:
            return False
        account.tries = (account.tries if account.undone else 0) + in_replay
        account.undone, account.dead, account.epoch, account.was_to_close = True, worker, epoch, was_to_close
        self.bereft.add(session)
        return True

    def goes_on(self, session: str, resumed_at: str | None) -> None:
        """The client is told that its worker died; ``resumed_at``: the worker that it said it is at, if it has just come back."""
        account = self.of(session)
        self.demand(session in self.bereft or resumed_at == account.dead, "a session goes on whose worker did not die", session)
        if session in self.bereft:
            self.demand(account.worked_least_ns <= self.limit_ns, "a session goes on that worked for too long to be done again", session)
            self.demand(account.tries < REPLAYS_MAX, "a session goes on whose work kills its workers", session)
        self.bereft.discard(session)

    def may_be_lost(self, session: str) -> bool:
        account = self.of(session)
        too_long, too_often = account.worked_most_ns > self.limit_ns, account.tries >= REPLAYS_MAX
        return session in self.bereft and (too_long or too_often or account.was_to_close)

    def arrives(self, session: str, epoch: int) -> bool:
        """Whether the client's word ends a replay."""
        account = self.of(session)
        ends = account.undone and epoch > account.epoch
        account.undone = account.undone and not ends
        return ends

    def worked(self, session: str, least_ns: int, most_ns: int) -> None:
        """A lease is over, in which nothing was done again."""
        account = self.of(session)
        account.worked_least_ns += least_ns
        account.worked_most_ns += most_ns

    def takes_too_long(self, since_ns: int, now_ns: int) -> bool:
        return now_ns - since_ns > REPLAY_TIMES_MAX * self.limit_ns

    def checked(self, now_ns: int) -> None:
        """At the end of a step."""
        for session in self.bereft:
            self.demand(False, "a worker died, and its session is not told", session)
        for session, account in self.accounts.items():
            known = self.known.setdefault(session, [])
            if not known or known[-1][1] != account:
                known.append((now_ns, replace(account)))

    def forget(self, session: str) -> None:
        self.accounts.pop(session, None)
        self.bereft.discard(session)

    def pool_died(self, kept: Snapshot, written_ns: int) -> None:
        """The next pool knows what was written: all that happened until then, but perhaps less of how long the last leases lasted."""
        self.bereft.clear()
        self.accounts = {}
        for session in kept.sessions:
            replay = session.replay
            if replay is not None:
                known = self.known[session.id] = [one for one in self.known.get(session.id, []) if one[0] <= written_ns]
                account = replace(known[-1][1]) if known else Account()
                loss = (replay.loss.worker, replay.loss.epoch, replay.loss.undone, replay.loss.tries) if replay.loss else ("", 0, False, 0)
                same = loss == (account.dead, account.epoch, account.undone, account.tries)
                self.demand(same, f"of a session's losses {loss} is written, which is not so", session.id)
                less = replay.worked_ns <= account.worked_most_ns
                self.demand(less, "a session worked for less than is written", session.id)
                account.worked_least_ns = account.worked_most_ns = replay.worked_ns
                self.accounts[session.id] = account


@dataclass(eq=False)
class Process:
    """A worker as its launch, its orders and its words tell."""

    name: str
    devices: tuple[Device, ...]
    session: str | None = None
    ticket: str = ""
    executes: int | None = None
    """The epoch it was told to open and has not given back: it may be executing."""
    share_milli: int = 0
    memory_bytes: int = 0
    """Memory of its first device that it was allowed and has not given back."""
    parked_bytes: int = 0
    parking: bool = False
    restoring: bool = False
    told_to_park_ns: int = 0
    opened: bool = False
    """Whether it ever held a lease: then it has tensors to lose."""
    carries: bool = False
    """Whether it was told to fetch the session's tensors, and to keep them for another worker."""
    fetches: bool = False
    """Whether it was told to take the session over from another worker."""
    left: bool = False
    """Whether it only holds the session's tensors, for another worker to fetch."""
    told_to_close: int | None = None
    """The epoch of the lease that was taken back."""
    away: bool = False
    """Whether it has no link: nothing confirms what it holds."""
    heard: bool = True
    """Whether its word counts: not once it was told to end, was killed, or lost its link."""


@dataclass(eq=False, slots=True)
class Clock:
    """From when on a lease counts."""

    opened_ns: int
    opened_unix_ns: int
    replays: bool
    """Its worker does again what a dead one did: that is free."""
    confirmed_ns: int = field(init=False)
    """When its worker said last that it holds the lease."""

    def __post_init__(self) -> None:
        self.confirmed_ns = self.opened_ns


@dataclass(eq=False)
class Held:
    """A lease, by the auditor's own clock."""

    name: str
    session: str
    worker: Process
    epoch: int
    price: Price | None
    clock: Clock
    pieces: list[int] = field(default_factory=list)
    """For how long each of its segments was metered."""
    clocks: list[Clock] = field(init=False)
    """Those before, and this one."""

    def __post_init__(self) -> None:
        self.clocks = [self.clock]

    def starts_clock(self, clock: Clock) -> None:
        self.clocks.append(clock)
        self.clock = clock

    def goes_back_to(self, now_ns: int) -> None:
        """A pool died before it wrote what came after that."""
        self.clocks = [clock for clock in self.clocks if clock.opened_ns <= now_ns]
        self.clock = self.clocks[-1]

    @property
    def opened_ns(self) -> int:
        return self.clock.opened_ns

    @property
    def opened_unix_ns(self) -> int:
        return self.clock.opened_unix_ns

    @property
    def replays(self) -> bool:
        return self.clock.replays

    @property
    def metered_ns(self) -> int:
        return sum(self.pieces)


@dataclass(eq=False)
class Guest:
    """A session."""

    tenant: str
    user: str
    notebook: str
    flavor: str
    welcome: bool = False
    """Whether the pool took it in."""
    epoch: int = 0
    asks: int | None = None
    """The number of the request that has no final answer."""
    home: str | None = None
    """The worker that has its tensors."""
    way: tuple[str, int] = ("", 0)
    """The model, and the number, of the devices that it computed on last."""
    forgotten: bool = False
    """Whether a pool died before it wrote which worker that is: the next one cannot know, and the session may be lost."""
    fresh: bool = False
    """Whether no pool wrote that its worker held a lease: the next one believes that nothing is there, until somebody tells."""
    first: str | None = None
    """Its first worker, where a pool died before it wrote that: the next one must believe whoever of both comes back with the ticket."""


def share_of(flavor: Flavor, devices: tuple[Device, ...]) -> int:
    """Thousandths of each device that a lease of the flavor takes; 0 if these devices do not serve it."""
    for equivalent in flavor.equivalents:
        if equivalent.count == len(devices) and all(device.model == equivalent.model for device in devices):
            return equivalent.share_milli
    return 0


def cost(duration_ns: int, price: Price | None) -> int | None:
    """In nano-units, half to even."""
    return None if price is None or price.nano_per_hour is None else round(Fraction(duration_ns * price.nano_per_hour, 3_600_000_000_000))
