"""What the service ``billing`` answers, as typed rows. Written by ``dashboards/row_models.py`` from its OpenAPI document."""

from __future__ import annotations

from datetime import date
from typing import Literal

from forebay_dashboards.rows.bases import (
    BudgetRowBase,
    Count,
    Currency,
    Row,
    Tag,
    UsageRecordBase,
)
from forebay_dashboards.rows.pool import Span


class PriceVersion(Row):
    """``changed_at_ns`` and ``changed_by`` come with the history alone."""

    flavor: str
    price_nano_per_hour: Count
    currency: Currency
    valid_from_ns: Count
    version: Count
    etag: Tag = None
    changed_at_ns: Count | None = None
    changed_by: str | None = None


class SurchargeVersion(Row):
    model: str
    currency: Currency
    version: Count
    surcharge_nano_per_hour: Count
    valid_from_ns: Count
    changed_at_ns: Count
    changed_by: str
    etag: Tag = None


class PriceChange(Row):
    kind: Literal["flavor", "surcharge", "parked"]
    flavor: str | None = None
    model: str | None = None
    currency: Currency
    unit: Literal["nano_per_hour", "nano_per_gib_hour"]
    before: Count | None = None
    after: Count
    valid_from_ns: Count


class PriceChanges(Row):
    changes: tuple[PriceChange, ...] = ()


class MonthCost(Row):
    list_nano: int
    total_nano: int


class PreviewRow(Row):
    tenant: str
    currency: Currency
    present: MonthCost
    proposed: MonthCost
    difference_nano: int


class Preview(Row):
    month: str
    rows: tuple[PreviewRow, ...] = ()


class Tier(Row):
    from_nano: int
    discount_bps: Count


class Plan(Row):
    tenant: str
    version: Count
    valid_from: str
    currency: Currency
    discount_bps: Count
    free_nano: int
    free_seconds: dict[str, Count]
    tiers: tuple[Tier, ...] = ()
    commitment_nano: int
    changed_at_ns: Count
    changed_by: str
    etag: Tag = None


class UsageRecord(UsageRecordBase):
    """A usage record and what it cost; ``gib_hours`` and ``price_nano_per_gib_hour`` are of parked bytes."""

    source: str = ""
    id: str
    tenant: str
    user: str
    lease: str
    span: Span
    flavor: str
    device_model: str
    devices: Count = 1
    started_at_ns: Count
    duration_ns: Count
    close_reason: str = ""
    parked_bytes: Count | None = None
    energy_mj: Count | None = None
    price_nano_per_hour: Count
    gib_hours: str = ""
    cost_nano: int
    currency: Currency
    corrected_at_ns: Count | None = None


class UsagePage(Row):
    records: tuple[UsageRecord, ...] = ()
    next: str | None = None


class SummaryRow(Row):
    """The keys are those that were asked for; a ``cell`` is told by its number, id and first line."""

    tenant: str | None = None
    user: str | None = None
    flavor: str | None = None
    kind: str = "process"
    notebook: str = ""
    cell: int | None = None
    cell_id: str | None = None
    first_line: str | None = None
    day: date | None = None
    currency: Currency
    duration_ns: int
    cost_nano: int
    leases: int
    energy_mj: int | None = None
    energy_duration_ns: int = 0
    co2_mg: int | None = None


class ForecastRow(Row):
    currency: Currency
    spent_nano: int
    forecast_nano: int
    forecast_low_nano: int | None = None
    forecast_high_nano: int | None = None


class InvoiceRow(Row):
    number: str
    tenant: str
    month: str
    currency: Currency
    state: str
    due_at_ns: Count
    total: str
    open: str


class CreditRow(Row):
    id: Count
    tenant: str
    kind: str
    name: str
    currency: Currency
    left_minor: int
    amount: str
    left: str
    expires_at_ns: Count | None = None


class BudgetRow(BudgetRowBase):
    id: Count
    tenant: str
    user: str | None = None
    notebook: str | None = None
    currency: Currency
    window: Literal["month", "total"] = "month"
    origin: Literal["operator", "owner", "user"] = "operator"
    limit_nano: int | None = None
    thresholds: tuple[Count, ...] = ()
    on_limit: Literal["notify", "refuse", "drain"]
    grace_seconds: Count = 0
    set_at_ns: Count = 0
    etag: Tag = None
    period: str
    spent_nano: int | None = None
    running_nano: int | None = None
    left_nano: int | None = None
    forecast_nano: int | None = None
    forecast_low_nano: int | None = None
    forecast_high_nano: int | None = None
    state: str = "open"
    code: str | None = None
    sentence: str | None = None


