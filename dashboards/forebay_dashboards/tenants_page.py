"""*Operator*: all tenants, with what they used, may use, have ahead and owe."""

from __future__ import annotations

import asyncio
import time

from forebay_hub.languages import Text

from forebay_dashboards.sections import attempt
from forebay_dashboards.table_pages import TableVisit
from forebay_dashboards.tables import select
from forebay_dashboards.tenant_table import TENANTS, Sources, tenant_rows


class TenantsPage(TableVisit):
    """``GET operator/tenants?q=&sort=&order=&page=``, and its fragment ``operator/tenants/rows``."""

    page = "operator_tenants"

    async def get(self, part: str | None = None) -> None:
        query = self.asked(TENANTS)
        begun = time.monotonic()  # what pool and billing take counts, too
        pool, billing, token = self.services.pool, self.services.billing, self.token
        names, standings, budgets, quotas, plans, invoices = await asyncio.gather(
            attempt(self.services.people.tenants(), Text("Tenants that used nothing yet")),
            attempt(billing.standings(token), Text("Usage and balances")),
            attempt(billing.budgets(token, None), Text("Budgets")),
            attempt(pool.quotas(token), Text("Quotas")),
            attempt(billing.plans_in_force(token, None), Text("Plans")),
            attempt(billing.invoices(token, state="open"), Text("Open invoices")),
        )
        sources = Sources(
            names.content or (), standings.content or (), budgets.content or (), quotas.content or (), plans.content or (),
            invoices.content or (), [seen.row for seen in self.services.feed.mirror.seen_leases()],
        )  # fmt: skip
        found = select(TENANTS, tenant_rows(sources), query)
        sections = (names, standings, budgets, quotas, plans, invoices)
        problems = [section.problem for section in sections if section.problem]
        self.show_table(part, TENANTS, found, [seen.row for seen in found.rows], lambda: time.monotonic() - begun, problems)
