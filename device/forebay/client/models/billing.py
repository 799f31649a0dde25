"""What the service ``billing`` answers to tenants. Written by ``device/client_models.py`` from its OpenAPI document."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from forebay.client.row import Row


class AlertRow(Row):
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


class BalanceRow(Row):
    currency: str
    owed_nano: int
    held_nano: int
    credit_nano: int
    available_nano: int


class BudgetRow(Row):
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


class BudgetStanding(Row):
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
    period: str
    spent_nano: int | None
    running_nano: int | None
    left_nano: int | None
    forecast_nano: int | None
    forecast_low_nano: int | None
    forecast_high_nano: int | None
    state: str
    code: Literal["used_up", "nearly_used_up"] | None
    sentence: str | None


class Cell(Row):
    """A part of a line: what one usage record has in it. ``label`` and ``cell`` say where it was caused."""

    usage_id: int
    source: str
    record_id: str
    session: str
    lease: str
    span_kind: str
    label: str
    cell: int | None
    cell_id: str | None
    first_line: str | None
    device_model: str
    devices: int
    started_at_ns: int
    duration_ns: int
    cost_grains: int
    parked_bytes: int | None


class ChannelRow(Row):
    """``secret`` is told once, to whoever made it, and of a chat's address only its host and end; the other four come with the list."""

    id: int
    tenant: str | None
    kind: Literal["webhook", "email", "slack"]
    target: str
    set_at_ns: int
    set_by: str
    secret: str | None = None
    waiting: int | None = None
    done: int | None = None
    dead: int | None = None
    note: str | None = None


class ContactRow(Row):
    tenant: str
    version: int
    name: str
    email: str | None
    changed_at_ns: int
    changed_by: str


class CreditNote(Row):
    """Takes a part of an invoice back, ``tax_minor`` of it tax."""

    name: str
    amount_minor: int
    tax_minor: int
    reason: str
    issued_at_ns: int


class CreditRow(Row):
    id: int
    tenant: str
    kind: Literal["prepaid", "promotional"]
    name: str
    currency: str
    amount_minor: int
    left_minor: int
    amount: Decimal
    left: Decimal
    priority: int
    effective_at_ns: int
    expires_at_ns: int | None
    granted_at_ns: int
    granted_by: str


class InvoiceSummary(Row):
    number: str
    tenant: str
    month: str
    currency: str
    state: Literal["open", "paid", "void"]
    issued_at_ns: int
    due_at_ns: int
    total: Decimal
    paid: Decimal
    credited: Decimal
    open: Decimal
    total_minor: int
    paid_minor: int
    credited_minor: int
    open_minor: int


class Issuer(Row):
    """Who sends the invoices."""

    name: str
    address: str | None = ""
    tax_id: str | None = ""


class JobCostRow(Row):
    """``attempt`` is None for usage of which no run was told; ``open_nano`` of the cost are of leases that are open."""

    job: int
    attempt: int | None
    currency: str
    duration_ns: int
    cost_nano: int
    cost_exact: Decimal
    open_nano: int


class MailingRow(Row):
    month: str
    state: str
    note: str | None


class NoticeChannelRow(Row):
    """
    Where a person's notices go. ``secret`` is told once, to whoever made it, and of a chat's address only its host and end; why the
    latest did not arrive comes with the list.
    """

    id: int
    kind: Literal["email", "webhook", "slack"]
    target: str
    confirmed: bool
    set_at_ns: int
    secret: str | None = None
    note: str | None = None


class Noticed(Row):
    channels: int


class OutlookRow(Row):
    currency: str
    spent_nano: int
    forecast_nano: int
    forecast_low_nano: int | None
    forecast_high_nano: int | None


class ParkedLine(Row):
    user: str
    price_version: int
    price_nano_per_gib_hour: int
    correction: bool
    stretches: int
    duration_ns: int
    byte_ns: int
    gib_hours: Decimal


class ParkedPriceRow(Row):
    currency: str
    version: int
    price_nano_per_gib_hour: int
    valid_from_ns: int
    changed_at_ns: int
    changed_by: str
    etag: str


class PaymentInvoiceRow(Row):
    number: str
    tenant: str
    status: str
    currency: str | None
    total_minor: int | None
    paid_minor: int | None
    url: str | None
    stripe_id: str
    refreshed_at_ns: int


class Portal(Row):
    tenant: str
    url: str


class PreferencesRow(Row):
    """What a person chose; null where nothing was, and then mails are in ``common_language``, and nothing is told of jobs."""

    language: str | None
    jobs: Literal["none", "failures", "all"] | None
    common_language: str


class PriceRow(Row):
    """``changed_at_ns`` and ``changed_by`` come with the history alone."""

    flavor: str
    price_nano_per_hour: int
    currency: str
    valid_from_ns: int
    version: int
    etag: str
    changed_at_ns: int | None = None
    changed_by: str | None = None


