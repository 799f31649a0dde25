"""What the endpoints answer, as JSON: the types of rows that the functions of this folder make, which OpenAPI describes.

``…_nano`` is nano-units of a currency (1e-9), ``…_minor`` its smallest coins, ``…_ns`` nanoseconds: of Unix time after ``_at``.
``cost_exact`` and amounts that are text are decimals in units of the currency.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from forebay_billing.model.types import Span
from forebay_billing.reads.invoices import Cell, CreditNote, Issuer, Settlement
from forebay_billing.rules.budgets import StopCode
from forebay_billing.rules.invoices import Profile

Exact = Annotated[str, WithJsonSchema({"type": "string", "format": "decimal"})]
"""A decimal to its last digit, as text."""


class AcceptedRow(TypedDict):
    accepted: int
    duplicates: int


class RateRow(TypedDict):
    """A part of a record under one price; ``price_nano_per_gib_hour`` is of parked bytes, the other two of leases."""

    price_version: int
    price_nano_per_hour: NotRequired[int]
    surcharge_nano_per_hour: NotRequired[int]
    price_nano_per_gib_hour: NotRequired[int]
    duration_ns: int
    cost_exact: Exact
    period: str
    late: bool


class ChargeRow(TypedDict):
    """A usage record and what it cost; ``gib_hours`` and ``price_nano_per_gib_hour`` are of parked bytes."""

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
    share_milli: int
    parked_bytes: int | None
    energy_mj: int | None
    price_nano_per_hour: int
    price_nano_per_gib_hour: NotRequired[int]
    price_version: int
    gib_hours: NotRequired[Exact]
    cost_nano: int
    cost_exact: Exact
    currency: str
    rates: list[RateRow]
    corrected_at_ns: int | None


class UsagePage(TypedDict):
    records: list[ChargeRow]
    next: str | None


class VerdictRow(TypedDict):
    """What the pool is told of a budget's subject."""

    tenant: str
    user: str | None
    span: str | None
    state: str
    code: StopCode | None
    origin: Literal["operator", "owner", "user"]
    sentence: str
    """The code in English; empty while it stops nobody."""
    grace_seconds: float
    currency: str
    period: str
    limit_nano: int
    left_nano: int


class UnheardRow(TypedDict):
    record: str
    message: str


class HeartbeatAnswer(TypedDict):
    budgets: list[VerdictRow]
    refused: NotRequired[list[UnheardRow]]


class BalanceRow(TypedDict):
    currency: str
    owed_nano: int
    held_nano: int
    credit_nano: int
    available_nano: int


class TenantBalance(TypedDict):
    tenant: str
    balances: list[BalanceRow]


class PriceRow(TypedDict):
    """``changed_at_ns`` and ``changed_by`` come with the history alone."""

    flavor: str
    price_nano_per_hour: int
    currency: str
    valid_from_ns: int
    version: int
    etag: str
    changed_at_ns: NotRequired[int]
    changed_by: NotRequired[str]


class ParkedPriceRow(TypedDict):
    currency: str
    version: int
    price_nano_per_gib_hour: int
    valid_from_ns: int
    changed_at_ns: int
    changed_by: str
    etag: str


class SurchargeRow(TypedDict):
    model: str
    currency: str
    version: int
    surcharge_nano_per_hour: int
    valid_from_ns: int
    changed_at_ns: int
    changed_by: str
    etag: str


class ChangeRow(TypedDict):
    kind: Literal["flavor", "surcharge", "parked"]
    flavor: str | None
    model: str | None
    currency: str
    unit: Literal["nano_per_hour", "nano_per_gib_hour"]
    before: int | None
    after: int
    valid_from_ns: int
    version: int


class Changes(TypedDict):
    changes: list[ChangeRow]


class AdjustmentRow(TypedDict):
    kind: str
    label: str
    amount_nano: int


class CostRow(TypedDict):
    list_nano: int
    adjustments: list[AdjustmentRow]
    total_nano: int
    total_exact: Exact


class PreviewRow(TypedDict):
    tenant: str
    currency: str
    present: CostRow
    proposed: CostRow
    difference_nano: int


class PreviewTotal(TypedDict):
    currency: str
    present_nano: int
    proposed_nano: int
    difference_nano: int


class Preview(TypedDict):
    month: str
    rows: list[PreviewRow]
    totals: list[PreviewTotal]


class TierRow(TypedDict):
    from_nano: int
    discount_bps: int


class PlanRow(TypedDict):
    tenant: str
    version: int
    valid_from: str
    currency: str
    discount_bps: int
    free_nano: int
    free_seconds: dict[str, int]
    tiers: list[TierRow]
    commitment_nano: int
    changed_at_ns: int
    changed_by: str
    etag: str


