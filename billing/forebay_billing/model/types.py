"""The service in one page: usage records are split into segments, each rated by one price version, and posted to the ledger.

UsageRecord ──rated as──► Segment, Segment, … ──posted, a batch at a time, as──► Transaction(Posting, …) ──summed up in──► Statement
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from forebay_billing.model.months import Month


@dataclass(frozen=True)
class Span:
    """What the work of a lease is attributed to."""

    id: str
    kind: Literal["cell", "process"]
    label: str
    cell: int | None
    cell_id: str | None = None
    """The front end's id of the cell; None where it gives none, and from pools that do not tell it."""
    first_line: str | None = None


@dataclass(frozen=True)
class UsageRecord:
    """The fact that a lease segment held a flavor's devices for ``duration_ns`` from Unix time ``started_at_ns``. Named by (source, id)."""

    source: str
    id: str
    tenant: str
    user: str
    session: str
    lease: str
    span: Span
    flavor: str
    device_model: str
    devices: int
    started_at_ns: int
    duration_ns: int
    close_reason: str
    share_milli: int = 1000
    """The part of each of the ``devices`` that is held, in thousandths."""
    parked_bytes: int | None = None
    """What was kept off devices for that time, where the record is of that and not of a lease; its flavor is :data:`PARKED` then."""
    energy_mj: int | None = None
    """What the lease's part of its devices drew, in millijoules; None where no driver tells."""


@dataclass(frozen=True)
class Payer:
    """Who pays for usage, of what, in which currency."""

    tenant: str
    flavor: str
    currency: str


@dataclass(frozen=True)
class Cost:
    """What usage came to."""

    duration_ns: int
    grains: int


@dataclass(frozen=True)
class PriceVersion:
    """A flavor's price in a currency, in force from ``valid_from_ns`` until the next. Versions count from 1 per flavor and currency."""

    flavor: str
    currency: str
    version: int
    price_nano_per_hour: int
    valid_from_ns: int = field(hash=False)
    changed_at_ns: int = field(hash=False)
    changed_by: str = field(hash=False)

    @property
    def amount_nano(self) -> int:
        return self.price_nano_per_hour


PARKED = "@parked"
"""What parked bytes are called among flavors; no flavor has such a name."""


@dataclass(frozen=True)
class ParkedPrice:
    """What a GiB costs in an hour in which it is parked, in force from ``valid_from_ns`` on. Versions count from 1 per currency."""

    currency: str
    version: int
    price_nano_per_gib_hour: int
    valid_from_ns: int
    changed_at_ns: int
    changed_by: str

    @property
    def flavor(self) -> str:
        return PARKED

    @property
    def amount_nano(self) -> int:
        return self.price_nano_per_gib_hour


MODEL = "@model/"
"""What a model of devices is called among flavors begins with this; no flavor has such a name."""


def priced_model(model: str) -> str:
    """What the surcharge of a model is kept under among prices."""
    return f"{MODEL}{model}"


@dataclass(frozen=True)
class SurchargeVersion:
    """What an hour of one whole device of a model costs beside the flavor's price, in force from ``valid_from_ns`` on.

    Versions count from 1 per model and currency.
    """

    model: str
    currency: str
    version: int
    surcharge_nano_per_hour: int
    valid_from_ns: int
    changed_at_ns: int
    changed_by: str

    @property
    def flavor(self) -> str:
        return priced_model(self.model)

    @property
    def amount_nano(self) -> int:
        return self.surcharge_nano_per_hour


AnyPrice: TypeAlias = PriceVersion | ParkedPrice | SurchargeVersion


class Segment(NamedTuple):
    """A piece of a usage record under one price, within one UTC hour: what is billed. ``position`` counts from 0 in the record.

    ``period`` is the month that it is billed in: its own, or, where that was finalised, the first open one after (``late``).
    ``surcharge_nano_per_hour`` is that of all devices held, for their share, in whole nano-units. ``amount_grains`` is exact.
    """

    position: int
    started_at_ns: int
    duration_ns: int
    price: PriceVersion
    surcharge_nano_per_hour: int
    amount_grains: int
    period: Month
    late: bool

    @property
    def currency(self) -> str:
        return self.price.currency


@dataclass(frozen=True)
class ParkedSegment:
    """A piece of a record of parked bytes; without a ``price`` it costs nothing. ``amount_grains`` is divided, and rounded, here alone."""

    position: int
    started_at_ns: int
    duration_ns: int
    price: ParkedPrice | None
    currency: str
    amount_grains: int
    period: Month
    late: bool


Kind = Literal["usage", "reversal", "reserve", "void", "expire", "post", "credit", "adjustment", "payment", "refund", "fee"]
"""What caused a transaction."""


@dataclass(frozen=True)
class Posting:
    """One entry: ``amount_grains`` on ``account``, counted into the statement of ``period``. A debit is positive."""

    account: str
    period: Month
    currency: str
    amount_grains: int


@dataclass(frozen=True)
class Transaction:
    """Postings that sum to zero per currency, one per (account, period, currency). Made by ``ledger.postings.balanced`` only."""

    kind: Kind
    postings: tuple[Posting, ...]


@dataclass(frozen=True)
class Line:
    """A statement's line: all usage of one user and flavor under one price version and surcharge; a correction takes usage back."""

    kind: Literal["usage", "correction"]
    user: str
    flavor: str
    currency: str
    price_version: int
    price_nano_per_hour: int
    surcharge_nano_per_hour: int
    """What the devices cost beside the flavor's price: all of them, for the share that was held."""
    leases: int
    duration_ns: int
    cost_grains: int
    amount_minor: int
    """``cost_grains`` in minor units of the currency, rounded half-even: the only rounding."""
    byte_ns: int = 0
    """Of parked bytes, their number times the time: Such a line has no price per hour, and the ``duration_ns`` of all of them."""
    price_nano_per_gib_hour: int = 0


@dataclass(frozen=True)
class Total:
    """What a statement asks for in one currency. ``amount_minor`` is the sum of the rounded lines, ``cost_grains`` of the exact ones."""

    currency: str
    cost_grains: int
    amount_minor: int


@dataclass(frozen=True)
class Statement:
    """The month of a tenant, or of one user in it where ``user`` is given."""

    tenant: str
    user: str | None
    month: Month
    final: bool
    """Whether the month is over. Records may still arrive late, and then stand in it until it is finalised."""
    lines: tuple[Line, ...]
    totals: tuple[Total, ...]


@dataclass(frozen=True)
class Accepted:
    """What became of a batch. ``costs`` is what the accepted records came to."""

    accepted: int
    duplicates: int
    costs: dict[Payer, Cost]
