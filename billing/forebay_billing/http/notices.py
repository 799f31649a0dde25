"""The endpoints of notices of one's own work, of where they go, and in which language."""

from __future__ import annotations

import asyncio
import logging

from forebay_service.errors import Fault
from sqlalchemy import Connection

from forebay_billing.documents.messages import of_code
from forebay_billing.errors import InvalidRequest, Undeliverable, UnknownChannel
from forebay_billing.http.alerts import check_channel
from forebay_billing.http.bodies import JobNoticeBody, NoticeBody, NoticeChannelBody, NoticeCodeBody, PreferencesBody
from forebay_billing.http.budgets import number_of
from forebay_billing.http.handler import BillingHandler
from forebay_billing.http.queries import NoQuery
from forebay_billing.ledger.access import check_may_tell_of_jobs, own_notices, own_preferences
from forebay_billing.ledger.books import Books
from forebay_billing.reads.notices import Cause, Notice, NoticeChannel, Person, channels_of, note_of
from forebay_billing.tasks.smtp import mailbox_of
from forebay_billing.tasks.webhooks import Undelivered
from forebay_billing.writes import notices
from forebay_billing.writes.preferences import Preferences, language_of, prefer, preferences_of

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


class JobNoticesHandler(BillingHandler):
    """``POST api/notices/jobs``."""

    endpoint = "job_notices"

    async def post(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        check_may_tell_of_jobs(identity)
        body, now_ns = self.body(JobNoticeBody), self.context.clock_ns()
        cause = None if body.cause is None else Cause(body.cause.code, body.cause.values)
        person, told = Person(body.tenant, body.user), (body.kind, body.label, None, None, body.seconds, body.why)
        notice = Notice(0, person, *told, now_ns, body.job, cause)
        work = self.context.store.submit(lambda books: notices.post_of_job(books, notice, body.key, body.notify))
        self.write_json({"channels": await asyncio.wrap_future(work)})


class PreferencesHandler(BillingHandler):
    """``GET`` and ``PATCH api/notices/preferences``."""

    endpoint = "preferences"

    async def get(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        user = own_preferences(identity)
        self.write_json(self._row(await self.context.store.read(lambda connection: preferences_of(connection, user))))

    async def patch(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        user, body, now_ns = own_preferences(identity), self.body(PreferencesBody), self.context.clock_ns()
        changes = body.model_dump(exclude_unset=True)
        await self.change(identity, lambda books: prefer(books, user, changes, now_ns), self._row)

    def _row(self, chosen: Preferences) -> dict[str, object]:
        return {"language": chosen.language, "jobs": chosen.jobs, "common_language": self.context.settings.language}


class NoticeChannelsHandler(BillingHandler):
    """``GET`` and ``POST api/notices/channels``."""

    endpoint = "notice_channels"

    async def get(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        person = Person(*own_notices(identity))

        def read(connection: Connection) -> list[dict[str, object]]:
            return [{**_row(one), "note": note_of(connection, one)} for one in channels_of(connection, person)]

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
            await self._mail_code(added, now_ns)
        self.write_json({**_row(added), "secret": added.secret})

    async def _mail_code(self, channel: NoticeChannel, now_ns: int) -> None:
        """What is not taken is told, and the channel goes: whoever added it sees the sentence. Raises Undeliverable."""
        settings, user = self.context.settings, channel.person.user
        mailbox = mailbox_of(settings)
        language = await self.context.store.read(lambda connection: language_of(connection, user, settings.language))
        try:
            if mailbox is not None:
                await asyncio.to_thread(mailbox.send, channel.target, of_code(channel, language), now_ns)
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
    told = {"id": channel.id, "kind": channel.kind, "target": channel.told}
    return {**told, "confirmed": channel.confirmed, "set_at_ns": channel.set_at_ns}


def _number(id: str) -> int:
    number = number_of(id)
    if number is None:
        raise UnknownChannel(f"You have no channel {id!r}; list them with GET api/notices/channels.")
    return number
