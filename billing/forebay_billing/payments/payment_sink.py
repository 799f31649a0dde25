"""What Stripe collects, in our books: a sink of payments that posts what came in, and makes void what Stripe made void."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sqlalchemy import Connection

from forebay_billing.errors import UnknownInvoice
from forebay_billing.ledger.books import Books
from forebay_billing.payments.objects import Known
from forebay_billing.reads import invoices as invoices_reads
from forebay_billing.writes import invoices

log = logging.getLogger(__name__)

STRIPE = "stripe"


class BookedPayments:
    """A :data:`~.webhook_inbox.PaymentSink`. It compares what Stripe says was paid with what the invoice has of Stripe.

    So it does not matter how often it is told, nor in which order: who pays what a credit note takes back at that moment is owed it, as if
    the note had come after. Money beyond what was ever asked for is left to the operator, and logged.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns

    def __call__(self, connection: Connection, before: Known | None, after: Known) -> None:
        if after.kind != "invoice":
            return
        try:
            about = invoices_reads.invoice(connection, after.subject, after.tenant)
        except UnknownInvoice:
            fields = {"action": "payments.unknown_invoice", "invoice": after.subject, "tenant": after.tenant}
            log.warning("a payment came for an invoice that is not known", extra=fields)
            return
        books, now_ns = Books(connection), self._clock_ns()
        paid = sum(one.amount_minor for one in about.settlements if one.method == STRIPE and one.kind == "payment")
        came = (after.paid_minor or 0) - paid
        if after.status == "void" and about.state == "open":
            invoices.void(books, about.name, f"made void at Stripe: {after.stripe_id}", STRIPE, now_ns)
        elif came > about.open_minor + about.credited_minor:
            sums = {"action": "payments.overpaid", "invoice": about.name, "came": came, "open": about.open_minor}
            log.error("more was paid than was open", extra=sums)
        elif came > 0:
            reference = f"{after.stripe_id} {after.paid_minor}"
            invoices.pay(books, about.name, came, STRIPE, reference, STRIPE, now_ns, noted_since=True)
