"""The endpoints of notices of one's own work, and of where they go."""

from __future__ import annotations

import asyncio
import logging

from forebay_service.errors import Fault
from sqlalchemy import Connection

from forebay_billing.errors import InvalidRequest, Undeliverable, UnknownChannel
from forebay_billing.http.alerts import check_channel
from forebay_billing.http.bodies import NoQuery, NoticeBody, NoticeChannelBody, NoticeCodeBody
from forebay_billing.http.budgets import number_of
from forebay_billing.http.handler import BillingHandler
from forebay_billing.ledger.access import own_notices
from forebay_billing.ledger.books import Books
from forebay_billing.tasks.alert_delivery import mailbox_of
from forebay_billing.tasks.alert_webhooks import Undelivered
from forebay_billing.writes import notices
from forebay_billing.writes.notices import Notice, NoticeChannel, Person

log = logging.getLogger(__name__)


class NoticesHandler(BillingHandler):
    """``POST api/notices``."""

    endpoint = "notices"

    async def post(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        person, body = Person(*own_notices(identity)), self.body(NoticeBody)
        words = body.model_dump(exclude={"notebook"})
        notice = Notice(0, person, label=body.notebook, at_ns=self.context.clock_ns(), **words)
        await self.change(identity, lambda books: notices.post(books, notice), lambda count: {"channels": count})


class NoticeChannelsHandler(BillingHandler):
    """``GET`` and ``POST api/notices/channels``."""

    endpoint = "notice_channels"

    async def get(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        person = Person(*own_notices(identity))

        def read(connection: Connection) -> list[dict[str, object]]:
            return [{**_row(one), "note": notices.note_of(connection, one)} for one in notices.channels_of(connection, person)]

        self.write_json(await self.context.store.read(read))

    async def post(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        person, body = Person(*own_notices(identity)), self.body(NoticeChannelBody)
        await check_channel(body.kind, body.target, self.context.settings)
        now_ns = self.context.clock_ns()
        job = self.context.store.submit(lambda books: notices.add_channel(books, person, body.kind, body.target, now_ns))
        added = await asyncio.wrap_future(job)
        if added.code is not None:
            await self._mail_code(added, added.code, now_ns)
        self.write_json({**_row(added), "secret": added.secret})

    async def _mail_code(self, channel: NoticeChannel, code: str, now_ns: int) -> None:
        """What is not taken is told, and the channel goes: whoever added it sees the sentence. Raises Undeliverable."""
        mailbox = mailbox_of(self.context.settings)
        text = f"{channel.person.user} wants to be told of notebooks here. If that is you, the code is {code}; else do nothing.\n"
        try:
            if mailbox is not None:
                subject, id = f"Your code for Forebay: {code}", f"forebay-code-{channel.id}"
                await asyncio.to_thread(mailbox.send, channel.target, subject, text, id, now_ns)
        except Undelivered as error:
            gone = self.context.store.submit(lambda books: notices.remove_channel(books, channel.person, channel.id, now_ns))
            await asyncio.wrap_future(gone)
            raise Undeliverable(str(error)) from None


class NoticeChannelHandler(BillingHandler):
    """``POST`` and ``DELETE api/notices/channels/{channel}``."""

    endpoint = "notice_channel"

    async def post(self, id: str) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        person, body, now_ns, number = Person(*own_notices(identity)), self.body(NoticeCodeBody), self.context.clock_ns(), _number(id)
        job = self.context.store.submit(lambda books: notices.confirm_channel(books, person, number, body.code, now_ns))
        confirmed = await asyncio.wrap_future(job)  # a wrong code counts, though it is refused
        if confirmed is None:
            raise InvalidRequest("code: this is not the code that was mailed.", Fault("code_wrong", "code"))
        self.write_json(_row(confirmed))

    async def delete(self, id: str) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        person, now_ns, number = Person(*own_notices(identity)), self.context.clock_ns(), _number(id)

        def work(books: Books) -> NoticeChannel:
            return notices.remove_channel(books, person, number, now_ns)

        await self.change(identity, work, lambda channel: {"id": channel.id, "removed": True})


def _row(channel: NoticeChannel) -> dict[str, object]:
    told = {"id": channel.id, "kind": channel.kind, "target": channel.target}
    return {**told, "confirmed": channel.confirmed, "set_at_ns": channel.set_at_ns}


def _number(id: str) -> int:
    number = number_of(id)
    if number is None:
        raise UnknownChannel(f"You have no channel {id!r}; list them with GET api/notices/channels.")
    return number
