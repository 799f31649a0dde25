"""Instructions: what the state machine has the shell do."""

from __future__ import annotations

from collections.abc import Mapping

from forebay_wire import messages as wire

from forebay_pool.model.records import fact
from forebay_pool.model.types import Device, Lease, Node, Parking, Seat, Session, UsageRecord


@fact
class TellClient:
    session: str
    message: wire.ToClient


@fact
class Attest:
    """Give the client a signed receipt of the lease: that it was opened, or what it is billed as."""

    lease: Lease
    closed: bool


@fact
class TellWorker:
    worker: str
    message: wire.ToWorker


@fact
class Launch:
    """Start a worker process for the devices; it computes on the first."""

    worker: str
    devices: tuple[Device, ...]
    programs: bool = False
    """Once it is ready, it loads what programs of JAX and TensorFlow need, before one comes."""


@fact
class Kill:
    """End the worker's process at once; answered by WorkerGone."""

    worker: str


@fact
class Meter:
    """Write the usage record durably, then deliver it."""

    record: UsageRecord


@fact
class MeterParked:
    """The same for a session's parked bytes."""

    record: UsageRecord


@fact
class Keep:
    """Write durably how this record stands, soon; nobody waits for it. An ended session is forgotten; ``Meter`` and ``MeterParked`` end the
    row of a lease and of a stretch of parked time."""

    record: Session | Lease | Parking


@fact
class DropImages:
    """Remove the images of the session with this secret on one host. Nobody waits for it."""

    secret: bytes
    node: str


@fact
class Forget:
    """The stretch of parked time is over, and nobody knows since when: what was not metered of it is free."""

    parking: str


@fact
class Confirm:
    """Write durably until when the workers have confirmed to hold these leases."""

    leases: tuple[Lease, ...]


@fact
class Show:
    """The row of this record changed; a closed lease or an ended session is shown for the last time."""

    record: Session | Lease | Seat | Node


@fact
class Scale:
    """Tell the autoscaler how many nodes of each group there should be, by the group's model, those that an operator drains included;
    it may end the nodes ``over``, which are empty, and no others that are there."""

    nodes: Mapping[str, int]
    over: frozenset[str]


@fact
class Note:
    """Something an operator may want to read or count: a word, and identifiers."""

    action: str
    fields: Mapping[str, str | int]


Instruction = (
    TellClient | Attest | TellWorker | Launch | Kill | Meter | MeterParked | Keep | DropImages | Forget | Confirm | Show | Scale | Note
)
