"""Notices of a person's own work, and the channels each person has them sent to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Connection, Row, select

from forebay_billing.errors import UnknownChannel
from forebay_billing.reads.alerts import told_target
from forebay_billing.tables.notices import notice_channels, notice_deliveries

NoticeChannelKind = Literal["email", "webhook", "slack"]
NoticeKind = Literal["ended", "failed", "waits", "budget", "retried"]


@dataclass(frozen=True)
class Person:
    """Whose notices and channels."""

    tenant: str
    user: str


@dataclass(frozen=True)
class NoticeChannel:
    """Where a person's notices go, once it is confirmed."""

    id: int
    person: Person
    kind: NoticeChannelKind
    target: str
    secret: str | None
    """Signs webhooks; ``whsec_`` and base64, as Standard Webhooks writes it."""
    confirmed: bool
    set_at_ns: int
    code: str | None = None
    """That was made to confirm an address; it is mailed there, and only its digest is kept."""

    @property
    def told(self) -> str:
        """See :func:`told_target`."""
        return told_target(self.kind, self.target)


@dataclass(frozen=True)
class Cause:
    """Why something happened to a job, as :func:`forebay_service.causes.job_end` takes it."""

    code: str
    values: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Notice:
    """What happened to a cell, whose notebook's path is ``label``, or to a ``job``, which has one; ``seconds`` went by until then."""

    id: int
    person: Person
    kind: NoticeKind
    label: str
    cell: int | None
    first_line: str | None
    seconds: float
    why: str | None
    at_ns: int
    job: int | None = None
    cause: Cause | None = None


def channels_of(connection: Connection, person: Person) -> list[NoticeChannel]:
    """The person's, the oldest first."""
    return [channel_of(row) for row in connection.execute(own_channels(person).order_by(notice_channels.c.id))]


def all_channels(connection: Connection) -> list[NoticeChannel]:
    """Of everybody."""
    query = select(notice_channels).where(notice_channels.c.removed_at_ns.is_(None)).order_by(notice_channels.c.id)
    return [channel_of(row) for row in connection.execute(query)]


def note_of(connection: Connection, channel: NoticeChannel) -> str | None:
    """What the latest delivery that was not taken said; None where the latest was."""
    of = notice_deliveries.c
    query = select(of.state, of.note).where(of.channel_id == channel.id, of.attempts > 0).order_by(of.notice_id.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None or row.state == "done" else row.note


def own_channels(person: Person) -> Any:
    """The query of a person's channels."""
    of = notice_channels.c
    return select(notice_channels).where(of.tenant == person.tenant, of.user_name == person.user, of.removed_at_ns.is_(None))


def channel_row(connection: Connection, person: Person, id: int) -> Row[Any]:
    """The row of a person's channel. Raises UnknownChannel."""
    row: Row[Any] | None = connection.execute(own_channels(person).where(notice_channels.c.id == id)).one_or_none()
    if row is None:
        raise UnknownChannel(f"You have no channel {id}; list them with GET api/notices/channels.")
    return row


def channel_of(row: Row[Any]) -> NoticeChannel:
    """The channel in a row of ``notice_channels``."""
    person, confirmed = Person(row.tenant, row.user_name), row.confirmed_at_ns is not None
    return NoticeChannel(row.id, person, row.kind, row.target, row.secret, confirmed, row.set_at_ns)


def notice_of(row: Row[Any]) -> Notice:
    """The notice in a row of ``notices``."""
    person = Person(row.tenant, row.user_name)
    cause = None if row.cause is None else Cause(**json.loads(row.cause))
    told = (row.kind, row.label, row.cell, row.first_line, row.seconds, row.why, row.at_ns, row.job, cause)
    return Notice(row.id, person, *told)
