"""What must be done on a place before a lease can open there: room is made, and a worker is readied."""

from __future__ import annotations

from forebay_pool.machine.base.eviction import eviction
from forebay_pool.machine.base.messages import LEAVE, RESTORE, assignment
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.model.instructions import TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Place, Request, Seat, Session, Worker
from forebay_pool.placement.choice import in_want, spares_for
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.room import has_room, opening_bytes, surplus_bytes
from forebay_pool.queue.accounts import Accounts


class Preparing:
    """Takes the next step towards opening a lease on a place, and says whether nothing is left to do."""

    def __init__(
        self,
        step: Step,
        limits: Limits,
        fleet: Fleet,
        accounts: Accounts,
        parked: ParkedSessions,
        processes: WorkerProcesses,
    ) -> None:
        self._step = step
        self._limits = limits
        self._fleet = fleet
        self._accounts = accounts
        self._parked = parked
        self._processes = processes

    def prepare(self, request: Request, place: Place) -> bool:
        """Takes the next step. True if the lease can be opened there now."""
        session = request.session
        roomy = all([self._make_room(seat, session) for seat in self._fleet.seats_of(place)])
        return self._has_worker(session, place, roomy) and roomy

    def _make_room(self, seat: Seat, session: Session) -> bool:
        """Parks as many residents as necessary. True once there is room."""
        if has_room(seat, session, seat.holders[session].part_bytes + opening_bytes(seat, session)):
            return True
        leaving = eviction(seat, surplus_bytes(seat), self._fleet, self._accounts)
        for worker in (*leaving.parked, *leaving.ended):
            self._parked.park(worker)
        return False

    def _has_worker(self, session: Session, place: Place, roomy: bool) -> bool:
        """Takes the next step towards a worker. True if the session's worker is ready."""
        worker = session.worker
        if worker is not None and worker.devices != place.devices:
            self.ask_to_leave(worker, session)
            return False
        if worker is not None:
            there = worker.state == "bound" and not worker.parking and worker.away_ns is None and worker.leave_by_ns is None
            there = there and not worker.unsure
            return there and (not roomy or self._is_restored(worker, session))
        brings = session.image is not None or session.stored
        if brings and not roomy:
            return False
        seat = self._fleet.seats[place.devices[0].id]
        spares = spares_for(seat, place.devices)
        ready = next((worker for worker in spares if worker.state == "warm" and worker.away_ns is None), None)
        if ready is None:
            if len(spares) < len(in_want(seat, place.devices)):
                self._processes.launch(place.devices, session.runtime)
            return False
        self._fleet.give(ready, session)
        if brings:
            self._fleet.reserve(ready, seat.holders[session].memory_bytes)  # it brings the tensors to the device
            self._processes.drop_carrier(session)
        patience_seconds = self._limits.worker_start_seconds + (self._limits.park_seconds if brings else 0)
        ready.deadline_ns = self._step.now_ns + int(patience_seconds * SECOND)
        assign = assignment(session, ready, self._fleet, self._limits)
        self._step.out.append(TellWorker(ready.id, assign))
        self._step.save(session)
        return False

    def _is_restored(self, worker: Worker, session: Session) -> bool:
        """Has the session's tensors brought to the device. True once they are there. The lease opens after that, so this time is free."""
        if worker.parked_bytes is not None:
            seat = self._fleet.seats[worker.device.id]
            worker.parked_bytes, worker.restoring = None, True
            self._parked.note_room(session)
            self._step.show(session)
            self._fleet.reserve(worker, seat.holders[session].memory_bytes)
            worker.deadline_ns = self._step.now_ns + int(self._limits.park_seconds * SECOND)
            self._step.out.append(TellWorker(worker.id, RESTORE))
        return not worker.restoring

    def ask_to_leave(self, worker: Worker, session: Session) -> None:
        """Asks the client to end its stream at the worker, which then says Left. A worker that parks the session must finish that first."""
        if worker.leave_by_ns is None and not worker.parking:
            worker.leave_by_ns = self._step.now_ns + int(self._limits.park_seconds * SECOND)
            self._step.send(session.id, LEAVE)
