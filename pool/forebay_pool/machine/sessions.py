"""Sessions: they join, ask for leases, give them back, and end."""

from __future__ import annotations

from collections.abc import Collection

from forebay_wire import messages as wire

from forebay_pool.errors import InvariantBroken
from forebay_pool.machine import refusals
from forebay_pool.machine.workers import Workers
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import BudgetSet, ClientSaid, QuotaSet, SessionDismissed, SessionJoined, SessionLeft
from forebay_pool.model.types import Request, Session

SCARCE_PERCENT = 75
"""Of the sessions, and of the places in the queue: beyond, what is left is for users who have few."""
FEW = 16


def leaves_rest(one: SessionJoined | Session, others: Collection[Session], most: int) -> bool:
    """Whether there are so many already that who has a few of them gets no more."""
    if len(others) < most * SCARCE_PERCENT // 100:
        return False
    return sum(other.user == one.user and other.tenant == one.tenant for other in others) >= FEW


class Sessions(Workers):
    """Hears clients."""

    def _session_joined(self, event: SessionJoined) -> None:
        refusal = self._no_session_for(event)
        if refusal is not None:
            self._tell(event.session, refusal)
            return
        session = Session(
            id=event.session,
            secret=event.secret,
            tenant=event.tenant,
            user=event.user,
            process=event.process,
            flavor=event.flavor,
            priority=event.priority,
            since_ns=self._now,
            since_unix_ns=self._now + self._unix_offset_ns,
            used_ns=self._now,
        )
        self.sessions[session.id] = session
        if event.group is not None:
            self._join_group(session, event.group)
        self._tell_flavor(session)
        self._keep(session)
        self._show(session)

    def _no_session_for(self, event: SessionJoined) -> wire.Refused | None:
        if event.session in self.sessions:
            raise InvariantBroken(f"session {event.session} joined twice")
        if self.stopping:
            return refusals.shutting_down()
        if len(self.sessions) >= self.limits.sessions_max or leaves_rest(event, self.sessions.values(), self.limits.sessions_max):
            return refusals.too_many_sessions(self.limits.sessions_max)
        flavor = self.fleet.flavors.get(event.flavor)
        if flavor is None:
            return refusals.unknown_flavor(event.flavor, self.fleet)
        why = self.fleet.why_not(flavor, event.tenant)
        return None if why is None else refusals.not_servable(Cause("choose_another", why))

    def _session_over(self, event: SessionLeft | SessionDismissed) -> None:
        session = self.sessions.get(event.session)
        if session is not None and isinstance(event, SessionDismissed):
            self._end(session, event.reason, event.cause)
        elif session is not None:
            self._end(session, "released", None)

    def _client_said(self, event: ClientSaid) -> None:
        session = self.sessions.get(event.session)
        if session is not None:
            self._on_client[type(event.message)](session, event.message)
        elif isinstance(event.message, wire.Acquire):
            self._tell(event.session, refusals.no_session(event.message.request))

    def _acquire(self, session: Session, message: wire.Acquire) -> None:
        lease, pending = session.lease, session.request
        leaves = session.worker is not None and session.worker.leave_by_ns is not None
        same = lease is not None and lease.span.id == message.span.id and lease.flavor.name == session.flavor
        if lease is not None and lease.state == "open" and same and not leaves:
            lease.number = message.request
            self._tell_granted(lease)
            return
        refusal = self._no_lease_for(session, message.request, message.span)
        if refusal is not None:
            self._tell(session.id, refusal)
        elif pending is not None:
            moved, before = pending.span.label != message.span.label, pending.span
            pending.number, pending.span, pending.told = message.request, message.span, None
            if moved and session.lease is None and self._other_budget(session, before, message.span):
                self._place_again(pending)
            else:
                self._tell_place(pending)
        else:
            self._request(session, message.request, message.span, session.priority if message.priority is None else message.priority)
            if session.request is not None:
                self._preempt_for(session.request)

    def _other_budget(self, session: Session, before: wire.Span, after: wire.Span) -> bool:
        return self.accounts.notebook_of(session, before) is not self.accounts.notebook_of(session, after)

    def _no_lease_for(self, session: Session, number: int, span: wire.Span) -> wire.Refused | None:
        pending = session.request
        if self.stopping:
            return refusals.shutting_down(number)
        if not self.accepting:
            return refusals.unwritten(number)
        if pending is not None and pending.number not in (0, number):
            return refusals.waits_already(number, pending.number)
        if pending is None and self._queue_is_full_for(session):
            return refusals.queue_full(number, len(self.queue))
        why = refusals.why_not(session, self.fleet.flavors[session.flavor], self.fleet)
        return self._no_money_for(session, number, span) if why is None else refusals.not_servable(why, number)

    def _queue_is_full_for(self, session: Session) -> bool:
        most = self.limits.queue_max
        if len(self.queue) < most * SCARCE_PERCENT // 100:
            return False
        return len(self.queue) >= most or leaves_rest(session, [request.session for request in self.queue.waiting.values()], most)

    def _no_money_for(self, session: Session, number: int, span: wire.Span) -> wire.Refused | None:
        """What no waiting would help: a quota that is too small for the request alone, a budget that refuses."""
        demand_milli = self.queue.demand_milli(self.fleet.lane_of(session))
        accounts, notebook = self.accounts.both(session), self.accounts.notebook_of(session, span)
        for account in accounts if notebook is None else (*accounts, notebook):
            why = account.never_fits(demand_milli)
            if why is not None:
                return refusals.quota(why, number)
            if account.budget == "refuse":
                return refusals.budget(account.why("budget", demand_milli, self._now), number)
        return None

    def _quota_set(self, event: QuotaSet) -> None:
        self.accounts.set_quota(event.tenant, event.user, event.quota, self._now)
        self._refuse_hopeless(event)

    def _budget_set(self, event: BudgetSet) -> None:
        account, changed = self.accounts.set_budget(event.tenant, event.user, event.notebook, event.state, event.cause)
        if event.state == "drain":
            self._drain(account, event.grace_seconds)
        if changed:
            self._refuse_hopeless(event)

    def _refuse_hopeless(self, event: QuotaSet | BudgetSet) -> None:
        """The rules changed: who waits for nothing is refused, and all others are ranked anew."""
        for session in list(self.sessions.values()):
            request = session.request
            if request is not None and session.tenant == event.tenant and event.user in (None, session.user):
                self._refuse_if_hopeless(request)
        self.queue.rebuild()
        self._look_anew = True

    def _refuse_if_hopeless(self, request: Request) -> bool:
        refusal = self._no_money_for(request.session, request.number, request.span)
        if refusal is not None:
            self._drop_request(request.session, refusal)
        return refusal is not None

    def _cancel(self, session: Session, message: wire.Cancel) -> None:
        if session.waited is not None and session.waited.number == message.request:
            session.waited = None
        if session.request is not None and session.request.number == message.request:
            self._drop_request(session, None)
        elif session.lease is not None and session.lease.number == message.request:
            self._give_back(session.lease)

    def _release(self, session: Session, message: wire.Release) -> None:
        lease = session.lease
        if lease is not None and lease.epoch == message.epoch:
            self._give_back(lease)

    def _arrived(self, session: Session, message: wire.Arrived) -> None:
        lease = session.lease
        if lease is not None and lease.epoch == message.epoch:
            self._let_image_go(session)

    def _unreached(self, session: Session, message: wire.Unreached) -> None:
        lease, worker = session.lease, session.worker
        if lease is not None and lease.epoch == message.epoch and worker is not None:
            self._fail(worker, "its session's process could not connect to it")

    def _choose_flavor(self, session: Session, message: wire.ChooseFlavor) -> None:
        flavor = self.fleet.flavors.get(message.flavor)
        if flavor is None:
            self._tell(session.id, refusals.unknown_flavor(message.flavor, self.fleet))
            return
        why = refusals.why_not(session, flavor, self.fleet)
        if why is not None:
            self._tell(session.id, refusals.not_servable(why))
            return
        changes = session.flavor != flavor.name
        session.flavor = flavor.name
        self._tell_flavor(session)
        if not changes:
            return
        if session.request is not None and not self._refuse_if_hopeless(session.request) and session.lease is None:
            self._place_again(session.request)
        self._keep(session)
        self._show(session)

    def _choose_priority(self, session: Session, message: wire.ChoosePriority) -> None:
        request, before = session.request, session.priority
        session.priority = message.priority
        asked = None if request is None else self.accounts.priority_of(session, message.priority)
        if before == message.priority and (request is None or request.priority == asked):
            self._tell_flavor(session)
            return
        if request is not None:
            self.queue.remove(request)
            request.priority = self.accounts.priority_of(session, session.priority)
            if session.lease is None:
                self._place_again(request)
        self._tell_flavor(session)
        self._keep(session)
        self._show(session)
