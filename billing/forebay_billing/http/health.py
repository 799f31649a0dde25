"""``metrics`` and ``health``."""

from __future__ import annotations

import logging
from typing import Any

from forebay_service.handler import HealthHandler, MetricsHandler

from forebay_billing.errors import BillingError
from forebay_billing.http.handler import BillingHandler
from forebay_billing.http.queries import NoQuery
from forebay_billing.ledger.access import Scope
from forebay_billing.ledger.postings import REVENUE
from forebay_billing.metrics import Situation
from forebay_billing.model.months import Month
from forebay_billing.reads import rollups
from forebay_billing.reads import usage as usage_reads
from forebay_billing.writes import alerts

log = logging.getLogger(__name__)


class MetricsPage(BillingHandler, MetricsHandler):
    """``GET metrics``."""

    endpoint = "metrics"

    async def exposition(self) -> bytes:
        self.query(NoQuery)
        leads, metrics = self.context.leads(), self.context.metrics
        metrics.leader.set(int(leads))
        metrics.situation = await self._situation() if leads else None
        return metrics.text()

    async def _situation(self) -> Situation | None:
        """None where the database does not say: what is counted is told all the same."""
        context = self.context
        month = Month.of(context.clock_ns())
        try:
            standings = await context.budgets.standings(Scope(None, None))
            revenue, deliveries, behind = await context.store.read(
                lambda connection: (
                    usage_reads.posted(connection, REVENUE, month),
                    alerts.CLAIMS.unsettled(connection),
                    rollups.records_behind(connection),
                )
            )
        except BillingError as error:
            log.warning("metrics are incomplete", extra={"action": "metrics.incomplete", "error": error})
            return None
        return Situation(tuple(standings), {currency: -grains for currency, grains in revenue.items()}, deliveries, behind)


class Health(BillingHandler, HealthHandler):
    """``GET health``: 200 when the database answers."""

    endpoint = "health"

    async def state(self) -> dict[str, Any]:
        self.query(NoQuery)
        await self.context.store.check()
        return {}

    def troubles(self) -> dict[str, str | None]:
        return {"hub": self.context.authenticator.ill}
