"""Workers that are back after their links broke.

A worker without a link still has its session's tensors, and still computes. When it is back it reports its lease. If it held the lease all
the time, the lease goes on. Otherwise the lease ended when the worker says, or when it was last confirmed.
"""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.messages import assignment
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.sessions.absence import Absence
from forebay_pool.machine.sessions.takeover import Takeover
from forebay_pool.machine.workers.closing import Closing
from forebay_pool.machine.workers.draining import Draining
from forebay_pool.machine.workers.ending import Ending
from forebay_pool.machine.workers.evacuation import Evacuation
from forebay_pool.machine.workers.failing import Failing
from forebay_pool.machine.workers.moving import Moving
from forebay_pool.machine.workers.workers import Workers
from forebay_pool.model.causes import Cause
from forebay_pool.model.instructions import TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Session, Worker
from forebay_pool.placement.fleet import Fleet


class WorkerReturns:
    """Takes back workers that had lost their links."""

    def __init__(
        self,
        step: Step,
        limits: Limits,
        sessions: dict[str, Session],
        fleet: Fleet,
        parked: ParkedSessions,
        granting: Granting,
        draining: Draining,
        evacuation: Evacuation,
        ending: Ending,
        failing: Failing,
        moving: Moving,
        closing: Closing,
        workers: Workers,
        takeover: Takeover,
        absence: Absence,
    ) -> None:
        self._step = step
        self._limits = limits
        self._sessions = sessions
        self._fleet = fleet
        self._parked = parked
        self._granting = granting
        self._draining = draining
        self._evacuation = evacuation
        self._ending = ending
        self._failing = failing
        self._moving = moving
        self._closing = closing
        self._workers = workers
        self._takeover = takeover
        self._absence = absence

    def resume_worker(self, worker: Worker, message: wire.ResumeWorker) -> None:
        if message.epoch is not None or message.ended is not None:  # otherwise it holds nothing yet
            self._takeover.adopt(worker, self._sessions.get(message.session or ""), message.ticket)
        session, own = worker.session, worker.session or worker.keeps or worker.carries
        limit_bytes = (message.memory_limit_bytes or 0) if worker.unsure else 0
        worker.away_ns, worker.memory_bytes = None, message.memory_bytes
        worker.door = (message.address, message.certificate)
        self._absence.note_cut(worker, message.client_away)
        strange = message.session is not None and (own is None or own.id != message.session)
        self._fleet.doubt(worker, strange)
        if own is not None:
            self._step.show(own)  # bytes that it holds off its device are metered from now on at the latest
        if strange:  # what it holds was never written: nothing opens there before it has ended
            self._failing.fail(worker, "it came back with a session that is not its own")
        elif worker.carries is not None:
            self._resume_carrier(worker, worker.carries, message)
            self._granting.show_and_settle(worker)
        elif session is None or message.session is None:
            self._resume_spare(worker)
            self._granting.show_and_settle(worker)
        else:
            self._resume_bound(worker, session, message, limit_bytes)
            self._granting.show_and_settle(worker)
        for device in worker.devices:
            seat = self._fleet.seats[device.id]
            if not seat.is_open:
                self._draining.close_seat(seat)

    def _resume_bound(self, worker: Worker, session: Session, message: wire.ResumeWorker, limit_bytes: int) -> None:
        """The worker serves its session and reports what happened meanwhile. ``limit_bytes``: what a pool before allowed it, if that is
        unknown here."""
        if message.epoch is not None or message.ended is not None:
            if not worker.opened:
                self._takeover.opened(worker, session)
            if limit_bytes and worker.parked_bytes is None:
                self._reserve_again(worker, session, max(message.memory_bytes, limit_bytes))
        if worker.state == "assigning" and message.assigned:
            worker.state, worker.deadline_ns = "bound", None
            self._moving.taken_over(worker, session)
        session.epoch = max(session.epoch, message.epoch or 0, message.ended.epoch if message.ended is not None else 0)
        self._resume_lease(worker, session, message)
        self._close_unknown(worker)
        self._resume_parking(worker, session, message)
        if message.left is not None:
            before = session.left
            self._moving.left(worker, message.left)
            if before and not message.assigned:  # it carried the tensors here, and no client was ever at it
                session.left = before
        elif message.client_gone:
            self._ending.end(session, "released", Cause("connection_ended"))
        elif message.starved:
            self._workers.starve(session)


    def _resume_carrier(self, worker: Worker, session: Session, message: wire.ResumeWorker) -> None:
        """The worker fetches tensors, or has them, or did not hear that it should."""
        if message.session is None:
            self._evacuation.carry(worker, session)
        elif message.left is not None:
            self._evacuation.carried(worker, session, message.left)

    def _resume_spare(self, worker: Worker) -> None:
        """The worker knows of no session: it is ready, or did not hear of its session, or has lost it."""
        session = worker.session
        if worker.state == "starting":
            worker.state, worker.deadline_ns = "warm", None
        elif session is not None and not worker.opened and all(self._fleet.seats[device.id].is_open for device in worker.devices):
            worker.state, worker.deadline_ns = "assigning", self._step.now_ns + int(self._limits.worker_start_seconds * SECOND)
            assign = assignment(session, worker, self._fleet, self._limits)
            self._step.out.append(TellWorker(worker.id, assign))
        elif session is not None and worker.opened:
            self._failing.fail(worker, "it came back without its session")

    def _resume_lease(self, worker: Worker, session: Session, message: wire.ResumeWorker) -> None:
        lease, ended = session.lease, message.ended
        known = None if lease is None else lease.epoch
        worker.unknown_epoch = None if message.epoch == known else message.epoch
        if worker.unknown_epoch is not None:
            self._fleet.doubt(worker, True)
        if lease is None:
            pass
        elif message.epoch == lease.epoch:
            lease.confirmed_ns = self._step.now_ns
            if lease.state == "closing":
                worker.deadline_ns = self._step.now_ns + int(self._limits.close_seconds * SECOND)
                self._step.out.append(TellWorker(worker.id, wire.Close(epoch=lease.epoch)))
        elif ended is not None and ended.epoch == lease.epoch:
            self._closing.close_for(worker, lease.epoch, ended.reason, ended.idle_ns + ended.ago_ns)
        else:
            self._closing.close_for(worker, lease.epoch, "failed", self._step.now_ns - lease.confirmed_ns)

    def _close_unknown(self, worker: Worker) -> None:
        """Closes a lease that a pool granted and died before it wrote that: the lease is free. Nothing opens there before it has closed."""
        if worker.unknown_epoch is not None:
            worker.deadline_ns = self._step.now_ns + int(self._limits.close_seconds * SECOND)
            self._step.out.append(TellWorker(worker.id, wire.Close(epoch=worker.unknown_epoch)))

    def _resume_parking(self, worker: Worker, session: Session, message: wire.ResumeWorker) -> None:
        kept_bytes = message.parked_bytes if message.left is None else message.left.bytes
        if session.parking is not None and session.parking.bytes != kept_bytes:
            self._parked.drop(session)
        if message.parked_bytes is not None and session.lease is None:
            self._workers.note_parked(worker, message.parked_bytes)
        elif worker.parking:
            worker.parking = False
            self._parked.park(worker)
        elif worker.restoring:
            worker.restoring, worker.deadline_ns = False, None
        elif worker.parked_bytes is not None:  # a pool that died before it wrote that brought it back for a lease
            memory_bytes, worker.parked_bytes = max(worker.parked_bytes, message.memory_bytes, message.memory_limit_bytes or 0), None
            self._reserve_again(worker, session, memory_bytes)

    def _reserve_again(self, worker: Worker, session: Session, memory_bytes: int) -> None:
        """Reserves the memory that a pool gave the session there and did not write, whatever the session's flavor is by now."""
        if worker.reserved_bytes < memory_bytes:
            self._fleet.reserve(worker, memory_bytes)
            self._step.touch(session)
            self._step.save(session)
