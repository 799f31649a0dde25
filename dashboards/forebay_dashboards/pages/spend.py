"""*Operator*: who used what, and the invoices and credits of all tenants."""

from __future__ import annotations

import asyncio

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError
from forebay_dashboards.http.handler import PageHandler, not_so
from forebay_dashboards.tables.spend import added, by_tenant, sums
from forebay_dashboards.tables.table import ROWS_PER_PAGE, page_number, pages_of
from forebay_dashboards.text.times import Period, moment, period
from forebay_dashboards.upstream.sections import Section, attempt

NUMBER_CHARACTERS_MAX = 64


class SpendPage(PageHandler):
    """``GET operator/usage?period=&first=&last=&page=``, and its fragment ``operator/usage/table``."""

    view: View = "operator"
    page = "operator_usage"

    async def get(self, part: str | None = None) -> None:
        chosen, number = self._period(), self._number()
        asked = self.services.billing.summary(self.token, "tenant,flavor", chosen)
        rows = await attempt(asked, Text("Device time and cost"))
        tenants = by_tenant(rows.content or ())
        pages = pages_of(len(tenants))
        number = min(number, pages)
        self.show(
            "fragments/operator_spend.html" if part else "operator_usage.html",
            chosen=chosen,
            month_text=f"{moment(chosen.since_ns):%Y-%m}",
            arguments={name: self.get_query_argument(name, "")[:20] for name in ("first", "last")},
            problem=rows.problem,
            total=sums(rows.content or ()),
            tenants=tenants[(number - 1) * ROWS_PER_PAGE : number * ROWS_PER_PAGE],
            number=number,
            pages=pages,
            flavors=sorted(added(rows.content or (), "flavor"), key=lambda row: (row.flavor or "", row.currency)),
        )

    def _number(self) -> int:
        """Of the page that is asked for; the first is 1."""
        try:
            return page_number(self.get_query_argument("page", "1"))
        except FormError as error:
            raise not_so(error) from None

    def _period(self) -> Period:
        name = self.get_query_argument("period", "month")
        first, last = self.get_query_argument("first", ""), self.get_query_argument("last", "")
        try:
            return period(name, first, last, self.now_ns, self.zone)
        except FormError as error:
            raise not_so(error) from None


class InvoicesPage(PageHandler):
    """``GET operator/invoices?before=``: the invoices of all tenants, the latest first, and their credits."""

    view: View = "operator"
    page = "operator_invoices"

    async def get(self) -> None:
        billing, before = self.services.billing, self.get_query_argument("before", "")[:NUMBER_CHARACTERS_MAX] or None
        invoices, credits = await asyncio.gather(
            attempt(billing.invoices(self.token, limit=ROWS_PER_PAGE + 1, before=before), Text("Invoices")),
            attempt(billing.credits(self.token), Text("Credits")),
        )
        shown = Section(None if invoices.content is None else invoices.content[:ROWS_PER_PAGE], invoices.problem)
        older = shown.content[-1].number if shown.content and len(invoices.content or ()) > ROWS_PER_PAGE else None
        self.show("operator_invoices.html", invoices=shown, credits=credits, before=before, older=older)
