"""The JSON messages of the two links that end at the pool; ``docs/wire.md`` tells their order.

*Session link*: a process with a virtual device speaks to the pool over the WebSocket ``api/session``.
*Worker link*: a worker speaks to the pool over the WebSocket ``api/worker``.

Tensors and commands never pass here: they go from client to worker on the command stream (:mod:`forebay_wire.stream`).
Every time is an integer of nanoseconds, every amount of money an integer of nano-units (1e-9) of its currency.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter

from forebay_wire.decoding import MESSAGE_BYTES_MAX as MESSAGE_BYTES_MAX
from forebay_wire.decoding import MessageError as MessageError
from forebay_wire.decoding import decode
from forebay_wire.message_parts import PATH_CHARACTERS_MAX, Certificate, Count, Hex256, Priority, Rates, Text, Ticket
from forebay_wire.message_parts import Cause as Cause
from forebay_wire.message_parts import Copied as Copied
from forebay_wire.message_parts import Copy as Copy
from forebay_wire.message_parts import DeviceModel as DeviceModel
from forebay_wire.message_parts import Estimate as Estimate
from forebay_wire.message_parts import Flavor as Flavor
from forebay_wire.message_parts import Fork as Fork
from forebay_wire.message_parts import GroupMember as GroupMember
from forebay_wire.message_parts import Heartbeat as Heartbeat
from forebay_wire.message_parts import Kept as Kept
from forebay_wire.message_parts import Message as Message
from forebay_wire.message_parts import ProcessBounds as ProcessBounds
from forebay_wire.message_parts import Receipts as Receipts
from forebay_wire.message_parts import Source as Source
from forebay_wire.message_parts import Span as Span
from forebay_wire.message_parts import WaitCode as WaitCode
from forebay_wire.message_parts import Working as Working
from forebay_wire.remote.runtimes import Runtime as Runtime
from forebay_wire.sentences import ENGLISH
from forebay_wire.texts import MendedLabel, Name

PROTOCOL = 2
"""Version of both links. A pool refuses a peer with a later one, or one before :data:`PROTOCOL_OLDEST`, with one sentence naming both.

Raise it where a peer of the release before could not go on with a pool of this one: not for a field that a pool sends and its peer may
leave out (:func:`to_client`, :func:`to_worker`)."""
PROTOCOL_OLDEST = 2
"""The oldest version that a pool of this release speaks: that of the release before, so that what computes goes on in an upgrade."""

CAUSES = 10
"""Version of the catalogue of causes (:mod:`forebay_wire.sentences`). A client that knows it says so as it connects."""

CAUSES_HEADER = "Forebay-Causes"
"""Of the request that opens the session link: the version of the catalogue that the client has. A client without sends none, and a pool
without does not look."""

GROUP_HEADER = "Forebay-Group"
"""Of the same request: which one of a torchrun's processes this is, as the JSON of :class:`GroupMember`. Older pools do not look."""
REPLAYS_HEADER = "Forebay-Replays"
"""Of the same request, with the value 1: the client keeps what it sends to a worker, and can send it to another (:class:`WorkerLost`)."""
OUTSIDE_HEADER = "Forebay-Outside"
"""Of the same request, with the value 1: the client is outside of the installation, and reaches workers by its edge alone."""
EDGE = "edge:"
"""What a client outside is told in place of a worker's address."""
RUNS_HEADER = "Forebay-Runs"
"""Of the same request, with the value ``process``: the session is a process that runs beside the device (:mod:`forebay_wire.remote`)."""


class Explained(Message):
    """Base of what the pool says with a reason: a cause for a client that knows the catalogue, and the cause's English for others."""

    explanation: ClassVar[str]
    """The field that has the English; empty where the cause alone was sent."""
    cause: Cause | None = None

    def encode(self, causes: int = 0) -> str:
        """For a client that has so late a catalogue; 0: for one that has none, and would not understand the field."""
        if self.cause is None or not causes:
            return self.model_dump_json(exclude={"cause"})
        return self.model_dump_json(exclude={self.explanation} if causes >= CAUSES else None)

    def said(self, language: str = ENGLISH) -> str:
        """The reason in one of the catalogue's languages; as it was sent where the cause is missing, or unknown."""
        sent: str = getattr(self, self.explanation)
        return (None if self.cause is None else self.cause.said(language)) or sent or (self.cause.code if self.cause is not None else "")


