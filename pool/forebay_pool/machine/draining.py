"""Devices that are closed, and how they are emptied; hosts that are drained, and how parked sessions leave them.

Parked sessions' tensors are carried to the memory of another host, whether or not anybody computes. The client ends its stream at the
worker on the host, as for any move, and the worker keeps what the session left (its image). A worker on another host fetches the image off
its device, at a bounded speed, and keeps it from then on; the session's next lease opens wherever there is room. Until the new worker has
all of it the old one has it too, so nothing is lost with the new one; and the old one goes only once it is surely written where the tensors
are now. No lease is open meanwhile: moving costs nobody anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from forebay_wire import messages as wire

from forebay_pool.machine.messages import carry
from forebay_pool.machine.revoking import Revoking
from forebay_pool.model.causes import Cause
from forebay_pool.model.instructions import Launch, Show, TellWorker
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Cordon, Lease, Node, Seat, Session, Worker, tensor_bytes
from forebay_pool.placement.capacity import suits
from forebay_pool.placement.room import by_use, kept_bytes, parking_space, residents

WRITTEN_SECONDS = 5.0
"""So long after the tensors are elsewhere the worker that kept them goes: by then it is written where they are."""


class Draining(Revoking):
    """Closes devices to new leases, and has those who are there leave; of each host one parked session at a time."""

    def _cordon(self, seat: Seat, cause: Cause, drains: bool, lasting: bool) -> None:
        """The device's health, or what its workers say, forbids new leases, and with ``drains`` open ones too."""
        known = seat.cordon
        if known is None:
            seat.cordon = Cordon((cause,), "health", drains, lasting)
        elif known.drains < drains or known.lasting < lasting:
            causes = (cause,) if known.by == "health" else (*known.causes, cause)
            seat.cordon = Cordon(causes, known.by, known.drains or drains, known.lasting or lasting)
        else:
            return
        self._note("device_alert", device=seat.device.id, cause=seat.cordon.cause)
        self._close_seat(seat)
        if drains:
            self._take_back(seat)

    def _close_seat(self, seat: Seat) -> None:
        """The device, or its node, takes no leases any more: who was to start here starts elsewhere, and who must leave is parked."""
        self.fleet.changed(seat)
        self._out.append(Show(seat))
        again = [session.request for session in seat.holders]
        for worker in list(seat.workers.values()):
            if worker.state != "ending" and not worker.opened and not worker.unsure:
                again.append(None if worker.session is None else worker.session.request)
                self._dismiss(worker, drains_milli=0)
        for request in dict.fromkeys(again):
            if request is not None and request.session.lease is None:
                self._place_again(request)
        self._empty(seat)

    def _empty(self, *seats: Seat) -> None:
        """Parks who rests on the devices, where they must leave them."""
        for seat in seats:
            for resident in residents(seat) if seat.empties else ():
                self._park(resident)

    def _let_rest(self, lease: Lease) -> None:
        """The lease's session rests on its devices, or is parked where one is being emptied; so are others beyond its flavor's bound."""
        seats, worker = self.fleet.seats_of(lease.place), lease.session.worker
        if worker is not None and any(seat.empties for seat in seats):
            self._park(worker)
        if lease.flavor.residents_max is not None:
            for seat in seats:
                self._keep_to_bound(seat, lease.flavor.name, lease.flavor.residents_max)

    def _keep_to_bound(self, seat: Seat, flavor: str, most: int) -> None:
        """Parks the flavor's least recently used residents beyond so many."""
        rest = [worker for worker in residents(seat) if worker.session is not None and worker.session.flavor == flavor]
        for resident in by_use(rest)[: max(0, len(rest) - most)]:
            self._park(resident)

    def _take_back(self, seat: Seat) -> None:
        """Takes the open leases back; their sessions are parked once they have closed."""
        for session in list(seat.holders):
            if session.lease is not None:
                self._give_back(session.lease, "revoked")

    # Parked sessions

    def _evacuate(self) -> None:
        """Takes the next step on each host that is drained."""
        moving = Counter(image.device.node for image in map(_image_of, self._carriers()) if image is not None)
        for node in self.fleet.nodes.values():
            if node.moving != moving[node.name]:
                node.moving = moving[node.name]
                self._out.append(Show(node))
            if node.drains and node.lost is None and not node.moving and self.accepting:
                self._evacuate_one(node)

    def _evacuate_one(self, node: Node) -> None:
        for worker in _keepers(node):
            owner = worker.keeps or worker.session
            seat = None if owner is None else self._shelter(owner, node)
            if owner is None or seat is None or not self.has_room_for_workers:
                continue
            if worker.keeps is not None:
                self._send_carrier(owner, seat)
                return
            if worker.leave_by_ns is None:
                self._ask_to_leave(worker, owner)
            return

    def _shelter(self, session: Session, node: Node) -> Seat | None:
        """A device of another host with room for the session's tensors: best one that serves its flavor, where the least is parked."""
        need, flavor = tensor_bytes(session), self.fleet.flavors[session.flavor]
        best: tuple[tuple[bool, int, int, int], Seat] | None = None
        for other in self.fleet.nodes.values():
            if other is node or not other.is_open or parking_space(None, other, self.limits)[0] < need:
                continue
            there = kept_bytes(other)
            for seat in other.seats:
                unfit = not any(suits(seat.device, flavor, e) for e in flavor.equivalents)
                rank = (unfit, there, -seat.open_milli, seat.number)
                if seat.is_open and seat.retry_ns <= self._now and (best is None or rank < best[0]):
                    best = (rank, seat)
        return None if best is None else best[1]

    def _send_carrier(self, session: Session, seat: Seat) -> None:
        """Starts a worker on the device that will fetch the tensors, and serve nobody."""
        self._launches += 1
        worker = Worker(f"{self._name}-w{self._launches}", (seat.device,), started_ns=self._now, carries=session)
        worker.deadline_ns = self._now + int(self.limits.worker_start_seconds * SECOND)
        self.fleet.add(worker)
        self._out.append(Launch(worker.id, worker.devices))
        self._note("session_carried", session=session.id, tenant=session.tenant, worker=worker.id, device=seat.device.id)

    def _carry(self, worker: Worker, session: Session) -> None:
        """The worker is there: it is told what to fetch. It is needed no more where somebody else fetches it already."""
        image = session.image
        if image is None or image.source is None or session.worker is not None:
            self._dismiss(worker, drains_milli=0)
            return
        seconds = self.limits.park_seconds + tensor_bytes(session) / self.limits.move_bytes_per_second
        worker.state, worker.deadline_ns = "carrying", self._now + int(seconds * SECOND)
        self._out.append(TellWorker(worker.id, carry(session, image.source, self.limits)))

    def _carried(self, worker: Worker, session: Session, message: wire.Left) -> None:
        """The worker has all of it, and keeps it from now on."""
        before = session.image
        if before is None or session.worker is not None:
            self._dismiss(worker, drains_milli=0)
            return
        self.fleet.hand_over(worker, session, message.bytes, wire.Source(address=message.address, ticket=message.ticket))
        worker.spilled_bytes = message.spilled_bytes
        self.fleet.retire(before, 0)
        before.deadline_ns = self._now + int(WRITTEN_SECONDS * SECOND)
        self._note("session_sheltered", session=session.id, tenant=session.tenant, worker=worker.id, bytes=message.bytes)
        self._touch(session)
        self._keep(session)


def _image_of(carrier: Worker) -> Worker | None:
    """The worker that the carrier fetches from."""
    return None if carrier.carries is None else carrier.carries.image


def _keepers(node: Node) -> Iterator[Worker]:
    """The host's workers whose sessions' tensors are off devices and can be carried away, those first whose clients have left them."""
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
