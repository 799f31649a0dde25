"""Room on a device: who is parked so that a session's memory fits."""

from __future__ import annotations

from collections.abc import Iterable

from forebay_pool.model.limits import Limits
from forebay_pool.model.types import Node, Seat, Session, Worker


def tensor_bytes(session: Session) -> int:
    """What the session's tensors take, wherever they are."""
    if session.stored and session.replay.image is not None:
        return session.replay.image.bytes
    holder = session.image or session.worker
    return 0 if holder is None else max(holder.memory_bytes, holder.parked_bytes or 0)


def has_room(seat: Seat, session: Session, need_bytes: int) -> bool:
    """Whether the session's memory fits beside what is set aside for the others on the device."""
    own = session.worker
    for worker in seat.workers.values():
        if worker is not own:
            need_bytes += worker.part_bytes
    return need_bytes <= seat.device.memory_bytes


def opening_bytes(seat: Seat, session: Session) -> int:
    """What those will take on the device, beside what is set aside for them, whose leases open with the session's."""
    group = session.group
    beside = [one for one in seat.holders if one is not session and one.group is group and one.lease is None] if group is not None else []
    set_aside = {worker.session: worker.part_bytes for worker in seat.workers.values()}
    return sum(max(0, seat.holders[one].part_bytes - set_aside.get(one, 0)) for one in beside)


def residents(seat: Seat) -> list[Worker]:
    """The workers whose sessions rest on the device, and do not leave it yet."""
    return [
        worker
        for worker in seat.workers.values()
        if worker.session is not None and worker.session not in seat.holders and worker.reserved_bytes
        if not worker.is_in_motion and not worker.unsure
    ]


def surplus_bytes(seat: Seat) -> int:
    """What is set aside on the device beyond its memory, for all who hold it and all who rest there."""
    return seat.held_bytes + sum(worker.part_bytes for worker in residents(seat)) - seat.device.memory_bytes


def by_use(workers: Iterable[Worker]) -> list[Worker]:
    """Those whose sessions had a lease longest ago first; whoever waits for one comes last."""
    sessions = [(worker.session, worker) for worker in workers]
    uses = [((session.request is not None, session.used_ns), worker) for session, worker in sessions if session is not None]
    return [worker for _, worker in sorted(uses, key=lambda pair: pair[0])]


def is_coming(worker: Worker) -> bool:
    """Whether tensors are on their way to the memory of its host."""
    return worker.parking or worker.carries is not None


def is_empty(node: Node) -> bool:
    """Whether no worker is left on it."""
    return not any(seat.workers for seat in node.seats)


def kept_bytes(node: Node) -> int:
    """Tensors off devices on the host, in memory and on disk."""
    return sum(worker.parked_bytes or 0 for seat in node.seats for worker in seat.workers.values() if worker.device is seat.device)


def parking_space(worker: Worker | None, node: Node, limits: Limits) -> tuple[int, int]:
    """What is left on the host for the worker's session, or for any other: bytes of memory, and of disk."""
    others = [other for seat in node.seats for other in seat.workers.values() if other is not worker and other.device is seat.device]
    on_disk = sum(other.spilled_bytes for other in others)
    in_memory = sum((other.parked_bytes or 0) - other.spilled_bytes for other in others)
    coming = sum(tensor_bytes(other.carries) if other.carries is not None else other.reserved_bytes for other in others if is_coming(other))
    return max(0, limits.parked_host_bytes_max - in_memory - coming), max(0, limits.spill_bytes_max - on_disk)
