"""The endpoints of invoices: drafts, and finalised ones as JSON, page, PDF, CSV and FOCUS, down to the cells; and what happens to them."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace

from sqlalchemy import Connection

from forebay_billing.documents import focus, invoices
from forebay_billing.documents.invoices import Sheet
from forebay_billing.documents.pdf import pdf_of_sheet
from forebay_billing.errors import NotNow, UnknownRecord
from forebay_billing.http.bodies import CreditNoteBody, FinaliseBody, ProfileBody, SettlementBody, VoidBody
from forebay_billing.http.handler import BillingHandler
from forebay_billing.http.queries import CellsQuery, DraftCellsQuery, DraftQuery, FocusQuery, InvoiceQuery, InvoicesQuery, NoQuery
from forebay_billing.ledger.access import check_may_invoice, named_tenant, paying_scope, paying_tenant
from forebay_billing.ledger.books import Books
from forebay_billing.model.months import Month
from forebay_billing.payments import contacts
from forebay_billing.reads import invoices as invoices_reads
from forebay_billing.reads import profiles
from forebay_billing.reads.invoices import Invoice
from forebay_billing.reads.standings import check_nameable
from forebay_billing.rules.invoices import Draft
from forebay_billing.writes import invoices as invoices_writes

log = logging.getLogger(__name__)

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
PROFILE = "billing profile"


class _InvoiceHandler(BillingHandler):
    """What the handlers of invoices share."""

    def send(self, about: Invoice | Draft, layout: str) -> None:
        """Finishes with the invoice or draft as a page, PDF or table."""
        name = about.name if isinstance(about, Invoice) else f"draft-{about.month}-{about.currency}"
        issuer = self.context.settings.conditions().issuer
        if layout == "focus":
            self._send("text/csv; charset=utf-8", f"{name}-focus.csv", focus.csv_of(focus.rows(about, issuer)))
        elif layout == "csv":
            self._send("text/csv; charset=utf-8", f"{name}.csv", invoices.csv_of(about))
        else:
            self.send_sheet(invoices.sheet_of(about, issuer), name, layout)

    def send_sheet(self, sheet: Sheet, name: str, layout: str) -> None:
        """Finishes with a page or PDF."""
        if layout == "html":
            self.set_header("Content-Security-Policy", PAGE_POLICY)
            self._send("text/html; charset=utf-8", None, invoices.html(sheet))
        else:
            self._send("application/pdf", f"{name}.pdf", pdf_of_sheet(sheet))

    def _send(self, kind: str, file: str | None, body: str | bytes) -> None:
        self.set_header("Content-Type", kind)
        if file is not None:
            self.set_header("Content-Disposition", f'attachment; filename="{file}"')
        self.finish(body)

    async def drafts(self, tenant: str, month: Month) -> list[Draft]:
        """Raises NotNow for a month that is finalised."""

        def read(connection: Connection) -> list[Draft]:
            if invoices_reads.is_finalised(connection, tenant, month):
                raise NotNow(f"{month} of the tenant {tenant} is finalised: list its invoices with api/invoices?month={month}.")
            return invoices_reads.drafts(connection, tenant, month)

        return await self.context.store.read(read)

    async def cells(self, about: Draft, key: str, query: CellsQuery) -> None:
        """Answers with what a line was summed up from."""
        line = invoices_reads.line_of(about, key)
        work = lambda connection: invoices_reads.cells(connection, about, line, query.limit, query.after)  # noqa: E731 - reads better
        found, rest = await self.context.store.read(work)
        self.write_json({"line": invoices.line_json(line, about.currency), "cells": [asdict(cell) for cell in found], "next": rest})


class DraftsHandler(_InvoiceHandler):
    """``GET api/drafts``: a month's invoices as they would be now."""

    endpoint = "drafts"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(DraftQuery)
        found = await self.drafts(paying_tenant(identity, query.tenant), Month.parse(query.month))
        if query.format == "json":
            self.write_json([invoices.draft_json(one) for one in found])
            return
        for one in found:
            if query.currency in (None, one.currency):
                self.send(one, query.format)
                return
        raise UnknownRecord(f"Nothing would be invoiced for {query.month}.")


