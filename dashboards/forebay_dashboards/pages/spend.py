"""*Operator*: who used what, and the invoices and credits of all tenants."""

from __future__ import annotations

import asyncio

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError
from forebay_dashboards.http.handler import PageHandler, not_so
from forebay_dashboards.tables.spend import by_tenant, sums
from forebay_dashboards.text.times import Period, moment, period
from forebay_dashboards.upstream.sections import attempt


class SpendPage(PageHandler):
    """``GET operator/usage?period=&first=&last=``, and its fragment ``operator/usage/table``."""

    view: View = "operator"
    page = "operator_usage"

    async def get(self, part: str | None = None) -> None:
        chosen = self._period()
        summary = self.services.billing.summary
        rows, flavors = await asyncio.gather(
            attempt(summary(self.token, "tenant,flavor", chosen), Text("Device time and cost")),
            attempt(summary(self.token, "flavor", chosen), Text("Device time and cost by flavor")),
        )
        self.show(
            "fragments/operator_spend.html" if part else "operator_usage.html",
            chosen=chosen,
            month_text=f"{moment(chosen.since_ns):%Y-%m}",
            arguments={name: self.get_query_argument(name, "")[:20] for name in ("first", "last")},
            problem=rows.problem or flavors.problem,
            total=sums(rows.content or ()),
            tenants=by_tenant(rows.content or ()),
            flavors=flavors.content or (),
        )

    def _period(self) -> Period:
        name = self.get_query_argument("period", "month")
        first, last = self.get_query_argument("first", ""), self.get_query_argument("last", "")
        try:
            return period(name, first, last, self.now_ns, self.zone)
        except FormError as error:
            raise not_so(error) from None


class InvoicesPage(PageHandler):
    """``GET operator/invoices``: the invoices and credits of all tenants."""

    view: View = "operator"
    page = "operator_invoices"

    async def get(self) -> None:
        billing = self.services.billing
        invoices, credits = await asyncio.gather(
            attempt(billing.invoices(self.token), Text("Invoices")), attempt(billing.credits(self.token), Text("Credits"))
        )
        self.show("operator_invoices.html", invoices=invoices, credits=credits)
