"""The auditor's books of what operators set: quotas and budgets, and nodes and devices that are closed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forebay_pool.model.events import BudgetSet, QuotaSet
from forebay_pool.model.node_events import DeviceSet, NodeDrain
from forebay_pool.model.types import Device, Quota

from simulation.agenda import SECOND_NS

WHOLE_MILLI = 1000
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
