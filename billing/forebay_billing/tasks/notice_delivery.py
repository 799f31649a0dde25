"""Brings notices to the channels of their persons: by mail, signed webhook, or as Slack's incoming webhooks take them."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection

from forebay_billing import failpoints
from forebay_billing.ledger.books import Books
from forebay_billing.rules.retries import GIVE_UP_NS, backoff_seconds
from forebay_billing.settings import Settings
from forebay_billing.tasks.alert_delivery import mailbox_of
from forebay_billing.tasks.alert_webhooks import Undelivered, Webhooks
from forebay_billing.tasks.loop import run_until_stopped
from forebay_billing.writes import notices
from forebay_billing.writes.notices import Notice, NoticeDelivery
from forebay_billing.writes.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

STEP_SECONDS = 1.0
_SAYS = {
    "ended": "{label}: cell {cell} has ended after {time}.",
    "failed": "{label}: cell {cell} failed after {time}: {why}",
    "waits": "{label}: cell {cell} waits for a device: {why}",
    "budget": "{label}: cell {cell} is stopped by a budget: {why}",
}


class NoticeCourier:
    """Owns its task, from :meth:`start` on, until :meth:`close`."""

    def __init__(self, store: Store, settings: Settings, clock_ns: Callable[[], int]) -> None:
        self._store = store
        self._clock_ns = clock_ns
        self._webhooks = Webhooks(settings.alert_private_addresses)
        self._mailbox = mailbox_of(settings)
        self._chance = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to deliver."""
        rounds = run_until_stopped(self.step, self._stop, STEP_SECONDS, log, "notices")
        self._task = asyncio.create_task(rounds, name="billing-notices")

    async def close(self) -> None:
        """Lets what is under way come to its end."""
        self._stop.set()
        if self._task is not None:
            await self._task
        self._webhooks.close()

    async def step(self) -> int:
        """Delivers what is due; returns how many deliveries were tried."""
        now_ns = self._clock_ns()
        if not await self._store.read(lambda connection: notices.CLAIMS.is_due(connection, now_ns)):
            return 0
        parcels = await self._write(lambda books: notices.claim(books.connection, now_ns))
        await asyncio.gather(*(self._deliver(parcel) for parcel in parcels))
        return len(parcels)

    async def _deliver(self, parcel: NoticeDelivery) -> None:
        settle: Callable[[Connection], bool]
        fields = {"notice": parcel.notice.id, "channel": parcel.channel.id, "attempt": parcel.attempt}
        try:
            failpoints.reach("notice.before")
            await self._bring(parcel)
            failpoints.reach("notice.after")
        except Undelivered as error:
            now_ns, reason = self._clock_ns(), str(error)
            if now_ns - parcel.created_at_ns >= GIVE_UP_NS:
                settle = partial(notices.CLAIMS.give_up, held=parcel, now_ns=now_ns, reason=reason)
            else:
                at_ns = now_ns + int(backoff_seconds(parcel.attempt, self._chance.random()) * 10**9)
                settle = partial(notices.CLAIMS.later, held=parcel, at_ns=at_ns, reason=reason)
            log.warning("a notice is not delivered", extra={"action": "notice.undelivered", **fields})
        else:
            settle = partial(notices.CLAIMS.done, held=parcel, now_ns=self._clock_ns())
            log.info("a notice is delivered", extra={"action": "notice.delivered", **fields})
        await self._write(lambda books: settle(books.connection))

    async def _bring(self, parcel: NoticeDelivery) -> None:
        notice, channel, now_ns = parcel.notice, parcel.channel, self._clock_ns()
        id = f"forebay-notice-{notice.id}-{channel.id}"
        if channel.kind != "email":
            body = {"text": line(notice)} if channel.kind == "slack" else document(notice)
            await self._webhooks.send(channel.target, channel.secret, id, now_ns // 10**9, json.dumps(body).encode())
            return
        if self._mailbox is None:
            raise Undelivered("No mail server is set (setting smtp_host).")
        text = f"{line(notice)}\n\n{notice.first_line or ''}\n".rstrip() + "\n"
        await asyncio.to_thread(self._mailbox.send, channel.target, line(notice), text, id, now_ns)

    async def _write(self, job: Callable[[Books], T]) -> T:
        return await asyncio.wrap_future(self._store.submit(job))


def line(notice: Notice) -> str:
    """What is said of it, in one line, whatever a notebook is called."""
    minutes, seconds = divmod(round(notice.seconds), 60)
    time = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    cell = "?" if notice.cell is None else str(notice.cell)
    said = _SAYS[notice.kind].format(label=notice.label, cell=cell, time=time, why=notice.why or "no reason was told")
    return " ".join(said.split())[:500]


def document(notice: Notice) -> dict[str, Any]:
    """The body of a signed webhook."""
    return {
        "type": f"notebook.cell_{notice.kind}",
        "timestamp": datetime.fromtimestamp(notice.at_ns // 10**9, UTC).isoformat(),
        "data": {
            "user": notice.person.user, "tenant": notice.person.tenant, "notebook": notice.label, "cell": notice.cell,
            "first_line": notice.first_line, "seconds": notice.seconds, "why": notice.why, "text": line(notice),
        },
    }  # fmt: skip
