"""The pool's architecture on one page.

:class:`Device` s stand in nodes and serve :class:`Flavor` s. A :class:`Session` is one process's virtual device; a :class:`Worker` on a
device executes its commands and keeps its tensors. A session that wants to compute files a :class:`Request`; a granted request becomes a
:class:`Lease`, the only thing that is metered. The state machine is ``handle(Event, now_ns) -> list[Instruction]``. The shell turns
sockets, timers and processes into events, and carries the instructions out. Nouns that never change are frozen; records that the state
machine alone changes are not. All clocks are monotonic nanoseconds unless the name says ``unix``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from forebay_wire import messages as wire

from forebay_pool.model.causes import Cause
from forebay_pool.model.health import Cordon
from forebay_pool.model.policies import Author, ImagePolicy
from forebay_pool.model.records import Estimate, Image, QueuePlace, fact

WHOLE_MILLI = 1000
"""A device's compute, in thousandths."""

Kind = Literal["cpu", "cuda", "hip", "null"]
SessionState = Literal["idle", "queued", "active", "resident", "parked", "lost", "ended"]
LeaseState = Literal["open", "closing", "closed"]
WorkerState = Literal["starting", "warm", "assigning", "bound", "left", "carrying", "ending"]
DeviceState = Literal["free", "placing", "leased", "draining", "cordoned", "lost"]
NodeState = Literal["up", "draining", "lost"]
CloseReason = Literal["drained", "idle", "released", "moved", "revoked", "failed"]
SegmentEnd = CloseReason | Literal["open"]
GOES_ON: Literal["open"] = "open"
"""The reason in the record of a segment that ended while its lease goes on."""
BudgetState = Literal["open", "wait", "refuse", "drain"]
"""What a budget does: nothing, lets requests wait, refuses them, or takes open leases back as well and lets requests wait."""
PRIORITY_MAX = 99
AGED = PRIORITY_MAX + 1
"""The level of requests that waited too long: before every priority."""
Make = tuple[str, int]
"""Devices that serve the same flavors: a model, with so many bytes of memory."""
Ranks = tuple[str, int]
"""A group whose members start together or not at all: its name, and what they need together, in thousandths of devices."""
ALONE: Ranks = ("", 0)
Lane = tuple[tuple[str, ...], str, tuple[str, ...], Ranks, wire.Runtime]
"""Those in the queue who need the same: the devices where their tensors are, or whence their images are seen (none: any will do), the
flavor, of its models those that they may not have, the group that they start with, and what they have done."""


# Nouns that never change


@dataclass(frozen=True, slots=True)
class Device:
    """One physical accelerator, or a development device."""

    id: str
    """``<node>/<kind>:<index>``, unique in the pool."""
    node: str
    kind: Kind
    index: int
    model: str
    memory_bytes: int
    vendor: str = ""
    speed: int = 100
    """Relative speed class; 100 is the reference."""
    switch: str = ""
    """The network switch that its node hangs on; empty where nobody said."""
    spot: bool = False
    """Whether its provider may take it back at short notice."""
    make: Make = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "make", (self.model, self.memory_bytes))

    @property
    def local(self) -> str:
        """What a worker on its node calls it, for example ``cuda:1``; development devices are all one processor."""
        return f"{self.kind}:{self.index if self.kind in ('cuda', 'hip') else 0}"


@dataclass(frozen=True, slots=True)
class Equivalent:
    """``count`` whole devices of ``model`` together (a gang) serve a flavor, or ``share_milli`` thousandths of one device."""

    model: str
    count: int = 1
    share_milli: int = WHOLE_MILLI
    """Below 1000 only where ``count`` is 1: several such leases compute on the device by turns."""


