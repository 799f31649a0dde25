"""The endpoint of how tenants stand."""

from __future__ import annotations

from forebay_billing import documents, tenants
from forebay_billing.access import paying_scope
from forebay_billing.bodies import TenantsQuery
from forebay_billing.handlers import BillingHandler


class TenantsHandler(BillingHandler):
    """``GET api/tenants``."""

    endpoint = "tenants"

    async def get(self) -> None:
        identity = await self.caller()
        tenant = paying_scope(identity, self.query(TenantsQuery).tenant)
        context = self.context
        found = await context.store.read(
            lambda connection: tenants.standings(connection, tenant, context.settings.currency_of, context.clock_ns())
        )
        self.answer([documents.standing_json(one) for one in found])
