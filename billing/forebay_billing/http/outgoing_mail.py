"""The endpoint of mails that another of our services writes, such as invitations. They are sent at once, and kept nowhere."""

from __future__ import annotations

import asyncio
import logging
import secrets

from forebay_billing.documents.messages import Message
from forebay_billing.errors import Undeliverable
from forebay_billing.http.alerts import check_address
from forebay_billing.http.bodies import OutgoingMailBody
from forebay_billing.http.handler import BillingHandler
from forebay_billing.http.queries import NoQuery
from forebay_billing.ledger.access import check_may_send_mail
from forebay_billing.tasks.smtp import mailbox_of
from forebay_billing.tasks.webhooks import Undelivered

log = logging.getLogger(__name__)


class OutgoingMailHandler(BillingHandler):
    """``POST api/letters``."""

    endpoint = "letters"

    async def post(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        check_may_send_mail(identity)
        body, settings = self.body(OutgoingMailBody), self.context.settings
        check_address(body.to, settings, "to")
        mailbox = mailbox_of(settings)
        if mailbox is not None:
            message = Message(f"forebay-letter-{secrets.token_hex(8)}", body.subject, body.text)
            try:
                await asyncio.to_thread(mailbox.send, body.to, message, self.context.clock_ns())
            except Undelivered as error:
                log.warning("a letter is not delivered", extra={"action": "letter.undelivered", "who": identity.name, "error": error})
                raise Undeliverable(str(error)) from None
        self.write_json({"to": body.to, "sent": True})
