"""The service in one page: usage records are rated by price versions and become transactions of the ledger.

UsageRecord ──rated by──► PriceVersion ──posted as──► Transaction(Posting, Posting, …) ──summed up in──► Statement
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forebay_billing.months import Month


@dataclass(frozen=True)
class Span:
    """What the work of a lease is attributed to."""

    id: str
    kind: Literal["cell", "process"]
    label: str
    cell: int | None


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
    """Of each of the ``devices``, in thousandths."""
    surcharge_nano_per_second: int = 0
    """What a second of one whole device of ``device_model`` cost beside the flavor's price when the lease opened."""


@dataclass(frozen=True)
class PriceVersion:
    """A flavor's price in a currency, in force from ``valid_from_ns`` until the next. Versions count from 1 per flavor and currency."""

    flavor: str
    currency: str
    version: int
    price_nano_per_second: int
    valid_from_ns: int
    changed_at_ns: int
    changed_by: str


@dataclass(frozen=True)
class Posting:
    """One entry: ``amount_atto`` on ``account``, counted into the statement of ``month``. A debit is positive."""

    account: str
    month: Month
    currency: str
    amount_atto: int


@dataclass(frozen=True)
class Transaction:
    """Postings that sum to zero per currency. Made by :mod:`forebay_billing.ledger` only."""

    kind: Literal["usage", "reversal"]
    postings: tuple[Posting, ...]


@dataclass(frozen=True)
class Line:
    """A statement's line: all usage of one user and flavor under one price version and surcharge; a correction takes usage back."""

    kind: Literal["usage", "correction"]
    user: str
    flavor: str
    currency: str
    price_version: int
    price_nano_per_second: int
    surcharge_nano_per_second: int
    """What the devices cost beside the flavor's price: all of them, for the share that was held."""
    leases: int
    duration_ns: int
    cost_atto: int
    amount_minor: int
    """``cost_atto`` in minor units of the currency, rounded half-even: the only rounding."""


@dataclass(frozen=True)
class Total:
    """What a statement asks for in one currency. ``amount_minor`` is the sum of the rounded lines, ``cost_atto`` of the exact ones."""

    currency: str
    cost_atto: int
    amount_minor: int


@dataclass(frozen=True)
class Statement:
    """The month of a tenant, or of one user in it where ``user`` is given."""

    tenant: str
    user: str | None
    month: Month
    final: bool
    """Whether the month is over. Records may still arrive late, and then stand in it."""
    lines: tuple[Line, ...]
    totals: tuple[Total, ...]