class SummaryRow(TypedDict):
    """The keys are those that were asked for; a ``cell`` is told by its number, id and first line."""

    tenant: NotRequired[str]
    user: NotRequired[str]
    flavor: NotRequired[str]
    kind: NotRequired[str]
    notebook: NotRequired[str | None]
    cell: NotRequired[int | None]
    cell_id: NotRequired[str | None]
    first_line: NotRequired[str | None]
    day: NotRequired[str]
    currency: str
    duration_ns: int
    cost_nano: int
    leases: int
    parked_nano: int
    energy_mj: int | None
    energy_duration_ns: int
    co2_mg: int | None


class OutlookRow(TypedDict):
    currency: str
    spent_nano: int
    forecast_nano: int
    forecast_low_nano: int | None
    forecast_high_nano: int | None
    """What people are told: between which it will be; None before a whole day."""


class RevenueRow(TypedDict):
    hour_ns: int
    currency: str
    amount_nano: int


class StatementLine(TypedDict):
    kind: str
    user: str
    flavor: str
    price_version: int
    price_nano_per_hour: int
    price_nano_per_gib_hour: NotRequired[int]
    gib_hours: NotRequired[Exact]
    surcharge_nano_per_hour: int
    currency: str
    leases: int
    duration_ns: int
    amount: Exact
    cost_nano: int
    cost_exact: Exact


class StatementTotal(TypedDict):
    currency: str
    amount: Exact
    cost_nano: int
    cost_exact: Exact


class StatementRow(TypedDict):
    tenant: str
    user: str | None
    month: str
    final: bool
    lines: list[StatementLine]
    totals: list[StatementTotal]


class CorrectionRow(TypedDict):
    source: str
    id: str
    transaction: int


class DifferenceRow(TypedDict):
    between: Any
    subject: str
    difference: int


class Differences(TypedDict):
    differences: list[DifferenceRow]


class UsageLine(TypedDict):
    user: str
    flavor: str
    price_version: int
    price_nano_per_hour: int
    surcharge_nano_per_hour: int
    late: bool
    leases: int
    duration_ns: int


class ParkedLine(TypedDict):
    user: str
    price_version: int
    price_nano_per_gib_hour: int
    correction: bool
    stretches: int
    duration_ns: int
    byte_ns: int
    gib_hours: Exact


class LineRow(TypedDict):
    key: str
    kind: str
    label: str
    amount: Exact
    amount_minor: int
    cost_exact: Exact
    started_at_ns: int
    ended_at_ns: int
    credit: int | None
    parked: ParkedLine | None
    usage: UsageLine | None


class DraftRow(TypedDict):
    tenant: str
    month: str
    currency: str
    net: Exact
    credit: Exact
    tax: Exact
    total: Exact
    total_minor: int
    lines: list[LineRow]


class InvoiceSummary(TypedDict):
    number: str
    tenant: str
    month: str
    currency: str
    state: Literal["open", "paid", "void"]
    issued_at_ns: int
    due_at_ns: int
    total: Exact
    paid: Exact
    credited: Exact
    open: Exact
    total_minor: int
    paid_minor: int
    credited_minor: int
    open_minor: int


class UserFound(TypedDict):
    tenant: str
    user: str


class SearchHits(TypedDict):
    tenants: list[str]
    tenant_count: int
    users: list[UserFound]
    user_count: int
    invoices: list[InvoiceSummary]
    invoice_count: int


class InvoiceRow(InvoiceSummary):
    net: Exact
    credit: Exact
    tax: Exact
    lines: list[LineRow]
    issuer: Issuer
    profile: Profile
    credit_notes: list[CreditNote]
    settlements: list[Settlement]


class CellsPage(TypedDict):
    line: LineRow
    cells: list[Cell]
    next: int | None


class MadeNote(TypedDict):
    invoice: str
    name: str
    amount_minor: int
    tax_minor: int
    reason: str
    issued_at_ns: int


class NoteRow(MadeNote):
    tenant: str
    month: str
    currency: str
    net: Exact
    tax: Exact
    amount: Exact
    issuer: Issuer
    profile: Profile


class ProfileRow(TypedDict):
    tenant: str
    legal_name: str
    address: str
    tax_id: str
    tax_label: str
    tax_bps: int
    currency: str | None
    email: str | None
    version: int
    etag: str
    changed_at_ns: int
    changed_by: str


class StandingRow(TypedDict):
    """How a tenant stands."""

    tenant: str
    known: bool
    currency: str
    decimals: int
    profile_version: int
    profile_etag: str | None
    profile_currency: str | None
    legal_name: str | None
    tax_label: str
    tax_bps: int
    month: list[OutlookRow]
    balances: list[BalanceRow]


class Currencies(TypedDict):
    currency: str
    tenants: dict[str, str]


class TenantOrder(TypedDict):
    ranked: list[str]
    unranked: list[str]
    unmatched: list[str]


