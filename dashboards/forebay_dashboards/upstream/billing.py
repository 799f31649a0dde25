"""What the dashboards ask of billing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Literal
from urllib.parse import quote, urlencode

from pydantic import TypeAdapter

from forebay_dashboards.errors import UpstreamRefused
from forebay_dashboards.rows.billing import (
    Alert,
    BudgetRow,
    Channel,
    CreditRow,
    EnergyHour,
    ForecastRow,
    InvoiceRow,
    JobCost,
    NoticeChannel,
    NoticePreferences,
    OutboxPage,
    PaymentInvoice,
    Plan,
    Portal,
    Preview,
    PriceChanges,
    PriceVersion,
    Profile,
    Recipient,
    Reconciliation,
    RevenueHour,
    SearchHits,
    Standing,
    SummaryRow,
    SurchargeVersion,
    TenantOrder,
    TenantRows,
    UsagePage,
)
from forebay_dashboards.rows.pool import AuditPage, Job
from forebay_dashboards.text.times import Period
from forebay_dashboards.upstream.client import NO_HEADERS, Document, Query, Upstream

_PRICES = TypeAdapter(tuple[PriceVersion, ...])
_PRICE = TypeAdapter(PriceVersion)
_SURCHARGES = TypeAdapter(tuple[SurchargeVersion, ...])
_SURCHARGE = TypeAdapter(SurchargeVersion)
_CHANGES = TypeAdapter(PriceChanges)
_PREVIEW = TypeAdapter(Preview)
_PLANS = TypeAdapter(tuple[Plan, ...])
_PLAN = TypeAdapter(Plan)
_AUDIT = TypeAdapter(AuditPage)
_USAGE = TypeAdapter(UsagePage)
_SUMMARY = TypeAdapter(tuple[SummaryRow, ...])
_REVENUE = TypeAdapter(tuple[RevenueHour, ...])
_ENERGY = TypeAdapter(tuple[EnergyHour, ...])
_JOB_COSTS = TypeAdapter(tuple[JobCost, ...])
_FORECAST = TypeAdapter(tuple[ForecastRow, ...])

_INVOICES = TypeAdapter(tuple[InvoiceRow, ...])
_CREDITS = TypeAdapter(tuple[CreditRow, ...])
_BUDGETS = TypeAdapter(tuple[BudgetRow, ...])

_ANYTHING: TypeAdapter[object] = TypeAdapter(object)
_RECONCILIATION = TypeAdapter(Reconciliation)
_STANDINGS = TypeAdapter(tuple[Standing, ...])
_SEARCH = TypeAdapter(SearchHits)
_TENANT_ORDER = TypeAdapter(TenantOrder)
_TENANT_ROWS = TypeAdapter(TenantRows)
_CHANNELS = TypeAdapter(tuple[Channel, ...])
_CHANNEL = TypeAdapter(Channel)
_ALERTS = TypeAdapter(tuple[Alert, ...])
_NOTICE_CHANNELS = TypeAdapter(tuple[NoticeChannel, ...])
_NOTICE_CHANNEL = TypeAdapter(NoticeChannel)
_NOTICE_PREFERENCES = TypeAdapter(NoticePreferences)
_PROFILE = TypeAdapter(Profile)
_PAYMENT_INVOICES = TypeAdapter(tuple[PaymentInvoice, ...])
_PORTAL = TypeAdapter(Portal)
_RECIPIENTS = TypeAdapter(tuple[Recipient, ...])
_OUTBOX = TypeAdapter(OutboxPage)

StatementFormat = Literal["html", "csv"]
InvoiceFormat = Literal["html", "pdf", "csv", "focus"]


class Billing:
    """Billing's HTTP interface. Each method raises UpstreamUnavailable and UpstreamRefused."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def prices(self, token: str) -> tuple[PriceVersion, ...]:
        """The versions in force."""
        return await self._upstream.read(_PRICES, token, "api/prices")

    async def coming_prices(self, token: str, now_ns: int) -> tuple[PriceVersion, ...]:
        """Versions of all flavors' prices that are yet to begin, the next one first."""
        versions = await self._upstream.read(_PRICES, token, "api/prices", {"history": 1})
        return tuple(sorted((one for one in versions if one.valid_from_ns > now_ns), key=lambda one: one.valid_from_ns))

    async def price_history(self, token: str, flavor: str) -> tuple[PriceVersion, ...]:
        """All versions of a flavor's price, the oldest first."""
        return await self._upstream.read(_PRICES, token, "api/prices", {"history": 1, "flavor": flavor})

    async def set_price(
        self, token: str, flavor: str, nano_per_hour: int, currency: str, first: bool, start_ns: int | None, expected: Mapping[str, str]
    ) -> PriceVersion:
        """The new version, as far as ``expected`` allows; it applies to device time from its start on (None: at once). ``first``: billing
        has no price for it yet.
        """
        body = {"price_nano_per_hour": nano_per_hour, "currency": currency, "new": first, "valid_from_ns": start_ns}
        return await self._upstream.write(_PRICE, token, f"api/prices/{quote(flavor, safe='')}", body, headers=expected)

    async def surcharges(self, token: str) -> tuple[SurchargeVersion, ...]:
        """All versions of all models' surcharges, the oldest first."""
        return await self._upstream.read(_SURCHARGES, token, "api/surcharges", {"history": 1})

    async def set_surcharge(self, token: str, model: str, body: dict[str, object], expected: Mapping[str, str]) -> SurchargeVersion:
        """The new version, as far as ``expected`` allows; it applies to device time from its start on."""
        return await self._upstream.write(_SURCHARGE, token, f"api/surcharges/{quote(model, safe='')}", body, headers=expected)

    async def price_list(self, token: str) -> tuple[str, str | None]:
        """The price book as a text, and its tag."""
        found = await self._upstream.fetch(token, "api/price-list")
        return found.body.decode("utf-8"), found.headers.get("ETag")

    async def compare_price_list(self, token: str, text: str) -> PriceChanges:
        """What the list would change."""
        return await self._upstream.write(_CHANGES, token, "api/price-list/diff", text, "POST")

    async def apply_price_list(self, token: str, text: str, expected: Mapping[str, str]) -> PriceChanges:
        """What the list changed, as far as ``expected`` allows."""
        return await self._upstream.write(_CHANGES, token, "api/price-list", text, headers=expected)

    async def preview(self, token: str, body: Mapping[str, object]) -> Preview:
        """What a month would have cost at other prices or plans."""
        return await self._upstream.write(_PREVIEW, token, "api/preview", body, "POST")

    async def plans(self, token: str, tenant: str | None = None) -> tuple[Plan, ...]:
        """All versions, of all plans where no tenant is given."""
        return await self._upstream.read(_PLANS, token, "api/plans", {"history": 1, "tenant": tenant})

    async def plans_in_force(self, token: str, tenant: str | None) -> tuple[Plan, ...]:
        """A tenant's plans of the present month."""
        return await self._upstream.read(_PLANS, token, "api/plans", {"tenant": tenant})

    async def set_plan(self, token: str, tenant: str, body: Mapping[str, object], expected: Mapping[str, str] = NO_HEADERS) -> Plan:
        """The new version, as far as ``expected`` allows: see :func:`stamps.expecting`."""
        return await self._upstream.write(_PLAN, token, f"api/plans/{quote(tenant, safe='')}", body, headers=expected)

    async def audit(self, token: str, asked: Query) -> AuditPage:
        """Who changed what, newest first."""
        return await self._upstream.read(_AUDIT, token, "api/audit", asked)

    async def usage(
        self,
        token: str,
        *,
        user: str | None = None,
        tenant: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        notebook: str | None = None,
        cell_id: str | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> UsagePage:
        """Records, newest first."""
        query: Query = {"user": user, "tenant": tenant, "since_ns": since_ns, "until_ns": until_ns, "notebook": notebook}
        return await self._upstream.read(_USAGE, token, "api/usage", {**query, "cell_id": cell_id, "limit": limit, "cursor": cursor})

    async def summary(
        self, token: str, by: str, period: Period, *, user: str | None = None, tenant: str | None = None, notebook: str | None = None,
        zone: str = "UTC",
    ) -> tuple[SummaryRow, ...]:  # fmt: skip
        """Sums by ``by``, a comma-separated choice of tenant, user, flavor, kind, notebook, cell, and day in the zone."""
        query: Query = {"by": by, "since_ns": period.since_ns, "until_ns": period.until_ns, "user": user, "tenant": tenant}
        return await self._upstream.read(_SUMMARY, token, "api/summary", {**query, "notebook": notebook, "zone": zone})

    async def forecast(self, token: str, *, user: str | None = None, tenant: str | None = None) -> tuple[ForecastRow, ...]:
        """How this month goes, one row a currency."""
        return await self._upstream.read(_FORECAST, token, "api/forecast", {"user": user, "tenant": tenant})

    async def revenue(self, token: str, since_ns: int) -> tuple[RevenueHour, ...]:
        """By hour, oldest first."""
        return await self._upstream.read(_REVENUE, token, "api/revenue", {"since_ns": since_ns})

    async def energy(self, token: str, since_ns: int) -> tuple[EnergyHour, ...]:
        """What devices drew by hour, oldest first."""
        return await self._upstream.read(_ENERGY, token, "api/energy", {"since_ns": since_ns})

    async def job_costs(self, token: str, jobs: Sequence[Job]) -> tuple[JobCost, ...]:
        """What each run of one user's jobs has cost so far."""
        if not jobs:
            return ()
        whose = [("tenant", jobs[0].tenant), ("user", jobs[0].user), ("since_ns", min(job.created_at_ns for job in jobs))]
        return await self._upstream.read(_JOB_COSTS, token, f"api/job-costs?{urlencode([*whose, *(('job', job.id) for job in jobs)])}")

    async def report(self, token: str, tenant: str, month: str) -> Document:
        """The month's report as PDF."""
        return await self._upstream.fetch(token, "api/reports", {"tenant": tenant, "month": month})

    async def statement(self, token: str, tenant: str, month: str, layout: StatementFormat) -> Document:
        """The month's statement as billing wrote it."""
        return await self._upstream.fetch(token, "api/statement", {"tenant": tenant, "month": month, "format": layout})

    async def invoices(
        self, token: str, tenant: str | None = None, limit: int | None = None, before: str | None = None
    ) -> tuple[InvoiceRow, ...]:
        """Finalised invoices, the latest first, that came before the one of a number; of all tenants where none is given, which an
        operator may ask."""
        return await self._upstream.read(_INVOICES, token, "api/invoices", {"tenant": tenant, "limit": limit, "before": before})

    async def search(self, token: str, words: str, since_ns: int, limit: int) -> SearchHits:
        """Tenants and users that used something since, and invoices."""
        return await self._upstream.read(_SEARCH, token, "api/search", {"q": words, "since_ns": since_ns, "limit": limit})

    async def tenant_order(self, token: str, sort: str, order: str, search: str) -> TenantOrder:
        """All tenants that billing knows, by a column that is billing's: ``tenant``, ``month``, ``end``, ``budget``, ``plan``, …"""
        return await self._upstream.read(_TENANT_ORDER, token, "api/tenants/order", {"sort": sort, "order": order, "q": search})

    async def tenant_rows(self, token: str, names: Sequence[str]) -> TenantRows:
        """All that the table shows of some of them."""
        return await self._upstream.read(_TENANT_ROWS, token, f"api/tenants/rows?{urlencode([('tenant', name) for name in names])}")

    async def standings(self, token: str, tenant: str) -> tuple[Standing, ...]:
        """How the tenant stands: one row, whether anything was written down for it or not."""
        return await self._upstream.read(_STANDINGS, token, "api/tenants", {"tenant": tenant})

    async def set_profile(self, token: str, tenant: str, body: Mapping[str, object], expected: Mapping[str, str]) -> None:
        """What is left out stays."""
        await self._upstream.write(_ANYTHING, token, f"api/profiles/{quote(tenant, safe='')}", body, headers=expected)

    async def set_budget(self, token: str, body: Mapping[str, object], expected: Mapping[str, str]) -> None:
        """Makes it, or changes the one of the same subject and window."""
        await self._upstream.write(_ANYTHING, token, "api/budgets", body, headers=expected)

    async def remove_budget(self, token: str, number: int, expected: Mapping[str, str]) -> None:
        """Removes the budget."""
        await self._upstream.delete(token, f"api/budgets/{number}", expected)

    async def grant_credit(self, token: str, body: Mapping[str, object], key: str) -> None:
        """Once, however often it is sent under the same ``key``."""
        await self._upstream.write(_ANYTHING, token, "api/credits", body, "POST", {"Idempotency-Key": key})

    async def channels(self, token: str, tenant: str | None) -> tuple[Channel, ...]:
        """Where a tenant's alerts go; without one, where operators have those of all go."""
        return await self._upstream.read(_CHANNELS, token, "api/alerts/channels", {"tenant": tenant})

    async def add_channel(self, token: str, kind: str, target: str) -> Channel:
        """Another one, of the token's own tenant, or of all where the token is an operator's; a webhook's with its secret."""
        return await self._upstream.write(_CHANNEL, token, "api/alerts/channels", {"kind": kind, "target": target}, "POST")

    async def retry_channel(self, token: str, number: int) -> None:
        """Sends again what was given up."""
        await self._upstream.write(_ANYTHING, token, f"api/alerts/channels/{number}", {"action": "retry"}, "POST")

    async def remove_channel(self, token: str, number: int) -> None:
        """Removes it, and gives up what waits."""
        await self._upstream.delete(token, f"api/alerts/channels/{number}")

    async def alerts(self, token: str, tenant: str | None, since_ns: int) -> tuple[Alert, ...]:
        """Thresholds that were reached, newest first."""
        return await self._upstream.read(_ALERTS, token, "api/alerts", {"tenant": tenant, "since_ns": since_ns})

    async def profile(self, token: str, tenant: str) -> Profile:
        """Whom its invoices are made out to; nothing in it where nobody said so yet."""
        try:
            return await self._upstream.read(_PROFILE, token, f"api/profiles/{quote(tenant, safe='')}")
        except UpstreamRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return Profile()

    async def payment_invoices(self, token: str, tenant: str | None) -> tuple[PaymentInvoice, ...]:
        """The tenant's invoices at Stripe."""
        return await self._upstream.read(_PAYMENT_INVOICES, token, "api/payments/invoices", {"tenant": tenant})

    async def portal(self, token: str) -> str:
        """The address of Stripe's customer portal for the token's own tenant."""
        return (await self._upstream.write(_PORTAL, token, "api/payments/portal", {}, "POST")).url

    async def notice_channels(self, token: str) -> tuple[NoticeChannel, ...]:
        """Where the token's person is told of own cells."""
        return await self._upstream.read(_NOTICE_CHANNELS, token, "api/notices/channels")

    async def add_notice_channel(self, token: str, kind: str, target: str) -> NoticeChannel:
        """Another one; a webhook's with its secret, and an address gets a code."""
        return await self._upstream.write(_NOTICE_CHANNEL, token, "api/notices/channels", {"kind": kind, "target": target}, "POST")

    async def confirm_notice_channel(self, token: str, number: int, code: str) -> NoticeChannel:
        """By the code that was mailed there."""
        return await self._upstream.write(_NOTICE_CHANNEL, token, f"api/notices/channels/{number}", {"code": code}, "POST")

    async def remove_notice_channel(self, token: str, number: int) -> None:
        """Nothing goes there any more."""
        await self._upstream.delete(token, f"api/notices/channels/{number}")

    async def notice_preferences(self, token: str) -> NoticePreferences:
        """How the token's person wants to be told."""
        return await self._upstream.read(_NOTICE_PREFERENCES, token, "api/notices/preferences")

    async def prefer_notices(self, token: str, **chosen: str | None) -> NoticePreferences:
        """Chooses the ``language``, ``jobs``, or both; None chooses nothing, and what is not named stays."""
        return await self._upstream.write(_NOTICE_PREFERENCES, token, "api/notices/preferences", chosen, "PATCH")

    async def send_mail(self, token: str, to: str, subject: str, text: str) -> None:
        """Has a mail sent at once; ``token`` is a service's."""
        await self._upstream.write(_ANYTHING, token, "api/letters", {"to": to, "subject": subject, "text": text}, "POST")

    async def credits(self, token: str, tenant: str | None = None) -> tuple[CreditRow, ...]:
        """Credits, the oldest first; of all tenants where none is given."""
        return await self._upstream.read(_CREDITS, token, "api/credits", {"tenant": tenant})

    async def budgets(self, token: str, tenant: str | None, user: str | None = None) -> tuple[BudgetRow, ...]:
        """The budgets that concern a tenant, or one of its users, and how they stand."""
        return await self._upstream.read(_BUDGETS, token, "api/budgets", {"tenant": tenant, "user": user})

    async def invoice(self, token: str, number: str, layout: InvoiceFormat) -> Document:
        """An invoice as billing wrote it."""
        return await self._upstream.fetch(token, f"api/invoices/{quote(number, safe='')}", {"format": layout})

    async def draft(self, token: str, tenant: str, month: str, layout: InvoiceFormat) -> Document:
        """An open month as it would be invoiced now."""
        return await self._upstream.fetch(token, "api/drafts", {"tenant": tenant, "month": month, "format": layout})

    async def recipients(self, token: str, tenant: str | None) -> tuple[Recipient, ...]:
        """Whom a tenant's reports are mailed to."""
        return await self._upstream.read(_RECIPIENTS, token, "api/reports/recipients", {"tenant": tenant})

    async def add_recipient(self, token: str, target: str) -> None:
        """Another one, of the token's own tenant."""
        await self._upstream.write(_ANYTHING, token, "api/reports/recipients", {"target": target}, "POST")

    async def remove_recipient(self, token: str, number: int) -> None:
        """Removes the recipient."""
        await self._upstream.delete(token, f"api/reports/recipients/{number}")

    async def settle_dead_letter(self, token: str, number: int, choice: str, reason: str) -> None:
        """Sends what failed for good again (``retry``), or gives it up (``skip``)."""
        await self._upstream.write(_ANYTHING, token, f"api/payments/outbox/{number}", {"action": choice, "reason": reason}, "POST")

    async def reconciliation(self, token: str, since_ns: int, until_ns: int) -> Reconciliation:
        """Ours against Stripe's."""
        query: Query = {"since_ns": since_ns, "until_ns": until_ns}
        return await self._upstream.read(_RECONCILIATION, token, "api/payments/reconciliation", query)

    async def outbox(self, token: str, state: str | None = None) -> OutboxPage:
        """Deliveries to Stripe."""
        return await self._upstream.read(_OUTBOX, token, "api/payments/outbox", {"state": state})