class Profile(Row):
    """Whom an invoice is made out to. ``tax_bps`` is in basis points; without a ``tax_label`` there is no tax line."""

    tenant: str
    legal_name: str
    address: str | None = ""
    tax_id: str | None = ""
    tax_label: str | None = ""
    tax_bps: int | None = 0
    currency: str | None = None
    email: str | None = None


class ProfileRow(Row):
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


class RateRow(Row):
    """A part of a record under one price; ``price_nano_per_gib_hour`` is of parked bytes, the other two of leases."""

    price_version: int
    price_nano_per_hour: int | None = None
    surcharge_nano_per_hour: int | None = None
    price_nano_per_gib_hour: int | None = None
    duration_ns: int
    cost_exact: Decimal
    period: str
    late: bool


class RecipientRow(Row):
    id: int
    tenant: str
    target: str
    set_at_ns: int
    set_by: str
    latest: MailingRow | None


class Removed(Row):
    id: int
    removed: Literal[True]


class Retried(Row):
    id: int
    deliveries: int


class Settlement(Row):
    """Money that came in (``payment``), went back (``refund``), or is no longer asked for (``void``)."""

    kind: str
    amount_minor: int
    method: str
    reference: str
    settled_at_ns: int
    settled_by: str


class Span(Row):
    """What the work of a lease is attributed to."""

    id: str
    kind: Literal["cell", "process"]
    label: str
    cell: int | None
    cell_id: str | None = None
    first_line: str | None = None


class StandingRow(Row):
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


class StatementLine(Row):
    kind: str
    user: str
    flavor: str
    price_version: int
    price_nano_per_hour: int
    price_nano_per_gib_hour: int | None = None
    gib_hours: Decimal | None = None
    surcharge_nano_per_hour: int
    currency: str
    leases: int
    duration_ns: int
    amount: Decimal
    cost_nano: int
    cost_exact: Decimal


class StatementTotal(Row):
    currency: str
    amount: Decimal
    cost_nano: int
    cost_exact: Decimal


class SummaryRow(Row):
    """The keys are those that were asked for; a ``cell`` is told by its number, id and first line."""

    tenant: str | None = None
    user: str | None = None
    flavor: str | None = None
    kind: str | None = None
    notebook: str | None = None
    cell: int | None = None
    cell_id: str | None = None
    first_line: str | None = None
    day: str | None = None
    currency: str
    duration_ns: int
    cost_nano: int
    leases: int
    parked_nano: int
    energy_mj: int | None
    energy_duration_ns: int
    co2_mg: int | None


class SurchargeRow(Row):
    model: str
    currency: str
    version: int
    surcharge_nano_per_hour: int
    valid_from_ns: int
    changed_at_ns: int
    changed_by: str
    etag: str


class TenantBalance(Row):
    tenant: str
    balances: list[BalanceRow]


class TierRow(Row):
    from_nano: int
    discount_bps: int


class UsageLine(Row):
    user: str
    flavor: str
    price_version: int
    price_nano_per_hour: int
    surcharge_nano_per_hour: int
    late: bool
    leases: int
    duration_ns: int


class ChargeRow(Row):
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
    price_nano_per_gib_hour: int | None = None
    price_version: int
    gib_hours: Decimal | None = None
    cost_nano: int
    cost_exact: Decimal
    currency: str
    rates: list[RateRow]
    corrected_at_ns: int | None


class LineRow(Row):
    key: str
    kind: str
    label: str
    amount: Decimal
    amount_minor: int
    cost_exact: Decimal
    started_at_ns: int
    ended_at_ns: int
    credit: int | None
    parked: ParkedLine | None
    usage: UsageLine | None


class NoteRow(Row):
    invoice: str
    name: str
    amount_minor: int
    tax_minor: int
    reason: str
    issued_at_ns: int
    tenant: str
    month: str
    currency: str
    net: Decimal
    tax: Decimal
    amount: Decimal
    issuer: Issuer
    profile: Profile


class PlanRow(Row):
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


class StatementRow(Row):
    tenant: str
    user: str | None
    month: str
    final: bool
    lines: list[StatementLine]
    totals: list[StatementTotal]


class UsagePage(Row):
    records: list[ChargeRow]
    next: str | None


class CellsPage(Row):
    line: LineRow
    cells: list[Cell]
    next: int | None


class DraftRow(Row):
    tenant: str
    month: str
    currency: str
    net: Decimal
    credit: Decimal
    tax: Decimal
    total: Decimal
    total_minor: int
    lines: list[LineRow]


class InvoiceRow(Row):
    number: str
    tenant: str
    month: str
    currency: str
    state: Literal["open", "paid", "void"]
    issued_at_ns: int
    due_at_ns: int
    total: Decimal
    paid: Decimal
    credited: Decimal
    open: Decimal
    total_minor: int
    paid_minor: int
    credited_minor: int
    open_minor: int
    net: Decimal
    credit: Decimal
    tax: Decimal
    lines: list[LineRow]
    issuer: Issuer
    profile: Profile
    credit_notes: list[CreditNote]
    settlements: list[Settlement]
