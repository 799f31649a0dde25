"""Notices of a person's own work, a long cell's or a job's: it ended, failed, waits, was stopped by a budget, or is run again; and where
each person has them sent.

A notice is written with a delivery for each confirmed channel of its person, in one transaction, and delivered after, as alerts are.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from hashlib import sha256
from hmac import compare_digest

from forebay_service.claims import Claims
from forebay_service.errors import Fault
from sqlalchemy import Connection, func, insert, select, update

from forebay_billing.errors import InvalidRequest, TooLarge
from forebay_billing.ledger.books import Books
from forebay_billing.reads.notices import (
    Notice,
    NoticeChannel,
    NoticeChannelKind,
    NoticeKind,
    Person,
    channel_of,
    channel_row,
    channels_of,
    notice_of,
)
from forebay_billing.tables.notices import notice_channels, notice_deliveries, notices
from forebay_billing.writes.alerts import new_secret
from forebay_billing.writes.preferences import JobNotices, preferences_of

CLAIMS = Claims(notice_deliveries, claim_seconds=60, note_characters_max=500)
CLAIMED_MAX = 32
CHANNELS_PER_USER_MAX = 10
HOURLY_MAX = 60
"""Notices of a person within an hour: a loop of failing cells floods nobody."""
CHANNEL_DAILY_MAX = 200
"""Notices that go to a channel within a day; what is beyond is not sent there."""
ADDRESSES_DAILY_MAX = 10
"""Codes that are mailed for a person within a day."""
CODE_BYTES = 4
CODE_TRIES_MAX = 5
HOUR_NS = 3600 * 10**9
CODE_NS = 24 * HOUR_NS
"""How long a code holds."""

OF_FAILURES: tuple[NoticeKind, ...] = ("failed", "budget")


@dataclass(frozen=True)
class NoticeDelivery:
    """A notice on its way to a channel. ``attempt`` is the token: whoever claims it again has a higher one."""

    notice: Notice
    channel: NoticeChannel
    attempt: int
    created_at_ns: int

    @property
    def row(self) -> dict[str, object]:
        """The columns of its primary key."""
        return {"notice_id": self.notice.id, "channel_id": self.channel.id}

    @property
    def destination(self) -> NoticeChannel:
        return self.channel

    @property
    def reader(self) -> str:
        return self.channel.person.user


def add_channel(books: Books, person: Person, kind: NoticeChannelKind, target: str, now_ns: int) -> NoticeChannel:
    """A new one, which an address has yet to confirm. Raises TooLarge."""
    connection = books.connection
    if len(channels_of(connection, person)) >= CHANNELS_PER_USER_MAX:
        raise TooLarge(f"You have {CHANNELS_PER_USER_MAX} channels already; remove one first.")
    if kind == "email" and _mailed_lately(connection, person, now_ns) >= ADDRESSES_DAILY_MAX:
        raise TooLarge(f"You gave {ADDRESSES_DAILY_MAX} addresses within a day; go on tomorrow.")
    largest: int | None = connection.execute(select(func.max(notice_channels.c.id))).scalar_one()
    secret = new_secret() if kind == "webhook" else None
    code = secrets.token_hex(CODE_BYTES) if kind == "email" else None
    added = NoticeChannel((largest or 0) + 1, person, kind, target, secret, code is None, now_ns, code)
    values = {"id": added.id, "tenant": person.tenant, "user_name": person.user, "kind": kind, "target": target, "secret": secret}
    values |= {"code_digest": None if code is None else _digest(code), "code_tries": 0, "set_at_ns": now_ns}
    connection.execute(insert(notice_channels).values(**values, confirmed_at_ns=None if code else now_ns))
    books.append_audit(now_ns, person.user, "notices.channel.add", _subject(added), None, {"kind": kind, "target": added.told})
    return added


def confirm_channel(books: Books, person: Person, id: int, code: str, now_ns: int) -> NoticeChannel | None:
    """The address is the person's, who knows the code that went there; None for a wrong code, which counts.

    Raises UnknownChannel, and InvalidRequest once too many were wrong, or a day has passed.
    """
    row = channel_row(books.connection, person, id)
    of = notice_channels
    if row.confirmed_at_ns is not None:
        return channel_of(row)
    if row.code_tries >= CODE_TRIES_MAX or now_ns - row.set_at_ns > CODE_NS:
        raise InvalidRequest("code: it is spent; remove the address, and add it anew.", Fault("code_spent", "code"))
    if not compare_digest(row.code_digest or "", _digest(code.strip().lower())):
        books.connection.execute(update(of).where(of.c.id == id).values(code_tries=row.code_tries + 1))
        return None
    books.connection.execute(update(of).where(of.c.id == id).values(confirmed_at_ns=now_ns, code_digest=None))
    confirmed = channel_of(channel_row(books.connection, person, id))
    books.append_audit(now_ns, person.user, "notices.channel.confirm", _subject(confirmed), None, {"target": confirmed.target})
    return confirmed


def remove_channel(books: Books, person: Person, id: int, now_ns: int, who: str | None = None) -> NoticeChannel:
    """Nothing goes there any more, and what waited is given up; ``who`` removes it, if not the person. Raises UnknownChannel."""
    found = channel_of(channel_row(books.connection, person, id))
    books.connection.execute(update(notice_channels).where(notice_channels.c.id == id).values(removed_at_ns=now_ns))
    CLAIMS.give_up_all(books.connection, notice_deliveries.c.channel_id == id, now_ns, "the channel was removed")
    before = {"kind": found.kind, "target": found.told}
    books.append_audit(now_ns, who or person.user, "notices.channel.remove", _subject(found), before, {"removed": True})
    return found


def post_of_job(books: Books, notice: Notice, key: str, wanted: JobNotices | None) -> int:
    """The same of a job, once for a ``key``, where the job's ``wanted`` notices, else those that its person prefers, have it."""
    wanted = wanted or preferences_of(books.connection, notice.person.user).jobs or "none"
    known = books.connection.execute(select(notices.c.id).where(notices.c.key == key)).first() is not None
    if known or wanted == "none" or (wanted == "failures" and notice.kind not in OF_FAILURES):
        return 0
    return post(books, notice, key)


