"""What messages of both links are made of, and what they speak of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from forebay_wire.sentences import ENGLISH, sentence
from forebay_wire.texts import MendedLabel, MendedLine, MendedName, Name

MEMBERS_MAX = 1024
"""Processes of a group."""
PATH_CHARACTERS_MAX = 4096
SHARED_IMAGE = 2**62
"""The number of the image with which a copy of another session begins (``forebay/image.h``)."""
RECEIPTS_HEADER = "Forebay-Receipts"
"""Of the request that opens the session link, with the value 1: the client keeps :class:`Receipts`. Older pools do not look."""
RECEIPT_CONTEXT = b"forebay receipt 1\n"
"""What stands before a receipt's text where it is signed: a signature of anything else is none of a receipt."""

Text = Annotated[str, Field(max_length=2048)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0)]
Currency = Annotated[str, Field(pattern="^[A-Z]{3}$")]
Hex256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Ticket = Hex256
Certificate = Hex256
"""The SHA-256 of a worker's certificate, in DER: who reaches it speaks TLS (RFC 8446) with who shows that certificate alone."""
Rates = Annotated[str, Field(max_length=8_192, pattern=r"^([0-9a-f]{2})+$")]
"""What several devices and the links between them can do, as workers measure it: floating-point operations, bytes and seconds, packed."""
Priority = Annotated[int, Field(ge=-99, le=99)]
WaitCode = Literal["quota", "shortage", "fragmentation", "budget", "draining", "starting", "restoring", "store"]
"""Why a request waits. ``shortage``: what could serve it is held. ``fragmentation``: enough is free, but not together, or not where the
session's tensors are. ``draining``: what it needs is being given back. ``starting``, ``restoring``: its lease is being opened."""


class Message(BaseModel):
    """Base of all messages: immutable, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def encode(self) -> str:
        """The message as one line of JSON."""
        return self.model_dump_json()


class Cause(Message):
    """Why something is so, for whoever makes a sentence of it: a code of the catalogue, and what stands in its places."""

    code: Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,63}$")]
    values: dict[str, Annotated[int, Field(gt=-(2**63), lt=2**63)] | Text] = {}
    parts: tuple[Cause, ...] = ()
    """Causes that stand in its sentence, such as what is wrong with the device that is closed."""

    def said(self, language: str = ENGLISH) -> str | None:
        """The sentence in one of the catalogue's languages; None for a cause that it does not know."""
        parts = [part.said(language) for part in self.parts]
        return sentence(self.code, self.values, [part for part in parts if part is not None], language) if None not in parts else None


class GroupMember(Message):
    """One of the processes that one torchrun started: their leases are granted together. Groups are of one user's sessions alone."""

    id: Hex256
    """The same in all processes of the group, and in no others."""
    rank: Annotated[int, Field(ge=0, lt=MEMBERS_MAX)]
    size: Annotated[int, Field(ge=1, le=MEMBERS_MAX)]


class Span(Message):
    """What device work is attributed to: one cell execution, or one whole process run."""

    id: MendedName
    kind: Literal["cell", "process"]
    label: MendedLabel
    """What the user recognises: the script's argv, or the notebook's path."""
    cell: Count | None = None
    """The cell's execution count; None for a process."""
    cell_id: MendedName | None = None
    """The front end's own id of the cell, the same however often it runs; None where it gives none."""
    first_line: MendedLine | None = None
    """How the cell's source begins; None where its user, or an operator, wants it kept nowhere."""


class Flavor(Message):
    """The size of a virtual device and what it costs."""

    name: Name
    memory_bytes: Count
    price_nano_per_hour: Count | None = None
    """None where nobody bills (the embedded pool)."""
    currency: Currency | None = None
    runtimes: tuple[Name, ...] | None = None
    """Those that it offers, of :mod:`~forebay_wire.remote.runtimes`, maybe later ones too; None: of a pool that does not know of them."""


class DeviceModel(Message):
    """The make of the physical device behind a lease."""

    kind: Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,31}$")]
    """``cpu``, ``cuda``, ``hip``, ``null``, or the name of an out-of-tree back end of PyTorch."""
    model: MendedName
    """For example ``MI250``, or ``cpu-dev`` for a development device; a driver may call it anything."""


class Estimate(Message):
    """How long a wait lasts yet: most of those who are told so wait between ``low_seconds`` and ``high_seconds``, half of them less than
    ``middle_seconds``. It counts from when it is told; a wait that is longer is longer than usual."""

    low_seconds: Seconds
    middle_seconds: Seconds
    high_seconds: Seconds
    running: Count = 0
    """Leases that hold what it waits for."""
    running_seconds: Seconds = 0.0
    """For how long the oldest of them has run."""


class Source(Message):
    """Where a session's storages are fetched from."""

    address: Text
    """As :class:`Ready` tells the command stream's."""
    ticket: Ticket
    """Presented in FETCH; good for this image as long as the worker there lives."""
    certificate: Certificate | None = None
    """Of the worker that holds them; None: they are fetched in clear."""

    @property
    def unsaid(self) -> set[str]:
        """Fields that peers of a former release do not know, where they say nothing."""
        return {"certificate"} if self.certificate is None else set()


