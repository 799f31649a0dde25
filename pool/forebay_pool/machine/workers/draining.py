"""Devices that are closed, and how they are emptied."""

from __future__ import annotations

from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.model.causes import Cause
from forebay_pool.model.health import Cordon
from forebay_pool.model.instructions import Show
from forebay_pool.model.types import Lease, Seat
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.room import by_use, residents


class Draining:
    """Closes devices to new leases, and has their residents leave."""

    def __init__(
        self,
        step: Step,
        fleet: Fleet,
        leases: Leases,
        parked: ParkedSessions,
        processes: WorkerProcesses,
        granting: Granting,
    ) -> None:
        self._step = step
        self._fleet = fleet
        self._leases = leases
        self._parked = parked
        self._processes = processes
        self._granting = granting

    def cordon(self, seat: Seat, cause: Cause, drains: bool, lasting: bool) -> None:
        """The device's health, or its workers, forbid new leases; with ``drains`` open leases are taken back too."""
        known = seat.cordon
        if known is None:
            seat.cordon = Cordon((cause,), "health", drains, lasting)
        elif known.drains < drains or known.lasting < lasting:
            causes = (cause,) if known.by == "health" else (*known.causes, cause)
            seat.cordon = Cordon(causes, known.by, known.drains or drains, known.lasting or lasting)
        else:
            return
        self._step.note("device_alert", device=seat.device.id, cause=seat.cordon.cause)
        self.close_seat(seat)
        if drains:
            self.take_back(seat)

    def close_seat(self, seat: Seat) -> None:
        """The device takes no leases any more. Leases that were to open here are placed again, and residents that must leave are parked."""
        self._fleet.changed(seat)
        self._step.out.append(Show(seat))
        again = [session.request for session in seat.holders]
        for worker in list(seat.workers.values()):
            if worker.state != "ending" and not worker.opened and not worker.unsure:
                again.append(None if worker.session is None else worker.session.request)
                self._processes.dismiss(worker, drains_milli=0)
        for request in dict.fromkeys(again):
            if request is not None and request.session.lease is None:
                self._granting.place_again(request)
        self.empty(seat)

    def empty(self, *seats: Seat) -> None:
        """Parks the residents of those of the devices that must be emptied."""
        for seat in seats:
            for resident in residents(seat) if seat.empties else ():
                self._parked.park(resident)

    def settle_resident(self, lease: Lease) -> None:
        """The lease has closed: its session stays on the devices, or is parked if one is being emptied. So are residents beyond the
        flavor's bound."""
        seats, worker = self._fleet.seats_of(lease.place), lease.session.worker
        if worker is not None and any(seat.empties for seat in seats):
            self._parked.park(worker)
        if lease.flavor.residents_max is not None:
            for seat in seats:
                self._park_beyond_bound(seat, lease.flavor.name, lease.flavor.residents_max)

    def _park_beyond_bound(self, seat: Seat, flavor: str, most: int) -> None:
        """Parks the flavor's least recently used residents beyond ``most``."""
        rest = [worker for worker in residents(seat) if worker.session is not None and worker.session.flavor == flavor]
        for resident in by_use(rest)[: max(0, len(rest) - most)]:
            self._parked.park(resident)

    def take_back(self, seat: Seat) -> None:
        """Takes the device's open leases back. Their sessions are parked once the leases have closed."""
        for session in list(seat.holders):
            if session.lease is not None:
                self._leases.give_back(session.lease, "revoked")
