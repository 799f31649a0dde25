"""What changes who may have what: quotas, budgets, flavors, policies."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from forebay_wire import messages as wire
from forebay_wire.remote.runtimes import RUNTIMES

from forebay_pool.machine.base import refusals
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.revoking import Revoking
from forebay_pool.model.events import BudgetSet, FlavorRemoved, FlavorSet, QuotaSet
from forebay_pool.model.node_events import PolicySet
from forebay_pool.model.types import Request, Session, Worker
from forebay_pool.placement.fleet import Fleet
from forebay_pool.queue.accounts import Accounts
from forebay_pool.queue.queue import Queue


class Rules:
    """Applies new rules, and refuses requests that the rules will never allow."""

    def __init__(
        self,
        step: Step,
        worklist: Worklist,
        sessions: dict[str, Session],
        fleet: Fleet,
        queue: Queue,
        accounts: Accounts,
        granting: Granting,
        revoking: Revoking,
    ) -> None:
        self._step = step
        self._worklist = worklist
        self._sessions = sessions
        self._fleet = fleet
        self._queue = queue
        self._accounts = accounts
        self._granting = granting
        self._revoking = revoking

    def quota_set(self, event: QuotaSet) -> None:
        self._accounts.set_quota(event.tenant, event.user, event.quota, self._step.now_ns)
        self._apply_limits(event)

    def budget_set(self, event: BudgetSet) -> None:
        account, changed = self._accounts.set_budget(event.tenant, event.user, event.notebook, event.state, event.cause)
        if event.state == "drain":
            self._revoking.drain(account, event.grace_seconds)
        if changed:
            self._apply_limits(event)

    def flavor_set(self, event: FlavorSet) -> None:
        self._fleet.set_flavor(event.flavor)
        self._reconsider(event.flavor.name)

    def flavor_removed(self, event: FlavorRemoved) -> None:
        """Does nothing while a session has the flavor; the caller checks that first."""
        if all(session.flavor != event.name for session in self._sessions.values()):
            self._fleet.remove_flavor(event.name)
            self._reconsider(None)

    def policy_set(self, event: PolicySet) -> None:
        self._fleet.set_policy(event.policy)
        self._reconsider(None)

    def runtimes_served(self, worker: Worker, served: Collection[wire.Runtime] | None) -> None:
        """The worker says what its hosts serve; None: all."""
        nodes = {seat.node.name: seat.node for seat in self._fleet.seats_under(worker)}
        if self._fleet.runtimes.learn(worker, nodes.values(), served):
            said = ", ".join(RUNTIMES if served is None else served)
            self._step.note("runtimes_served", node=worker.device.node, device=worker.device.id, runtimes=said)
            self.keep_to_runtimes()

    def keep_to_runtimes(self) -> None:
        """Refuses requests that no host serves any more. Places those again whose places do not serve them."""
        for request in self._servable():
            if request.place is not None and not self._fleet.runtimes.serve(request.place.devices, request.session.runtime):
                self._granting.place_again(request)
        self._worklist.whole_queue = True

    def _reconsider(self, changed: str | None) -> None:
        """Refuses requests that no device serves any more. Places those of the changed flavor again, or all if ``changed`` is None."""
        self._queue.rebuild()
        for request in self._servable():
            if self.refuse_if_over_limits(request):
                continue
            if request.place is not None and changed in (None, request.session.flavor):
                self._granting.place_again(request)
        self._worklist.whole_queue = True

    def _servable(self) -> Iterator[Request]:
        """The requests that somebody can serve. Each of the others is refused when its turn comes."""
        for session in list(self._sessions.values()):
            request = session.request
            if request is None:
                continue
            why = None if _waits_for_hosts(session) else refusals.why_not(session, self._fleet.flavors[session.flavor], self._fleet)
            if why is None:
                yield request
            else:
                self._granting.drop(session, refusals.not_servable(why, request.number))

    def _apply_limits(self, event: QuotaSet | BudgetSet) -> None:
        """Refuses requests that the new limits will never allow, and ranks all others again."""
        for session in list(self._sessions.values()):
            request = session.request
            if request is not None and session.tenant == event.tenant and event.user in (None, session.user):
                self.refuse_if_over_limits(request)
        self._queue.rebuild()
        self._worklist.whole_queue = True

    def refuse_if_over_limits(self, request: Request) -> bool:
        """Refuses the request if waiting would not help it. True if it did."""
        refusal = self.refusal_by_limits(request.session, request.number, request.span)
        if refusal is not None:
            self._granting.drop(request.session, refusal)
        return refusal is not None

    def refusal_by_limits(self, session: Session, number: int, span: wire.Span) -> wire.Refused | None:
        """The refusal of a request that waiting would not help: its quota is too small, or its budget refuses. None if it may wait."""
        demand_milli = self._queue.demand_milli(self._fleet.lane_of(session))
        accounts, notebook = self._accounts.both(session), self._accounts.notebook_of(session, span)
        for account in accounts if notebook is None else (*accounts, notebook):
            why = account.never_fits(demand_milli)
            if why is not None:
                return refusals.quota(why, number)
            if account.budget == "refuse":
                return refusals.budget(account.why("budget", demand_milli, self._step.now_ns), number)
        return None


def _waits_for_hosts(session: Session) -> bool:
    """Hosts may come back that can do again what the session's dead worker did."""
    return session.replay.due and session.worker is None