# Session link, client to pool


class Hello(Message):
    """First message of the session link; answered by :class:`SessionOpened` or :class:`Refused`."""

    type: Literal["hello"] = "hello"
    protocol: int = PROTOCOL
    process: MendedLabel
    """Command line of the process, for people to read."""
    pid: Count
    torch: Name
    flavor: Name | None = None
    """None: the user's last choice, else the pool's default."""
    priority: Priority = 0
    """What the session's requests ask for; capped by what its tenant's and its user's quotas allow."""
    fork: Fork | None = None
    """What the session begins as a copy of, in a process that was forked; its flavor is that session's."""

    def encode(self) -> str:
        return self.model_dump_json(exclude=None if self.fork else {"fork"})


class ResumeSession(Message):
    """First message of a session link that takes the place of one that broke; answered by :class:`SessionOpened`, with what was missed,
    or by :class:`Refused` or :class:`SessionLost`."""

    type: Literal["resume"] = "resume"
    protocol: int = PROTOCOL
    session: Name
    key: Hex256
    """``resume_key`` of :class:`SessionOpened`."""
    worker: Name | None = None
    """The worker that has its tensors; None if it never had one."""
    ticket: Ticket | None = None
    """Of :class:`Granted`, for that worker: proves to a pool that does not know of it that one before gave it to this session."""
    epoch: Count | None = None
    """Of the lease that it takes for open or draining."""
    span: Span | None = None
    """What its work belongs to."""


class Acquire(Message):
    """Asks for a lease for a span; answered by any number of :class:`Queued`, then :class:`Granted` or :class:`Refused`."""

    type: Literal["acquire"] = "acquire"
    request: Count
    span: Span
    priority: Priority | None = None
    """None: the session's."""
    runtime: Literal["torch", "xla"] | None = None
    """What the session has done from here on, said to pools that know of runtimes; None: calls of PyTorch. A process has said what it is
    by :data:`RUNS_HEADER`."""

    def encode(self) -> str:
        return self.model_dump_json(exclude=None if self.runtime else {"runtime"})


class Cancel(Message):
    """Takes a waiting :class:`Acquire` back (the user pressed stop). Not answered; a grant under way is returned at once."""

    type: Literal["cancel"] = "cancel"
    request: Count


class ChooseFlavor(Message):
    """Changes the flavor of the session, from its next lease on; answered by :class:`SessionOpened` or :class:`Refused`."""

    type: Literal["choose_flavor"] = "choose_flavor"
    flavor: Name


class ChoosePriority(Message):
    """Changes what the session's requests ask for, one that waits included; answered by :class:`SessionOpened`, with what they get."""

    type: Literal["choose_priority"] = "choose_priority"
    priority: Priority


class Arrived(Message):
    """The client is at the worker of a :class:`Granted` that its session moved to: the worker that it left is not needed any more, or what
    a dead one had done has been done again."""

    type: Literal["arrived"] = "arrived"
    epoch: Count


class Unreached(Message):
    """The client cannot connect to that worker, and sent it nothing: the session is to go on at another one."""

    type: Literal["unreached"] = "unreached"
    epoch: Count


class Release(Message):
    """Gives an open lease back now, without waiting for idleness. Answered by :class:`LeaseClosed`."""

    type: Literal["release"] = "release"
    epoch: Count


# Session link, pool to client


