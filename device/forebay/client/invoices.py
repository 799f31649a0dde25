"""What is asked for, and paid: invoices, credits, the tenant's profile, payments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from forebay.client.calls import Calls, Media, segment
from forebay.client.models.billing import (
    Cell,
    CellsPage,
    ContactRow,
    CreditRow,
    DraftRow,
    InvoiceRow,
    InvoiceSummary,
    NoteRow,
    PaymentInvoiceRow,
    Portal,
    ProfileRow,
    StandingRow,
)

PAGE_CELLS = 1000
"""The most that billing gives at once."""


class InvoiceCalls(Calls):
    """Calls to billing about invoices, for a tenant's owner and who pays for it. ``tenant`` is theirs where it is left out; months are as
    ``2026-11`` (UTC)."""

    def drafts(self, month: str, *, tenant: str | None = None, currency: str | None = None) -> list[DraftRow]:
        """An open month's invoices as they would be now, one for each currency."""
        return self._read(list[DraftRow], self._books, "api/drafts", month=month, tenant=tenant, currency=currency)

    def draft_file(self, month: str, format: Media, *, tenant: str | None = None, currency: str | None = None) -> bytes:
        """The same as a document; of several currencies it needs the one."""
        return self._file(self._books, "api/drafts", month=month, format=format, tenant=tenant, currency=currency)

    def draft_cells(
        self, month: str, key: str, *, tenant: str | None = None, currency: str | None = None, page_cells: int = PAGE_CELLS
    ) -> Iterator[Cell]:
        """What a draft's line was summed up from; ``key`` is the line's."""
        return self._cells(f"api/drafts/lines/{segment(key)}", page_cells, month=month, tenant=tenant, currency=currency)

    def invoices(
        self,
        *,
        tenant: str | None = None,
        month: str | None = None,
        state: Literal["open", "paid", "void"] | None = None,
        limit: int | None = None,
        before: str | None = None,
    ) -> list[InvoiceSummary]:
        """Finalised invoices, the latest first: all, or so many of those before an invoice's number."""
        asked = {"tenant": tenant, "month": month, "state": state, "limit": limit, "before": before}
        return self._read(list[InvoiceSummary], self._books, "api/invoices", **asked)

    def invoice(self, number: str) -> InvoiceRow:
        """One invoice, with its lines and what happened to it since."""
        return self._read(InvoiceRow, self._books, f"api/invoices/{segment(number)}")

    def invoice_file(self, number: str, format: Media) -> bytes:
        """The same as a document."""
        return self._file(self._books, f"api/invoices/{segment(number)}", format=format)

    def invoice_cells(self, number: str, key: str, *, page_cells: int = PAGE_CELLS) -> Iterator[Cell]:
        """What an invoice's line was summed up from; ``key`` is the line's."""
        return self._cells(f"api/invoices/{segment(number)}/lines/{segment(key)}", page_cells)

    def _cells(self, path: str, limit: int, **asked: object) -> Iterator[Cell]:
        after: int | None = None
        while True:
            page = self._read(CellsPage, self._books, path, **asked, limit=limit, after=after)
            yield from page.cells
            after = page.next
            if after is None:
                return

    def credit_note(self, number: str) -> NoteRow:
        """A credit note."""
        return self._read(NoteRow, self._books, f"api/credit-notes/{segment(number)}")

    def credit_note_file(self, number: str, format: Media) -> bytes:
        """The same as a document."""
        return self._file(self._books, f"api/credit-notes/{segment(number)}", format=format)

    def focus_file(self, month: str, *, tenant: str | None = None) -> bytes:
        """A month's invoices, and the credit notes issued in it, as one FOCUS 1.3 table (CSV)."""
        return self._file(self._books, "api/focus", month=month, tenant=tenant)

    def credits(self, *, tenant: str | None = None) -> list[CreditRow]:
        """Credits, and what is left of them."""
        return self._read(list[CreditRow], self._books, "api/credits", tenant=tenant)

    def tenants(self, *, tenant: str | None = None) -> list[StandingRow]:
        """How the tenant stands: this month, what it owes, the currency it is billed in. An operator's token sees all."""
        return self._read(list[StandingRow], self._books, "api/tenants", tenant=tenant)

    def profile(self, tenant: str) -> ProfileRow:
        """Whom the tenant's invoices are made out to."""
        return self._read(ProfileRow, self._books, f"api/profiles/{segment(tenant)}")

    def set_profile(
        self,
        tenant: str,
        *,
        legal_name: str | None = None,
        address: str | None = None,
        tax_id: str | None = None,
        email: str | None = None,
        tax_label: str | None = None,
        tax_bps: int | None = None,
        currency: str | None = None,
        etag: str | None = None,
    ) -> ProfileRow:
        """Changes the profile; what is left out stays. The last three are an operator's to set.

        With an ``etag`` only the profile that has it, else it raises PreconditionFailed.
        """
        body = {
            "legal_name": legal_name,
            "address": address,
            "tax_id": tax_id,
            "email": email,
            "tax_label": tax_label,
            "tax_bps": tax_bps,
            "currency": currency,
        }
        return self._change(ProfileRow, self._books, "PUT", f"api/profiles/{segment(tenant)}", body, etag)

    def payment_contact(self, tenant: str) -> ContactRow:
        """Who is asked to pay."""
        return self._read(ContactRow, self._books, f"api/payments/contacts/{segment(tenant)}")

    def set_payment_contact(self, tenant: str, name: str, *, email: str | None = None) -> ContactRow:
        """Changes who is asked to pay."""
        return self._change(ContactRow, self._books, "PUT", f"api/payments/contacts/{segment(tenant)}", {"name": name, "email": email})

    def payment_invoices(self, *, tenant: str | None = None) -> list[PaymentInvoiceRow]:
        """How invoices stand at Stripe; ``url`` is where one is paid."""
        return self._read(list[PaymentInvoiceRow], self._books, "api/payments/invoices", tenant=tenant)

    def payment_portal(self, *, tenant: str | None = None) -> str:
        """The address of Stripe's customer portal, for payment methods and receipts."""
        return self._change(Portal, self._books, "POST", "api/payments/portal", {"tenant": tenant}).url
