"""*My usage*: what I hold now, what it cost today and this month, and every cell and process that held a device."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from forebay_dashboards.access import View
from forebay_dashboards.sections import attempt
from forebay_dashboards.spend import Sum, sums
from forebay_dashboards.times import Period, month_of, today
from forebay_dashboards.visitor import Visit

CURSOR_CHARACTERS_MAX = 64


@dataclass(frozen=True)
class Totals:
    """The headline figures; each holds one sum a currency, none where nothing was used."""

    day: tuple[Sum, ...]
    month: tuple[Sum, ...]
    month_period: Period


class MyUsagePage(Visit):
    """``GET usage``, and its fragments ``usage/totals``, ``usage/live``, ``usage/budgets``, ``usage/records``."""

    view: View = "usage"
    page = "usage"

    async def get(self, part: str | None = None) -> None:
        if part == "totals":
            self.show("fragments/totals.html", totals=await self._totals())
        elif part == "live":
            self.show("fragments/my_leases.html", **self.present())
        elif part == "budgets":
            self.show("fragments/budgets.html", budgets=await self._budgets())
        elif part == "records":
            self.show("fragments/records.html", **await self._records())
        else:
            totals, budgets, records = await asyncio.gather(self._totals(), self._budgets(), self._records())
            self.show("my_usage.html", totals=totals, budgets=budgets, **self.present(), **records)

    async def _totals(self) -> object:
        return await attempt(self._ask_totals(), "Your totals")

    async def _ask_totals(self) -> Totals:
        month = month_of(self.now_ns)
        mine = {"user": self.visitor.name, "tenant": self.visitor.tenant}
        billing = self.services.billing
        day_rows, month_rows = await asyncio.gather(
            billing.summary(self.token, "user", today(self.now_ns, self.zone), **mine), billing.summary(self.token, "user", month, **mine)
        )
        return Totals(day=sums(day_rows), month=sums(month_rows), month_period=month)

    async def _budgets(self) -> object:
        return await attempt(self.services.billing.budgets(self.token, self.visitor.tenant, self.visitor.name), "Budgets")

    async def _records(self) -> dict[str, object]:
        cursor = self.get_query_argument("cursor", None)
        question = self.services.billing.usage(
            self.token,
            user=self.visitor.name,
            tenant=self.visitor.tenant,
            limit=self.services.settings.page_records,
            cursor=cursor[:CURSOR_CHARACTERS_MAX] if cursor else None,
        )
        return {"records": await attempt(question, "Your records"), "cursor": cursor}