class SessionOpened(Message):
    """The session and its flavor."""

    type: Literal["session"] = "session"
    session: Name
    flavor: Flavor
    heartbeat_seconds: Annotated[float, Field(gt=0)]
    """The pool pings this often; silence of three times as long means that the peer is gone."""
    resume_key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Shown by :class:`ResumeSession` if the link breaks."""
    resume_seconds: Annotated[float, Field(ge=0)] = 0.0
    """For so long the session is kept without its link."""
    priority: Priority = 0
    """What its requests get: what was asked for, or the most that the quotas allow."""


class Queued(Explained):
    """The span waits. Sent at once when it must wait, and again whenever something in it changed."""

    explanation = "reason"

    type: Literal["queued"] = "queued"
    request: Count
    position: Count
    """1 is next."""
    reason: Text = ""
    code: WaitCode = "shortage"
    ahead: Count = 0
    """Requests that come before it and may take what it may take."""
    ahead_tenant: Count = 0
    """How many of those are of its own tenant."""
    estimate: Estimate | None = None
    """Until the grant, as it looks now; None when unknown."""
    since_ns: Count = 0
    """When it began to wait, as Unix time."""


class Granted(Message):
    """A lease is open: work may flow."""

    type: Literal["granted"] = "granted"
    request: Count
    lease: Name
    epoch: Count
    """Counts the leases of this session, from 1."""
    worker: Name
    address: Text
    """``unix:/path`` or ``tcp:host:port`` of the worker's command stream; for a client outside :data:`EDGE`, beside ``worker``."""
    ticket: Ticket
    """Presented in the command stream's HELLO; good for this session and worker only."""
    device: DeviceModel
    devices: Count = 1
    meeting: Count = 0
    """Under which number process groups meet. The same for all ranks; another one when they do again what dead workers did."""
    flavor: Flavor
    certificate: Certificate | None = None
    """What the worker must show; None: its command stream is in clear, as on one host."""

    def encode(self) -> str:
        return self.model_dump_json(exclude={"certificate"} if self.certificate is None else None)


class Revoking(Explained):
    """The lease is taken back after so long, at a command's boundary, unless it drains before. What is unexecuted then is executed
    under a lease that the pool acquires on the session's behalf (request 0)."""

    explanation = "reason"

    type: Literal["revoking"] = "revoking"
    epoch: Count
    seconds: Annotated[float, Field(ge=0)]
    reason: Text = ""


class LeaseClosed(Message):
    """The lease is closed. New device work must :class:`Acquire` again; the tensors are kept."""

    type: Literal["closed"] = "closed"
    lease: Name
    epoch: Count
    reason: Literal["drained", "idle", "released", "moved", "revoked", "failed"]
    duration_ns: Count
    cost_nano: Count | None = None


class Leave(Message):
    """The session is to leave its worker: the client ends its command stream there with a LEAVE and holds what comes later.

    Not answered here; the worker says :class:`Left`. The next :class:`Granted` names another worker, to connect to anew.
    """

    type: Literal["leave"] = "leave"


class WorkerLost(Explained):
    """The session's worker died, and the session goes on. The client holds what comes later. It sends the worker of the next
    :class:`Granted` all that it sent to this one, and says :class:`Arrived` when that has been carried out. A client that cannot ends
    the session."""

    explanation = "message"

    type: Literal["worker_lost"] = "worker_lost"
    message: Text = ""


class SessionLost(Explained):
    """The session's tensors are gone (its worker died). A new :class:`Hello` begins afresh."""

    explanation = "message"

    type: Literal["lost"] = "lost"
    message: Text = ""


class Refused(Explained):
    """A request that cannot be served; its reason says to the user what to do."""

    explanation = "message"

    type: Literal["refused"] = "refused"
    request: Count | None = None
    code: Literal[
        "protocol",
        "bad_message",
        "unauthorized",
        "unknown_flavor",
        "not_servable",
        "quota",
        "budget",
        "limit",
        "no_session",
        "shutting_down",
    ]
    message: Text = ""


# Worker link, worker to pool


class Ready(Message):
    """First message of the worker link: the worker listens and is free."""

    type: Literal["ready"] = "ready"
    protocol: int = PROTOCOL
    worker: Name
    address: Text
    torch: Name
    device: DeviceModel
    pid: Count
    certificate: Certificate | None = None
    """What it shows at that address; None: it speaks no TLS there."""
    runtimes: tuple[Runtime, ...] | None = None
    """What workers on its host and its kind of device serve; None: all."""

    def encode(self) -> str:
        """Without fields that pools of a former release do not know, where they say nothing."""
        return self.model_dump_json(exclude={name for name in ("certificate", "runtimes") if getattr(self, name) is None})


