"""*My usage*: what I hold now, what it cost by day, notebook and flavor, and every cell and process that held a device."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypedDict

from forebay_service.languages import Text
from forebay_service.spreadsheets import PARKED_SHOWN, csv_rows

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.etags import number_in
from forebay_dashboards.http.handler import PageHandler, not_so, unavailable
from forebay_dashboards.http.templating import PARKED
from forebay_dashboards.rows.billing import ForecastRow, NoticeChannel, SummaryRow, UsagePage, UsageRecord
from forebay_dashboards.tables.chart import Chart, charts
from forebay_dashboards.tables.spend import Sum, added, sums
from forebay_dashboards.text.money import format_decimal
from forebay_dashboards.text.times import Period, iso, month_of, period, today
from forebay_dashboards.upstream.sections import attempt

CURSOR_CHARACTERS_MAX = 64
TARGET_CHARACTERS_MAX = 1024
ADDED = Text("You are told there from now on.")
LABEL_CHARACTERS_MAX = 4096
EXPORT_RECORDS = 1000
"""Records that are asked for at a time."""
COLUMNS = (
    "started_at", "kind", "notebook_or_command", "cell", "cell_id", "first_line", "flavor", "device_model", "devices", "duration_ns",
    "parked_bytes", "cost", "currency", "close_reason", "corrected_at", "source", "id", "energy_mj",
)  # fmt: skip


@dataclass(frozen=True)
class Totals:
    """The headline figures; each holds one sum a currency, none where nothing was used."""

    day: tuple[Sum, ...]
    month: tuple[Sum, ...]
    month_period: Period
    forecast: tuple[ForecastRow, ...]


@dataclass(frozen=True)
class Spread:
    """Where a period's money went."""

    charts: tuple[Chart, ...]
    notebooks: tuple[SummaryRow, ...]
    flavors: tuple[SummaryRow, ...]
    total: tuple[Sum, ...]


class Mine(TypedDict):
    """Whose usage is asked for."""

    user: str
    tenant: str | None


class UsageView(PageHandler):
    """What all pages of one's own usage share."""

    view: View = "usage"

    @property
    def mine(self) -> Mine:
        """What narrows every question to the visitor."""
        return {"user": self.visitor.name, "tenant": self.visitor.tenant}

    def chosen(self) -> Period:
        """The period that was asked for; this month if none was."""
        first, last = self.get_query_argument("first", ""), self.get_query_argument("last", "")
        try:
            return period(self.get_query_argument("period", "") or "month", first, last, self.now_ns, self.zone)
        except FormError as error:
            raise not_so(error) from None

    @property
    def choice(self) -> dict[str, str]:
        """The period as the page's links repeat it."""
        return {name: self.get_query_argument(name, "")[:20] for name in ("period", "first", "last")}

    async def page_of(self, cursor: str | None, *, notebook: str | None = None, cell_id: str | None = None) -> UsagePage:
        """A page of records, all of one notebook or cell if named."""
        asked = cursor[:CURSOR_CHARACTERS_MAX] if cursor else None
        limit = self.services.settings.page_records
        return await self.services.billing.usage(self.token, **self.mine, limit=limit, cursor=asked, notebook=notebook, cell_id=cell_id)


