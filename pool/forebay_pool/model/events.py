"""What may happen to a pool: each an event of the state machine. Those of nodes and devices are in :mod:`.node_events`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from forebay_wire import messages as wire

from forebay_pool.model.node_events import DeviceHealth, DeviceSet, NodeDrain, NodeJoined, NodeLost, PolicySet
from forebay_pool.model.prices import Tariff
from forebay_pool.model.types import BudgetState, Flavor, Quota

if TYPE_CHECKING:
    from forebay_pool.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class SessionJoined:
    """A client said Hello. ``secret`` is fresh chance: tickets are derived from it."""

    session: str
    secret: bytes = field(repr=False)
    tenant: str
    user: str
    process: str
    flavor: str
    priority: int = 0
    group: wire.GroupMember | None = None
    """Of which program in several processes its own is one."""
    fork: wire.Fork | None = None
    """The session, of the same user, that it begins as a copy of."""


@dataclass(frozen=True, slots=True)
class ClientSaid:
    session: str
    message: wire.FromClient


@dataclass(frozen=True, slots=True)
class SessionReplays:
    """A client said that it keeps what it sends to its worker, and can send it to another one."""

    session: str


@dataclass(frozen=True, slots=True)
class SessionOutside:
    """A client said that it is outside of the installation: it reaches workers by the edge, and is told no address of one."""

    session: str


@dataclass(frozen=True, slots=True)
class SessionRuns:
    """A client said that its session is a process, which its worker runs."""

    session: str


@dataclass(frozen=True, slots=True)
class SessionGrouped:
    """A client that came back says which one of a group it is: another pool, that stopped, had heard so before."""

    session: str
    group: wire.GroupMember


@dataclass(frozen=True, slots=True)
class SessionLeft:
    """The client said goodbye: it closed the session link."""

    session: str


@dataclass(frozen=True, slots=True)
class SessionAway:
    """The session link broke; the client may come back. ``stalled``: it stopped reading, so nothing computes for it meanwhile."""

    session: str
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class SessionDismissed:
    """A person ended the session; ``cause`` tells its process who."""

    session: str
    reason: Literal["released", "revoked"]
    cause: str


@dataclass(frozen=True, slots=True)
class SessionMoved:
    """An operator moves the session to another device, in the middle of its lease or without one."""

    session: str


@dataclass(frozen=True, slots=True)
class SessionParked:
    """An operator has the tensors of a session that rests leave its device, as if another needed the room."""

    session: str


@dataclass(frozen=True, slots=True)
class WorkerSaid:
    worker: str
    message: wire.FromWorker


@dataclass(frozen=True, slots=True)
class WorkerUnlinked:
    """The worker broke the protocol, and its link was closed; its process may still run."""

    worker: str
    cause: str


@dataclass(frozen=True, slots=True)
class WorkerAway:
    """The worker's link ended; its process may still run, and link up again."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The worker's process is no more, or could not be started. Follows every Launch once."""

    worker: str
    cause: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The first event of a pool that goes on where another stopped: all that that one left, by this pool's clock."""

    kept: Snapshot


@dataclass(frozen=True, slots=True)
class FlavorSet:
    flavor: Flavor


@dataclass(frozen=True, slots=True)
class FlavorRemoved:
    """Nobody may have it any more; no session has."""

    name: str


@dataclass(frozen=True, slots=True)
class QuotaSet:
    """The quota of a tenant, or of one of its users."""

    tenant: str
    user: str | None
    quota: Quota


@dataclass(frozen=True, slots=True)
class BudgetSet:
    """What the budget of a tenant, of one of its users, or of what that one's spans of a label cost, does from now on."""

    tenant: str
    user: str | None
    state: BudgetState
    notebook: str | None = None
    """The label: a notebook's path, or a script's command line."""
    cause: str = ""
    """Says why, to those whom it stops."""
    grace_seconds: float = 0.0
    """How long open leases may go on after a drain."""


@dataclass(frozen=True, slots=True)
class LeaseRevoked:
    """A person takes the session's lease back, with grace; ``cause`` tells its process who."""

    session: str
    cause: str


@dataclass(frozen=True, slots=True)
class Look:
    """Whoever waits is to be told how it stands, if that changed."""


@dataclass(frozen=True, slots=True)
class PricesSet:
    """What billing says usage costs from now on."""

    tariff: Tariff


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """Whether usage records can be taken; while they cannot, no lease is opened."""

    accepting: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. ``unix_offset_ns`` is Unix time minus the monotonic clock.

    For ``missed_ns`` of it the pool itself stood still, and heard nobody: that time counts against no one.
    """

    unix_offset_ns: int
    missed_ns: int = 0


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The pool ends: every lease closes now."""


Event = (
    SessionJoined
    | ClientSaid
    | SessionOutside
    | SessionReplays
    | SessionRuns
    | SessionGrouped
    | SessionLeft
    | SessionAway
    | SessionDismissed
    | SessionMoved
    | SessionParked
    | Restored
    | WorkerSaid
    | WorkerAway
    | WorkerUnlinked
    | WorkerGone
    | FlavorSet
    | FlavorRemoved
    | QuotaSet
    | BudgetSet
    | LeaseRevoked
    | Look
    | PricesSet
    | PolicySet
    | NodeJoined
    | NodeLost
    | NodeDrain
    | DeviceSet
    | DeviceHealth
    | StoreChanged
    | Tick
    | ShutDown
)
