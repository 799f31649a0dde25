"""Invoices and credit notes as PDF. The same one always makes the same bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from xml.sax.saxutils import escape

from reportlab.lib import colors
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfbase.pdfmetrics import registerFont, stringWidth
from reportlab.platypus import LongTable, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from forebay_billing.documents.invoices import Sheet

LATIN, KOREAN, JAPANESE = "Helvetica", "HYGothic-Medium", "HeiseiKakuGo-W5"
"""The last two are in every reader of PDF, and need no font file."""
HEADERS = ("Line", "Rate/h", "Leases", "Seconds", "Before rounding", "Amount")
WIDTHS_MM = (60, 24, 14, 30, 28, 24)
CELL_SIZE, CELL_LEADING, CELL_PADDING = 8, 8 * 1.3, 6
"""Points, of tables with many rows."""
ROWS_STYLE = TableStyle(
    [
        ("FONT", (0, 0), (-1, -1), LATIN, CELL_SIZE, CELL_LEADING),
        ("ALIGN", (1, 0), (-1, -1), "RIGHT"),
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LINEBELOW", (0, 0), (-1, 0), 1, colors.black),
        ("LINEBELOW", (0, 1), (-1, -1), 0.25, colors.grey),
    ]
)

for _font in (KOREAN, JAPANESE):
    registerFont(UnicodeCIDFont(_font))


def pdf(sheet: Sheet) -> bytes:
    """The document, of as many A4 pages as it takes."""
    out = io.BytesIO()
    title = f"{sheet.title} {sheet.number or ''}".strip()
    document = SimpleDocTemplate(
        out, pagesize=A4, leftMargin=15 * mm, rightMargin=15 * mm, topMargin=15 * mm, bottomMargin=15 * mm, title=title,
        author=sheet.seller[0] if sheet.seller else "", invariant=1,
    )  # fmt: skip
    document.build([pdf_text(title, 16), Spacer(0, 6 * mm), _parties(sheet), Spacer(0, 6 * mm), _note(sheet), _lines(sheet), _sums(sheet)])
    return out.getvalue()


def pdf_text(text: str, size: float = 9, right: bool = False) -> Paragraph:
    """A paragraph in a font that has its letters, whatever people call their things."""
    font = _font_of(text)
    style = ParagraphStyle(font, fontName=font, fontSize=size, leading=size * 1.3, wordWrap="CJK" if font != LATIN else None)
    if right:
        style.alignment = TA_RIGHT
    return Paragraph(escape(text), style)


def _font_of(text: str) -> str:
    """The first that has the letters of ``text``."""
    try:
        text.encode("cp1252")
    except UnicodeEncodeError:
        return JAPANESE if any("\u3040" <= letter <= "\u30ff" for letter in text) else KOREAN
    return LATIN


def _parties(sheet: Sheet) -> Table:
    facts = [f"{name}: {value}" for name, value in sheet.facts]
    columns = [[pdf_text(line) for line in lines] for lines in (sheet.seller, sheet.buyer, facts)]
    return Table([columns], colWidths=[60 * mm] * 3, style=TableStyle([("VALIGN", (0, 0), (-1, -1), "TOP")]))


def _note(sheet: Sheet) -> Paragraph:
    return pdf_text(f"Amounts in {sheet.currency}. Each line is rounded once, half to even; what it was before is beside it.", 8)


def _lines(sheet: Sheet) -> LongTable:
    rows = [(row.label, row.rate, row.leases, row.seconds, row.exact, row.amount) for row in sheet.rows]
    return long_table([HEADERS, *rows], WIDTHS_MM)


def long_table(rows: Sequence[Sequence[str]], widths_mm: Sequence[float]) -> LongTable:
    """Rows of texts, of which the first heads each page; all but the first column stand to the right."""
    widths = [width * mm for width in widths_mm]
    cells = [[_cell(text, width, place > 0) for place, (text, width) in enumerate(zip(row, widths, strict=True))] for row in rows]
    return LongTable(cells, colWidths=widths, repeatRows=1, style=ROWS_STYLE)


def _cell(text: str, width: float, right: bool) -> str | Paragraph:
    """What fits in one line is drawn as it is, which looks the same: a paragraph takes many times as long."""
    plain = _font_of(text) == LATIN and text == " ".join(text.split())
    if plain and stringWidth(text, LATIN, CELL_SIZE) <= width - 2 * CELL_PADDING:
        return text
    return pdf_text(text, CELL_SIZE, right)


def _sums(sheet: Sheet) -> Table:
    rows = [[pdf_text(name, 9, right=True), pdf_text(f"{amount} {sheet.currency}", 9, right=True)] for name, amount in sheet.sums]
    return Table(rows, colWidths=[140 * mm, 40 * mm])
