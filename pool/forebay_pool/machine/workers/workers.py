"""What workers say of themselves and of their sessions' tensors."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.workers.draining import Draining
from forebay_pool.machine.workers.ending import Ending
from forebay_pool.machine.workers.evacuation import Evacuation
from forebay_pool.machine.workers.failing import Failing
from forebay_pool.machine.workers.kept_images import KeptImages
from forebay_pool.machine.workers.moving import Moving
from forebay_pool.model.causes import Cause
from forebay_pool.model.instructions import Show
from forebay_pool.model.types import Session, Worker
from forebay_pool.placement.fleet import Fleet


class Workers:
    """Handles what workers say of themselves and of their sessions."""

    def __init__(
        self,
        step: Step,
        admission: Admission,
        fleet: Fleet,
        leases: Leases,
        parked: ParkedSessions,
        granting: Granting,
        draining: Draining,
        evacuation: Evacuation,
        ending: Ending,
        failing: Failing,
        moving: Moving,
        images: KeptImages,
    ) -> None:
        self._step = step
        self._admission = admission
        self._fleet = fleet
        self._leases = leases
        self._parked = parked
        self._granting = granting
        self._draining = draining
        self._evacuation = evacuation
        self._ending = ending
        self._failing = failing
        self._moving = moving
        self._images = images

    def ready(self, worker: Worker, message: wire.Ready) -> None:
        if worker.state == "starting" and worker.carries is not None:
            worker.door, worker.away_ns = (message.address, message.certificate), None
            self._evacuation.carry(worker, worker.carries)
        elif worker.state == "starting":
            worker.state, worker.deadline_ns, worker.away_ns = "warm", None, None
            worker.door = (message.address, message.certificate)
            self._fleet.doubt(worker, False)  # a worker that another pool started has done nothing yet
            self._step.note("worker_ready", worker=worker.id, device=worker.device.id, torch=message.torch, pid=message.pid)
            self._granting.show_and_settle(worker)

    def assigned(self, worker: Worker, message: wire.Assigned) -> None:
        if worker.state == "assigning" and worker.session is not None and worker.session.id == message.session:
            if worker.session.client.runs_process and message.door is None:
                self._ending.end(worker.session, "failed", Cause("process_unserved"))
                return
            worker.state, worker.deadline_ns = "bound", None
            if message.door is not None:
                worker.door = (message.door, message.certificate)
                self._note_confined(worker)
            if message.rates is not None:
                self._fleet.rates.setdefault((worker.device.model, len(worker.devices)), message.rates)
            self._moving.taken_over(worker, worker.session)
            self._granting.settle(worker)

    def _note_confined(self, worker: Worker) -> None:
        """The worker has confined a process: so its hosts can, whatever another worker there said."""
        for node in {seat.node.name: seat.node for seat in self._fleet.seats_under(worker) if seat.node.unconfined is not None}.values():
            self._fleet.runtimes.trust(node)
            self._step.out.append(Show(node))

    def heartbeat(self, worker: Worker, message: wire.Heartbeat) -> None:
        memory_bytes, session = message.memory_bytes, worker.session
        lease = None if session is None else session.lease
        changed = worker.memory_bytes != memory_bytes
        worker.memory_bytes = memory_bytes
        self._leases.note_energy(worker, message.energy_mj)
        if lease is not None and lease.epoch == message.epoch:
            lease.confirmed_ns, lease.used = self._step.now_ns, message.commands > 0
        if memory_bytes > worker.reserved_bytes and self._failing.exceeds_memory(worker, memory_bytes):
            return
        if message.operator and self._failing.exceeds_call_time(worker, message.operator, message.operator_seconds):
            return
        worker.call = f"one call of {message.operator} that has run for {message.operator_seconds:.0f} s" if message.operator else ""
        if session is not None and changed:
            self._parked.note_room(session)
            self._step.show(session)

    def parked(self, worker: Worker, message: wire.Parked) -> None:
        if worker.parking and not self._failing.exceeds_memory(worker, message.bytes):
            self.note_parked(worker, message.bytes)
            worker.spilled_bytes = message.spilled_bytes
            if worker.session is not None:
                self._granting.continue_opening(worker.session)
            self._granting.settle(worker)

    def note_parked(self, worker: Worker, parked_bytes: int) -> None:
        """The tensors are off the device. The caller settles the seat."""
        worker.parking, worker.restoring, worker.deadline_ns = False, False, None
        worker.memory_bytes, worker.parked_bytes = 0, parked_bytes
        self._fleet.reserve(worker, 0)
        if worker.session is not None:
            self._step.note("session_parked", session=worker.session.id, tenant=worker.session.tenant, bytes=parked_bytes)
            self._step.touch(worker.session)
            self._step.save(worker.session)

    def kept(self, worker: Worker, message: wire.Kept) -> None:
        """What was done until now need not be done again if the worker dies."""
        session = worker.session
        if session is None or worker.state != "bound":
            return
        self._images.kept(worker, session, message.number, message.bytes)
        self._step.save(session)
        self._step.show(session)

    def restored(self, worker: Worker, message: wire.Restored) -> None:
        if worker.restoring:
            worker.restoring, worker.deadline_ns, worker.spilled_bytes = False, None, 0
            self._draining.empty(*self._fleet.seats_under(worker))
            self._granting.settle(worker)

    def starved(self, worker: Worker, message: wire.Starved) -> None:
        session = worker.session
        if session is None or worker.state != "bound":
            return
        if session.lease is None:
            self._granting.stay(worker, session)  # work before the LEAVE needs a lease here
        self.starve(session)

    def starve(self, session: Session) -> None:
        """Device work waits. The pool requests a lease for the session, unless its client does not read."""
        if session.lease is not None or session.request is not None or self._admission.stopping:
            return
        if session.span is not None and not session.stalled:
            self._granting.request(session, 0, session.span, session.priority)
        elif session.worker is not None:
            session.worker.starved = True

    def client_gone(self, worker: Worker, message: wire.ClientGone) -> None:
        session = worker.session
        if session is not None:
            self._ending.end(session, "released", Cause("connection_ended"))
