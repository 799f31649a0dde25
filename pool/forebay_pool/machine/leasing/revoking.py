"""Leases that are taken back after a grace period: for a higher priority, an exhausted quota, or an operator."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_wire import messages as wire

from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.model.causes import Cause, told
from forebay_pool.model.events import LeaseRevoked
from forebay_pool.model.instructions import Show
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Lease, Request, Session
from forebay_pool.placement.fleet import Fleet
from forebay_pool.queue.accounts import Account, Accounts
from forebay_pool.queue.queue import Queue


class Revoking:
    """Takes leases back. The client is told; after the grace period the lease closes at a command boundary, and its session waits again."""

    def __init__(
        self,
        step: Step,
        worklist: Worklist,
        limits: Limits,
        sessions: dict[str, Session],
        fleet: Fleet,
        queue: Queue,
        accounts: Accounts,
        leases: Leases,
    ) -> None:
        self._step = step
        self._worklist = worklist
        self._limits = limits
        self._sessions = sessions
        self._fleet = fleet
        self._queue = queue
        self._accounts = accounts
        self._leases = leases

    def lease_revoked(self, event: LeaseRevoked) -> None:
        session = self._sessions.get(event.session)
        if session is not None and session.lease is not None:
            self._revoke(session.lease, event.cause)

    def _revoke(self, lease: Lease, cause: str, grace_seconds: float | None = None) -> None:
        """Takes the lease back after the grace period. An earlier notice stands, unless this one ends sooner."""
        if lease.state != "open":
            return
        seconds = self._limits.revoke_grace_seconds if grace_seconds is None else grace_seconds
        revoke_ns = self._step.now_ns + int(seconds * SECOND)
        if lease.revoked_for is None or (grace_seconds is not None and revoke_ns < lease.revoke_ns - SECOND):
            lease.revoked_for, lease.revoke_ns = cause, revoke_ns
            self._leases.revocable.discard(lease)
            self._leases.revoked[lease.id] = lease
            session = lease.session
            self._step.send(session.id, wire.Revoking(epoch=lease.epoch, seconds=seconds, reason=cause, cause=told(cause)))
            self._step.note("lease_revoking", session=session.id, tenant=session.tenant, lease=lease.id, cause=cause)
            self._step.out.append(Show(lease))
        if grace_seconds is not None and seconds <= 0:
            self._leases.give_back(lease, "revoked")

    def drain(self, account: Account, grace_seconds: float) -> None:
        """Takes back all leases that count for the account, since its budget is used up."""
        cause = account.why("budget", 0, self._step.now_ns)
        for lease in list(self._accounts.of(account.tenant, account.user).leases.values()):
            if account.notebook in (None, lease.span.label):
                self._revoke(lease, cause, grace_seconds)

    def check(self) -> None:
        """Closes leases whose grace period is over. Revokes leases of accounts that have used up their device time."""
        for lease in list(self._leases.revoked.values()):
            if self._step.now_ns >= lease.revoke_ns:
                self._leases.give_back(lease, "revoked")
        for account in self._accounts.windowed:
            self._worklist.accounts[account] = None
            if account.quota.on_exhausted == "revoke" and account.leases and account.is_exhausted(self._step.now_ns):
                for lease in list(account.leases.values()):
                    self._revoke(lease, account.why("quota", 0, self._step.now_ns))
        if self._limits.preempt_priority_gap:
            self._preempt_for_heads()

    def _preempt_for_heads(self) -> None:
        lowest = self._leases.revocable.lowest
        if lowest is None:
            return
        for request in self._queue.heads_above(lowest + self._limits.preempt_priority_gap, self._step.now_ns):
            self.preempt_for(request)

    def preempt_for(self, request: Request) -> None:
        """Revokes leases whose priority is lower by the gap, until the request will have room: the lowest first, of these the latest."""
        gap = self._limits.preempt_priority_gap
        if not gap or self._queue.waiting.get(request.order) is not request:
            return
        if self._queue.is_barred(request, self._step.now_ns):
            return
        request.preempts = {name: lease for name, lease in request.preempts.items() if name in self._leases.by_id}
        chosen: list[Lease] = []
        needed = self._needs_there(request) - sum(lease.held_milli for lease in request.preempts.values())
        victims = self._victims(request, request.priority - gap)
        while needed > 0 and (lease := next(victims, None)) is not None:
            needed -= lease.held_milli
            request.preempts[lease.id] = lease
            chosen.append(lease)
        for lease in chosen:
            self._revoke(lease, Cause("priority_takes", priority=request.priority, own=lease.priority))

    def _needs_there(self, request: Request) -> int:
        """Thousandths of devices that the request needs, with those that start with it and may take the same devices."""
        group = request.session.group
        beside = [request] if group is None else [one for one in group.waiting if one.lane == request.lane]
        return len(beside) * self._fleet.demand_milli(request.lane)

    def _victims(self, request: Request, priority_max: int) -> Iterator[Lease]:
        """Open leases up to this priority on devices that the request may take: the lowest first, of these the latest."""
        devices, flavor, *_ = request.lane
        if devices:
            holders = (session.lease for device in devices for session in self._fleet.seats[device].holders)
            found = {lease.id: lease for lease in holders if lease is not None and lease.state == "open" and lease.revoked_for is None}
            ordered = sorted(found.values(), key=lambda lease: (lease.priority, -lease.opened_ns))
            return (lease for lease in ordered if lease.priority <= priority_max)
        models, runtime = {e.model for e in self._fleet.flavors[flavor].equivalents}, request.session.runtime
        victims = self._leases.revocable.victims(models, priority_max)
        return (lease for lease in victims if self._fleet.runtimes.serve(lease.place.devices, runtime))