@dataclass(frozen=True, slots=True)
class Flavor:
    """A size of virtual device, and what may serve it."""

    name: str
    memory_bytes: int
    equivalents: tuple[Equivalent, ...]
    residents_max: int | None = None
    """How many resident sessions of this flavor a device may carry; None: as many as its memory holds."""
    images: ImagePolicy | None = None
    """Where images of its sessions are kept; None: where the pool keeps those of others."""
    runtimes: tuple[wire.Runtime, ...] | None = None
    """What it offers; None: all that its hosts serve."""
    egress: tuple[str, ...] | None = None
    """Places that its processes may reach (:mod:`forebay_wire.remote.places`), maybe none; None: those of the installation."""

    def offers(self, runtime: wire.Runtime) -> bool:
        return self.runtimes is None or runtime in self.runtimes


@fact
class Place:
    """The devices that a request claims in one step, all or none, and each of which holds an equal part of its session's memory."""

    devices: tuple[Device, ...]
    share_milli: int


@dataclass(frozen=True, slots=True)
class Price:
    """What one hour of a flavor costs, in nano-units of ``currency``."""

    nano_per_hour: int | None
    """None: there is no price in the currency."""
    currency: str


Surcharges: TypeAlias = Mapping[tuple[str, str], int]
"""What an hour of one whole device costs beside the flavor's price, in nano-units, by model and currency."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant, or a user of one, may hold, and how its requests are ranked. None: no bound of its own."""

    devices_milli: int | None = None
    """Thousandths of devices held at a time; a gang counts its devices, a share its share."""
    device_seconds: int | None = None
    """Device time held within any ``window_seconds``; leases that are open count up to now."""
    window_seconds: int | None = None
    on_exhausted: Literal["wait", "revoke"] = "wait"
    """What becomes of leases that are open when ``device_seconds`` are used up: they end by themselves, or are revoked with grace."""
    priority_max: int | None = None
    """Highest priority that a request gets; none named: 0 for a tenant, the tenant's for a user."""
    weight: int = 1
    """Part of the fair share: twice the weight, twice the device time."""
    parked_bytes: int | None = None
    """Tensors kept off devices, in host memory and on disk, for all sessions together."""
    on_parked_full: Literal["stay", "end"] = "stay"
    """What becomes of a session that would be parked beyond ``parked_bytes``: it keeps its place on the device, or ends."""
    origin: Author = "operator"
    """Who set it: a tenant's owner changes only what an owner set, for a user."""


