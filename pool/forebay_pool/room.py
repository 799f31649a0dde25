"""Room on a device: who is parked so that a session's memory fits."""

from __future__ import annotations

from forebay_pool.types import Seat, Session, Worker


def has_room(seat: Seat, session: Session, need_bytes: int) -> bool:
    """Whether the session's memory fits beside what is set aside for the others on the device."""
    return sum(worker.reserved_bytes for worker in _others(seat, session)) + need_bytes <= seat.device.memory_bytes


def to_park(seat: Seat) -> list[Worker]:
    """The least recently used residents that must be parked for all who hold the device, besides those that park or end already."""
    residents = [
        (worker.session, worker)
        for worker in seat.own_workers
        if worker.session is not None and worker.session not in seat.holders and worker.reserved_bytes and not worker.parking
    ]
    surplus_bytes = seat.held_bytes + sum(worker.reserved_bytes for _, worker in residents) - seat.device.memory_bytes
    chosen: list[Worker] = []
    for _, worker in sorted(((_use(owner), worker) for owner, worker in residents), key=lambda pair: pair[0]):
        if surplus_bytes <= 0:
            break
        surplus_bytes -= worker.reserved_bytes
        chosen.append(worker)
    return chosen


def _use(session: Session) -> tuple[bool, int]:
    """Those that wait for a lease come last, then those that had one last."""
    return (session.request is not None, session.used_ns)


def _others(seat: Seat, session: Session) -> list[Worker]:
    return [worker for worker in seat.own_workers if worker.reserved_bytes and worker is not session.worker]
