"""*Operator*: all tenants, with what they used, may use, have ahead and owe; and where alerts of their budgets go."""

from __future__ import annotations

import asyncio
import time

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.pages.owner.alerts import AlertsDesk
from forebay_dashboards.pages.tables import TableVisit
from forebay_dashboards.rows.billing import TenantOrder, TenantRows
from forebay_dashboards.tables.tenants import OURS, TENANTS, arranged, held_by, tenant_rows
from forebay_dashboards.upstream.sections import attempt

NOBODY = TenantOrder(ranked=(), unranked=(), unmatched=())


class TenantsPage(TableVisit):
    """``GET operator/tenants?q=&sort=&order=&page=``, and its fragment ``operator/tenants/rows``."""

    page = "operator_tenants"

    async def get(self, part: str | None = None) -> None:
        query = self.asked(TENANTS)
        begun = time.monotonic()  # what pool and billing take counts, too
        pool, billing, token = self.services.pool, self.services.billing, self.token
        column = "tenant" if query.sort in OURS else query.sort
        names, order, quotas = await asyncio.gather(
            attempt(self.services.people.tenants(), Text("Tenants that used nothing yet")),
            attempt(billing.tenant_order(token, column, query.order, query.search), Text("Usage and balances")),
            attempt(pool.quotas(token), Text("Quotas")),
        )
        leases = held_by(seen.row for seen in self.services.feed.pool_copy.seen_leases())
        others = {*(names.content or ()), *leases, *(one.tenant for one in quotas.content or ())}
        found = arranged(order.content or NOBODY, others, leases, query)
        known = await attempt(billing.tenant_rows(token, found.rows), Text("Usage and balances")) if order.content else order
        content = known.content if isinstance(known.content, TenantRows) else TenantRows()
        rows = tenant_rows(found.rows, content, quotas.content or (), leases)
        problems = [section.problem for section in (names, known, quotas) if section.problem]
        self.show_table(part, TENANTS, found, rows, lambda: time.monotonic() - begun, problems)


class OperatorAlertsPage(AlertsDesk):
    """``operator/alerts``: alerts of all tenants' budgets, and where operators have them go, beside what owners chose for their own."""

    view: View = "operator"
    page = "operator_alerts"
    template = "operator_alerts.html"
