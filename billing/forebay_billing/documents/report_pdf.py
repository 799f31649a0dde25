"""Reports as PDF. The same report always makes the same bytes."""

from __future__ import annotations

import io
from calendar import monthrange
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

from reportlab.graphics.charts.barcharts import VerticalBarChart
from reportlab.graphics.shapes import Drawing
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.units import mm
from reportlab.platypus import KeepTogether, LongTable, SimpleDocTemplate, Spacer, TableStyle

from forebay_billing.documents.invoice_pdf import pdf_text
from forebay_billing.documents.monthly_report import Report
from forebay_billing.documents.usage import MJ_PER_KWH
from forebay_billing.model.money import GRAINS_PER_UNIT, decimal_text, nano_of
from forebay_billing.model.types import PARKED
from forebay_billing.reads.summaries import SummaryRow

BAR = colors.HexColor("#1b6670")
CHART_MM = (170, 55)
WIDTHS_MM = (90, 20, 35, 35)
NANO_DECIMALS = 9


def pdf(report: Report) -> bytes:
    """The document, of as many A4 pages as it takes."""
    out = io.BytesIO()
    title = f"Usage of {report.tenant} in {report.month}"
    document = SimpleDocTemplate(
        out, pagesize=A4, leftMargin=15 * mm, rightMargin=15 * mm, topMargin=15 * mm, bottomMargin=15 * mm, title=title, invariant=1
    )
    note = "Device time and its cost at list prices, days and months in UTC. What is owed, after the plan and credits, is on the invoice."
    story: list[Any] = [pdf_text(title, 16), Spacer(0, 3 * mm), pdf_text(note, 8), Spacer(0, 5 * mm)]
    if not report.totals:
        story.append(pdf_text("Nothing was used in this month."))
    for total in report.totals:
        story += _currency(report, total)
    document.build(story)
    return out.getvalue()


def _currency(report: Report, total: SummaryRow) -> Iterable[Any]:
    """All that was billed in one currency."""

    def mine(rows: Sequence[SummaryRow]) -> list[SummaryRow]:
        return [row for row in rows if row.currency == total.currency]

    headline = f"{_amount(total)} {total.currency} for {_hours(total)} device hours in {total.leases} leases"
    yield pdf_text(headline, 12)
    if total.energy_mj is not None:
        yield pdf_text(_energy(total), 9)
    yield Spacer(0, 3 * mm)
    yield KeepTogether([pdf_text(f"By day, {total.currency}", 9), _chart(report, mine(report.days))])
    for name, rows in (("Member", report.users), ("Flavor", report.flavors), ("Notebook or command", report.notebooks)):
        yield Spacer(0, 5 * mm)
        yield _table(name, mine(rows))
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


def _table(name: str, rows: Sequence[SummaryRow]) -> LongTable:
    cells = [_cells((name, "Leases", "Device hours", "Cost"))]
    cells += [_cells((_label(row), str(row.leases), _hours(row), _amount(row))) for row in rows]
    style = [
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LINEBELOW", (0, 0), (-1, 0), 1, colors.black),
        ("LINEBELOW", (0, 1), (-1, -1), 0.25, colors.grey),
    ]
    return LongTable(cells, colWidths=[width * mm for width in WIDTHS_MM], repeatRows=1, style=TableStyle(style))


def _cells(texts: Sequence[str]) -> list[Any]:
    return [pdf_text(text, 8, right=position > 0) for position, text in enumerate(texts)]


def _label(row: SummaryRow) -> str:
    if row.keys.get("flavor") == PARKED:
        return "parked memory"
    (name, *_) = [value for key, value in row.keys.items() if key != "kind"]
    return str(name) or ("a notebook" if row.keys.get("kind") == "cell" else "a process")


def _amount(row: SummaryRow) -> str:
    return decimal_text(nano_of(row.cost_grains), NANO_DECIMALS)


def _energy(row: SummaryRow) -> str:
    """Kilowatt-hours to four decimals, a third of a kilojoule, and of what time."""
    part = "" if row.energy_duration_ns == row.duration_ns else f", told by drivers for {row.energy_duration_ns / 3.6e12:.4f} device hours"
    return f"{(row.energy_mj or 0) / MJ_PER_KWH:.4f} kWh drawn by devices{part}"


def _hours(row: SummaryRow) -> str:
    """Hours to four decimals, about a third of a second."""
    return f"{row.duration_ns / 3.6e12:.4f}"
