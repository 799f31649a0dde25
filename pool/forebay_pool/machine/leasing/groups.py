"""Leases that are granted together: those of the processes that one torchrun started.

A member that computes soon needs the others, in a collective. So all waiting members of a group get leases together, or none does, as with
the devices of a gang. A member that waits in a collective has its lease as long as another member computes. Once no member computes, or one
waits for a lease, all members that wait in collectives give their leases back. They ask again with the first that asks. So no member holds
a device while it waits for a member without one. Two groups never wait for each other: one ranks first on all devices (``Queue.rank``).
"""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base import refusals
from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.place_finder import PlaceFinder
from forebay_pool.machine.leasing.queue_positions import QueuePositions
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Group, Session, Standing
from forebay_pool.placement.fleet import Fleet
from forebay_pool.queue.accounts import Accounts
from forebay_pool.queue.queue import Queue
from forebay_pool.queue.reasons import why_gathering

GROUP_SECONDS = 10.0
"""The first members of a group that ask for leases wait once for the others, for so long."""


class Groups:
    """Keeps the members of groups together. Groups of which a member changed are settled when the event ends."""

    def __init__(
        self,
        step: Step,
        worklist: Worklist,
        admission: Admission,
        fleet: Fleet,
        queue: Queue,
        accounts: Accounts,
        leases: Leases,
        positions: QueuePositions,
        places: PlaceFinder,
        granting: Granting,
    ) -> None:
        self._step = step
        self._worklist = worklist
        self._admission = admission
        self._fleet = fleet
        self._queue = queue
        self._accounts = accounts
        self._leases = leases
        self._positions = positions
        self._places = places
        self._granting = granting
        self.by_name: dict[str, Group] = {}
        """All and only the groups with a member."""

    def join(self, session: Session, member: wire.GroupMember) -> Group | None:
        """The group that the session belongs to from now on; None if another session has its rank."""
        name = f"{session.tenant}/{session.user}/{member.size}/{member.id}"
        group = self.by_name.setdefault(name, Group(name, member.size))
        if group.members.setdefault(member.rank, session) is session:
            session.group = group
        return session.group

    def leave(self, session: Session) -> None:
        """The session has ended: the others go on without it."""
        group = session.group
        if group is None:
            return
        group.is_broken = group.is_broken or session.epoch > 0
        group.members = {rank: member for rank, member in group.members.items() if member is not session}
        self._worklist.groups[group] = None
        if not group.members:
            del self.by_name[group.name]

    def settle(self, group: Group) -> None:
        """A member changed: members that can start do so, and members that wait in vain give their leases back."""
        self._gather(group)
        if not group.gathered:
            return
        if group.requests:
            self._request_for_due(group)
        if not self._refuse(group):
            self._file(group)
        for request, place in group.opening[:1]:
            self._granting.advance(request, place)
        self._release_waiting(group)

    def _gather(self, group: Group) -> None:
        """Waits for all members to ask, for a bounded time: the first to ask do not know how many will."""
        group.asked |= {rank for rank, member in group.members.items() if member.request is not None or member.lease is not None}
        if group.gathered or not group.asked:
            return
        if group.until_ns is None:
            group.until_ns = self._step.now_ns + int(GROUP_SECONDS * SECOND)
        if len(group.asked) == group.size or self._step.now_ns >= group.until_ns:
            group.gathered = True
            self._step.note("group_gathered", group=group.name, asked=len(group.asked), size=group.size)
        else:
            for request in group.waiting:
                self._positions.send_standing(request, Standing(1, *why_gathering(group)))

    def check(self) -> None:
        """Time has passed: a group that has gathered for long enough goes on without the members that have not asked."""
        for group in self.by_name.values():
            if not group.gathered and group.until_ns is not None and self._step.now_ns >= group.until_ns:
                self._worklist.groups[group] = None

    def _request_for_due(self, group: Group) -> None:
        """Members whose leases ended in the middle of a collective ask again with the first that asks: it cannot get far without them."""
        for member in group.members.values():
            if member.due and member.lease is None and member.request is None and member.span is not None and not member.stalled:
                self._granting.request(member, 0, member.span, member.priority)

    def _refuse(self, group: Group) -> bool:
        """Refuses requests that can never be granted together, because of the devices or because of quotas. True if it did."""
        refusal = None if self._admission.stopping else self._why_never(group)
        for request in group.requests if refusal is not None else []:
            self._granting.drop(request.session, refusal.model_copy(update={"request": request.number}))  # type: ignore[union-attr]
        return refusal is not None

    def _why_never(self, group: Group) -> wire.Refused | None:
        """The refusal of requests that can never be granted together; None if they can."""
        asking = [request.session for request in group.requests]
        if not asking:
            return None
        users = [*asking, *(lease.session for lease in group.leases)]
        tenant, flavors = asking[0].tenant, self._fleet.flavors
        for name in dict.fromkeys(session.flavor for session in asking):
            count = sum(session.flavor == name for session in users)
            most = self._fleet.most_together(flavors[name], tenant)
            if count > max(1, most):
                fit = [flavor.name for flavor in flavors.values() if self._fleet.most_together(flavor, tenant) >= count]
                return refusals.too_many_ranks(count, most, name, fit)
        demand_milli = sum(self._fleet.demand_milli(self._fleet.lane_of(session)) for session in users)
        most_milli = self._fleet.most_milli(session.flavor for session in users)
        if demand_milli > most_milli and len(users) > 1:
            return refusals.too_many_devices(len(users), demand_milli, most_milli)
        for account in self._accounts.both(asking[0]):
            why = account.never_fits(demand_milli)
            if why is not None:
                return refusals.quota(why, 0)
        return None

    def _file(self, group: Group) -> None:
        """Places all waiting members at once, or puts them in the queue with what they need together."""
        waiting = group.waiting
        needed_milli = sum(self._fleet.demand_milli(self._fleet.lane_of(request.session)) for request in waiting)
        if needed_milli == group.demand_milli and all(map(self._queue.has, waiting)):
            return
        for request in waiting:
            self._granting.leave_queue(request)
        group.demand_milli = needed_milli
        barred = any(self._queue.bars(one.session, one.span, needed_milli, self._step.now_ns) for one in waiting)
        if not barred and self._granting.claim_all(self._places.find_together(waiting, moves=True)):
            return
        for request in waiting:
            self._granting.queue_up(request)
        for request in group.waiting:
            request.told = None
            self._positions.send(request)

    def _release_waiting(self, group: Group) -> None:
        """Ends the leases of members that wait in collectives, if no member computes that they could wait for."""
        open_leases = [lease for lease in group.leases if lease.state == "open"]
        computes = any(lease.waits_since_ns is None for lease in open_leases) or bool(group.opening)
        if not computes or group.waiting:
            for lease in open_leases:
                if lease.waits_since_ns is not None:
                    self._leases.give_back(lease, "idle")
