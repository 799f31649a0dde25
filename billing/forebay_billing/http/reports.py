"""The endpoints of reports and of whom they are mailed to."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from sqlalchemy import Connection

from forebay_billing.documents.monthly_report import Report, report_of
from forebay_billing.documents.pdf import pdf_of_report
from forebay_billing.errors import InvalidRequest, UnknownRecipient
from forebay_billing.http.alerts import check_address
from forebay_billing.http.bodies import RecipientBody
from forebay_billing.http.budgets import number_of
from forebay_billing.http.handler import Attempt, BillingHandler
from forebay_billing.http.queries import NoQuery, RecipientsQuery, ReportQuery
from forebay_billing.ledger.access import paying_scope, recipient_tenant
from forebay_billing.ledger.books import Books
from forebay_billing.model.months import Month
from forebay_billing.reads.standings import SAY_PROFILE, check_named
from forebay_billing.tasks.monthly_reports import file_name
from forebay_billing.writes import mailings
from forebay_billing.writes.mailings import Latest, Recipient
from forebay_billing.writes.preferences import language_of

log = logging.getLogger(__name__)


class ReportHandler(BillingHandler):
    """``GET api/reports``: a tenant's month as PDF, as the books are now, in the language of who asks."""

    endpoint = "report"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(ReportQuery)
        tenant = paying_scope(identity, query.tenant)
        if tenant is None:
            raise InvalidRequest("tenant: name the tenant whose report you want.")
        month, store = Month.parse(query.month), self.context.store
        if tenant != identity.tenant:
            await store.check_tenant(tenant)
        common = self.context.settings.language

        def read(connection: Connection) -> tuple[Report, str]:
            return report_of(connection, tenant, month), language_of(connection, identity.name, common)

        report, language = await store.read(read)
        body = await asyncio.to_thread(pdf_of_report, report, language)
        self.set_header("Content-Type", "application/pdf")
        self.set_header("Content-Disposition", f'attachment; filename="{file_name(report)}"')
        self.finish(body)


class RecipientsHandler(BillingHandler):
    """``GET`` and ``POST api/reports/recipients``."""

    endpoint = "report_recipients"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(RecipientsQuery)
        tenant = recipient_tenant(identity, query.tenant)

        def read(connection: Connection) -> list[dict[str, Any]]:
            found = mailings.recipients_of(connection, tenant)
            return [_recipient_json(recipient, mailings.latest_of(connection, recipient.id)) for recipient in found]

        self.write_json(await self.context.store.read(read))

    async def post(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        body = self.body(RecipientBody)
        tenant, now_ns = recipient_tenant(identity, body.tenant), self.context.clock_ns()
        if tenant is None:
            raise InvalidRequest("tenant: name the tenant whose report is to be mailed.")
        check_address(body.target, self.context.settings)

        def work(books: Books) -> Recipient:
            check_named(books.connection, tenant, identity, SAY_PROFILE)
            return mailings.add_recipient(books, tenant, body.target, identity.name, now_ns)

        attempt = None if tenant == identity.tenant else Attempt("reports.recipient.add", tenant, body.model_dump())
        added = await self.change(identity, work, _recipient_json, attempt)
        if added is not None:
            fields = {"action": "reports.recipient.add", "who": identity.name, "tenant": tenant, "recipient": added.id}
            log.info("a recipient of reports is added", extra=fields)


class RecipientHandler(BillingHandler):
    """``DELETE api/reports/recipients/{id}``."""

    endpoint = "report_recipient"

    async def delete(self, id: str) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        tenant, now_ns, number = recipient_tenant(identity, None), self.context.clock_ns(), number_of(id)
        if number is None:
            raise UnknownRecipient(f"There is no recipient {id!r}; list them with GET api/reports/recipients.")

        def document(removed: Recipient) -> dict[str, Any]:
            return {"id": removed.id, "removed": True}

        await self.change(identity, lambda books: mailings.remove_recipient(books, number, tenant, identity.name, now_ns), document)


def _recipient_json(recipient: Recipient, latest: Latest | None = None) -> dict[str, Any]:
    row: dict[str, Any] = dict(vars(recipient))
    row["latest"] = None if latest is None else {"month": str(latest.month), "state": latest.state, "note": latest.note}
    return row
