"""PDF of invoices and reports. ReportLab is loaded when the first is asked for: a service that starts does without."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay_billing.documents.invoices import Sheet
    from forebay_billing.documents.monthly_report import Report


def pdf_of_sheet(sheet: Sheet) -> bytes:
    """An invoice, a credit note or a draft."""
    from forebay_billing.documents import invoice_pdf

    return invoice_pdf.pdf(sheet)


def pdf_of_report(report: Report, language: str) -> bytes:
    """A month's report, in its reader's language."""
    from forebay_billing.documents import report_pdf

    return report_pdf.pdf(report, language)