class MyUsagePage(UsageView):
    """``GET usage?period=&first=&last=``, and its fragments ``usage/totals``, ``usage/live``, ``usage/budgets``, ``usage/spread``,
    ``usage/records``."""

    page = "usage"

    async def get(self, part: str | None = None) -> None:
        if part == "totals":
            self.show("fragments/totals.html", totals=await attempt(self._totals(), Text("Your totals")))
        elif part == "live":
            self.show("fragments/my_leases.html", **self.present())
        elif part == "budgets":
            self.show("fragments/budgets.html", budgets=await self._budgets())
        elif part == "spread":
            chosen = self.chosen()
            self.show("fragments/spread.html", chosen=chosen, choice=self.choice, spread=await self._spread(chosen))
        elif part == "records":
            self.show("fragments/records.html", **await self._records())
        else:
            await self._show_all()

    async def _show_all(self) -> None:
        chosen = self.chosen()
        totals, budgets, spread, records = await asyncio.gather(
            attempt(self._totals(), Text("Your totals")), self._budgets(), self._spread(chosen), self._records()
        )
        values = {"totals": totals, "budgets": budgets, "spread": spread, "chosen": chosen, "choice": self.choice}
        self.show("my_usage.html", **values, **self.present(), **records)

    async def _totals(self) -> Totals:
        month, billing = month_of(self.now_ns), self.services.billing
        day_rows, month_rows, forecast = await asyncio.gather(
            billing.summary(self.token, "user", today(self.now_ns, self.zone), **self.mine),
            billing.summary(self.token, "user", month, **self.mine),
            billing.forecast(self.token, **self.mine),
        )
        return Totals(sums(day_rows), sums(month_rows), month, forecast)

    async def _budgets(self) -> object:
        return await attempt(self.services.billing.budgets(self.token, self.visitor.tenant, self.visitor.name), Text("Budgets"))

    async def _spread(self, chosen: Period) -> object:
        return await attempt(self._ask_spread(chosen), Text("What was used by day, notebook and flavor"))

    async def _ask_spread(self, chosen: Period) -> Spread:
        asked = "day,kind,notebook,flavor"
        rows = await self.services.billing.summary(self.token, asked, chosen, **self.mine, zone=self.zone_name)
        days, notebooks, flavors = added(rows, "day", "kind", "notebook"), added(rows, "kind", "notebook"), added(rows, "flavor")
        return Spread(
            charts(days, chosen, self.now_ns, self.zone, lambda row: row.notebook),
            tuple(sorted(notebooks, key=lambda row: (-row.cost_nano, row.notebook))),
            tuple(sorted(flavors, key=lambda row: (-row.cost_nano, row.flavor or ""))),
            sums(flavors),
        )

    async def _records(self) -> dict[str, object]:
        cursor = self.get_query_argument("cursor", None)
        return {"records": await attempt(self.page_of(cursor), Text("Your records")), "cursor": cursor}


class NotebookPage(UsageView):
    """``GET usage/notebook?label=&period=&first=&last=&cell=``: a notebook's cells, or a command's runs, with their records."""

    page = "usage_notebook"

    async def get(self) -> None:
        label = self.get_query_argument("label")[:LABEL_CHARACTERS_MAX]
        cell_id = self.get_query_argument("cell", "")[:LABEL_CHARACTERS_MAX] or None
        chosen, cursor = self.chosen(), self.get_query_argument("cursor", None)
        summary = self.services.billing.summary
        cells, records = await asyncio.gather(
            attempt(summary(self.token, "kind,notebook,cell", chosen, **self.mine, notebook=label), Text("The cells")),
            attempt(self.page_of(cursor, notebook=label, cell_id=cell_id), Text("The records")),
        )
        rows = tuple(sorted(cells.content or (), key=lambda row: (row.cell is None, row.cell or 0, row.currency)))
        values = {"label": label, "chosen": chosen, "choice": self.choice, "cells": cells, "rows": rows, "total": sums(rows)}
        values |= {"cell_id": cell_id, "cell": next((row for row in rows if cell_id and row.cell_id == cell_id), None)}
        self.show("notebook.html", **values, records=records, cursor=cursor)


class ExportPage(UsageView):
    """``GET usage.csv?period=&first=&last=``: every record of the period, sent as it is read."""

    page = "usage_export"

    async def get(self) -> None:
        chosen = self.chosen()
        cursor: str | None = None
        while True:
            found = await self._next(chosen, cursor)
            if cursor is None:
                self.set_header("Content-Type", "text/csv; charset=utf-8")
                self.set_header("Content-Disposition", 'attachment; filename="forebay-usage.csv"')
                self.write(csv_rows([COLUMNS]))
            self.write(csv_rows([_cells(record) for record in found.records]))
            await self.flush()
            if found.next is None:
                return
            cursor = found.next

    async def _next(self, chosen: Period, cursor: str | None) -> UsagePage:
        since_ns, until_ns, asks = chosen.since_ns, chosen.until_ns, self.services.billing.usage
        try:
            return await asks(self.token, **self.mine, since_ns=since_ns, until_ns=until_ns, limit=EXPORT_RECORDS, cursor=cursor)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            raise unavailable(Text("No export"), error) from None


