"""*Tenant*: what a tenant's administrator sees: spend by user and flavor, what runs now, and the statements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC
from typing import Any, cast

from forebay_service.identity import OPERATE
from forebay_service.languages import Text

from forebay_dashboards.access import View, may_read_statement
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.http.handler import PageHandler, not_so, not_yours, unavailable
from forebay_dashboards.tables.chart import charts
from forebay_dashboards.tables.spend import spenders, sums
from forebay_dashboards.text.times import Period, month, month_of, recent_months
from forebay_dashboards.upstream.billing import InvoiceFormat, StatementFormat
from forebay_dashboards.upstream.client import Document
from forebay_dashboards.upstream.sections import Section, attempt

STATEMENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"
"""A statement brings its own style, and may run nothing."""


class TenantFacts(PageHandler):
    """What the pages of a tenant ask for, whoever reads them."""

    def month_asked(self) -> Period:
        """The month that was asked for; the present one if none was. Raises Problem."""
        text = self.get_query_argument("month", "")
        try:
            return month(text) if text else month_of(self.now_ns)
        except FormError as error:
            raise not_so(error) from None

    async def owed_by(self, tenant: str | None) -> dict[str, Section[Any]]:
        """What the tenant agreed on, owes, has ahead and may spend."""
        billing = self.services.billing
        invoices, credits, budgets, plans, forecast = await asyncio.gather(
            attempt(billing.invoices(self.token, tenant), Text("Invoices")),
            attempt(billing.credits(self.token, tenant), Text("Credits")),
            attempt(billing.budgets(self.token, tenant), Text("Budgets")),
            attempt(billing.plans_in_force(self.token, tenant), Text("The plan")),
            attempt(billing.forecast(self.token, tenant=tenant), Text("The forecast")),
        )
        return {"invoices": invoices, "credits": credits, "budgets": budgets, "plans": plans, "forecast": forecast}

    async def spend_of(self, tenant: str | None, chosen: Period) -> dict[str, object]:
        """Its month by day, member and flavor."""
        summary = self.services.billing.summary
        by_user, by_flavor, by_day, members = await asyncio.gather(
            attempt(summary(self.token, "user,flavor", chosen, tenant=tenant), Text("Spend by user")),
            attempt(summary(self.token, "flavor", chosen, tenant=tenant), Text("Spend by flavor")),
            attempt(summary(self.token, "day", chosen, tenant=tenant), Text("Spend by day")),
            attempt(self.services.people.members(self.token, tenant or ""), Text("Members who used nothing")),
        )
        total = Section(sums(by_flavor.content), None) if by_flavor.content is not None else Section(None, by_flavor.problem)
        return {
            "chosen": chosen,
            "by_user": by_user,
            "by_flavor": by_flavor,
            "total": total,
            "charts": charts(by_day.content or (), chosen, self.now_ns, UTC),
            "members": members,
            "spenders": spenders([one.name for one in members.content or ()], by_user.content or ()),
        }


class TenantPage(TenantFacts):
    """``GET tenant``, and its fragments ``tenant/spend`` and ``tenant/live``."""

    view: View = "tenant"
    page = "tenant"

    async def get(self, part: str | None = None) -> None:
        if part == "live":
            self.show("fragments/tenant_live.html", **self.present())
            return
        values = await self.spend_of(self.visitor.tenant, self.month_asked())
        if part == "spend":
            self.show("fragments/tenant_spend.html", **values)
        else:
            values |= await self.owed_by(self.visitor.tenant)
            self.show("tenant.html", months=recent_months(self.now_ns), this_month=month_of(self.now_ns), **values, **self.present())


class DocumentPage(PageHandler):
    """A document of billing's own, asked for with the visitor's token."""

    async def pass_on(self, asked: Awaitable[Document], missing: Text) -> None:
        """Finishes with it, or with a page that says why it is not there. ``missing`` is the title of that page."""
        try:
            answer = await asked
        except (UpstreamRefused, UpstreamUnavailable) as error:
            raise unavailable(missing, error) from None
        self.set_header("Content-Security-Policy", STATEMENT_POLICY)
        for header in ("Content-Type", "Content-Disposition"):
            if header in answer.headers:
                self.set_header(header, answer.headers[header])
        self.finish(answer.body)


class StatementPage(DocumentPage):
    """``GET statement?tenant=&month=&format=html|csv``."""

    page = "statement"

    async def get(self) -> None:
        tenant = self.get_query_argument("tenant")
        layout = self.get_query_argument("format", "html")
        if not may_read_statement(self.visitor, tenant):
            raise not_yours(Text("A statement is for the administrators of its tenant and for operators."))
        if layout not in ("html", "csv"):
            raise not_so(FormError(Text("A statement comes as html or csv.")))
        try:
            chosen = month(self.get_query_argument("month"))
        except FormError as error:
            raise not_so(error) from None
        asked = self.services.billing.statement(self.token, tenant, chosen.name, cast(StatementFormat, layout))
        await self.pass_on(asked, Text("No statement"))


class ReportPage(DocumentPage):
    """``GET report?tenant=&month=``: the month as PDF."""

    page = "report"

    async def get(self) -> None:
        tenant = self.get_query_argument("tenant")
        if not may_read_statement(self.visitor, tenant):
            raise not_yours(Text("A report is for the administrators of its tenant and for operators."))
        try:
            chosen = month(self.get_query_argument("month"))
        except FormError as error:
            raise not_so(error) from None
        await self.pass_on(self.services.billing.report(self.token, tenant, chosen.name), Text("No report"))


class InvoicePage(DocumentPage):
    """``GET invoice?number=&format=html|pdf|csv|focus``, or a draft: ``?tenant=&month=``."""

    page = "invoice"

    async def get(self) -> None:
        layout = self.get_query_argument("format", "html")
        if layout not in ("html", "pdf", "csv", "focus"):
            raise not_so(FormError(Text("An invoice comes as html, pdf, csv or focus.")))
        chosen = cast(InvoiceFormat, layout)
        number = self.get_query_argument("number", "")
        tenant = self.visitor.tenant if number else self.get_query_argument("tenant")
        if not (self.visitor.may(OPERATE) or (tenant is not None and may_read_statement(self.visitor, tenant))):
            raise not_yours(Text("An invoice is for the administrators of its tenant and for operators."))
        billing = self.services.billing
        if number:
            await self.pass_on(billing.invoice(self.token, number, chosen), Text("No invoice"))
            return
        try:
            name = month(self.get_query_argument("month")).name
        except FormError as error:
            raise not_so(error) from None
        await self.pass_on(billing.draft(self.token, tenant or "", name, chosen), Text("No draft"))
