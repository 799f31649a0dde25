"""Room on a device: who is parked so that a session's memory fits."""

from __future__ import annotations

from forebay_pool.types import Seat, Session, Worker


def has_room(seat: Seat, session: Session, need_bytes: int) -> bool:
    """Whether the session's memory fits beside what is set aside for the others on the device."""
    return _others_bytes(seat, session, leaving=True) + need_bytes <= seat.device.memory_bytes


def to_park(seat: Seat, session: Session, need_bytes: int) -> list[Worker]:
    """The least recently used residents that must be parked, besides those that park or end already."""
    surplus_bytes = _others_bytes(seat, session, leaving=False) + need_bytes - seat.device.memory_bytes
    residents = [(worker.session, worker) for worker in _others(seat, session) if worker.state == "bound" and not worker.parking]
    chosen: list[Worker] = []
    for _, worker in sorted(((_use(owner), worker) for owner, worker in residents if owner is not None), key=lambda pair: pair[0]):
        if surplus_bytes <= 0:
            break
        surplus_bytes -= worker.reserved_bytes
        chosen.append(worker)
    return chosen


def _use(session: Session) -> tuple[bool, int]:
    """Those that wait for a lease come last, then those that had one last."""
    return (session.request is not None, session.used_ns)


def _others(seat: Seat, session: Session) -> list[Worker]:
    return [worker for worker in seat.workers.values() if worker.reserved_bytes and worker is not session.worker]


def _others_bytes(seat: Seat, session: Session, leaving: bool) -> int:
    counted = [worker for worker in _others(seat, session) if leaving or not (worker.parking or worker.state == "ending")]
    return sum(worker.reserved_bytes for worker in counted)
