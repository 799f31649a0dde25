"""The endpoints of payments. Nothing here knows Stripe's library, which is there only where payments are on."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forebay_service.errors import Fault
from forebay_wire.texts import NAME_CHARS_MAX
from sqlalchemy import Connection

from forebay_billing.errors import InvalidRequest, PaymentsOff, UnknownRecord
from forebay_billing.http.bodies import ContactBody, DeadLetterBody, PortalBody
from forebay_billing.http.handler import Attempt, BillingHandler
from forebay_billing.http.queries import NoQuery, OutboxQuery, PaymentInvoicesQuery, ReconciliationQuery
from forebay_billing.ledger.access import check_may_operate_payments, named_tenant, paying_tenant
from forebay_billing.ledger.books import Books
from forebay_billing.payments import contacts, objects
from forebay_billing.reads.standings import SAY_PROFILE, check_named
from forebay_billing.writes import payment_outbox

if TYPE_CHECKING:
    from forebay_billing.payments.service import Payments

log = logging.getLogger(__name__)

WEBHOOK_BYTES_MAX = 1024 * 1024


def _open(desk: Payments | None) -> Payments:
    """Raises PaymentsOff."""
    if desk is None:
        raise PaymentsOff("Payments are off in this installation (setting stripe_mode).")
    return desk


class ContactHandler(BillingHandler):
    """``GET`` and ``PUT api/payments/contacts/{tenant}``."""

    endpoint = "contact"

    async def get(self, tenant: str) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        tenant = named_tenant(identity, tenant, "contact")
        contact = await self.context.store.read(lambda connection: contacts.find(connection, tenant))
        if contact is None:
            raise UnknownRecord(f"The tenant {tenant} has no contact yet.")
        self.write_json(asdict(contact))

    async def put(self, tenant: str) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        tenant = named_tenant(identity, tenant, "contact")
        body = self.body(ContactBody)
        _open(self.context.desk)
        if not 0 < len(tenant) <= NAME_CHARS_MAX:
            sentence = f"tenant: a name has 1 to {NAME_CHARS_MAX} characters."
            raise InvalidRequest(sentence, Fault("name_length", "tenant", {"most": NAME_CHARS_MAX}))
        now_ns = self.context.clock_ns()

        def work(books: Books) -> contacts.Contact:
            check_named(books.connection, tenant, identity, SAY_PROFILE)
            currency = self.context.currencies(books)(tenant)
            return contacts.change(books, tenant, body.name, body.email, currency, identity.name, now_ns)

        attempt = None if tenant == identity.tenant else Attempt("payments.contact", tenant, body.model_dump())
        contact = await self.change(identity, work, asdict, attempt)
        if contact is not None:
            fields = {"action": "payments.contact", "who": identity.name, "tenant": tenant, "version": contact.version}
            log.info("a payment contact is changed", extra=fields)


class PaymentInvoicesHandler(BillingHandler):
    """``GET api/payments/invoices``."""

    endpoint = "payment_invoices"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(PaymentInvoicesQuery)
        tenant = paying_tenant(identity, query.tenant)
        found = await self.context.store.read(lambda connection: objects.of_kind(connection, "invoice", tenant))
        self.write_json([_invoice_json(known) for known in found])


class PortalHandler(BillingHandler):
    """``POST api/payments/portal``."""

    endpoint = "portal"

    async def post(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        tenant = paying_tenant(identity, self.body(PortalBody).tenant)
        self.write_json({"tenant": tenant, "url": await _open(self.context.desk).portal(tenant)})


class OutboxHandler(BillingHandler):
    """``GET api/payments/outbox``."""

    endpoint = "outbox"

    async def get(self) -> None:
        check_may_operate_payments(await self.bearer())
        query = self.query(OutboxQuery)

        def read(connection: Connection) -> tuple[dict[str, int], list[dict[str, Any]]]:
            return payment_outbox.counts(connection), [_row_json(row) for row in payment_outbox.rows(connection, query.state, query.tenant)]

        counts, rows = await self.context.store.read(read)
        self.write_json({"counts": counts, "rows": rows})


class DeadLetterHandler(BillingHandler):
    """``POST api/payments/outbox/{id}``: a dead letter is sent again, or given up."""

    endpoint = "dead_letter"

    async def post(self, row: str) -> None:
        identity = await self.bearer()
        check_may_operate_payments(identity)
        self.query(NoQuery)
        body = self.body(DeadLetterBody)
        if not (row.isascii() and row.isdigit() and len(row) < 19):
            raise UnknownRecord(f"There is no dead letter {row!r}; list them with api/payments/outbox?state=dead.")
        row_id, now_ns = int(row), self.context.clock_ns()

        def job(books: Books) -> None:
            if body.action == "retry":
                payment_outbox.retry(books.connection, row_id, now_ns)
            else:
                payment_outbox.skip(books.connection, row_id, now_ns, f"{identity.name}: {body.reason}")
            after = {"action": body.action, "reason": body.reason}
            books.append_audit(now_ns, identity.name, "payments.dead_letter", row, {"state": "dead"}, after)

        await self.change(identity, job, lambda _: {"id": row_id, "action": body.action})
        fields = {"action": "payments.dead_letter", "who": identity.name, "row": row_id, "choice": body.action}
        log.info("a dead letter is settled", extra=fields)


class ReconciliationHandler(BillingHandler):
    """``GET api/payments/reconciliation``."""

    endpoint = "reconciliation"

    async def get(self) -> None:
        check_may_operate_payments(await self.bearer())
        query = self.query(ReconciliationQuery)
        report = await _open(self.context.desk).reconcile(query.since_ns, query.until_ns)
        self.write_json(
            {
                "compared": dict(report.compared),
                "totals": {currency: {"ours": ours, "theirs": theirs} for currency, (ours, theirs) in sorted(report.totals.items())},
                "differences": [asdict(difference) for difference in report.differences],
            }
        )


class WebhookHandler(BillingHandler):
    """``POST api/payments/webhook``: Stripe calls it, and proves itself by a signature instead of a token."""

    endpoint = "webhook"

    async def post(self) -> None:
        desk = _open(self.context.desk)
        body, header = self.body_bytes(WEBHOOK_BYTES_MAX), self.request.headers.get("Stripe-Signature")
        new = await desk.hear(body, header, self.request.remote_ip or "unknown")
        self.write_json({"received": True, "new": new})


def _invoice_json(known: objects.Known) -> dict[str, Any]:
    return {
        "number": known.subject,
        "tenant": known.tenant,
        "status": known.status,
        "currency": known.currency,
        "total_minor": known.total_minor,
        "paid_minor": known.paid_minor,
        "url": known.url,
        "stripe_id": known.stripe_id,
        "refreshed_at_ns": known.refreshed_at_ns,
    }


def _row_json(row: Any) -> dict[str, Any]:
    times = ("created_at_ns", "next_at_ns", "first_tried_at_ns", "settled_at_ns")
    return {name: getattr(row, name) for name in ("id", "tenant", "kind", "subject", "state", "attempts", *times, "note")}