def post(books: Books, notice: Notice, key: str | None = None) -> int:
    """Writes a notice (its ``id`` is ignored) with its deliveries; returns how many. Without a confirmed channel that had
    fewer than CHANNEL_DAILY_MAX of them today nothing is written.

    Raises TooLarge above HOURLY_MAX.
    """
    connection, person, now_ns = books.connection, notice.person, notice.at_ns
    channels = [one for one in channels_of(connection, person) if one.confirmed and _has_room(connection, one, now_ns)]
    if not channels:
        return 0
    own = (notices.c.tenant == person.tenant, notices.c.user_name == person.user)
    lately = select(func.count()).where(*own, notices.c.at_ns > now_ns - HOUR_NS)
    if connection.execute(lately).scalar_one() >= HOURLY_MAX:
        raise TooLarge(f"{HOURLY_MAX} notices went out for you within an hour; go on later.")
    largest: int | None = connection.execute(select(func.max(notices.c.id))).scalar_one()
    id = (largest or 0) + 1
    told: dict[str, object] = {"kind": notice.kind, "label": notice.label, "cell": notice.cell, "first_line": notice.first_line}
    told |= {"seconds": notice.seconds, "why": notice.why, "at_ns": now_ns, "job": notice.job, "key": key}
    told |= {"cause": None if notice.cause is None else json.dumps(asdict(notice.cause))}
    connection.execute(insert(notices).values(id=id, tenant=person.tenant, user_name=person.user, **told))
    for channel in channels:
        row = {"notice_id": id, "channel_id": channel.id, "state": "waiting", "attempts": 0}
        connection.execute(insert(notice_deliveries).values(**row, created_at_ns=now_ns, next_at_ns=now_ns))
    return len(channels)


def claim(connection: Connection, now_ns: int) -> list[NoticeDelivery]:
    """Deliveries that are due, oldest first; each is the caller's for ``CLAIMS.claim_ns``."""
    of = notice_deliveries.c
    query = select(notice_deliveries).where(CLAIMS.due(now_ns)).order_by(of.next_at_ns, of.notice_id).limit(CLAIMED_MAX)
    claimed = []
    for row in connection.execute(query).all():
        told = connection.execute(select(notices).where(notices.c.id == row.notice_id)).one()
        where = connection.execute(select(notice_channels).where(notice_channels.c.id == row.channel_id)).one()
        held = NoticeDelivery(notice_of(told), channel_of(where), row.attempts + 1, row.created_at_ns)
        if CLAIMS.claim(connection, held, now_ns):
            claimed.append(held)
    return claimed


def _has_room(connection: Connection, channel: NoticeChannel, now_ns: int) -> bool:
    of = notice_deliveries.c
    lately = select(func.count()).where(of.channel_id == channel.id, of.created_at_ns > now_ns - 24 * HOUR_NS)
    return int(connection.execute(lately).scalar_one()) < CHANNEL_DAILY_MAX


def _mailed_lately(connection: Connection, person: Person, now_ns: int) -> int:
    of = notice_channels.c
    own = (of.tenant == person.tenant, of.user_name == person.user, of.kind == "email", of.set_at_ns > now_ns - 24 * HOUR_NS)
    return int(connection.execute(select(func.count()).where(*own)).scalar_one())


def _digest(code: str) -> str:
    return sha256(code.encode()).hexdigest()


def _subject(channel: NoticeChannel) -> str:
    return f"{channel.person.tenant}/{channel.person.user}#{channel.id}"