@fact
class UsageRecord:
    """A lease segment held its devices, by id ``held``, or so large a share of each, for so long. ``id`` is unique for ever."""

    id: str
    tenant: str
    user: str
    session: str
    lease: str
    span: wire.Span
    flavor: str
    device_model: str
    devices: int
    started_at_unix_ns: int
    duration_ns: int
    close_reason: SegmentEnd
    share_milli: int = WHOLE_MILLI
    parked_bytes: int | None = None
    """What was kept off devices for that time, where that is metered and not a lease: ``lease`` names the stretch then."""
    energy_mj: int | None = None
    """What the lease's part of the devices drew, in millijoules; None where their drivers do not tell."""
    held: tuple[str, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether the lease, or the stretch, ended with it."""
        return self.close_reason != GOES_ON


@fact
class Standing:
    """What somebody who waits is told."""

    position: int
    """1 is next."""
    code: wire.WaitCode
    reason: str
    ahead_tenant: int = 0
    """How many of those ahead are of the own tenant."""
    estimate: Estimate | None = None
    """None when unknown."""


# Records, changed by the state machine alone

@dataclass(slots=True, eq=False)
class Worker:
    """A process on a device, or a gang of them, that serves at most one session in its life."""

    id: str
    devices: tuple[Device, ...]
    started_ns: int
    state: WorkerState = "starting"
    door: tuple[str, str | None] = ("", None)
    """Where its command stream is reached, and the hash of the certificate that it shows there; None where it speaks no TLS."""
    session: Session | None = None
    seen_ns: int = 0
    deadline_ns: int | None = None
    """When it must have answered what it was asked last, or is killed."""
    reserved_bytes: int = 0
    """Memory set aside for it, of all its devices; 0 while it is warm or parked."""
    memory_bytes: int = 0
    """Device memory it said it holds."""
    energy_mj: int | None = None
    metered_mj: int | None = 0
    """What its devices have drawn in its leases, as it said last, and how much of that was metered; None where it has not said."""
    call: str = ""
    """Which operator it has been in for how long, in words; empty where no call lasts."""
    parking: bool = False
    parked_bytes: int | None = None
    spilled_bytes: int = 0
    """Bytes off the device, or None while it is not parked, and how many of these are on disk."""
    restoring: bool = False
    """Bringing parked tensors back to the device, for the lease that is being opened."""
    opened: bool = False
    """Whether it was ever given a lease, or took a session over: from then on it has tensors to lose."""
    away_ns: int | None = None
    """Since when it has no link and is waited for; None while it has one, or never had."""
    unknown_epoch: int | None = None
    """Of a lease that it holds and this pool does not know: told to close, and not closed yet."""
    unsure: bool = False
    """Whether it may execute what this pool does not know of: another pool left it, and it has not said yet how it stands."""
    starved: bool = False
    """Device work waits in its stream, and its session could not ask for a lease."""
    leave_by_ns: int | None = None
    """When the session must have left it, or stays; None where nobody asked its client to."""
    stays: bool = False
    """The session cannot leave before its next lease here: its client did not, or work before that needs one."""
    keeps: Session | None = None
    source: wire.Source | None = None
    """The session that left it, whose tensors it holds until another worker has fetched them, and where they are fetched."""
    carries: Session | None = None
    """The session whose tensors it is there to fetch off another host, and to keep."""
    ticket: str = ""
    """What the client presents to it, once somebody asked."""
    device: Device = field(init=False)
    """The first: its process speaks for all, and parks tensors on its host."""
    names: tuple[str, ...] = field(init=False)
    """The devices' ids."""

    def __post_init__(self) -> None:
        self.device = self.devices[0]
        self.names = tuple([device.id for device in self.devices])

    @property
    def part_bytes(self) -> int:
        """What is set aside for it on each of its devices."""
        return -(-self.reserved_bytes // len(self.devices))

    @property
    def is_in_motion(self) -> bool:
        """Whether tensors are on their way off the device, or back."""
        return self.parking or self.restoring

    @property
    def spare(self) -> bool:
        """Whether it serves nobody yet, and may."""
        return self.session is self.carries is None and self.state in ("starting", "warm")


@dataclass(slots=True, eq=False)
class Request:
    """A span that waits for a lease."""

    session: Session
    number: int
    """The client's own number; 0 where the pool acquires on the session's behalf."""
    span: wire.Span
    order: int
    """Place in the order of arrival."""
    arrived_ns: int
    attempts: int = 0
    place: Place | None = None
    """What is claimed for it, while the lease is being opened there."""
    shadow_ns: int | None = None
    """When it is expected to start: who is done by then may pass it. None when unknown."""
    shadow_until_ns: int = 0
    """When that is estimated anew."""
    preempts: dict[str, Lease] = field(default_factory=dict)
    """The leases that are revoked for it."""
    blocks: dict[str, Seat] = field(default_factory=dict)
    """Seats with something free that wait for it to have its turn: its session's tensors are there."""
    arrived_unix_ns: int = 0
    priority: int = 0
    aged: bool = False
    """Whether it waited for so long that it goes before all others."""
    lane: Lane = ((), "", (), ALONE, "torch")
    """Where it waits, while it does."""
    told: Standing | None = None
    """What the client knows."""

    @property
    def level(self) -> int:
        return AGED if self.aged else self.priority


@dataclass(slots=True, eq=False)
class Lease:
    """A hold of a place by a session, from grant to close."""

    id: str
    session: Session
    epoch: int
    number: int
    """The request it answered."""
    span: wire.Span
    flavor: Flavor
    place: Place
    price: Price | None
    """What an hour of it cost at the grant: the flavor's price, and the surcharge for the place."""
    waited_ns: int
    """From the request's arrival to the grant."""
    opened_ns: int
    opened_unix_ns: int
    confirmed_ns: int
    """Last moment at which the worker confirmed to hold it."""
    state: LeaseState = "open"
    ending: CloseReason = "drained"
    """The reason it is being closed for, while ``closing``."""
    duration_ns: int = 0
    """Final once ``closed``."""
    segment: int = 1
    """The number of the segment that is running."""
    metered_ns: int = 0
    """How much of it, from its start on, earlier segments were metered for."""
    priority: int = 0
    order: int = 0
    """The request's place in the order of arrival."""
    attempts: int = 0
    """Workers that died before its client was at one."""
    used: bool = False
    """Its worker said that it had carried out commands."""
    revoked_for: str | None = None
    """Why it is being taken back; None while it is not."""
    revoke_ns: int = 0
    """When it is taken back, if it is still open then."""
    replays: bool = False
    """Its worker does again what a dead one had done: its time is not metered yet."""
    waits_since_ns: int | None = None
    """Since when its worker waits in a collective, where it said so; None while it computes."""

    @property
    def held_milli(self) -> int:
        return len(self.place.devices) * self.place.share_milli

    @property
    def device(self) -> Device:
        """Where the worker computes."""
        return self.place.devices[0]


@dataclass(slots=True, eq=False)
class Parking:
    """A stretch of time in which so much of a session is kept off its device: its tensors, or its image."""

    id: str
    session: Session
    holder: Worker | None
    """Who vouches for it; None: the session's client."""
    bytes: int
    span: wire.Span
    """What the session computed last."""
    opened_ns: int
    opened_unix_ns: int
    segment: int = 1
    metered_ns: int = 0
    """As of a :class:`Lease`."""
    image: Image | None = None
    """The first image of that size; None where it is the session's tensors."""


@dataclass(slots=True)
class Loss:
    """A worker that died, and whose work is done again at another."""

    worker: str
    epoch: int
    """The session's latest lease by then."""
    cause: str
    model: str
    devices: int
    """What it computed on. So many devices of another model, or another number of them, may round otherwise."""
    undone: bool = True
    tries: int = 0
    """How many workers in a row died while they did it, this one among them. ``undone``: whether it is still to be done."""


@dataclass(slots=True)
class Replay:
    """What another worker does for a session whose own died."""

    possible: bool = False
    """Its client can send to another worker what it sent to this one."""
    loss: Loss | None = None
    """Its worker that died last: its client may not have heard of that."""
    worked_ns: int = 0
    """How long leases lasted that are over, since the last image, but for time in which something was done again."""
    image: Image | None = None
    stretch: Parking | None = None
    """Since when there is an image of that size, for the meter."""
    nodes: set[str] = field(default_factory=set)
    """Where its workers may have written images that are still there."""

    @property
    def due(self) -> bool:
        """Whether the session's worker died, and what that one had done is still to be done again."""
        return self.loss is not None and self.loss.undone


@dataclass(slots=True)
class Client:
    """What a session's client said of itself."""

    outside: bool = False  # of the installation: it is told no worker's address
    runtime: wire.Runtime | None = None
    """What its session has done; None: it never asked for a lease."""

    @property
    def runs_process(self) -> bool:
        """Such a session has no tensors: it neither moves nor goes on after a lease that was taken back."""
        return self.runtime == "exec"


@dataclass(slots=True, eq=False)
class Session:
    """One process's virtual device."""

    id: str
    secret: bytes = field(repr=False)
    tenant: str
    user: str
    process: str
    flavor: str
    since_unix_ns: int
    priority: int = 0
    """What its requests ask for unless they say otherwise."""
    state: SessionState = "idle"
    worker: Worker | None = None
    request: Request | None = None
    lease: Lease | None = None
    image: Worker | None = None
    """The worker that it left last, and that holds its tensors as they were then, until its client is at another that has them."""
    left: str = ""
    """The name of that worker, or of the one before, which its client may still be at."""
    avoid: tuple[Device, ...] = ()
    """Where its next lease should not be, if it can be elsewhere."""
    epoch: int = 0
    span: wire.Span | None = None
    used_ns: int = 0
    """When its last lease closed."""
    closed: wire.LeaseClosed | None = None
    """What its client was told last of a lease's end."""
    away_ns: int | None = None
    """Since when its client has no link and is waited for."""
    waited: QueuePlace | None = None
    """Where it stood in the queue when its link broke; its client asks again when it is back."""
    stalled: bool = False
    """Its client stopped reading: nothing computes for it until it is back."""
    parking: Parking | None = None
    """Since when it is parked, for the meter."""
    group: Group | None = field(default=None, repr=False)
    """Whose leases are granted with its own."""
    replay: Replay = field(default_factory=Replay)
    """What another worker would have to do if its own died."""
    client: Client = field(default_factory=Client)
    due: bool = False
    """Its lease ended in the middle of a collective: it asks again with the first of its group that does."""
    accounts: tuple[Any, Any] | None = None
    """The accounts that its leases count for, its tenant's and its user's: ``Accounts.both`` keeps them here; None before it was asked."""

    @property
    def runtime(self) -> wire.Runtime:
        return self.client.runtime or "torch"

    @property
    def parked_at(self) -> Worker | None:
        """Who keeps its tensors off devices; None while they are on one, or on their way there."""
        if self.lease is not None:
            return None
        holder = self.worker if self.image is None else self.image if self.worker is None else None
        return holder if holder is not None and holder.parked_bytes else None

    @property
    def stored(self) -> bool:
        """Whether its tensors are in an image alone: the worker that it left last is gone, and no other one has served it since."""
        unserved = self.image is None and (self.worker is None or not self.worker.opened) and not self.replay.due
        return unserved and self.left != "" and self.replay.image is not None

    @property
    def doing(self) -> SessionState:
        """What it does while it lives: computing comes before waiting, waiting before holding memory."""
        if self.lease is not None:
            return "active"
        if self.request is not None:
            return "queued"
        if self.image is not None:
            return "parked"
        if self.worker is None or not self.worker.opened:
            return "idle"
        return "resident" if self.worker.parked_bytes is None else "parked"

    @property
    def pinned(self) -> bool:
        """Whether its next lease can only be where its worker is."""
        return self.worker is not None and (not self.worker.opened or self.worker.stays)


@dataclass(slots=True, eq=False)
class Group:
    """The sessions of one program in several processes, as torchrun starts them: their leases are granted together."""

    name: str
    """Unique in the pool. It has the tenant and the user, so nobody is in a group with others' sessions."""
    size: int
    """How many processes there are."""
    members: dict[int, Session] = field(default_factory=dict)
    """By rank: those that have a session."""
    asked: set[int] = field(default_factory=set)
    """Ranks that have asked for a lease since the group is there."""
    until_ns: int | None = None
    """How long the ranks that have not asked yet are waited for; None before anybody has."""
    gathered: bool = False
    """Whether they are waited for no more."""
    demand_milli: int = 0
    """What those who wait in the queue need together."""
    meeting: int = 0
    """Under which number the members' process groups meet: another one each time that the members' work is done again."""
    is_broken: bool = False
    """Whether a member that had computed has left: without it nothing that the others did can be done again."""

    @property
    def requests(self) -> list[Request]:
        """Of members that have no lease."""
        return [one.request for one in self.members.values() if one.request is not None and one.lease is None]

    @property
    def computed(self) -> list[Session]:
        """The members that ever had a lease."""
        return [one for one in self.members.values() if one.epoch]

    @property
    def waiting(self) -> list[Request]:
        """Those of them that have no place either."""
        return [request for request in self.requests if request.place is None]

    @property
    def opening(self) -> list[tuple[Request, Place]]:
        """Those whose leases are being opened, and where."""
        return [(request, request.place) for request in self.requests if request.place is not None]

    @property
    def leases(self) -> list[Lease]:
        return [one.lease for one in self.members.values() if one.lease is not None]

    @property
    def ranks(self) -> Ranks:
        """For the lanes of those who wait."""
        return self.name, self.demand_milli


@fact
class Hold:
    """What a lease that is open, or being opened, keeps of a device."""

    share_milli: int
    part_bytes: int
    """Of this device's memory."""
    devices: tuple[Device, ...]
    """All that the lease holds."""

    @property
    def memory_bytes(self) -> int:
        """Of all its devices."""
        return self.part_bytes * len(self.devices)


@dataclass(slots=True, eq=False)
class Node:
    """A host with devices."""

    name: str
    switch: str = ""
    seats: list[Seat] = field(default_factory=list)
    lost: str | None = None
    """Why it was given up; None while it is there."""
    drains: bool = False
    """Whether nothing new starts on it, and what is there leaves."""
    releases: bool = False
    """Whether it drains because it is needed no more, and may end once it is empty."""
    is_reclaimed: bool = False
    """Whether its provider takes it back."""
    is_forgotten: bool = False
    """Whether it is on no list any more."""
    moving: int = 0
    """Sessions whose parked tensors are on their way to another host."""
    deadline_ns: int | None = None
    """When the leases that are still open on it are taken back, while it drains."""
    unconfined: Cause | None = None
    """Why no process can be confined on it; None where none has failed to be."""
    retry_ns: int = 0
    """When that is tried again."""

    @property
    def is_open(self) -> bool:
        return self.lost is None and not self.drains

    @property
    def state(self) -> NodeState:
        return "lost" if self.lost is not None else "draining" if self.drains else "up"


@dataclass(slots=True, eq=False)
class Seat:
    """What is going on on a device."""

    device: Device
    node: Node
    number: int
    """Place in the list of devices."""
    cordon: Cordon | None = None
    """Why no lease opens here; None while they do."""
    warning: Cause | None = None
    """What its last reading makes an operator look at."""
    temperature_celsius: int | None = None
    errors: int = 0
    """Uncorrectable memory errors of its last reading."""
    errors_known: int = 0
    """Those that were there when an operator last opened it."""
    lies: int = 0
    """Workers in a row that said they held more memory than they may."""
    holders: dict[Session, Hold] = field(default_factory=dict)
    """The sessions that a lease is open or being opened for here."""
    draining: dict[Worker, int] = field(default_factory=dict)
    """Workers that held a lease, were told to end, and may still be executing; each with its share in thousandths."""
    workers: dict[str, Worker] = field(default_factory=dict)
    """All that may use the device, gangs' workers included."""
    free_milli: int = WHOLE_MILLI
    """What neither holders nor draining workers have, in thousandths."""
    open_milli: int = WHOLE_MILLI
    """What may be leased now, in thousandths: nothing while the device or its node is closed."""
    held_bytes: int = 0
    """The holders' memory: it cannot be parked."""
    taken_bytes: int = 0
    """The holders' memory, and what is set aside for everybody else here."""
    spares: int = 0
    """Workers of this device alone that serve nobody yet."""
    failures: int = 0
    """Workers in a row that died here before they served anybody."""
    retry_ns: int = 0
    """No worker is prestarted here before."""
    filed: tuple[int, int, int, bool] = (0, 0, 0, True)
    """What placements go by, as it is filed: what may be leased, what of that is taken, failures, and whether the device is open."""
    order: tuple[int, int, int] = (0, 0, 0)
    """Failures, memory taken, place in the list: of two devices with the same share free, the one with less is better."""
    unsure: int = 0
    """Workers that may execute here what this pool does not know of; nothing opens here before they have said how they stand."""

    @property
    def state(self) -> DeviceState:
        if self.node.lost is not None:
            return "lost"
        if self.holders:
            return "leased" if any(session.lease is not None for session in self.holders) else "placing"
        return "draining" if self.draining else "free" if self.is_open else "cordoned"

    @property
    def is_open(self) -> bool:
        """Whether leases may open here."""
        node = self.node
        return self.cordon is None and node.lost is None and not node.drains and not self.unsure

    @property
    def empties(self) -> bool:
        """Whether those whose tensors are here must leave."""
        return self.node.drains or (self.cordon is not None and self.cordon.drains)

    @property
    def reserved_bytes(self) -> int:
        return sum(worker.part_bytes for worker in self.workers.values())
