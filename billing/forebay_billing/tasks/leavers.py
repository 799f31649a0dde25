"""Ends what people have sent for a tenant once they left it, or administer it no more; a task of the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from forebay_service.people.memberships import PACE_SECONDS, Memberships, People, PeopleUnknown
from sqlalchemy import Connection

from forebay_billing.ledger.books import Books
from forebay_billing.reads import notices as notices_reads
from forebay_billing.reads.alerts import Channel, all_channels
from forebay_billing.reads.notices import NoticeChannel
from forebay_billing.tasks.election import Leads, always
from forebay_billing.tasks.loop import run_until_stopped
from forebay_billing.writes import alerts, mailings, notices
from forebay_billing.writes.mailings import Recipient
from forebay_billing.writes.store import Store

WHO = "billing"
"""Who removes it, in the audit."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sendings:
    """All that goes somewhere because somebody said so."""

    channels: list[Channel]
    recipients: list[Recipient]
    notice_channels: list[NoticeChannel]

    @classmethod
    def read(cls, connection: Connection) -> Sendings:
        """Those that are there now."""
        return cls(all_channels(connection), mailings.recipients_of(connection, None), notices_reads.all_channels(connection))

    def of_leavers(self, memberships: Memberships) -> Sendings:
        """Those whose person has no right to them any more."""
        return Sendings(
            [one for one in self.channels if not memberships.administers(one.tenant, one.set_by)],
            [one for one in self.recipients if not memberships.administers(one.tenant, one.set_by)],
            [one for one in self.notice_channels if not memberships.belongs(one.person.tenant, one.person.user)],
        )

    def remove(self, books: Books, now_ns: int) -> None:
        """What waits for them is given up."""
        for channel in self.channels:
            alerts.remove_channel(books, channel.id, channel.tenant, WHO, now_ns)
        for recipient in self.recipients:
            mailings.remove_recipient(books, recipient.id, recipient.tenant, WHO, now_ns)
        for own in self.notice_channels:
            notices.remove_channel(books, own.person, own.id, now_ns, WHO)

    @property
    def count(self) -> int:
        return len(self.channels) + len(self.recipients) + len(self.notice_channels)


class Leavers:
    """Owns its task, from :meth:`start` on, until :meth:`close`."""

    def __init__(self, store: Store, people: People, clock_ns: Callable[[], int]) -> None:
        self._store = store
        self._people = people
        self._clock_ns = clock_ns
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, leads: Leads = always) -> None:
        """Begins to look for people who left."""
        rounds = run_until_stopped(self.step, self._stop, PACE_SECONDS, log, "leavers", leads)
        self._task = asyncio.create_task(rounds, name="billing-leavers")

    async def close(self) -> None:
        """Lets the transaction that is under way come to its end."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def step(self) -> int:
        """What there is is read before the hub is asked: who joined since is in its answer. There is never more to do at once."""
        there = await self._store.read(Sendings.read)
        if there.count == 0:
            return 0
        try:
            gone = there.of_leavers(await self._people.everybody())
        except PeopleUnknown as error:
            log.warning("what people left behind is not looked for", extra={"action": "leavers.wait", "error": error})
            return 0
        if gone.count:
            now_ns = self._clock_ns()
            await asyncio.wrap_future(self._store.submit(lambda books: gone.remove(books, now_ns)))
            log.info("what people left behind has ended", extra={"action": "leavers.end", "sendings": gone.count})
        return 0