def _cells(record: UsageRecord) -> tuple[object, ...]:
    taken_back = "" if record.corrected_at_ns is None else iso(record.corrected_at_ns)
    parked = "" if record.parked_bytes is None else record.parked_bytes
    cell = "" if record.span.cell is None else record.span.cell
    flavor = PARKED_SHOWN if record.flavor == PARKED else record.flavor
    return (
        iso(record.started_at_ns), record.span.kind, record.span.label, cell, record.span.cell_id or "", record.span.first_line or "",
        flavor, record.device_model, record.devices, record.duration_ns, parked, format_decimal(record.cost_nano, 9), record.currency,
        record.close_reason, taken_back, record.source, record.id, "" if record.energy_mj is None else record.energy_mj,
    )  # fmt: skip


class NoticesPage(PageHandler):
    """``GET usage/notices`` lists where the visitor is told of own cells and jobs, ``POST`` adds, confirms or removes a channel, or says in
    which language, and of which jobs."""

    page = "my_notices"

    async def get(self) -> None:
        await self._show()

    async def post(self) -> None:
        target = self.get_body_argument("target", "").strip()[:TARGET_CHARACTERS_MAX]
        typed = {"kind": self.get_body_argument("kind", "email"), "target": target}
        faulty: int | None = None
        made: NoticeChannel | None = None
        try:
            if "add" in self.request.body_arguments:
                made = await self._add(typed)
                saved = Text("A code is on its way to %(target)s.", target=made.target) if not made.confirmed else ADDED
            elif "confirm" in self.request.body_arguments:
                faulty = number_in(self.get_body_argument("confirm"))
                await self.services.billing.confirm_notice_channel(self.token, faulty, self.get_body_argument("code", "").strip() or "-")
                saved, faulty = ADDED, None
            elif "prefer" in self.request.body_arguments:
                chosen = {name: self.get_body_argument(name, "") or None for name in ("language", "jobs")}
                await self.services.billing.prefer_notices(self.token, **chosen)
                saved = Text("It is so from now on.")
            else:
                await self.services.billing.remove_notice_channel(self.token, number_in(self.get_body_argument("remove", "")))
                saved = Text("Nothing goes there any more.")
        except (FormError, UpstreamRefused, UpstreamUnavailable) as error:
            self.set_status(HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, UpstreamUnavailable) else HTTPStatus.BAD_REQUEST)
            await self._show(error.text, typed=typed, faulty=faulty)
            return
        await self._show(saved=saved, made=made)

    async def _add(self, typed: Mapping[str, str]) -> NoticeChannel:
        if typed["kind"] not in ("email", "webhook", "slack"):
            raise FormError(Text("Choose how you are told there."))
        if not typed["target"]:
            raise FormError(Text("Type the e-mail address or the URL where you are to be told."))
        return await self.services.billing.add_notice_channel(self.token, typed["kind"], typed["target"])

    async def _show(
        self, problem: Text | None = None, saved: Text | None = None, typed: Mapping[str, str] | None = None,
        faulty: int | None = None, made: NoticeChannel | None = None,
    ) -> None:  # fmt: skip
        channels, preferences = await asyncio.gather(
            attempt(self.services.billing.notice_channels(self.token), Text("Where you are told")),
            attempt(self.services.billing.notice_preferences(self.token), Text("How you are told")),
        )
        typed = typed or {"kind": "email", "target": ""}
        values = {"channels": channels, "preferences": preferences, "typed": typed, "faulty": faulty, "made": made}
        self.show("my_notices.html", problem=problem, saved=saved, **values)
