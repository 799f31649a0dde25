"""What the pool says of its open leases, and what is left to a tenant while they run."""

from __future__ import annotations

from forebay_billing import documents, queries, reservations
from forebay_billing.access import check_may_post_usage, settling_tenant
from forebay_billing.bodies import BalanceQuery, HeartbeatBody, NoQuery
from forebay_billing.budget_documents import verdict_json
from forebay_billing.errors import InvalidRequest
from forebay_billing.handlers import FUTURE_NS_MAX, BillingHandler


class HeartbeatsHandler(BillingHandler):
    """``POST api/heartbeats``."""

    endpoint = "heartbeats"

    async def post(self) -> None:
        identity = await self.caller()
        check_may_post_usage(identity)
        self.query(NoQuery)
        body = self.body(HeartbeatBody)
        heartbeat = body.heartbeat()
        latest_ns = self.context.clock_ns() + FUTURE_NS_MAX
        for lease in heartbeat.leases:
            if lease.started_at_ns + lease.duration_ns > latest_ns:
                raise InvalidRequest(f"Lease {lease.source}/{lease.id} is open more than an hour ahead; compare the clocks.")
        context = self.context
        found = await context.budgets.beat(body.source, body.sent_at_ns, heartbeat.leases)
        await self.change(
            identity,
            lambda books: reservations.beat(books, heartbeat, context.currencies(books), context.clock_ns, context.settings.hold_terms()),
            lambda reserved: {"budgets": [verdict_json(verdict) for verdict in found]},
        )


class BalanceHandler(BillingHandler):
    """``GET api/balance``."""

    endpoint = "balance"

    async def get(self) -> None:
        identity = await self.caller()
        tenant = settling_tenant(identity, self.query(BalanceQuery).tenant)
        if tenant != identity.tenant:
            await self.context.store.check_tenant(tenant)
        found = await self.context.store.read(lambda connection: queries.balance(connection, tenant))
        self.answer({"tenant": tenant, "balances": [documents.balance_json(one) for one in found]})
