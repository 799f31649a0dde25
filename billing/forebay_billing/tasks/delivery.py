"""Brings alerts, notices and reports to where they go: by mail, signed webhook, or as Slack's incoming webhooks take them.

What is due is claimed, tried outside of any transaction, and settled by whoever holds the claim. What is not taken is tried again, later
and later, and given up after GIVE_UP_NS: each arrives at least once, with one id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from xml.sax.saxutils import escape

from forebay_service.claims import Claims, Held
from sqlalchemy import Connection

from forebay_billing import failpoints
from forebay_billing.documents.messages import Message
from forebay_billing.ledger.books import Books
from forebay_billing.rules.retries import GIVE_UP_NS, backoff_seconds
from forebay_billing.settings import Settings
from forebay_billing.tasks.smtp import mailbox_of
from forebay_billing.tasks.webhooks import Undelivered, Webhooks
from forebay_billing.writes.preferences import language_of
from forebay_billing.writes.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")


class Destination(Protocol):
    """Where something goes: an address, or the URL of a webhook, which is signed where there is a secret, or of a chat."""

    @property
    def kind(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def secret(self) -> str | None: ...


class Parcel(Held, Protocol):
    """Something on its way. ``reader`` is the user in whose language it is."""

    @property
    def destination(self) -> Destination: ...

    @property
    def reader(self) -> str: ...

    @property
    def created_at_ns(self) -> int: ...


P = TypeVar("P", bound=Parcel)


@dataclass(frozen=True)
class Outbox(Generic[P]):
    """A table of deliveries. ``name`` stands in records of the log and names of failpoints; ``claim`` takes what is due."""

    name: str
    claims: Claims
    claim: Callable[[Connection, int], list[P]]
    message: Callable[[Connection, P, str], Message]
    """What is said, in a language."""


class Courier:
    """Sends until :meth:`close`. ``chance`` (uniform in [0, 1)) and ``webhooks`` are given where there is neither chance nor network.

    Raises SettingsError for a mail server whose password cannot be read.
    """

    def __init__(
        self, store: Store, settings: Settings, clock_ns: Callable[[], int], chance: Callable[[], float] = random.random,
        webhooks: Webhooks | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._clock_ns = clock_ns
        self._chance = chance
        self._common_language = settings.language
        self._mailbox = mailbox_of(settings)
        self._webhooks = webhooks or Webhooks(settings.alert_private_addresses, settings.webhook_ports)

    def close(self) -> None:
        """Lets go of the connections."""
        self._webhooks.close()

    async def deliver(self, outbox: Outbox[P]) -> int:
        """Delivers what is due; returns how many deliveries were tried."""
        now_ns = self._clock_ns()
        if not await self._store.read(lambda connection: outbox.claims.is_due(connection, now_ns)):
            return 0
        parcels = await self._write(lambda books: outbox.claim(books.connection, now_ns))
        await asyncio.gather(*(self._deliver(outbox, parcel) for parcel in parcels))
        return len(parcels)

    async def _deliver(self, outbox: Outbox[P], parcel: P) -> None:
        settle: Callable[[Connection], bool]
        fields: dict[str, Any] = {**parcel.row, "attempt": parcel.attempt}
        try:
            failpoints.reach(f"{outbox.name}.before")
            await self.bring(parcel.destination, await self._store.read(lambda connection: self._message(connection, outbox, parcel)))
            failpoints.reach(f"{outbox.name}.after")
        except Undelivered as error:
            now_ns, reason = self._clock_ns(), str(error)
            if now_ns - parcel.created_at_ns >= GIVE_UP_NS:
                settle = partial(outbox.claims.give_up, held=parcel, now_ns=now_ns, reason=reason)
            else:
                at_ns = now_ns + int(backoff_seconds(parcel.attempt, self._chance()) * 10**9)
                settle = partial(outbox.claims.later, held=parcel, at_ns=at_ns, reason=reason)
            log.warning("a message is not delivered", extra={"action": f"{outbox.name}.undelivered", **fields})
        else:
            settle = partial(outbox.claims.done, held=parcel, now_ns=self._clock_ns())
            log.info("a message is delivered", extra={"action": f"{outbox.name}.delivered", **fields})
        await self._write(lambda books: settle(books.connection))

    def _message(self, connection: Connection, outbox: Outbox[P], parcel: P) -> Message:
        return outbox.message(connection, parcel, language_of(connection, parcel.reader, self._common_language))

    async def bring(self, to: Destination, message: Message) -> None:
        """One attempt. Raises Undelivered."""
        now_ns = self._clock_ns()
        if to.kind != "email":
            line = escape(message.chat or message.subject)  # Slack takes what stands in <> for links, and for calls of people
            body = {"text": line} if to.kind == "slack" else message.document
            await self._webhooks.send(to.target, to.secret, message.id, now_ns // 10**9, json.dumps(body).encode())
        elif self._mailbox is None:
            raise Undelivered("No mail server is set (setting smtp_host).")
        else:
            await asyncio.to_thread(self._mailbox.send, to.target, message, now_ns)

    async def _write(self, job: Callable[[Books], T]) -> T:
        return await asyncio.wrap_future(self._store.submit(job))