class Left(Source):
    """The session left this worker, which has carried out all that came before, and holds its storages for another worker to fetch."""

    type: Literal["left"] = "left"
    bytes: Count
    spilled_bytes: Count = 0
    image: Count = 0
    """The number of an image that says the same, where :class:`Assign` said, should this worker die; 0: there is none."""

    @property
    def unsaid(self) -> set[str]:
        return super().unsaid if self.image else super().unsaid | {"image"}

    @property
    def source(self) -> Source:
        return Source(address=self.address, ticket=self.ticket, certificate=self.certificate)

    def encode(self) -> str:
        return self.model_dump_json(exclude=self.unsaid)


class Ended(Message):
    """How a lease ended, as the worker saw it."""

    epoch: Count
    reason: Literal["drained", "idle"]
    idle_ns: Count
    """For how long nothing had been executed, when it ended as idle."""
    ago_ns: Count
    """Since when it is over."""


class ResumeWorker(Message):
    """First message of a worker link that takes the place of one that broke: how the worker stands now."""

    type: Literal["resume"] = "resume"
    protocol: int = PROTOCOL
    worker: Name
    address: Text
    session: Name | None
    """None: it was given none."""
    epoch: Count | None
    """Of the lease that it holds, and has held without a break since it was opened."""
    ended: Ended | None
    """The last lease of those that are over."""
    starved: bool
    """Device work waits in the command stream, and no lease is open."""
    client_gone: bool
    memory_bytes: Count
    parked_bytes: Count | None
    """Off the device, where it is parked."""
    assigned: bool = True
    """False while it still fetches the session's storages."""
    left: Left | None = None
    """What it said of a session that left it."""
    memory_limit_bytes: Count | None = None
    """What it may hold on its device, as it was told last."""
    ticket: Ticket | None = None
    """Of :class:`Assign`: proves to a pool that does not know of it that one before gave it this session."""
    client_away: bool = False
    """As :class:`ClientCut` said."""
    certificate: Certificate | None = None
    runtimes: tuple[Runtime, ...] | None = None
    """As in :class:`Ready`, both."""

    def encode(self) -> str:
        """Without fields that pools of a former release do not know, where they say nothing."""
        unsaid: dict[str, Any] = {name: True for name in ("certificate", "runtimes") if getattr(self, name) is None}
        if not self.client_away:
            unsaid["client_away"] = True
        if self.left is not None:
            unsaid["left"] = self.left.unsaid
        return self.model_dump_json(exclude=unsaid)


class Assigned(Message):
    """The worker serves the session of :class:`Assign`, whose tensors it has, and accepts its ticket."""

    type: Literal["assigned"] = "assigned"
    session: Name
    rates: Rates | None = None
    """What several devices can do, by which they divide a step: for other workers on such devices, which then divide alike."""
    door: Text | None = None
    """Where the client of a process is awaited (:class:`Assign`), as :class:`Ready` tells the command stream's address."""
    certificate: Certificate | None = None
    """What is shown there."""

    def encode(self) -> str:
        """Without a field that pools of a former release do not know, where it says nothing."""
        return self.model_dump_json(exclude_none=True)


class Unconfined(Message):
    """Answers an :class:`Assign` of a process in place of :class:`Assigned`: this host cannot confine one. Nothing was started."""

    type: Literal["unconfined"] = "unconfined"
    why: Text
    """For operators."""


class Drained(Message):
    """The span of this epoch ended and all its work is done."""

    type: Literal["drained"] = "drained"
    epoch: Count
    memory_bytes: Count | None = None
    """What the worker holds now; so in :class:`Idle` and :class:`Closed`."""
    energy_mj: Count | None = None
    """What its devices have drawn, as in :class:`Heartbeat`; so in :class:`Idle` and :class:`Closed`."""


