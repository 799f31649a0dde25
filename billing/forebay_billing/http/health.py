"""``metrics`` and ``health``."""

from __future__ import annotations

import logging

from forebay_billing.errors import BillingError
from forebay_billing.http.bodies import NoQuery
from forebay_billing.http.handler import BillingHandler
from forebay_billing.ledger.access import Scope, check_may_scrape
from forebay_billing.ledger.postings import REVENUE
from forebay_billing.metrics import Situation
from forebay_billing.model.months import Month
from forebay_billing.reads import usage as usage_reads
from forebay_billing.writes import alerts

log = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "::1")


class MetricsHandler(BillingHandler):
    """``GET metrics``: free on the loopback interface, with a token through a proxy or from elsewhere."""

    endpoint = "metrics"

    async def get(self) -> None:
        self.query(NoQuery)
        if self.request.remote_ip not in _LOOPBACK or "X-Forwarded-For" in self.request.headers:
            check_may_scrape(await self.caller())
        self.context.metrics.situation = await self._situation()
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(self.context.metrics.text())

    async def _situation(self) -> Situation | None:
        """None where the database does not say: what is counted is told all the same."""
        context = self.context
        month = Month.of(context.clock_ns())
        try:
            standings = await context.budgets.standings(Scope(None, None))
            revenue, deliveries = await context.store.read(
                lambda connection: (usage_reads.posted(connection, REVENUE, month), alerts.CLAIMS.unsettled(connection))
            )
        except BillingError as error:
            log.warning("action=metrics.incomplete error=%s", error)
            return None
        return Situation(tuple(standings), {currency: -grains for currency, grains in revenue.items()}, deliveries)


class HealthHandler(BillingHandler):
    """``GET health``: 200 when the database answers."""

    endpoint = "health"

    async def get(self) -> None:
        self.query(NoQuery)
        await self.context.store.check()
        self.answer({"status": "ready"})
