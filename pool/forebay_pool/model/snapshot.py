"""What the pool keeps on disk of what it knows, so that the next one to lead can go on: sessions, workers, open leases.

The monotonic clock counts from the boot of the machine, not of the process: on one host a successor reads the same clock, and a lease
goes on by it. On another host a lease's time is counted from the Unix time at which it was opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forebay_wire import messages as wire

from forebay_pool.model.history import History
from forebay_pool.model.metering import segments
from forebay_pool.model.records import Image, QueuePlace
from forebay_pool.model.types import Lease, Loss, Parking, Price, Replay, Session, UsageRecord


@dataclass(frozen=True, slots=True)
class ReplaySnapshot:
    """Of a session whose client keeps what it sends: how much another worker would have to do again, or has to."""

    worked_ns: int
    loss: Loss | None
    image: Image | None
    possible: bool = True


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A session, without what its worker and its client bring along when they come back."""

    id: str
    secret: bytes = field(repr=False)
    tenant: str
    user: str
    process: str
    flavor: str
    since_unix_ns: int
    epoch: int
    span: wire.Span | None
    worker: str | None
    opened: bool
    """Whether its worker was ever given a lease."""
    reserved_bytes: int
    parked_bytes: int | None
    priority: int = 0
    waits: QueuePlace | None = None
    left: str = ""
    """The worker that its tensors left last: its client may not have come to the next one yet."""
    replay: ReplaySnapshot | None = None
    """None: its client keeps nothing."""


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """A worker's process."""

    id: str
    devices: tuple[str, ...]
    token: str
    """SHA-256 of the token it links up with, in hex."""
    boot: str
    """Which run of which host it belongs to."""
    pid: int
    started: int
    """In clock ticks since the boot: with the pid it names one process for ever."""


@dataclass(frozen=True, slots=True)
class LeaseSnapshot:
    """An open lease; with it alone the lease can be metered."""

    id: str
    session: str
    epoch: int
    number: int
    tenant: str
    user: str
    flavor: str
    devices: tuple[str, ...]
    device_model: str
    """The model of each of the devices."""
    share_milli: int
    span: wire.Span
    price: Price | None
    waited_ns: int
    opened_ns: int
    opened_unix_ns: int
    confirmed_ns: int
    """For how long its worker has confirmed to hold it."""
    segment: int = 1
    """The number of the segment that runs."""
    metered_ns: int = 0
    """For how long it was metered, in the segments before."""

    def failed(self, segment_ns: int) -> list[UsageRecord]:
        """Its usage records if nobody comes back to it: what was not metered before is free."""
        whole = UsageRecord(
            id=self.id,
            tenant=self.tenant,
            user=self.user,
            session=self.session,
            lease=self.id,
            span=self.span,
            flavor=self.flavor,
            device_model=self.device_model,
            devices=len(self.devices),
            started_at_unix_ns=self.opened_unix_ns,
            duration_ns=self.metered_ns,
            close_reason="failed",
            share_milli=self.share_milli,
            held=self.devices,
        )
        return segments(whole, self.segment, self.metered_ns, segment_ns)

    def here(self, now_ns: int, now_unix_ns: int, same_clock: bool) -> LeaseSnapshot:
        """The same by this host's monotonic clock: ``same_clock`` says that it was written by it. Never opened in the future."""
        opened_ns = self.opened_ns if same_clock else now_ns - (now_unix_ns - self.opened_unix_ns)
        return replace(self, opened_ns=min(opened_ns, now_ns - self.confirmed_ns))


@dataclass(frozen=True, slots=True)
class ParkingSnapshot:
    """A stretch of parked time that goes on."""

    id: str
    session: str
    bytes: int
    span: wire.Span
    opened_ns: int
    opened_unix_ns: int
    segment: int = 1
    """The number of the segment that runs."""
    metered_ns: int = 0
    """For how long it was metered, in the segments before."""
    image: bool = False
    """Whether it is of the session's image, and not of its tensors."""

    def here(self, now_ns: int, now_unix_ns: int, same_clock: bool) -> ParkingSnapshot:
        """The same by this host's monotonic clock, as :meth:`LeaseSnapshot.here` tells it."""
        opened_ns = self.opened_ns if same_clock else now_ns - (now_unix_ns - self.opened_unix_ns)
        return replace(self, opened_ns=min(opened_ns, now_ns - self.metered_ns))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a pool left, and what its usage records tell by the monotonic clock.

    ``closed`` has, by session, the last lease of each that was closed and metered, as one record.
    """

    sessions: tuple[SessionSnapshot, ...] = ()
    workers: tuple[WorkerSnapshot, ...] = ()
    leases: tuple[LeaseSnapshot, ...] = ()
    parkings: tuple[ParkingSnapshot, ...] = ()
    closed: Mapping[str, UsageRecord] = field(default_factory=dict)
    history: History = field(default_factory=History)


def _replay_of(replay: Replay) -> ReplaySnapshot:
    return ReplaySnapshot(replay.worked_ns, replay.loss and replace(replay.loss), replay.image, replay.possible)


def session_snapshot(session: Session) -> SessionSnapshot:
    worker, request = session.worker, session.request
    if worker is None or not worker.opened:
        worker = session.image or worker
    return SessionSnapshot(
        id=session.id,
        secret=session.secret,
        tenant=session.tenant,
        user=session.user,
        process=session.process,
        flavor=session.flavor,
        since_unix_ns=session.since_unix_ns,
        epoch=session.epoch,
        span=session.span,
        worker=None if worker is None else worker.id,
        opened=worker is not None and worker.opened,
        reserved_bytes=0 if worker is None else worker.reserved_bytes,
        parked_bytes=None if worker is None else worker.parked_bytes,
        priority=session.priority,
        waits=session.waited if request is None else QueuePlace(request.number, request.arrived_unix_ns, request.order),
        left=session.left,
        replay=_replay_of(session.replay) if session.replay.possible or session.replay.image is not None else None,
    )


def lease_snapshot(lease: Lease) -> LeaseSnapshot:
    session = lease.session
    return LeaseSnapshot(
        id=lease.id,
        session=session.id,
        epoch=lease.epoch,
        number=lease.number,
        tenant=session.tenant,
        user=session.user,
        flavor=lease.flavor.name,
        devices=tuple(device.id for device in lease.place.devices),
        device_model=lease.device.model,
        share_milli=lease.place.share_milli,
        span=lease.span,
        price=lease.price,
        waited_ns=lease.waited_ns,
        opened_ns=lease.opened_ns,
        opened_unix_ns=lease.opened_unix_ns,
        confirmed_ns=lease.confirmed_ns - lease.opened_ns,
        segment=lease.segment,
        metered_ns=lease.metered_ns,
    )


def parking_snapshot(parking: Parking) -> ParkingSnapshot:
    return ParkingSnapshot(
        id=parking.id,
        session=parking.session.id,
        bytes=parking.bytes,
        span=parking.span,
        opened_ns=parking.opened_ns,
        opened_unix_ns=parking.opened_unix_ns,
        segment=parking.segment,
        metered_ns=parking.metered_ns,
        image=parking.image is not None,
    )
