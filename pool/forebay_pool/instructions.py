"""Instructions: what the state machine has the shell do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay_wire import messages as wire

from forebay_pool.types import Device, Lease, Node, Parking, Seat, Session, UsageRecord


@dataclass(frozen=True, slots=True)
class TellClient:
    session: str
    message: wire.ToClient


@dataclass(frozen=True, slots=True)
class TellWorker:
    worker: str
    message: wire.ToWorker


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a worker process for the devices; it computes on the first."""

    worker: str
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """End the worker's process at once; answered by WorkerGone."""

    worker: str


@dataclass(frozen=True, slots=True)
class Meter:
    """Write the usage record durably, then deliver it."""

    record: UsageRecord


@dataclass(frozen=True, slots=True)
class MeterParked:
    """The same for a session's parked bytes."""

    record: UsageRecord


@dataclass(frozen=True, slots=True)
class Keep:
    """Write durably how this record stands, soon; nobody waits for it. An ended session is forgotten; ``Meter`` and ``MeterParked`` end the
    row of a lease and of a stretch of parked time."""

    record: Session | Lease | Parking


@dataclass(frozen=True, slots=True)
class Forget:
    """The stretch of parked time is over, and nobody knows since when: what was not metered of it is free."""

    parking: str


@dataclass(frozen=True, slots=True)
class Confirm:
    """Write durably until when the workers have confirmed to hold these leases."""

    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Show:
    """The row of this record changed; a closed lease or an ended session is shown for the last time."""

    record: Session | Lease | Seat | Node


@dataclass(frozen=True, slots=True)
class Note:
    """Something an operator may want to read or count: a word, and identifiers."""

    action: str
    fields: Mapping[str, str | int]


Instruction = TellClient | TellWorker | Launch | Kill | Meter | MeterParked | Keep | Forget | Confirm | Show | Note
