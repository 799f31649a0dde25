"""The endpoints of how tenants stand."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from forebay_billing.documents import usage
from forebay_billing.documents.budgets import standing_json
from forebay_billing.documents.invoices import summary_json
from forebay_billing.http.handler import BillingHandler
from forebay_billing.http.queries import NoQuery, TenantOrderQuery, TenantRowsQuery, TenantsQuery
from forebay_billing.ledger.access import check_may_invoice, check_may_see_currencies, paying_scope
from forebay_billing.ledger.books import Books, profile_currencies
from forebay_billing.model.months import Month
from forebay_billing.reads import plans
from forebay_billing.reads import standings as standings_reads
from forebay_billing.reads.invoices import listed
from forebay_billing.reads.tenant_order import Order, ordered
from forebay_billing.rules.budgets import Accrued


class TenantsHandler(BillingHandler):
    """``GET api/tenants``."""

    endpoint = "tenants"

    async def get(self) -> None:
        identity = await self.bearer()
        tenant = paying_scope(identity, self.query(TenantsQuery).tenant)
        context = self.context
        found = await context.store.read(
            lambda connection: standings_reads.standings(connection, tenant, context.settings.currency_of, context.clock_ns())
        )
        self.write_json([usage.standing_json(one) for one in found])


class CurrenciesHandler(BillingHandler):
    """``GET api/currencies``: what tenants are billed in; those that are not named, in ``currency``."""

    endpoint = "currencies"

    async def get(self) -> None:
        check_may_see_currencies(await self.bearer())
        self.query(NoQuery)
        context, common = self.context, self.context.settings.currency

        def work(connection: Connection) -> dict[str, str]:
            named, billed_in = {*context.settings.tenant_currencies, *profile_currencies(connection)}, context.currencies(Books(connection))
            return {tenant: currency for tenant in sorted(named) if (currency := billed_in(tenant)) != common}

        self.write_json({"currency": common, "tenants": await context.store.read(work)})


class TenantOrderHandler(BillingHandler):
    """``GET api/tenants/order``: the names alone, by a column of the operator's table."""

    endpoint = "tenant_order"

    async def get(self) -> None:
        check_may_invoice(await self.bearer())
        query, context = self.query(TenantOrderQuery), self.context

        def work(connection: Connection, accrued: Accrued) -> Order:
            descending, currency_of = query.order == "desc", context.settings.currency_of
            return ordered(connection, query.sort, descending, query.q, currency_of, accrued, context.clock_ns())

        found = await context.budgets.beside(work)
        self.write_json({"ranked": found.ranked, "unranked": found.unranked, "unmatched": found.unmatched})


class TenantRowsHandler(BillingHandler):
    """``GET api/tenants/rows?tenant=&tenant=``: all that the table shows of some tenants, in one snapshot."""

    endpoint = "tenant_rows"

    async def get(self) -> None:
        identity = await self.bearer()
        check_may_invoice(identity)
        names, context = self.query(TenantRowsQuery).tenant, self.context

        def work(connection: Connection, accrued: Accrued) -> dict[str, Any]:
            now_ns = context.clock_ns()
            standings = standings_reads.standings(connection, names, context.settings.currency_of, now_ns)
            return {
                "standings": [usage.standing_json(one) for one in standings],
                "budgets": [standing_json(one, identity) for one in context.budgets.standings_of(connection, accrued, names)],
                "plans": [plans.plan_answer(plan) for plan in plans.plans_in(connection, names, Month.of(now_ns))],
                "open_invoices": [summary_json(one) for one in listed(connection, names, state="open")],
            }

        self.write_json(await context.budgets.beside(work))