class ProcessBounds(Message):
    """What a process beside a device may take of its host."""

    memory_bytes: Count
    """Of all its processes together."""
    processes: Count
    """Processes and threads at a time."""
    files_bytes: Count
    """On disk, its copies of the user's files included."""
    contents: Annotated[str, Field(min_length=1, max_length=PATH_CHARACTERS_MAX)] | None = None
    """The folder of the session's user in which the host keeps contents of files from run to run; None: nowhere."""
    egress: tuple[Annotated[str, Field(max_length=300)], ...] = ()
    """Places that it may reach, ``host:port`` (:mod:`forebay_wire.remote.places`)."""


class Fork(Message):
    """Of which session a forked process has a copy: its parent's, as it was in the moment of the fork."""

    session: Name
    key: Hex256
    """``resume_key`` of that session, which its own processes alone know."""
    checkpoint: Count


class Kept(Message):
    """An image of the session lies where :class:`Assign` said: another worker can go on from what was done until then."""

    type: Literal["kept"] = "kept"
    number: Count
    bytes: Count


class Copy(Message):
    """What the worker's session held at this checkpoint is to become the first image of another session, once the checkpoint has come;
    answered by :class:`Copied`. Neither session needs a lease for it."""

    type: Literal["copy"] = "copy"
    session: Name
    """The other one."""
    checkpoint: Count
    images: Annotated[str, Field(min_length=1, max_length=PATH_CHARACTERS_MAX)] | None = None
    """Its folder of images; None: it has none, and cannot have a copy."""
    images_fill_max: Annotated[float, Field(gt=0, le=1)] = 1.0
    """As of :class:`Assign`."""


class Copied(Message):
    """Answers :class:`Copy`."""

    type: Literal["copied"] = "copied"
    session: Name
    bytes: Count = 0
    why: Text = ""
    """Why there is no copy; empty: there is one."""


class LeaseReceipt(Message):
    """What all receipts of a lease say: who holds what, and since when."""

    pool: Name
    """Which pool measured it, as billing knows it."""
    tenant: Name
    user: Name
    session: Name
    lease: Name
    number: Count
    """Counts the leases of this session, from 1."""
    flavor: Name
    model: MendedName
    """Of its devices."""
    devices: Count
    share_milli: Count
    """Of each device, in thousandths."""
    started_at_ns: Count
    """Unix time."""


class OpenedReceipt(LeaseReceipt):
    """A lease was opened. The versions are those in force as far as the pool knew; 0: none that it knew."""

    kind: Literal["opened"] = "opened"
    currency: Currency
    price_version: Count
    surcharge_version: Count


class ClosedReceipt(LeaseReceipt):
    """A lease is over, and its user is billed for this time. It may begin later than it was opened, and never before."""

    kind: Literal["closed"] = "closed"
    duration_ns: Count
    reason: Name


class PriceReceipt(Message):
    """A version of what an hour of a flavor costs, and from when on it is valid, as billing has it in its price book."""

    kind: Literal["price"] = "price"
    flavor: Name
    currency: Currency
    version: Count
    nano_per_hour: Count
    valid_from_ns: Count


class SurchargeReceipt(Message):
    """The same of what an hour of one whole device of a model costs beside that."""

    kind: Literal["surcharge"] = "surcharge"
    model: MendedName
    currency: Currency
    version: Count
    nano_per_hour: Count
    valid_from_ns: Count


Receipt = Annotated[OpenedReceipt | ClosedReceipt | PriceReceipt | SurchargeReceipt, Field(discriminator="kind")]


class SignedReceipt(Message):
    """A receipt as the pool signed it."""

    text: Text
    """The JSON of a :data:`Receipt`, byte for byte."""
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
    """Ed25519 (RFC 8032) of :data:`RECEIPT_CONTEXT` and the text."""


class Receipts(Message):
    """Of the pool, to a client that said :data:`RECEIPTS_HEADER`: before each :class:`LeaseClosed` and after each :class:`Granted` of a
    new lease, where somebody bills. Not answered."""

    type: Literal["receipts"] = "receipts"
    key: Hex256
    """The pool's public key."""
    receipts: tuple[SignedReceipt, ...]


class Working(Message):
    """What it waited for has come."""

    type: Literal["working"] = "working"
    epoch: Count


class Heartbeat(Message):
    """The worker lives and holds ``memory_bytes``; ``epoch`` is the open lease's, or None."""

    type: Literal["heartbeat"] = "heartbeat"
    epoch: Count | None
    memory_bytes: Count
    busy_ns: Count
    """Time spent executing commands since the worker started."""
    commands: Count
    operator: Text = ""
    """The operator in whose call it is, where that lasts; a call cannot be interrupted."""
    operator_seconds: Seconds = 0.0
    """For how long, at least."""
    energy_mj: Count | None = None
    """What its devices have drawn since the worker started, while a lease of its was open, in millijoules; None where no driver tells."""
