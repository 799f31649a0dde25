"""*Operator*: the overview."""

from __future__ import annotations

import asyncio
import time

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError
from forebay_dashboards.http.handler import PageHandler, not_so
from forebay_dashboards.rows.bases import Over
from forebay_dashboards.rows.pool import Forecast
from forebay_dashboards.tables.energy import energy_chart
from forebay_dashboards.tables.overview import efficiency, overview
from forebay_dashboards.tables.spend import sums
from forebay_dashboards.tables.table import pace_ms
from forebay_dashboards.tables.trends import COLUMNS, HOUR_NS, OVERS, history, revenue
from forebay_dashboards.text.times import today
from forebay_dashboards.upstream.sections import Section, attempt

DAY_NS = 24 * HOUR_NS
REACH_NS: dict[Over, int] = {"day": DAY_NS, "week": 7 * DAY_NS, "month": 31 * DAY_NS}
TROUBLES = {
    "hub": Text("JupyterHub does not tell the pool whose a token is. Nobody new is let in; sessions go on."),
    "database": Text("The pool's database does not answer. What is metered waits in memory; nothing is lost while the pool runs."),
    "billing": Text("Billing does not take what the pool tells it. Usage records wait; nothing is lost."),
}
"""By the part of ``health``, what an operator reads of it."""
WAIT_PROBABILITY_MIN = 0.5
"""A forecast is worth a line from here on."""


class OverviewPage(PageHandler):
    """``GET operator?over=``, and its fragments: ``operator/live``, which the pool's events keep fresh, ``operator/money`` and
    ``operator/trends``."""

    view: View = "operator"
    page = "operator"

    async def get(self, part: str | None = None) -> None:
        if part == "money":
            self.show("fragments/overview_money.html", **await self._money())
            return
        if part == "trends":
            self.show("fragments/trends.html", **await self._trends())
            return
        begun = time.process_time()
        values = {"now": overview(self.services.feed.pool_copy)}
        if part == "live":
            body = self.rendered("fragments/overview_live.html", **values)
            self.set_header("X-Pace-Milliseconds", str(pace_ms(time.process_time() - begun)))
            self.finish(body)
            return
        money, trends = await asyncio.gather(self._money(), self._trends())
        self.show("operator.html", **values, **money, **trends)

    async def _trends(self) -> dict[str, object]:
        """What lies behind, as far back as was asked for."""
        over = self._over()
        since_ns = self.now_ns - REACH_NS[over]
        known, hours, drawn = await asyncio.gather(
            attempt(self.services.pool.trends(self.token, over), Text("What devices did")),
            attempt(self.services.billing.revenue(self.token, since_ns), Text("Revenue")),
            attempt(self.services.billing.energy(self.token, since_ns - since_ns % HOUR_NS), Text("Energy")),
        )
        trends = Section(None if known.content is None else history(over, known.content, self.zone), known.problem)
        booked = Section(None if hours.content is None else revenue(over, hours.content, self.now_ns, self.zone), hours.problem)
        energy = Section(None if drawn.content is None else energy_chart(over, drawn.content, self.now_ns, self.zone), drawn.problem)
        return {"over": over, "overs": OVERS, "columns": COLUMNS, "trends": trends, "history_revenue": booked, "history_energy": energy}

    def _over(self) -> Over:
        asked = self.get_query_argument("over", "day")
        for known in OVERS:
            if asked == known:
                return known
        raise not_so(FormError(Text("“%(typed)s” is not a time that is shown.", typed=asked[:20])))

    async def _money(self) -> dict[str, object]:
        """What other services know: it is asked for seldom, and where one does not answer the rest is shown."""
        pool, billing, token = self.services.pool, self.services.billing, self.token
        health, spent, flavors, forecast, budgets, outbox = await asyncio.gather(
            attempt(pool.health(token), Text("Troubles of the services")),
            attempt(billing.summary(token, "flavor", today(self.now_ns, self.zone)), Text("Today's revenue")),
            attempt(pool.flavors(token), Text("Flavors")),
            attempt(pool.forecast(token), Text("Forecasts")),
            attempt(billing.budgets(token, None), Text("Budgets")),
            attempt(billing.outbox(token), Text("Deliveries to Stripe")),
        )
        pool_copy = self.services.feed.pool_copy
        sessions, leases = [seen.row for seen in pool_copy.seen_sessions()], [seen.row for seen in pool_copy.seen_leases()]
        return {
            "revenue": sums(spent.content or ()),
            "efficiency": None if flavors.content is None else efficiency(sessions, leases, flavors.content),
            "short": [row for row in forecast.content or () if _is_short(row)],
            "stopping": [budget for budget in budgets.content or () if budget.state != "open"],
            "dead": 0 if outbox.content is None else outbox.content.counts.get("dead", 0),
            "problems": [
                *(text for part, text in TROUBLES.items() if health.content is not None and part in health.content.troubles),
                *(section.problem for section in (health, spent, flavors, forecast, budgets, outbox) if section.problem),
            ],
        }


def _is_short(row: Forecast) -> bool:
    return row.offered_devices > 0 and (row.missing_devices > 0 or row.wait_probability >= WAIT_PROBABILITY_MIN)
