"""What clients of sessions say: they ask for leases, give them back, and choose."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base import refusals
from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.queue_positions import QueuePositions
from forebay_pool.machine.leasing.revoking import Revoking
from forebay_pool.machine.sessions.joining import SCARCE_PERCENT, is_left_to_others
from forebay_pool.machine.sessions.rules import Rules
from forebay_pool.machine.workers.failing import Failing
from forebay_pool.machine.workers.moving import Moving
from forebay_pool.model.limits import Limits
from forebay_pool.model.types import Session
from forebay_pool.placement.fleet import Fleet
from forebay_pool.queue.accounts import Accounts
from forebay_pool.queue.queue import Queue


class Clients:
    """Handles what clients say."""

    def __init__(
        self,
        step: Step,
        admission: Admission,
        limits: Limits,
        fleet: Fleet,
        queue: Queue,
        accounts: Accounts,
        leases: Leases,
        positions: QueuePositions,
        granting: Granting,
        revoking: Revoking,
        failing: Failing,
        moving: Moving,
        rules: Rules,
    ) -> None:
        self._step = step
        self._admission = admission
        self._limits = limits
        self._fleet = fleet
        self._queue = queue
        self._accounts = accounts
        self._leases = leases
        self._positions = positions
        self._granting = granting
        self._revoking = revoking
        self._failing = failing
        self._moving = moving
        self._rules = rules


    def acquire(self, session: Session, message: wire.Acquire) -> None:
        lease, pending, before = session.lease, session.request, session.client.runtime
        session.client.runtime = "exec" if session.client.runs_process else message.runtime or "torch"
        leaves = session.worker is not None and session.worker.leave_by_ns is not None
        same = lease is not None and lease.span.id == message.span.id and lease.flavor.name == session.flavor
        serves = session.worker is not None and self._fleet.runtimes.serve(session.worker.devices, session.runtime)
        if lease is not None and lease.state == "open" and same and serves and not leaves:
            lease.number = message.request
            self._leases.send_granted(lease)
            return
        refusal = self._refusal_of_lease(session, message.request, message.span)
        if refusal is not None:
            session.client.runtime = before
            self._step.send(session.id, refusal)
        elif pending is not None:
            moved, span = pending.span.label != message.span.label, pending.span
            pending.number, pending.span, pending.told = message.request, message.span, None
            elsewhere = before != session.runtime or (moved and self._other_budget(session, span, message.span))
            if elsewhere and session.lease is None:
                self._granting.place_again(pending)
            else:
                self._positions.send(pending)
        else:
            priority = session.priority if message.priority is None else message.priority
            self._granting.request(session, message.request, message.span, priority)
            if session.request is not None:
                self._revoking.preempt_for(session.request)

    def _other_budget(self, session: Session, before: wire.Span, after: wire.Span) -> bool:
        return self._accounts.notebook_of(session, before) is not self._accounts.notebook_of(session, after)

    def _refusal_of_lease(self, session: Session, number: int, span: wire.Span) -> wire.Refused | None:
        """The refusal of a request for a lease; None if it may be filed."""
        pending = session.request
        if self._admission.stopping:
            return refusals.shutting_down(number)
        if not self._admission.accepting:
            return refusals.unwritten(number)
        if pending is not None and pending.number not in (0, number):
            return refusals.waits_already(number, pending.number)
        if pending is None and self._queue_is_full_for(session):
            return refusals.queue_full(number, len(self._queue))
        why = refusals.why_not(session, self._fleet.flavors[session.flavor], self._fleet)
        return self._rules.refusal_by_limits(session, number, span) if why is None else refusals.not_servable(why, number)

    def _queue_is_full_for(self, session: Session) -> bool:
        most = self._limits.queue_max
        if len(self._queue) < most * SCARCE_PERCENT // 100:
            return False
        return len(self._queue) >= most or is_left_to_others(session, [request.session for request in self._queue.waiting.values()], most)

    def cancel(self, session: Session, message: wire.Cancel) -> None:
        if session.waited is not None and session.waited.number == message.request:
            session.waited = None
        if session.request is not None and session.request.number == message.request:
            self._granting.drop(session, None)
        elif session.lease is not None and session.lease.number == message.request:
            self._leases.give_back(session.lease)

    def release(self, session: Session, message: wire.Release) -> None:
        lease = session.lease
        if lease is not None and lease.epoch == message.epoch:
            self._leases.give_back(lease)

    def arrived(self, session: Session, message: wire.Arrived) -> None:
        lease, loss = session.lease, session.replay.loss
        if lease is not None and lease.epoch == message.epoch:
            self._moving.release_image(session)
        if not session.replay.due or loss is None or message.epoch <= loss.epoch:
            return
        loss.undone = False
        self._step.save(session)
        if lease is not None and lease.replays:
            self._leases.start_clock(lease)

    def unreached(self, session: Session, message: wire.Unreached) -> None:
        lease, worker = session.lease, session.worker
        if lease is not None and lease.epoch == message.epoch and worker is not None:
            by_program = lease.used and not lease.replays
            self._failing.fail(worker, "its session's process could not connect to it", by_program)

    def choose_flavor(self, session: Session, message: wire.ChooseFlavor) -> None:
        flavor = self._fleet.flavors.get(message.flavor)
        if flavor is None:
            self._step.send(session.id, refusals.unknown_flavor(message.flavor, self._fleet))
            return
        why = refusals.why_not(session, flavor, self._fleet)
        if why is not None:
            self._step.send(session.id, refusals.not_servable(why))
            return
        changes = session.flavor != flavor.name
        session.flavor = flavor.name
        self._positions.send_flavor(session)
        if not changes:
            return
        if session.request is not None and not self._rules.refuse_if_over_limits(session.request) and session.lease is None:
            self._granting.place_again(session.request)
        self._step.save(session)
        self._step.show(session)

    def choose_priority(self, session: Session, message: wire.ChoosePriority) -> None:
        request, before = session.request, session.priority
        session.priority = message.priority
        asked = None if request is None else self._accounts.priority_of(session, message.priority)
        if before == message.priority and (request is None or request.priority == asked):
            self._positions.send_flavor(session)
            return
        if request is not None:
            self._queue.remove(request)
            request.priority = self._accounts.priority_of(session, session.priority)
            if session.lease is None:
                self._granting.place_again(request)
        self._positions.send_flavor(session)
        self._step.save(session)
        self._step.show(session)