class DraftCellsHandler(_InvoiceHandler):
    """``GET api/drafts/lines/{key}``."""

    endpoint = "draft_cells"

    async def get(self, key: str) -> None:
        identity = await self.bearer()
        query = self.query(DraftCellsQuery)
        for one in await self.drafts(paying_tenant(identity, query.tenant), Month.parse(query.month)):
            if any(line.key == key for line in one.lines) and query.currency in (None, one.currency):
                await self.cells(one, key, query)
                return
        raise UnknownRecord(f"There is no line {key!r:.80} in a draft of {query.month}.")


class InvoicesHandler(_InvoiceHandler):
    """``GET api/invoices`` lists, ``POST`` finalises a tenant's month."""

    endpoint = "invoices"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(InvoicesQuery)
        tenant = paying_scope(identity, query.tenant)
        month = None if query.month is None else Month.parse(query.month)
        state, before, limit = query.state, query.before, query.limit
        found = await self.context.store.read(
            lambda connection: invoices_reads.listed(connection, tenant, month, state, before=before, limit=limit)
        )
        self.write_json([invoices.summary_json(about) for about in found])

    async def post(self) -> None:
        identity = await self.bearer()
        check_may_invoice(identity)
        self.query(NoQuery)
        body, conditions, now_ns = self.body(FinaliseBody), self.context.settings.conditions(), self.context.clock_ns()
        month = Month.parse(body.month)
        made = await self.change(
            identity,
            lambda books: invoices_writes.finalise(books, body.tenant, month, conditions, identity.name, now_ns),
            lambda found: [invoices.summary_json(about.listed) for about in found],
        )
        if made is not None:
            fields = {"action": "invoice.finalise", "who": identity.name, "tenant": body.tenant, "month": month, "invoices": len(made)}
            log.info("invoices are final", extra=fields)


class InvoiceHandler(_InvoiceHandler):
    """``GET api/invoices/{number}``."""

    endpoint = "invoice"

    async def get(self, name: str) -> None:
        identity = await self.bearer()
        query = self.query(InvoiceQuery)
        tenant = paying_scope(identity, None)
        about = await self.context.store.read(lambda connection: invoices_reads.invoice(connection, name, tenant))
        if query.format == "json":
            self.write_json(invoices.invoice_json(about))
        else:
            self.send(about, query.format)


class InvoiceCellsHandler(_InvoiceHandler):
    """``GET api/invoices/{number}/lines/{key}``."""

    endpoint = "invoice_cells"

    async def get(self, name: str, key: str) -> None:
        identity = await self.bearer()
        query = self.query(CellsQuery)
        tenant = paying_scope(identity, None)
        about = await self.context.store.read(lambda connection: invoices_reads.invoice(connection, name, tenant))
        await self.cells(about.draft, key, query)


class CreditNotesHandler(_InvoiceHandler):
    """``POST api/invoices/{number}/credit-notes``."""

    endpoint = "credit_notes"

    async def post(self, name: str) -> None:
        identity = await self.bearer()
        check_may_invoice(identity)
        self.query(NoQuery)
        body, conditions, now_ns = self.body(CreditNoteBody), self.context.settings.conditions(), self.context.clock_ns()
        note = await self.change(
            identity,
            lambda books: invoices_writes.take_back(books, name, body.amount_minor, body.reason, conditions, identity.name, now_ns),
            lambda note: {"invoice": name} | asdict(note),
        )
        if note is not None:
            fields = {"action": "invoice.credit_note", "who": identity.name, "invoice": name, "note": note.name}
            log.info("a credit note is written", extra=fields)


class CreditNoteHandler(_InvoiceHandler):
    """``GET api/credit-notes/{number}``."""

    endpoint = "credit_note"

    async def get(self, name: str) -> None:
        identity = await self.bearer()
        query = self.query(InvoiceQuery)
        tenant = paying_scope(identity, None)
        about, note = await self.context.store.read(lambda connection: invoices_reads.credit_note(connection, name, tenant))
        if query.format == "json":
            self.write_json(invoices.note_json(about, note))
        elif query.format == "focus":
            self._send("text/csv; charset=utf-8", f"{name}-focus.csv", focus.csv_of(focus.note_rows(about, note)))
        elif query.format == "csv":
            self._send("text/csv; charset=utf-8", f"{name}.csv", invoices.note_csv(about, note))
        else:
            self.send_sheet(invoices.note_sheet(about, note), name, query.format)


