"""Sessions that leave a worker for another one."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.eviction import eviction_outcome
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.leasing.preparing import Preparing
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.machine.workers.evacuation import Evacuation
from forebay_pool.machine.workers.kept_images import KeptImages
from forebay_pool.model.events import SessionMoved, SessionParked
from forebay_pool.model.types import Request, Session, Worker
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.room import residents
from forebay_pool.queue.accounts import Accounts


class Moving:
    """Has sessions leave their workers, and follows them."""

    def __init__(
        self,
        step: Step,
        admission: Admission,
        sessions: dict[str, Session],
        fleet: Fleet,
        accounts: Accounts,
        leases: Leases,
        parked: ParkedSessions,
        processes: WorkerProcesses,
        preparing: Preparing,
        granting: Granting,
        evacuation: Evacuation,
        images: KeptImages,
    ) -> None:
        self._step = step
        self._admission = admission
        self._sessions = sessions
        self._fleet = fleet
        self._accounts = accounts
        self._leases = leases
        self._parked = parked
        self._processes = processes
        self._preparing = preparing
        self._granting = granting
        self._evacuation = evacuation
        self._images = images

    def left(self, worker: Worker, message: wire.Left) -> None:
        """The session has left the worker and is between two workers. An open lease goes on elsewhere as a new one."""
        session = worker.session
        if worker.state == "carrying" and worker.carries is not None:
            self._evacuation.carried(worker, worker.carries, message)
        if session is None or worker.state != "bound":
            return
        self.release_image(session)
        lease = session.lease
        goes_on = lease is not None and lease.state == "open" and not self._admission.stopping
        if lease is not None:
            self._leases.close(lease, "moved" if goes_on else lease.ending, self._step.now_ns)
        self._images.left(worker, session, message)
        self._fleet.let_go(worker, session, message.bytes, message.source)
        worker.spilled_bytes = message.spilled_bytes
        self._step.note("session_left", session=session.id, tenant=session.tenant, worker=worker.id, bytes=message.bytes)
        if session.request is None and goes_on and session.span is not None:
            self._granting.request(session, 0, session.span, session.priority)
        elif session.request is not None and not self._suits(session.request, message.bytes):
            self._granting.place_again(session.request)
        else:
            self._granting.continue_opening(session)
        self._step.touch(session)
        self._step.save(session)
        self._granting.show_and_settle(worker)

    def _suits(self, request: Request, image_bytes: int) -> bool:
        """True if the request has a place with enough memory reserved for the tensors."""
        place = request.place
        return place is not None and image_bytes <= self._fleet.seats[place.devices[0].id].holders[request.session].memory_bytes

    def taken_over(self, worker: Worker, session: Session) -> None:
        """The worker has fetched the tensors. The worker that the session left holds them too, until the client is here."""
        if session.image is None:
            return
        if session.request is None or session.request.place is None:
            # Nobody waits for the lease any more, and no memory is reserved here for the tensors.
            self._processes.dismiss(worker, drains_milli=0)
            return
        self._step.note("session_moved", session=session.id, tenant=session.tenant, worker=worker.id, device=worker.device.id)

    def release_image(self, session: Session) -> None:
        """The worker that fetched the tensors serves the client: the worker that the session left is dismissed."""
        if session.image is not None and session.worker is not None and session.worker.opened:
            self._processes.dismiss(session.image, drains_milli=0)
            self._parked.note_room(session)
            self._step.save(session)

    def session_moved(self, event: SessionMoved) -> None:
        session = self._sessions.get(event.session)
        if session is not None:
            self.move(session)

    def move(self, session: Session) -> None:
        """Has the session leave its worker at the next command boundary, for another device if there is one."""
        worker = session.worker
        if worker is not None and worker.state == "bound" and worker.opened and not session.client.runs_process:
            session.avoid = worker.devices
            self._preparing.ask_to_leave(worker, session)

    def session_parked(self, event: SessionParked) -> None:
        session = self._sessions.get(event.session)
        worker = None if session is None else session.worker
        seat = None if worker is None else self._fleet.seats[worker.device.id]
        if worker is None or seat is None or worker not in residents(seat):
            return
        if eviction_outcome(worker, self._fleet, self._accounts) == "park":
            self._parked.park(worker)
