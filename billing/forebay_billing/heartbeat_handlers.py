"""``POST api/heartbeats``: what the pool says of its open leases."""

from __future__ import annotations

from forebay_billing.access import check_may_post_usage
from forebay_billing.bodies import HeartbeatBody, NoQuery
from forebay_billing.errors import InvalidRequest
from forebay_billing.handlers import FUTURE_NS_MAX, BillingHandler


class HeartbeatsHandler(BillingHandler):
    """``POST api/heartbeats``."""

    endpoint = "heartbeats"

    async def post(self) -> None:
        check_may_post_usage(await self.caller())
        self.query(NoQuery)
        heartbeat = self.body(HeartbeatBody)
        latest_ns = self.context.clock_ns() + FUTURE_NS_MAX
        for lease in heartbeat.leases:
            if lease.started_at_ns + lease.duration_ns > latest_ns:
                raise InvalidRequest(f"Lease {heartbeat.source}/{lease.record} is open more than an hour ahead; compare the clocks.")
        self.answer({"budgets": []})
