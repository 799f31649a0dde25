"""The processes of workers: started, dismissed, and started ahead of need."""

from __future__ import annotations

from forebay_wire.remote.runtimes import Runtime

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.messages import END
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.model.instructions import Launch, TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Device, Seat, Session, Worker
from forebay_pool.placement.choice import in_want
from forebay_pool.placement.fleet import Fleet
from forebay_pool.queue.queue import Queue

STARTS_MAX = 64
"""At most this many devices are examined for a place to start a worker ahead of need."""


class WorkerProcesses:
    """Starts and dismisses worker processes, never more than ``Limits.workers_max`` at a time."""

    def __init__(
        self,
        step: Step,
        worklist: Worklist,
        admission: Admission,
        limits: Limits,
        fleet: Fleet,
        queue: Queue,
        name: str,
    ) -> None:
        self._step = step
        self._worklist = worklist
        self._admission = admission
        self._limits = limits
        self._fleet = fleet
        self._queue = queue
        self._name = name
        self._launches = 0
        """How many workers were started; makes their ids unique."""

    @property
    def has_room(self) -> bool:
        """True if the pool may start another worker."""
        return len(self._fleet.workers) < self._limits.workers_max

    def launch(self, devices: tuple[Device, ...], runtime: Runtime) -> None:
        """Starts a worker on the devices, for a session that waits for it and has done this."""
        self._start(devices, programs=runtime == "xla")

    def launch_carrier(self, session: Session, seat: Seat) -> None:
        """Starts a worker on the device that fetches the session's tensors and serves no session."""
        worker = self._start((seat.device,), carries=session)
        self._step.note("session_carried", session=session.id, tenant=session.tenant, worker=worker.id, device=seat.device.id)

    def _start(self, devices: tuple[Device, ...], carries: Session | None = None, programs: bool = False) -> Worker:
        self._launches += 1
        worker = Worker(f"{self._name}-w{self._launches}", devices, started_ns=self._step.now_ns, carries=carries)
        worker.deadline_ns = self._step.now_ns + int(self._limits.worker_start_seconds * SECOND)
        self._fleet.add(worker)
        self._step.out.append(Launch(worker.id, devices, programs))
        if not self.has_room:  # no device is reserved any more for requests that need another worker
            self._worklist.review(self._fleet.makes, gone=True)
        return worker

    def dismiss(self, worker: Worker, drains_milli: int) -> None:
        """Tells the worker to exit. It is killed if it has not exited after its grace period."""
        self._fleet.retire(worker, drains_milli)
        worker.deadline_ns = self._step.now_ns + int(self._limits.end_grace_seconds * SECOND)
        self._step.out.append(TellWorker(worker.id, END))

    def carriers(self) -> list[Worker]:
        """The workers that fetch parked tensors off drained hosts."""
        return [worker for worker in self._fleet.workers.values() if worker.carries is not None]

    def drop_carrier(self, session: Session) -> None:
        """Dismisses the worker that was to fetch the session's tensors: the session's next worker fetches them, or the session is over."""
        for worker in self.carriers():
            if worker.carries is session:
                self.dismiss(worker, drains_milli=0)

    def dismiss_spare(self) -> None:
        """Dismisses a worker that was started ahead of need, if requests wait and the pool may start no more workers."""
        if not self._admission.accepting or not self._queue.waiting or len(self._fleet.workers) < self._limits.workers_max:
            return
        warm = (worker for worker in self._fleet.workers.values() if worker.state == "warm" and worker.session is None)
        idle = next((worker for worker in warm if not in_want(self._fleet.seats[worker.device.id], worker.devices)), None)
        if idle is not None:
            self.dismiss(idle, drains_milli=0)

    def prestart(self) -> None:
        """Starts workers on free devices ahead of need, up to ``warm_workers`` of each kind. One slot is left for requests that wait."""
        workers_max = self._limits.workers_max - (1 if self._queue.waiting else 0)
        for kind, spare in self._fleet.spare.items():
            room = min(self._limits.warm_workers - spare, workers_max - len(self._fleet.workers))
            if room > 0:
                for seat in list(self._fleet.seats_to_start(kind, STARTS_MAX)):
                    if room and not seat.spares and seat.retry_ns <= self._step.now_ns:
                        room -= 1
                        self._start((seat.device,), programs=self._limits.warm_programs and takes_programs(seat.device, self._fleet))


def takes_programs(device: Device, fleet: Fleet) -> bool:
    """Whether sessions may send the device programs of JAX and TensorFlow, as far as is known."""
    offer = (flavor for flavor in fleet.flavors.values() if flavor.offers("xla"))
    return fleet.runtimes.serve((device,), "xla") and any(way.model == device.model for flavor in offer for way in flavor.equivalents)
