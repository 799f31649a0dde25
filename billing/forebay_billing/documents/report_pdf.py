"""Reports as PDF, in their reader's language. The same report always makes the same bytes."""

from __future__ import annotations

import io
from calendar import monthrange
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

from forebay_service.languages import Text, as_sent, plural
from reportlab.graphics.charts.barcharts import VerticalBarChart
from reportlab.graphics.shapes import Drawing
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.units import mm
from reportlab.platypus import KeepTogether, LongTable, SimpleDocTemplate, Spacer

from forebay_billing.documents.invoice_pdf import long_table, pdf_text
from forebay_billing.documents.monthly_report import Report
from forebay_billing.documents.usage import MJ_PER_KWH
from forebay_billing.model.money import GRAINS_PER_UNIT, decimal_text, nano_of
from forebay_billing.model.types import PARKED
from forebay_billing.reads.summaries import SummaryRow

BAR = colors.HexColor("#1b6670")
CHART_MM = (170, 55)
WIDTHS_MM = (90, 20, 35, 35)
NANO_DECIMALS = 9
NOTE = Text(
    "Device time and its cost at list prices, days and months in UTC. What is owed, after the plan and credits, is on the invoice."
)
TABLES = (Text("Member"), Text("Flavor"), Text("Notebook or command"))
"""What the first column of each table is called."""
COLUMNS = (Text("Leases"), Text("Device hours"), Text("Cost"))


def pdf(report: Report, language: str) -> bytes:
    """The document, of as many A4 pages as it takes."""
    out = io.BytesIO()
    title = Text("Usage of %(tenant)s in %(month)s", tenant=report.tenant, month=report.month).said(language)
    document = SimpleDocTemplate(
        out, pagesize=A4, leftMargin=15 * mm, rightMargin=15 * mm, topMargin=15 * mm, bottomMargin=15 * mm, title=title, invariant=1
    )
    story: list[Any] = [pdf_text(title, 16), Spacer(0, 3 * mm), pdf_text(NOTE.said(language), 8), Spacer(0, 5 * mm)]
    if not report.totals:
        story.append(pdf_text(Text("Nothing was used in this month.").said(language)))
    for total in report.totals:
        story += _currency(report, total, language)
    document.build(story)
    return out.getvalue()


def _currency(report: Report, total: SummaryRow, language: str) -> Iterable[Any]:
    """All that was billed in one currency."""

    def mine(rows: Sequence[SummaryRow]) -> list[SummaryRow]:
        return [row for row in rows if row.currency == total.currency]

    sums = {"cost": _amount(total), "currency": total.currency, "hours": _hours(total)}
    headline = plural(
        "%(cost)s %(currency)s for %(hours)s device hours in %(count)s lease",
        "%(cost)s %(currency)s for %(hours)s device hours in %(count)s leases",
        total.leases,
        **sums,
    )
    yield pdf_text(headline.said(language), 12)
    if total.energy_mj is not None:
        yield pdf_text(_energy(total).said(language), 9)
    yield Spacer(0, 3 * mm)
    by_day = Text("By day, %(currency)s", currency=total.currency)
    yield KeepTogether([pdf_text(by_day.said(language), 9), _chart(report, mine(report.days))])
    for name, rows in zip(TABLES, (report.users, report.flavors, report.notebooks), strict=True):
        yield Spacer(0, 5 * mm)
        yield _table(name, mine(rows), language)
    yield Spacer(0, 8 * mm)


def _chart(report: Report, days: Sequence[SummaryRow]) -> Drawing:
    """A bar for each day of the month, empty ones too."""
    year, number = report.month
    costs = {row.keys["day"]: row.cost_grains / GRAINS_PER_UNIT for row in days}
    names = [date(year, number, day).isoformat() for day in range(1, monthrange(year, number)[1] + 1)]
    width, height = (side * mm for side in CHART_MM)
    chart = VerticalBarChart()
    chart.x, chart.y, chart.width, chart.height = 18 * mm, 8 * mm, width - 22 * mm, height - 12 * mm
    chart.data = [[costs.get(name, 0.0) for name in names]]
    chart.categoryAxis.categoryNames = [name[-2:] for name in names]
    chart.categoryAxis.labels.fontSize = chart.valueAxis.labels.fontSize = 6
    chart.valueAxis.valueMin = 0
    chart.bars[0].fillColor, chart.bars[0].strokeColor = BAR, None
    drawing = Drawing(width, height)
    drawing.add(chart)
    return drawing


def _table(name: Text, rows: Sequence[SummaryRow], language: str) -> LongTable:
    cells = [(_label(row).said(language), str(row.leases), _hours(row), _amount(row)) for row in rows]
    return long_table([[column.said(language) for column in (name, *COLUMNS)], *cells], WIDTHS_MM)


def _label(row: SummaryRow) -> Text:
    if row.keys.get("flavor") == PARKED:
        return Text("parked memory")
    (name, *_) = [value for key, value in row.keys.items() if key != "kind"]
    if name:
        return as_sent(str(name))
    return Text("a notebook") if row.keys.get("kind") == "cell" else Text("a process")


def _amount(row: SummaryRow) -> str:
    return decimal_text(nano_of(row.cost_grains), NANO_DECIMALS)


def _energy(row: SummaryRow) -> Text:
    """Kilowatt-hours to four decimals, a third of a kilojoule, and of what time."""
    drawn = f"{(row.energy_mj or 0) / MJ_PER_KWH:.4f}"
    if row.energy_duration_ns == row.duration_ns:
        return Text("%(energy)s kWh drawn by devices", energy=drawn)
    told = f"{row.energy_duration_ns / 3.6e12:.4f}"
    return Text("%(energy)s kWh drawn by devices, told by drivers for %(hours)s device hours", energy=drawn, hours=told)


def _hours(row: SummaryRow) -> str:
    """Hours to four decimals, about a third of a second."""
    return f"{row.duration_ns / 3.6e12:.4f}"
