"""The devices, the workers on them, and what they can serve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from forebay_pool.errors import InvariantBroken
from forebay_pool.types import Device, Flavor, Kind, Limits, Seat, Session, Worker

NAMES_MAX = 4
"""A sentence names at most so many devices."""


class Fleet:
    """Who sits where. Keeps an index of the free seats, so that placing does not look at every device."""

    def __init__(self, devices: Iterable[Device], flavors: Mapping[str, Flavor]) -> None:
        self.seats: dict[str, Seat] = {device.id: Seat(device) for device in devices}
        self.workers: dict[str, Worker] = {}
        self.flavors: dict[str, Flavor] = dict(flavors)
        self.spare: dict[Kind, int] = {seat.device.kind: 0 for seat in self.seats.values()}
        """Workers without a session, starting or warm, by kind."""
        self._free: dict[str, dict[str, Seat]] = {}
        self._serves: dict[str, tuple[str, ...]] = {}
        for seat in self.seats.values():
            self._free.setdefault(seat.device.model, {})[seat.device.id] = seat
        self._index_flavors()

    def set_flavor(self, flavor: Flavor) -> None:
        self.flavors[flavor.name] = flavor
        self._index_flavors()

    def _index_flavors(self) -> None:
        for seat in self.seats.values():
            self._serves[seat.device.id] = tuple(f.name for f in self.flavors.values() if serves(seat.device, f))

    def flavors_of(self, seat: Seat) -> tuple[str, ...]:
        """The names of the flavors that the device serves."""
        return self._serves[seat.device.id]

    # Seats

    def take(self, seat: Seat, session: Session) -> None:
        """Claims a free seat for the session. A seat that is not free means that a device would be leased twice."""
        if seat.holder is not None or seat.draining is not None:
            raise InvariantBroken(f"{seat.device.id} is {seat.state} and cannot be taken for session {session.id}")
        seat.holder = session
        del self._free[seat.device.model][seat.device.id]

    def leave(self, seat: Seat) -> None:
        """Gives the holder's seat back; it is free once nobody drains on it either."""
        seat.holder = None
        self.settle(seat)

    def settle(self, seat: Seat) -> None:
        """Files the seat under the free ones if it is free."""
        if seat.holder is None and seat.draining is None:
            self._free[seat.device.model][seat.device.id] = seat

    def free_seats(self) -> Iterator[Seat]:
        for seats in self._free.values():
            yield from seats.values()

    def is_free(self, seat: Seat) -> bool:
        return seat.device.id in self._free[seat.device.model]

    def choose(self, flavor: Flavor, room_for_workers: bool) -> Seat | None:
        """The best free seat for a session without tensors: fewest failures, then room without eviction, then a warm worker."""
        best: Seat | None = None
        best_rank: tuple[int, bool, bool, int] | None = None
        for equivalent in flavor.equivalents:
            for seat in self._free.get(equivalent.model, {}).values() if equivalent.count == 1 else ():
                if flavor.memory_bytes > seat.device.memory_bytes:
                    continue
                spare = any(worker.session is None and worker.state in ("starting", "warm") for worker in seat.workers.values())
                if not spare and not room_for_workers:
                    continue
                reserved = seat.reserved_bytes
                crowded = reserved + flavor.memory_bytes > seat.device.memory_bytes
                rank = (seat.failures, crowded, not spare, reserved)
                if best_rank is None or rank < best_rank:
                    best, best_rank = seat, rank
        return best

    def may_serve(self, flavor: Flavor) -> list[Seat]:
        """Every seat that serves the flavor, free or not."""
        return [seat for seat in self.seats.values() if serves(seat.device, flavor)]

    # Workers

    def add(self, worker: Worker) -> None:
        self.workers[worker.id] = worker
        self.seats[worker.device.id].workers[worker.id] = worker
        self.spare[worker.device.kind] += 1

    def remove(self, worker: Worker) -> None:
        if worker.state in ("starting", "warm"):
            self.spare[worker.device.kind] -= 1
        seat = self.seats[worker.device.id]
        del self.workers[worker.id]
        del seat.workers[worker.id]
        if seat.draining is worker:
            seat.draining = None
            self.settle(seat)

    def give(self, worker: Worker, session: Session) -> None:
        """Binds a warm worker to its one session."""
        if worker.state != "warm" or worker.session is not None or session.worker is not None:
            raise InvariantBroken(f"worker {worker.id} is {worker.state} and cannot serve session {session.id}")
        worker.session, session.worker, worker.state = session, worker, "assigning"
        self.spare[worker.device.kind] -= 1

    def retire(self, worker: Worker, drains: bool) -> None:
        """The worker serves nobody from here on; with ``drains`` its device waits until it is gone."""
        if worker.state in ("starting", "warm"):
            self.spare[worker.device.kind] -= 1
        worker.state, worker.parking, worker.deadline_ns = "ending", False, None
        if worker.session is not None:
            worker.session.worker = None
            worker.session = None
        seat = self.seats[worker.device.id]
        if drains:
            if seat.draining is not None:
                raise InvariantBroken(f"{seat.device.id} drains worker {seat.draining.id} already, and now {worker.id}")
            self._free[seat.device.model].pop(seat.device.id, None)
            seat.draining = worker

    # Sentences

    def why_not(self, flavor: Flavor) -> str | None:
        """Why no device here serves the flavor; None if one does."""
        if any(serves(seat.device, flavor) for seat in self.seats.values()):
            return None
        here: dict[str, list[Device]] = {}
        for seat in self.seats.values():
            here.setdefault(seat.device.model, []).append(seat.device)
        reasons = [_why_not_by(flavor, e.model, e.count, here.get(e.model, [])) for e in flavor.equivalents]
        if any(e.model in here for e in flavor.equivalents):
            return f"{flavor.name} cannot be served: " + "; ".join(reasons) + "."
        wanted = " or ".join(f"{e.count} {e.model}" for e in flavor.equivalents) or "a device that nobody named"
        found = ", ".join(f"{len(devices)} {model}" for model, devices in sorted(here.items())) or "no device"
        return f"{flavor.name} needs {wanted}; this installation has {found}."


def serves(device: Device, flavor: Flavor) -> bool:
    """Whether this one device serves the flavor. Gangs of several devices are not opened yet."""
    return flavor.memory_bytes <= device.memory_bytes and any(e.count == 1 and e.model == device.model for e in flavor.equivalents)


def _why_not_by(flavor: Flavor, model: str, count: int, devices: list[Device]) -> str:
    if not devices:
        return f"there is no {model} here"
    if count > 1:
        return f"it takes {count} {model} together, and a session runs on one device"
    most = max(device.memory_bytes for device in devices)
    return f"a {model} here has {gib(most)}, the flavor {gib(flavor.memory_bytes)}"


def lateness(worker: Worker, limits: Limits) -> str:
    """What a worker whose deadline passed did not do in time."""
    if worker.session is not None and worker.session.lease is not None:
        return f"it computed on for {limits.close_seconds:g} s after its lease was taken back"
    if worker.parking:
        return f"it did not move its tensors to host memory within {limits.park_seconds:g} s"
    return f"it was not ready within {limits.worker_start_seconds:g} s"


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB"


def named(seats: list[Seat]) -> str:
    """The devices' ids for people, bounded."""
    names = [seat.device.id for seat in seats[:NAMES_MAX]]
    rest = len(seats) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")