class Idle(Message):
    """No command has been executed for ``idle_release_seconds``; ``idle_ns`` says for how long."""

    type: Literal["idle"] = "idle"
    epoch: Count
    idle_ns: Count
    memory_bytes: Count | None = None
    energy_mj: Count | None = None


class Starved(Message):
    """Device work waits in the command stream, and no lease is open."""

    type: Literal["starved"] = "starved"


class Parked(Message):
    """The session's storages are in host memory, or on disk, and the device is free of them."""

    type: Literal["parked"] = "parked"
    bytes: Count
    spilled_bytes: Count = 0
    """Of ``bytes``, those on disk."""


class Restored(Message):
    """Answers :class:`Restore`: the session's storages are on the device."""

    type: Literal["restored"] = "restored"


class Waiting(Message):
    """The worker waits in a collective for others of its process group, and has executed nothing for ``idle_ns``, at least
    ``idle_release_seconds``. The lease goes on until the pool closes it. Said again every so often."""

    type: Literal["waiting"] = "waiting"
    epoch: Count
    idle_ns: Count


class Closed(Message):
    """No command of ``epoch`` runs any more, and none will start."""

    type: Literal["closed"] = "closed"
    epoch: Count
    memory_bytes: Count | None = None
    energy_mj: Count | None = None
    idle_ns: Count = 0
    """For how long nothing had been executed."""


class ClientCut(Message):
    """The client's connection broke, and the worker waits for it (``--reconnect-seconds``); or it is back over another one."""

    type: Literal["client_cut"] = "client_cut"
    back: bool


class ClientGone(Message):
    """The client's connection ended: its process is gone, or did not come back in time."""

    type: Literal["client_gone"] = "client_gone"


# Worker link, pool to worker


class Lead(Message):
    """First message to the worker on each link. ``epoch`` counts the pools that led: a worker obeys none that is lower than it has seen."""

    type: Literal["lead"] = "lead"
    epoch: Count


class Assign(Message):
    """Gives the worker its one session. ``ticket`` is what the client will present."""

    type: Literal["assign"] = "assign"
    session: Name
    ticket: Ticket
    memory_limit_bytes: Count
    idle_release_seconds: Annotated[float, Field(gt=0)]
    heartbeat_seconds: Annotated[float, Field(gt=0)]
    source: Source | None = None
    """The session comes from another worker: its storages are fetched before :class:`Assigned`."""
    libraries: Annotated[str, Field(min_length=1, max_length=PATH_CHARACTERS_MAX)] | None = None
    """The folder of the session's tenant in which libraries of compiled segments are kept; None: they go with the worker."""
    images: Annotated[str, Field(min_length=1, max_length=PATH_CHARACTERS_MAX)] | None = None
    """The folder in which images of the session outlive the worker; None: there are none."""
    images_fill_max: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The part of that folder's file system that may be in use once an image is there."""
    image: Count = 0
    """The session goes on from the image of this number in that folder, which is read before :class:`Assigned`; 0: it does not."""
    rates: Rates | None = None
    """What its devices can do, as another worker said in :class:`Assigned`; None: it is measured, where there are several."""
    process: ProcessBounds | None = None
    """The session is one process, which the worker runs within these bounds (:mod:`forebay_wire.remote`); None: it sends calls."""
    outside: bool = False
    """The client comes by the installation's edge."""
    runtimes: tuple[Name, ...] | None = None
    """What the session's flavor offers; None: all. Without ``xla`` the worker refuses programs."""

    def encode(self) -> str:
        """Without fields that workers of a former release do not know, where they say nothing."""
        names = ("libraries", "image", "rates", "process", "outside", "runtimes")
        unsaid: dict[str, Any] = {name: True for name in names if not getattr(self, name)}
        if self.images is None:
            unsaid |= {"images": True, "images_fill_max": True}
        if self.source is not None:
            unsaid["source"] = self.source.unsaid
        return self.model_dump_json(exclude=unsaid)


