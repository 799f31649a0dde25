"""The endpoint of the operators' search."""

from __future__ import annotations

from forebay_billing.documents.invoices import summary_json
from forebay_billing.http.handler import BillingHandler
from forebay_billing.http.queries import SearchQuery
from forebay_billing.ledger.access import check_may_search
from forebay_billing.reads import search


class SearchHandler(BillingHandler):
    """``GET api/search``."""

    endpoint = "search"

    async def get(self) -> None:
        check_may_search(await self.bearer())
        query = self.query(SearchQuery)
        found = await self.context.store.read(lambda connection: search.hits(connection, query.q, query.since_ns, query.limit))
        self.write_json(
            {
                "tenants": found.tenants,
                "tenant_count": found.tenant_count,
                "users": [{"tenant": tenant, "user": user} for tenant, user in found.users],
                "user_count": found.user_count,
                "invoices": [summary_json(one) for one in found.invoices],
                "invoice_count": found.invoice_count,
            }
        )
