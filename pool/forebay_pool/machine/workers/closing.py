"""What workers report of their leases: the work is done, or waits."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.offering import Offering
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.leasing.queue_positions import QueuePositions
from forebay_pool.machine.workers.draining import Draining
from forebay_pool.machine.workers.moving import Moving
from forebay_pool.model.types import CloseReason, Lease, Worker
from forebay_pool.placement.fleet import Fleet


class Closing:
    """Closes leases whose workers report that they have stopped."""

    def __init__(
        self,
        step: Step,
        worklist: Worklist,
        admission: Admission,
        fleet: Fleet,
        leases: Leases,
        parked: ParkedSessions,
        positions: QueuePositions,
        granting: Granting,
        offering: Offering,
        draining: Draining,
        moving: Moving,
    ) -> None:
        self._step = step
        self._worklist = worklist
        self._admission = admission
        self._fleet = fleet
        self._leases = leases
        self._parked = parked
        self._positions = positions
        self._granting = granting
        self._offering = offering
        self._draining = draining
        self._moving = moving

    def drained(self, worker: Worker, message: wire.Drained) -> None:
        self._measured(worker, message)
        self._end_unknown_lease(worker, message.epoch)
        self.close_for(worker, message.epoch, "drained", 0)

    def idle(self, worker: Worker, message: wire.Idle) -> None:
        self._measured(worker, message)
        self._end_unknown_lease(worker, message.epoch)
        self.close_for(worker, message.epoch, "idle", message.idle_ns)

    def closed(self, worker: Worker, message: wire.Closed) -> None:
        self._measured(worker, message)
        self._end_unknown_lease(worker, message.epoch)
        session = worker.session
        idles = session is not None and session.lease is not None and session.lease.ending == "idle"
        self.close_for(worker, message.epoch, "drained", message.idle_ns if idles else 0, interrupted=True)

    def waiting(self, worker: Worker, message: wire.Waiting) -> None:
        """The worker waits in a collective. A session without a group is idle then; others are once no member of the group computes."""
        lease = self._open_lease(worker, message.epoch)
        if lease is None:
            return
        lease.confirmed_ns, lease.waits_since_ns = self._step.now_ns, self._step.now_ns - message.idle_ns
        if lease.session.group is None:
            self._leases.give_back(lease, "idle")
        else:
            self._worklist.groups[lease.session.group] = None

    def working(self, worker: Worker, message: wire.Working) -> None:
        lease = self._open_lease(worker, message.epoch)
        if lease is not None:
            lease.confirmed_ns, lease.waits_since_ns = self._step.now_ns, None
            if lease.session.client.runs_process and lease.replays:
                self._leases.start_clock(lease)

    def _open_lease(self, worker: Worker, epoch: int) -> Lease | None:
        """The worker's lease, if it is open and has this epoch."""
        lease = None if worker.session is None else worker.session.lease
        return lease if lease is not None and lease.epoch == epoch and lease.state == "open" else None

    def _measured(self, worker: Worker, message: wire.Drained | wire.Idle | wire.Closed) -> None:
        """Notes what the worker holds as its lease ends: the session may be parked at once, by this size."""
        if message.memory_bytes is not None:
            worker.memory_bytes = message.memory_bytes
        self._leases.note_energy(worker, message.energy_mj)

    def _end_unknown_lease(self, worker: Worker, epoch: int) -> None:
        """The worker has stopped. If it held a lease that this pool did not know, its devices may be leased again."""
        if worker.unknown_epoch is not None and epoch >= worker.unknown_epoch:
            worker.unknown_epoch = worker.deadline_ns = None
            self._fleet.doubt(worker, False)
            self._draining.empty(*self._fleet.seats_under(worker))
            self._granting.show_and_settle(worker)

    def close_for(self, worker: Worker, epoch: int, reason: CloseReason, idle_ns: int, interrupted: bool = False) -> None:
        """The worker has stopped: its lease closes. A lease that was revoked in the middle of its work is requested again."""
        session = worker.session
        lease = None if session is None else session.lease
        if session is None or lease is None or lease.epoch != epoch:
            return
        self._moving.release_image(session)
        session.due = lease.waits_since_ns is not None
        taken_back = lease.state == "closing" and (interrupted or lease.ending != "revoked")
        self._leases.close(lease, lease.ending if taken_back else reason, self._step.now_ns - idle_ns)
        if session.request is not None:
            self._granting.enqueue(session.request)
        self._step.touch(session)
        self._draining.settle_resident(lease)
        if session.stalled and session.worker is not None:
            self._parked.park(session.worker)
        self._fleet.seats[lease.device.id].lies = 0
        self._worklist.offer(*self._fleet.seats_of(lease.place))
        self._offering.offer_all()
        if session.request is not None:
            self._positions.send(session.request)
        elif taken_back and lease.ending == "revoked" and not (self._admission.stopping or session.stalled or session.client.runs_process):
            self._granting.request(session, 0, lease.span, lease.priority, lease.order)