class Carry(Message):
    """Tells a worker without a session to fetch what a session left at another worker, off the device, no faster than so, and to keep it
    for who comes for it next; answered by :class:`Left`."""

    type: Literal["carry"] = "carry"
    session: Name
    source: Source
    bytes_max: Count
    bytes_per_second_max: Annotated[int, Field(gt=0, lt=2**63)]
    heartbeat_seconds: Annotated[float, Field(gt=0)]
    images: Annotated[str, Field(min_length=1, max_length=PATH_CHARACTERS_MAX)] | None = None
    images_fill_max: Annotated[float, Field(gt=0, le=1)] = 1.0
    image: Count = 0
    """The number of the image that it keeps of what it has fetched, where :class:`Assign` would say; 0: none."""

    def encode(self) -> str:
        """Without fields that workers of a former release do not know, where they say nothing."""
        unsaid: dict[str, Any] = {"source": self.source.unsaid}
        if not self.image:
            unsaid |= {"images": True, "images_fill_max": True, "image": True}
        return self.model_dump_json(exclude=unsaid)


class Open(Message):
    """A lease is open: execute. A parked session was told to :class:`Restore` before."""

    type: Literal["open"] = "open"
    epoch: Count
    memory_limit_bytes: Count


class Close(Message):
    """The lease is over: stop at the next command boundary and answer :class:`Closed`."""

    type: Literal["close"] = "close"
    epoch: Count


class Park(Message):
    """Move all storages off the device; answered by :class:`Parked`. Only without an open lease.

    What is beyond ``host_bytes_max`` goes to disk, up to ``spill_bytes_max``; what the disk does not take stays in host memory.
    """

    type: Literal["park"] = "park"
    host_bytes_max: Count = 2**62
    spill_bytes_max: Count = 0


class Restore(Message):
    """Bring parked storages back to the device; answered by :class:`Restored`. The lease opens after that, so that this time is free."""

    type: Literal["restore"] = "restore"


class End(Message):
    """The session is over: exit. A worker is never given a second session."""

    type: Literal["end"] = "end"


FromClient = Annotated[
    Hello | ResumeSession | Acquire | Cancel | ChooseFlavor | ChoosePriority | Arrived | Unreached | Release, Field(discriminator="type")
]
ToClient = Annotated[
    SessionOpened | Queued | Granted | Revoking | LeaseClosed | Leave | WorkerLost | SessionLost | Refused | Receipts,
    Field(discriminator="type"),
]
FromWorker = Annotated[
    Ready
    | ResumeWorker
    | Assigned
    | Unconfined
    | Drained
    | Idle
    | Starved
    | Heartbeat
    | Parked
    | Restored
    | Left
    | Kept | Copied
    | Waiting
    | Working
    | Closed
    | ClientCut
    | ClientGone,
    Field(discriminator="type"),
]
ToWorker = Annotated[Lead | Assign | Carry | Copy | Open | Close | Park | Restore | End, Field(discriminator="type")]

_FROM_CLIENT: TypeAdapter[FromClient] = TypeAdapter(FromClient)
_TO_CLIENT: TypeAdapter[ToClient] = TypeAdapter(ToClient)
_FROM_WORKER: TypeAdapter[FromWorker] = TypeAdapter(FromWorker)
_TO_WORKER: TypeAdapter[ToWorker] = TypeAdapter(ToWorker)


def speaks(protocol: int) -> bool:
    """Whether a pool of this release speaks with a peer that has this version of the links."""
    return PROTOCOL_OLDEST <= protocol <= PROTOCOL


def from_client(text: str | bytes) -> FromClient:
    """Decodes what a client sent. Raises MessageError."""
    return decode(_FROM_CLIENT, text)


def to_client(text: str | bytes) -> ToClient:
    """Decodes what the pool sent to a client; fields that only a later pool knows are left out. Raises MessageError."""
    return decode(_TO_CLIENT, text, later=True)


def from_worker(text: str | bytes) -> FromWorker:
    """Decodes what a worker sent. Raises MessageError."""
    return decode(_FROM_WORKER, text)


def to_worker(text: str | bytes) -> ToWorker:
    """Decodes what the pool sent to a worker; fields that only a later pool knows are left out. Raises MessageError."""
    return decode(_TO_WORKER, text, later=True)
