"""Hosts that are drained, and how parked sessions leave them.

Tensors of parked sessions are moved to the memory of another host; other sessions go on. The client ends its stream at the worker,
as for any move, and the worker holds what the session left (its image). A worker on another host fetches the image at a bounded speed and
holds it from then on. The session's next lease opens wherever there is room. The old worker holds the image until the new one has all of
it, and is dismissed only once the new place is surely written. No lease is open meanwhile, so moving is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from forebay_wire import messages as wire

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.messages import carry
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.preparing import Preparing
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.machine.workers.kept_images import KeptImages
from forebay_pool.model.instructions import Show, TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Node, Seat, Session, Worker
from forebay_pool.placement.capacity import suits
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.room import kept_bytes, parking_space, tensor_bytes

WRITTEN_SECONDS = 5.0
"""The worker that held the tensors is dismissed so long after they are elsewhere: by then their new place is written."""


class Evacuation:
    """Moves the parked sessions of drained hosts to other hosts, one session of each host at a time."""

    def __init__(
        self,
        step: Step,
        admission: Admission,
        limits: Limits,
        fleet: Fleet,
        processes: WorkerProcesses,
        preparing: Preparing,
        images: KeptImages,
    ) -> None:
        self._step = step
        self._admission = admission
        self._limits = limits
        self._fleet = fleet
        self._processes = processes
        self._preparing = preparing
        self._images = images

    def evacuate(self) -> None:
        """Takes the next step on each drained host."""
        moving = Counter(image.device.node for image in map(_image_of, self._processes.carriers()) if image is not None)
        for node in self._fleet.nodes.values():
            if node.moving != moving[node.name]:
                node.moving = moving[node.name]
                self._step.out.append(Show(node))
            if node.drains and node.lost is None and not node.moving and self._admission.accepting:
                self._evacuate_one(node)

    def _evacuate_one(self, node: Node) -> None:
        """Starts to move one session off the host, if there is a target for it."""
        for worker in _movable(node):
            owner = worker.keeps or worker.session
            seat = None if owner is None else self._target_for(owner, node)
            if owner is None or seat is None or not self._processes.has_room:
                continue
            if worker.keeps is not None:
                self._processes.launch_carrier(owner, seat)
                return
            if worker.leave_by_ns is None:
                self._preparing.ask_to_leave(worker, owner)
            return

    def _target_for(self, session: Session, node: Node) -> Seat | None:
        """A device of another host with room for the session's tensors: one that serves its flavor first, then where the least is
        parked."""
        need, flavor = tensor_bytes(session), self._fleet.flavors[session.flavor]
        best: tuple[tuple[bool, int, int, int], Seat] | None = None
        for other in self._fleet.nodes.values():
            if other is node or not other.is_open or parking_space(None, other, self._limits)[0] < need:
                continue
            there = kept_bytes(other)
            for seat in other.seats:
                unfit = not any(suits(seat.device, flavor, e) for e in flavor.equivalents)
                rank = (unfit, there, -seat.open_milli, seat.number)
                if seat.is_open and seat.retry_ns <= self._step.now_ns and (best is None or rank < best[0]):
                    best = (rank, seat)
        return None if best is None else best[1]

    def carry(self, worker: Worker, session: Session) -> None:
        """The worker is ready: it is told what to fetch, or dismissed if another worker fetches it already."""
        image = session.image
        if image is None or image.source is None or session.worker is not None:
            self._processes.dismiss(worker, drains_milli=0)
            return
        seconds = self._limits.park_seconds + tensor_bytes(session) / self._limits.move_bytes_per_second
        worker.state, worker.deadline_ns = "carrying", self._step.now_ns + int(seconds * SECOND)
        self._step.out.append(TellWorker(worker.id, carry(session, image.source, self._limits)))

    def carried(self, worker: Worker, session: Session, message: wire.Left) -> None:
        """The worker has all of the tensors, and holds them from now on."""
        before = session.image
        if before is None or session.worker is not None:
            self._processes.dismiss(worker, drains_milli=0)
            return
        self._fleet.hand_over(worker, session, message.bytes, message.source)
        if message.image:
            self._images.kept(worker, session, message.image, message.bytes)
        worker.spilled_bytes = message.spilled_bytes
        self._fleet.retire(before, 0)
        before.deadline_ns = self._step.now_ns + int(WRITTEN_SECONDS * SECOND)
        self._step.note("session_sheltered", session=session.id, tenant=session.tenant, worker=worker.id, bytes=message.bytes)
        self._step.touch(session)
        self._step.save(session)


def _image_of(carrier: Worker) -> Worker | None:
    """The worker that the carrier fetches from."""
    return None if carrier.carries is None else carrier.carries.image


def _movable(node: Node) -> Iterator[Worker]:
    """The host's workers whose tensors are off devices and can be moved. Those that their clients have left come first."""
    there = {worker.id: worker for seat in node.seats for worker in seat.workers.values() if worker.device.node == node.name}
    kept = [worker for worker in there.values() if worker.away_ns is None and worker.parked_bytes is not None]
    yield from (worker for worker in kept if worker.keeps is not None and worker.keeps.worker is None and _waits_for_no_place(worker.keeps))
    for worker in kept:
        session = worker.session
        if session is None or worker.state != "bound" or session.pinned or worker.is_in_motion or session.away_ns is not None:
            continue
        if _waits_for_no_place(session):
            yield worker


def _waits_for_no_place(session: Session) -> bool:
    return session.request is None or session.request.place is None
