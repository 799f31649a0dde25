"""What the pool says of its open leases, and what is left to a tenant while they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay_billing.documents import usage
from forebay_billing.documents.budgets import verdict_json
from forebay_billing.errors import InvalidRequest
from forebay_billing.http.handler import FUTURE_NS_MAX, BillingHandler
from forebay_billing.http.quarantine import Quarantined, heartbeat_of, unheard
from forebay_billing.http.queries import BalanceQuery, NoQuery
from forebay_billing.ledger.access import check_may_post_usage, settling_tenant
from forebay_billing.ledger.books import Books
from forebay_billing.reads import usage as usage_reads
from forebay_billing.rules.budgets import Verdict
from forebay_billing.writes import holds


class HeartbeatsHandler(BillingHandler):
    """``POST api/heartbeats``."""

    endpoint = "heartbeats"

    async def post(self) -> None:
        identity = await self.bearer()
        check_may_post_usage(identity)
        self.query(NoQuery)
        body, asides = heartbeat_of(self.body_bytes())
        if body.sent_at_ns > self.context.clock_ns() + FUTURE_NS_MAX:
            raise InvalidRequest(f"The heartbeat of {body.source} is sent more than an hour in the future; compare the clocks.")
        latest_ns = body.sent_at_ns + FUTURE_NS_MAX
        ahead = [lease for lease in body.leases if lease.started_at_ns + lease.duration_ns > latest_ns]
        asides += [unheard(lease, f"Lease {lease.record} is open an hour beyond its heartbeat.") for lease in ahead]
        heartbeat = body.model_copy(update={"leases": [lease for lease in body.leases if lease not in ahead]}).heartbeat()
        await self.put_aside(identity, asides)
        context = self.context
        beat = await context.budgets.beat(body.source, body.sent_at_ns, heartbeat.leases)

        def work(books: Books) -> None:
            beat.tell(books)
            holds.beat(books, heartbeat, context.currencies(books), context.clock_ns, context.settings.hold_terms())

        await self.change(identity, work, lambda _: _answer(beat.verdicts, asides))


def _answer(found: Sequence[Verdict], asides: Sequence[Quarantined]) -> dict[str, Any]:
    refused = [{"record": aside.subject, "message": aside.fault} for aside in asides if aside.fault is not None]
    return {"budgets": [verdict_json(verdict) for verdict in found]} | ({"refused": refused} if refused else {})


class BalanceHandler(BillingHandler):
    """``GET api/balance``."""

    endpoint = "balance"

    async def get(self) -> None:
        identity = await self.bearer()
        tenant = settling_tenant(identity, self.query(BalanceQuery).tenant)
        if tenant != identity.tenant:
            await self.context.store.check_tenant(tenant)
        found = await self.context.store.read(lambda connection: usage_reads.balance(connection, tenant))
        self.write_json({"tenant": tenant, "balances": [usage.balance_json(one) for one in found]})
