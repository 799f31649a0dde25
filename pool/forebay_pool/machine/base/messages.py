"""What worker and client are told of a session, its flavor and its lease."""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

from forebay_wire import messages as wire
from forebay_wire.remote.runtimes import RUNTIMES

from forebay_pool.model.causes import Cause, told
from forebay_pool.model.limits import Limits
from forebay_pool.model.types import Flavor, Kind, Lease, Loss, Price, Session, Worker
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.room import tensor_bytes

END, LEAVE, RESTORE = wire.End(), wire.Leave(), wire.Restore()
MESSAGES_MAX = 1_024
"""At most this many parts of messages are cached: they are sent with every grant."""


def ticket(session: Session, worker: Worker) -> str:
    """What the client presents to this worker for its one session: a keyed hash of the worker's name."""
    if not worker.ticket:
        worker.ticket = _ticket(session, worker)
    return worker.ticket


def is_ticket(shown: str | None, session: Session, worker: Worker) -> bool:
    """True if a pool gave the worker to the session. Only a pool can make the ticket, since it needs the session's secret."""
    return shown is not None and hmac.compare_digest(_ticket(session, worker), shown)


def _ticket(session: Session, worker: Worker) -> str:
    return hashlib.blake2b(worker.id.encode(), key=session.secret, digest_size=32).hexdigest()


def resume_key(session: Session) -> str:
    """What the client shows when it comes back after its link broke."""
    return hashlib.blake2b(b"resume", key=session.secret, digest_size=32).hexdigest()


def flavor_message(flavor: Flavor, price: Price | None) -> wire.Flavor:
    if price is None:
        return _flavor_message(flavor.name, flavor.memory_bytes, flavor.runtimes)
    return _flavor_message(flavor.name, flavor.memory_bytes, flavor.runtimes, price.nano_per_hour, price.currency)


@lru_cache(maxsize=MESSAGES_MAX)
def _flavor_message(
    name: str, memory_bytes: int, runtimes: tuple[str, ...] | None, nano_per_hour: int | None = None, currency: str | None = None
) -> wire.Flavor:
    return wire.Flavor(
        name=name, memory_bytes=memory_bytes, price_nano_per_hour=nano_per_hour, currency=currency, runtimes=runtimes or RUNTIMES
    )


@lru_cache(maxsize=MESSAGES_MAX)
def _model_message(kind: Kind, model: str) -> wire.DeviceModel:
    return wire.DeviceModel(kind=kind, model=model)


@lru_cache(maxsize=MESSAGES_MAX)
def open_message(epoch: int, memory_limit_bytes: int) -> wire.Open:
    return wire.Open(epoch=epoch, memory_limit_bytes=memory_limit_bytes)


def assignment(session: Session, worker: Worker, fleet: Fleet, limits: Limits) -> wire.Assign:
    return wire.Assign(
        session=session.id,
        ticket=ticket(session, worker),
        memory_limit_bytes=fleet.flavors[session.flavor].memory_bytes,
        idle_release_seconds=limits.idle_release_seconds,
        heartbeat_seconds=limits.heartbeat_seconds,
        source=None if session.image is None else session.image.source,
        rates=fleet.rates.get((worker.device.model, len(worker.devices))),
        image=session.replay.image.number if session.stored and session.replay.image is not None else 0,
        outside=session.client.outside,
        runtimes=fleet.flavors[session.flavor].runtimes,
    )


def carry(session: Session, source: wire.Source, limits: Limits) -> wire.Carry:
    return wire.Carry(
        session=session.id,
        source=source,
        bytes_max=tensor_bytes(session),
        bytes_per_second_max=limits.move_bytes_per_second,
        heartbeat_seconds=limits.heartbeat_seconds,
        image=0 if session.replay.image is None else session.replay.image.number,
    )


def worker_lost(loss: Loss) -> wire.WorkerLost:
    cause = Cause("worker_replaced", loss.cause)
    return wire.WorkerLost(message=cause, cause=told(cause))


def lost(cause: str) -> wire.SessionLost:
    return wire.SessionLost(message=cause, cause=told(cause))


def granted(lease: Lease, worker: Worker) -> wire.Granted:
    address, certificate = (wire.EDGE, None) if lease.session.client.outside else worker.door
    return wire.Granted(
        request=lease.number,
        lease=lease.id,
        epoch=lease.epoch,
        worker=worker.id,
        address=address,
        ticket=ticket(lease.session, worker),
        device=_model_message(lease.device.kind, lease.device.model),
        devices=len(lease.place.devices),
        meeting=0 if lease.session.group is None else lease.session.group.meeting,
        flavor=flavor_message(lease.flavor, lease.price),
        certificate=certificate,
    )