class SettlementsHandler(_InvoiceHandler):
    """``POST api/invoices/{number}/payments``: money that came in, or went back."""

    endpoint = "settlements"

    async def post(self, name: str) -> None:
        identity = await self.bearer()
        check_may_invoice(identity)
        self.query(NoQuery)
        body, now_ns = self.body(SettlementBody), self.context.clock_ns()
        act = invoices_writes.pay if body.kind == "payment" else invoices_writes.refund
        done = await self.change(
            identity,
            lambda books: act(books, name, body.amount_minor, body.method, body.reference, identity.name, now_ns),
            lambda about: invoices.summary_json(about.listed),
        )
        if done is not None:
            fields = {"action": f"invoice.{body.kind}", "who": identity.name, "invoice": name, "amount_minor": body.amount_minor}
            log.info("a payment is noted", extra=fields)


class VoidHandler(_InvoiceHandler):
    """``POST api/invoices/{number}/void``."""

    endpoint = "void"

    async def post(self, name: str) -> None:
        identity = await self.bearer()
        check_may_invoice(identity)
        self.query(NoQuery)
        body, now_ns = self.body(VoidBody), self.context.clock_ns()
        work = lambda books: invoices_writes.void(books, name, body.reason, identity.name, now_ns)  # noqa: E731 - reads better
        if await self.change(identity, work, lambda about: invoices.summary_json(about.listed)) is not None:
            log.info("an invoice is void", extra={"action": "invoice.void", "who": identity.name, "invoice": name})


class FocusHandler(_InvoiceHandler):
    """``GET api/focus``: a month's finalised invoices, and the credit notes issued in it, as one FOCUS 1.3 table."""

    endpoint = "focus"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(FocusQuery)
        tenant, month = paying_scope(identity, query.tenant), Month.parse(query.month)
        found, noted = await self.context.store.read(
            lambda connection: (
                invoices_reads.invoices_of(connection, tenant, month), invoices_reads.noted_in(connection, tenant, month),
            )
        )  # fmt: skip
        issuer = self.context.settings.conditions().issuer
        of_invoices = (row for about in found[::-1] for row in focus.rows(about, issuer))
        of_notes = (row for about, note in noted for row in focus.note_rows(about, note))
        self._send("text/csv; charset=utf-8", f"focus-{month}.csv", focus.csv_of([*of_invoices, *of_notes]))


class ProfileHandler(_InvoiceHandler):
    """``GET`` and ``PUT api/profiles/{tenant}``: whom the tenant's invoices are made out to."""

    endpoint = "profile"

    async def get(self, tenant: str) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        tenant = named_tenant(identity, tenant, PROFILE)
        found = await self.context.store.read(lambda connection: profiles.find(connection, tenant))
        if found is None:
            raise UnknownRecord(f"The tenant {tenant} has no {PROFILE} yet.")
        self.write_json(invoices.profile_json(found), found.tag)

    async def put(self, tenant: str) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        tenant = named_tenant(identity, tenant, PROFILE)
        body, expected, now_ns = self.body(ProfileBody), self.expected(), self.context.clock_ns()
        given = body.model_dump(exclude_unset=True)
        taxed = sorted(given.keys() & {"tax_label", "tax_bps", "currency"})
        if taxed:
            check_may_invoice(identity, f"{', '.join(taxed)}: an operator sets this. ")

        def work(books: Books) -> profiles.Version:
            check_nameable(books.connection, tenant)
            before = profiles.profile_of(books.connection, tenant)
            after = replace(before, **given)
            made = profiles.change(books, after, identity.name, now_ns, expected)
            if self.context.desk is not None:
                currency = self.context.currencies(books)(tenant)
                contacts.change(books, tenant, after.legal_name, after.email, currency, identity.name, now_ns)
            return made

        made = await self.change(identity, work, invoices.profile_json)
        if made is not None:
            fields = {"action": "profile.change", "who": identity.name, "tenant": tenant, "version": made.version}
            log.info("a billing profile is changed", extra=fields)