class Balance(Row):
    currency: Currency
    owed_nano: int
    held_nano: int
    credit_nano: int
    available_nano: int


class Standing(Row):
    """How a tenant stands."""

    tenant: str
    known: bool
    currency: Currency
    decimals: Count
    profile_version: Count
    profile_etag: Tag = None
    profile_currency: Currency | None = None
    legal_name: str | None = None
    tax_label: str = ""
    tax_bps: Count = 0
    month: tuple[ForecastRow, ...] = ()
    balances: tuple[Balance, ...] = ()


class TenantOrder(Row):
    ranked: tuple[str, ...] = ()
    unranked: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()


class TenantRows(Row):
    standings: tuple[Standing, ...] = ()
    budgets: tuple[BudgetRow, ...] = ()
    plans: tuple[Plan, ...] = ()
    open_invoices: tuple[InvoiceRow, ...] = ()


class Channel(Row):
    """``secret`` is told once, to whoever made it, and of a chat's address only its host and end; the other four come with the list."""

    id: Count
    tenant: str | None = None
    kind: str
    target: str
    secret: str | None = None
    waiting: Count = 0
    done: Count = 0
    dead: Count = 0
    note: str | None = None


class Mailing(Row):
    month: str
    state: str
    note: str | None = None


class Recipient(Row):
    id: Count
    target: str
    latest: Mailing | None = None


class Profile(Row):
    """``PUT api/profiles/{tenant}``; what is left out stays as it is. An operator alone gives the last three."""

    legal_name: str = ""
    address: str = ""
    tax_id: str = ""
    email: str | None = None
    etag: Tag = None


class Alert(Row):
    """A threshold that was reached; amounts that a member may not know are null."""

    tenant: str
    user: str | None = None
    notebook: str | None = None
    currency: Currency
    period: str
    threshold: Count
    limit_nano: int | None = None
    used_nano: int | None = None
    at_ns: Count


class JobCost(Row):
    """``attempt`` is None for usage of which no run was told; ``open_nano`` of the cost are of leases that are open."""

    job: int
    attempt: int | None = None
    currency: Currency
    duration_ns: int
    cost_nano: int


class NoticeChannel(Row):
    """
    Where a person's notices go. ``secret`` is told once, to whoever made it, and of a chat's address only its host and end; why the
    latest did not arrive comes with the list.
    """

    id: Count
    kind: Literal["email", "webhook", "slack"]
    target: str
    confirmed: bool
    secret: str | None = None
    note: str | None = None


class NoticePreferences(Row):
    """What a person chose; null where nothing was, and then mails are in ``common_language``, and nothing is told of jobs."""

    language: str | None = None
    jobs: str | None = None
    common_language: str


class OutboxRow(Row):
    id: Count
    tenant: str
    kind: str
    subject: str
    state: str
    attempts: Count
    created_at_ns: Count
    note: str | None = None


class OutboxPage(Row):
    counts: dict[str, Count]
    rows: tuple[OutboxRow, ...] = ()


class Difference(Row):
    """``what`` of ``kind`` ``subject``, with us and with Stripe; null where one side has nothing."""

    kind: str
    subject: str
    what: str
    ours: str | Count | None = None
    theirs: str | Count | None = None


class Reconciliation(Row):
    compared: dict[str, Count]
    differences: tuple[Difference, ...] = ()


class PaymentInvoice(Row):
    number: str
    status: str
    url: str | None = None


class Portal(Row):
    url: str


class UserFound(Row):
    tenant: str
    user: str


class SearchHits(Row):
    tenants: tuple[str, ...] = ()
    tenant_count: Count
    users: tuple[UserFound, ...] = ()
    user_count: Count
    invoices: tuple[InvoiceRow, ...] = ()
    invoice_count: Count


class RevenueHour(Row):
    hour_ns: Count
    currency: Currency
    amount_nano: int


class EnergyHour(Row):
    """Of the leases that began in the hour; ``energy_mj`` is None where no driver told it."""

    hour_ns: Count
    energy_mj: Count | None = None
    energy_duration_ns: Count = 0
    duration_ns: Count = 0
    co2_mg: Count | None = None
