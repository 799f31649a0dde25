"""The endpoints of credits."""

from __future__ import annotations

import logging

from forebay_billing.documents import invoices
from forebay_billing.errors import InvalidCredit, UnknownInvoice
from forebay_billing.http.bodies import CreditBody, CreditRefundBody
from forebay_billing.http.handler import Attempt, BillingHandler
from forebay_billing.http.queries import CreditsQuery, NoQuery
from forebay_billing.ledger.access import check_may_invoice, paying_scope
from forebay_billing.ledger.books import Books
from forebay_billing.reads import invoices as invoices_reads
from forebay_billing.reads.invoices import Credit
from forebay_billing.reads.standings import SAY_NEW, check_known, check_nameable
from forebay_billing.writes import credits

log = logging.getLogger(__name__)


class CreditsHandler(BillingHandler):
    """``GET api/credits`` lists, ``POST`` grants."""

    endpoint = "credits"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(CreditsQuery)
        tenant = paying_scope(identity, query.tenant)
        found = await self.context.store.read(lambda connection: invoices_reads.credits_of(connection, tenant))
        self.write_json([invoices.credit_json(credit) for credit in found])

    async def post(self) -> None:
        identity = await self.bearer()
        check_may_invoice(identity)
        self.query(NoQuery)
        body, context, now_ns = self.body(CreditBody), self.context, self.context.clock_ns()

        def work(books: Books) -> Credit:
            check_nameable(books.connection, body.tenant)
            if not body.new:
                check_known(books.connection, body.tenant, SAY_NEW)
            billed_in = context.currencies(books)(body.tenant)
            if body.currency not in (None, billed_in):
                raise InvalidCredit(f"currency: the tenant {body.tenant} is billed in {billed_in}, so this credit would never be used.")
            return credits.grant(
                books, body.tenant, body.kind, body.name, billed_in, body.amount_minor, body.priority, body.effective_at_ns,
                body.expires_at_ns, identity.name, now_ns, context.settings.conditions().exported,
            )  # fmt: skip

        attempt = Attempt("credit.grant", body.tenant, body.model_dump())
        made = await self.change(identity, work, invoices.credit_json, attempt)
        if made is not None:
            fields = {"action": "credit.grant", "who": identity.name, "tenant": made.tenant, "credit": made.grant.id}
            log.info("a credit is granted", extra=fields)


class CreditRefundHandler(BillingHandler):
    """``POST api/credits/{id}/refund``."""

    endpoint = "credit_refund"

    async def post(self, id: str) -> None:
        identity = await self.bearer()
        check_may_invoice(identity)
        self.query(NoQuery)
        body, now_ns = self.body(CreditRefundBody), self.context.clock_ns()
        if not (id.isascii() and id.isdigit() and len(id) < 19):
            raise UnknownInvoice(f"There is no credit {id!r:.80}.")
        made = await self.change(
            identity,
            lambda books: credits.refund(books, int(id), body.amount_minor, body.reason, identity.name, now_ns),
            invoices.credit_json,
        )
        if made is not None:
            log.info("a credit is refunded", extra={"action": "credit.refund", "who": identity.name, "tenant": made.tenant, "credit": id})
