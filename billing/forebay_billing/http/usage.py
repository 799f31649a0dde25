"""The endpoints of usage: records, corrections, sums, forecasts, statements, and the check of the books."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from forebay_service.errors import RequestError

from forebay_billing.documents import usage
from forebay_billing.documents.energy import energy_json
from forebay_billing.documents.job_costs import job_cost_json
from forebay_billing.errors import InvalidRequest
from forebay_billing.http import quarantine
from forebay_billing.http.bodies import CorrectionBody
from forebay_billing.http.handler import FUTURE_NS_MAX, Attempt, BillingHandler
from forebay_billing.http.queries import (
    EnergyQuery,
    ForecastQuery,
    JobCostsQuery,
    NoQuery,
    RevenueQuery,
    StatementQuery,
    SummaryQuery,
    UsageQuery,
)
from forebay_billing.ledger.access import check_may_change_books, check_may_post_usage, check_may_scrape, usage_scope
from forebay_billing.ledger.writer import Share
from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from forebay_billing.reads import revenue
from forebay_billing.reads.energy import by_hour
from forebay_billing.reads.summaries import KEYS, By
from forebay_billing.reads.usage import Window
from forebay_billing.writes import usage as usage_writes

log = logging.getLogger(__name__)

_BY: dict[str, By] = {key: key for key in KEYS}


class UsageHandler(BillingHandler):
    """``POST`` and ``GET api/usage``."""

    endpoint = "usage"

    async def post(self) -> None:
        identity = await self.bearer()
        check_may_post_usage(identity)
        self.query(NoQuery)
        context, attempt = self.context, Attempt("usage.post", "usage", {"bytes": len(self._body)})
        try:
            records, asides = quarantine.usage_of(self.body_bytes())
            names = ", ".join(f"{record.source}/{record.id}" for record in records[:1]) + ", …" * (len(records) > 1)
            attempt = Attempt("usage.post", names or "usage", {"records": len(records)})
            self._check_clock(records)
            await self.put_aside(identity, asides)
            done = await self.change(
                identity,
                lambda books: context.post_usage(books, [records])[0],
                usage.accepted_json,
                share=Share(context.post_usage, records),
            )
        except RequestError as refusal:
            await self.leave_once(identity, attempt, refusal)
            raise
        if done is not None:
            context.metrics.accepted(done.accepted, done.duplicates, done.costs)
            log.info("usage is posted", extra={"action": "usage.post", "accepted": done.accepted, "duplicates": done.duplicates})

    def _check_clock(self, records: Sequence[UsageRecord]) -> None:
        latest_ns = self.context.clock_ns() + FUTURE_NS_MAX
        for record in records:
            if record.started_at_ns + record.duration_ns > latest_ns:
                raise InvalidRequest(f"Usage {record.source}/{record.id} ends more than an hour in the future; compare the clocks.")

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(UsageQuery)
        scope = usage_scope(identity, query.tenant, query.user)
        window = Window(query.since_ns, query.until_ns, query.notebook, query.cell, query.cell_id)
        page = await self.context.store.usage_page(scope, window, query.limit, query.after)
        self.write_json(usage.page_json(page))


class CorrectionsHandler(BillingHandler):
    """``POST api/corrections``."""

    endpoint = "corrections"

    async def post(self) -> None:
        identity = await self.bearer()
        check_may_change_books(identity)
        self.query(NoQuery)
        body = self.body(CorrectionBody)
        transaction = await self.change(
            identity,
            lambda books: usage_writes.correct(books, body.source, body.id, body.reason, self.context.clock_ns, identity.name),
            lambda transaction: {"source": body.source, "id": body.id, "transaction": transaction},
        )
        if transaction is not None:
            fields = {"action": "usage.correct", "who": identity.name, "source": body.source, "id": body.id, "transaction": transaction}
            log.info("usage is corrected", extra=fields)


class CheckHandler(BillingHandler):
    """``GET api/check``."""

    endpoint = "check"

    async def get(self) -> None:
        check_may_scrape(await self.bearer())
        self.query(NoQuery)
        self.write_json({"differences": [usage.difference_json(found) for found in await self.context.store.differences()]})


class SummaryHandler(BillingHandler):
    """``GET api/summary``."""

    endpoint = "summary"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(SummaryQuery)
        scope = usage_scope(identity, query.tenant, query.user)
        window = Window(query.since_ns, query.until_ns, query.notebook)
        rows = await self.context.store.summary(scope, window, _keys(query.by), query.tzinfo)
        self.write_json([usage.summary_json(row, self.context.settings.grams_co2_per_kwh) for row in rows])


class ForecastHandler(BillingHandler):
    """``GET api/forecast``."""

    endpoint = "forecast"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(ForecastQuery)
        found = await self.context.store.outlook(usage_scope(identity, query.tenant, query.user))
        self.write_json([usage.outlook_json(one) for one in found])


class JobCostsHandler(BillingHandler):
    """``GET api/job-costs``."""

    endpoint = "job_costs"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(JobCostsQuery)
        scope = usage_scope(identity, query.tenant, query.user)
        found = await self.context.budgets.job_costs(scope, frozenset(query.job), query.since_ns)
        self.write_json([job_cost_json(one) for one in found])


class EnergyHandler(BillingHandler):
    """``GET api/energy``."""

    endpoint = "energy"

    async def get(self) -> None:
        check_may_scrape(await self.bearer())
        since_ns = self.query(EnergyQuery).since_ns
        found = await self.context.store.read(lambda connection: by_hour(connection, since_ns))
        self.write_json([energy_json(hour, self.context.settings.grams_co2_per_kwh) for hour in found])


class RevenueHandler(BillingHandler):
    """``GET api/revenue``."""

    endpoint = "revenue"

    async def get(self) -> None:
        check_may_scrape(await self.bearer())
        since_ns = self.query(RevenueQuery).since_ns
        found = await self.context.store.read(lambda connection: revenue.revenue(connection, since_ns))
        self.write_json([usage.revenue_json(hour) for hour in found])


def _keys(by: str) -> list[By]:
    keys = by.split(",")
    if len(set(keys)) != len(keys) or not all(key in _BY for key in keys):
        raise InvalidRequest(f"by: {by!r} is not a list of {', '.join(KEYS)}, each at most once, separated by commas.")
    return [_BY[key] for key in keys]


class StatementHandler(BillingHandler):
    """``GET api/statement``."""

    endpoint = "statement"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(StatementQuery)
        scope = usage_scope(identity, query.tenant, query.user)
        if scope.tenant is None:
            raise InvalidRequest("tenant: name the tenant whose statement you want.")
        month = Month.parse(query.month)
        if scope.tenant != identity.tenant:
            await self.context.store.check_tenant(scope.tenant)
        statement = await self.context.store.statement(scope.tenant, scope.user, month)
        if query.format == "json":
            self.write_json(usage.statement_json(statement))
        elif query.format == "html":
            self.set_header("Content-Type", "text/html; charset=utf-8")
            self.set_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
            self.finish(usage.statement_html(statement))
        else:
            self.set_header("Content-Type", "text/csv; charset=utf-8")
            self.set_header("Content-Disposition", f'attachment; filename="statement-{month}.csv"')
            self.finish(usage.statement_csv(statement))