class BudgetRow(TypedDict):
    """A budget as it was set; what a member may not know is null."""

    id: int
    tenant: str
    user: str | None
    notebook: str | None
    currency: str
    window: Literal["month", "total"]
    origin: Literal["operator", "owner", "user"]
    limit_nano: int | None
    thresholds: list[int]
    on_limit: Literal["notify", "refuse", "drain"]
    grace_seconds: int
    set_at_ns: int
    set_by: str
    etag: str | None


class BudgetStanding(BudgetRow):
    period: str
    spent_nano: int | None
    running_nano: int | None
    left_nano: int | None
    forecast_nano: int | None
    forecast_low_nano: int | None
    forecast_high_nano: int | None
    state: str
    code: StopCode | None
    """Why it stops somebody, which with what stands here makes the sentence."""
    sentence: str | None


class TenantRows(TypedDict):
    standings: list[StandingRow]
    budgets: list[BudgetStanding]
    plans: list[PlanRow]
    open_invoices: list[InvoiceSummary]


class CreditRow(TypedDict):
    id: int
    tenant: str
    kind: Literal["prepaid", "promotional"]
    name: str
    currency: str
    amount_minor: int
    left_minor: int
    amount: Exact
    left: Exact
    priority: int
    effective_at_ns: int
    expires_at_ns: int | None
    granted_at_ns: int
    granted_by: str


class Removed(TypedDict):
    id: int
    removed: Literal[True]


class MailingRow(TypedDict):
    month: str
    state: str
    note: str | None


class RecipientRow(TypedDict):
    id: int
    tenant: str
    target: str
    set_at_ns: int
    set_by: str
    latest: MailingRow | None


class AlertRow(TypedDict):
    """A threshold that was reached; amounts that a member may not know are null."""

    id: int
    budget: int
    tenant: str
    user: str | None
    notebook: str | None
    currency: str
    window: Literal["month", "total"]
    origin: Literal["operator", "owner", "user"]
    thresholds: list[int]
    on_limit: Literal["notify", "refuse", "drain"]
    grace_seconds: int
    period: str
    threshold: int
    limit_nano: int | None
    used_nano: int | None
    at_ns: int


class ChannelRow(TypedDict):
    """``secret`` is told once, to whoever made it, and of a chat's address only its host and end; the other four come with the list."""

    id: int
    tenant: str | None
    kind: Literal["webhook", "email", "slack"]
    target: str
    set_at_ns: int
    set_by: str
    secret: NotRequired[str | None]
    waiting: NotRequired[int]
    done: NotRequired[int]
    dead: NotRequired[int]
    note: NotRequired[str | None]


class NoticeChannelRow(TypedDict):
    """Where a person's notices go. ``secret`` is told once, to whoever made it, and of a chat's address only its host and end; why the
    latest did not arrive comes with the list."""

    id: int
    kind: Literal["email", "webhook", "slack"]
    target: str
    confirmed: bool
    set_at_ns: int
    secret: NotRequired[str | None]
    note: NotRequired[str | None]


class PreferencesRow(TypedDict):
    """What a person chose; null where nothing was, and then mails are in ``common_language``, and nothing is told of jobs."""

    language: str | None
    jobs: Literal["none", "failures", "all"] | None
    common_language: str


class Noticed(TypedDict):
    channels: int
    """How many it goes to."""


class Sent(TypedDict):
    to: str
    sent: bool


class Retried(TypedDict):
    id: int
    deliveries: int


class ContactRow(TypedDict):
    tenant: str
    version: int
    name: str
    email: str | None
    changed_at_ns: int
    changed_by: str


class PaymentInvoiceRow(TypedDict):
    number: str
    tenant: str
    status: str
    currency: str | None
    total_minor: int | None
    paid_minor: int | None
    url: str | None
    stripe_id: str
    refreshed_at_ns: int


class Portal(TypedDict):
    tenant: str
    url: str


class OutboxRow(TypedDict):
    id: int
    tenant: str
    kind: str
    subject: str
    state: Literal["waiting", "done", "dead", "skipped"]
    attempts: int
    created_at_ns: int
    next_at_ns: int
    first_tried_at_ns: int | None
    settled_at_ns: int | None
    note: str | None


class OutboxPage(TypedDict):
    counts: dict[str, int]
    rows: list[OutboxRow]


class Decided(TypedDict):
    id: int
    action: Literal["retry", "skip"]


class BothSums(TypedDict):
    ours: int
    theirs: int


class StripeDifference(TypedDict):
    """``what`` of ``kind`` ``subject``, with us and with Stripe; null where one side has nothing."""

    kind: str
    subject: str
    what: str
    ours: str | int | None
    theirs: str | int | None


class Reconciliation(TypedDict):
    compared: dict[str, int]
    totals: dict[str, BothSums]
    differences: list[StripeDifference]


class Heard(TypedDict):
    received: Literal[True]
    new: bool


class Healthy(TypedDict):
    status: Literal["ok"]
    troubles: dict[str, str]
    """With `hub` and a sentence, where JupyterHub does not answer as it should."""
