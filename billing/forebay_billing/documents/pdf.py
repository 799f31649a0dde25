"""PDF of invoices and reports. ReportLab is loaded when the first is asked for: a service that starts does without.

It is told, before the rest of it is loaded, neither to check each attribute of a drawing nor to write its streams as text: a quarter of a
report's time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay_billing.documents.invoices import Sheet
    from forebay_billing.documents.monthly_report import Report


def pdf_of_sheet(sheet: Sheet) -> bytes:
    """An invoice, a credit note or a draft."""
    _set_up()
    from forebay_billing.documents import invoice_pdf

    return invoice_pdf.pdf(sheet)


def pdf_of_report(report: Report, language: str) -> bytes:
    """A month's report, in its reader's language."""
    _set_up()
    from forebay_billing.documents import report_pdf

    return report_pdf.pdf(report, language)


def _set_up() -> None:
    from reportlab import rl_config

    rl_config.shapeChecking = rl_config.useA85 = 0
