"""Clients that are back after their links broke."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.messages import worker_lost
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.groups import Groups
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.queue_positions import QueuePositions
from forebay_pool.machine.sessions.takeover import Takeover
from forebay_pool.machine.workers.ending import Ending
from forebay_pool.machine.workers.workers import Workers
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import SessionGrouped
from forebay_pool.model.types import Session
from forebay_pool.placement.fleet import Fleet


class ClientReturns:
    """Takes back clients that had lost their links, and tells them what they have missed."""

    def __init__(
        self,
        step: Step,
        sessions: dict[str, Session],
        fleet: Fleet,
        leases: Leases,
        positions: QueuePositions,
        groups: Groups,
        ending: Ending,
        workers: Workers,
        takeover: Takeover,
    ) -> None:
        self._step = step
        self._sessions = sessions
        self._fleet = fleet
        self._leases = leases
        self._positions = positions
        self._groups = groups
        self._ending = ending
        self._workers = workers
        self._takeover = takeover

    def session_grouped(self, event: SessionGrouped) -> None:
        session = self._sessions.get(event.session)
        if session is None or session.group is not None or session.request is not None:
            return
        group = self._groups.join(session, event.group)
        if group is not None:
            group.gathered = True

    def resume_session(self, session: Session, message: wire.ResumeSession) -> None:
        self._takeover.adopt(self._fleet.workers.get(message.worker or ""), session, message.ticket)
        worker, lease = session.worker, session.lease
        session.away_ns, session.stalled = None, False
        lost = session.replay.loss
        loss = lost if lost is not None and lost.worker == message.worker else None
        at = {holder.id for holder in (worker, session.image) if holder is not None} | {session.left}
        if message.worker is not None and message.worker not in at and loss is None:
            self._ending.end(session, "failed", Cause("worker_unknown", worker=message.worker))
            return
        if worker is not None and worker.id == message.worker and not worker.opened:
            self._takeover.opened(worker, session)
        session.span = session.span or message.span
        self._positions.send_flavor(session)
        if loss is not None:
            self._step.send(session.id, worker_lost(loss))
        if message.epoch is not None and (lease is None or lease.epoch != message.epoch):
            self._step.send(session.id, _closed(session, message.epoch))
        if lease is not None and lease.state == "open" and lease.epoch != message.epoch:
            self._leases.send_granted(lease)
        if worker is not None and worker.starved:
            self._workers.starve(session)
        if worker is not None and worker.leave_by_ns is not None:
            self._step.send(session.id, wire.Leave())


def _closed(session: Session, epoch: int) -> wire.LeaseClosed:
    """The end of the lease that the client has missed. A lease that nobody remembers was never written, and is free."""
    if session.closed is not None and session.closed.epoch >= epoch:
        return session.closed
    return wire.LeaseClosed(lease=f"{session.id}.{epoch}", epoch=epoch, reason="failed", duration_ns=0)
